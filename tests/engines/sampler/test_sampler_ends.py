"""Ends of a response on a real vLLM with a tokenizer of bytes: stop texts, several EOS, greedy sampling as in transformers.

The cases are those that broke other engines: a stop within a token, over several, at the first, at the limit; characters of
several bytes; stops that overlap, that are special tokens, that the prompt ends with (vllm-project/vllm#3672, #47616, #17448).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from rlep.core.types import Completion, Int32Array, Request, Sampling
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from tests.engines.sampler.sampler_cases import (
    BLOCK,
    CONTEXT,
    EOS,
    SMALL_BLOCKS,
    VOCABULARY,
    build_model,
    config_of,
    worst_difference,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

SPECIAL = ("<pad>", "<eos>", "<|im_end|>", "<think>")
OTHER_EOS = 2
PIECES = (
    "a",
    "b",
    "ab",
    "x",
    "xx",
    "</",
    "ans",
    "wer>",
    "</answer>",
    " the",
    "\n",
    "\n\n",
    "é",
    "日",
    "日本",
    "本",
    ".",
    " ",
)
PARTS = (b"\xc3", b"\xa9", b"\xe6", b"\x97\xa5", b"\xe6\x97", b"\xa5", b"a\xc3", b"\xa9b")
"""Parts of characters: é is C3 A9, 日 is E6 97 A5."""
CONFIG = config_of(max_sequences=64, max_batched_tokens=CONTEXT, engine=SMALL_BLOCKS)
FULL = Sampling(max_tokens=40)


def save_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Four tokens fewer than the model has rows, as in many models."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    symbol = dict(zip(range(256), _symbols(), strict=True))
    written = ["".join(symbol[byte] for byte in part) for part in (*(piece.encode() for piece in PIECES), *PARTS)]
    written += [symbol[byte] for byte in range(256) if symbol[byte] not in written][: VOCABULARY - 4 - 4 - len(written)]
    vocabulary = {text: number for number, text in enumerate((*SPECIAL, *written))}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    backend.pre_tokenizer, backend.decoder = level, decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")
    tokenizer.save_pretrained(directory)
    assert tokenizer.decode([4 + PIECES.index(piece) for piece in PIECES]) == "".join(PIECES)
    return tokenizer


def _symbols() -> list[str]:
    """The character that stands for each byte in a vocabulary of bytes: itself where it can be seen, else one from U+0100 on."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


