"""A tokenizer that anybody can follow: each letter is its code, and 0 ends a response."""

from __future__ import annotations

import numpy as np

from rlep.core.types import Int32Array, content_id_of


class Letters:
    """What ``Texts`` asks of a tokenizer."""

    digest = "letters"
    unknown_id = ord("?")

    def encode_response(self, text: str) -> Int32Array:
        return np.array([*map(ord, text), 0], np.int32)

    def decode(self, tokens: Int32Array) -> str:
        return "".join(chr(token) for token in tokens.tolist() if token)

    def content_id(self, prompt_id: str, text: str) -> str:
        """Of the response with this text."""
        return content_id_of(prompt_id, self.encode_response(text))