@dataclass
class Rig:
    """A started sampler, its model and tokenizer, and what it samples without stops."""

    sampler: Sampler
    model: Qwen2ForCausalLM
    tokenizer: PreTrainedTokenizerFast
    wanted: list[Request]
    plain: dict[str, Completion]

    def text(self, tokens: Int32Array) -> str:
        """All of it, special tokens too."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def end(self, request_id: str, stops: tuple[str, ...]) -> int | None:
        """Tokens of the plain response to the first by which its text has one of ``stops``; None where it has none.

        A token that ends within a character has no text yet.
        """
        tokens = self.plain[request_id].tokens
        texts = [self.text(tokens[:count]) for count in range(1, len(tokens) + 1)]
        whole = [
            not text.endswith("\N{REPLACEMENT CHARACTER}") and any(stop in text for stop in stops) for text in texts
        ]
        return whole.index(True) + 1 if any(whole) else None


async def collect(sampler: Sampler, wanted: list[Request], sampling: Sampling) -> dict[str, Completion]:
    return {c.request_id: c async for batch in sampler.generate(wanted, sampling) for c in batch}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(environment: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    directory = tmp_path_factory.mktemp("bytes")
    model = build_model(directory, tied=True)
    tokenizer = save_tokenizer(directory)
    defaults = {"temperature": 0.01, "top_k": 1, "repetition_penalty": 2.0, "max_new_tokens": 3}
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [OTHER_EOS, EOS], **defaults}))
    prepare_environment(CONFIG)
    sampler = Sampler(directory, CONFIG)
    await sampler.start(deadline_s=500)
    sampler.serve_base()
    texts = [("ab", "</answer>"), ("日本", " the"), ("a", "\n\n"), ("é", ".")]
    prompts = [np.array([4 + PIECES.index(piece) for piece in text] * 4, dtype=np.int32) for text in texts]
    wanted = [Request(f"r{i}", f"p{i % 4}", prompts[i % 4], i // 4, 100 + i) for i in range(240)]
    yield Rig(sampler, model, tokenizer, wanted, await collect(sampler, wanted, FULL))
    await sampler.close()


async def test_every_eos_of_the_model_ends_a_response_and_its_own_sampling_is_not_used(rig: Rig) -> None:
    for completion in rig.plain.values():
        ends = np.flatnonzero(np.isin(completion.tokens, [EOS, OTHER_EOS]))
        assert completion.finish_reason == ("stop" if len(ends) else "length")
        assert len(completion.tokens) == (ends[0] + 1 if len(ends) else FULL.max_tokens)  # not 3
        assert "<|im_end|>" not in completion.text
    last = [int(completion.tokens[-1]) for completion in rig.plain.values()]
    assert min(last.count(EOS), last.count(OTHER_EOS)) >= 10
    assert worst_difference(rig.model, rig.wanted, rig.plain) <= 1e-4
    first = {int(completion.tokens[0]) for completion in rig.plain.values()}
    assert len(first) > 4  # top_k = 1 would give one a prompt


@pytest.mark.parametrize(
    ("stops", "least"),
    [
        (("</answer>",), 40),  # a token, and three
        (("b", "ab"), 40),  # the shorter ends first, the longer in one token
        (("xx", "x"), 40),
        (("a",), 40),  # within ab, and in a token with the first byte of a character
        (("bx",), 1),  # the end of a token and the beginning of the next
        (("é",), 40),
        (("日",), 40),  # a token, two or three, and the beginning of one
        (("日本", "本"), 40),
        (("\n",), 40),
        ((" ",), 40),  # within " the"
        (("<think>",), 20),  # special: decoded text leaves it out
        (("<|im_end|>",), 0),  # an EOS ends a response itself
        (("never in the vocabulary",), 0),
    ],
)
async def test_a_response_is_the_one_without_stops_to_the_token_that_completes_one(
    rig: Rig, stops: tuple[str, ...], least: int
) -> None:
    found = await collect(rig.sampler, rig.wanted, replace(FULL, stop=stops))
    ended = 0
    for request in rig.wanted:
        completion, plain, count = found[request.id], rig.plain[request.id], rig.end(request.id, stops)
        ended += count is not None
        assert completion.tokens.tolist() == plain.tokens[:count].tolist()
        assert completion.finish_reason == ("stop" if count is not None else plain.finish_reason)
        np.testing.assert_allclose(completion.logprobs, plain.logprobs[:count], atol=1e-4)
    assert ended >= least


async def test_a_stop_that_the_prompt_ends_with_ends_nothing_and_one_at_the_first_token_or_at_the_limit_does(
    rig: Rig,
) -> None:
    stop, checked = "</answer>", {"first": 0, "limit": 0}
    assert rig.text(rig.wanted[0].tokens).endswith(stop)
    for request in rig.wanted:
        if (count := rig.end(request.id, (stop,))) is None:
            continue
        for limit in (count, count - 1):
            if limit:
                found = (await collect(rig.sampler, [request], Sampling(max_tokens=limit, stop=(stop,))))[request.id]
                assert found.tokens.tolist() == rig.plain[request.id].tokens[:limit].tolist()
                assert found.finish_reason == ("stop" if limit == count else "length")
        checked["first" if count == 1 else "limit"] += 1
    assert min(checked.values()) >= 2
    assert max(rig.end(request.id, (stop,)) or 0 for request in rig.wanted if request.prompt_id == "p0") > 1


@pytest.mark.parametrize("penalty", [1.0, 1.3])
async def test_greedy_is_what_transformers_generates_with_and_without_a_shared_prefix(rig: Rig, penalty: float) -> None:
    """With a penalty too, which counts the tokens of a prompt whose blocks are in the cache already."""
    wanted = [replace(request, tokens=np.tile(request.tokens, 5)[: BLOCK + 4]) for request in rig.wanted[:4]]
    for _ in range(2):
        found = await collect(rig.sampler, wanted, Sampling(temperature=0.0, max_tokens=40, repetition_penalty=penalty))
        for request in wanted:
            given = torch.from_numpy(request.tokens.astype(np.int64))[None]
            made = rig.model.generate(
                given, do_sample=False, max_new_tokens=40, repetition_penalty=penalty, eos_token_id=[EOS, OTHER_EOS]
            )
            assert found[request.id].tokens.tolist() == made[0, len(request.tokens) :].tolist()
        assert worst_difference(rig.model, wanted, found) <= 1e-4
