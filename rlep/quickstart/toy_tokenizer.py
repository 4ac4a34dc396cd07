"""The quickstart's own tokenizer: 42 tokens, longest match, text → ids → text exact."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlep.quickstart.problems import NAMES, NOUNS

SPECIAL = ("<pad>", "<eos>", "<sep>", "<unk>")
SYMBOLS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "+", "-", "*", "=", ".", "}", "\\boxed{", " ")
PHRASES = (" has ", " bags of ", ". Buys ", " more", ". Gives ", " away", ". How many?", "So ")
PAD, EOS, SEP, UNK = range(len(SPECIAL))
VOCABULARY = (*SPECIAL, *SYMBOLS, *NAMES, *(f" {noun}" for noun in NOUNS), *PHRASES)
"""Token texts; a token's id is its place here. Digits are single tokens, so that a number is written digit by digit."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}<sep>{% endif %}"
)
"""The question, then ``<sep>``: after it comes the answer. Text encoded without the template gets the same ``<sep>``."""


def build_tokenizer(context_length: int, vocabulary: Sequence[str] = VOCABULARY) -> Any:
    """A ``PreTrainedTokenizerFast`` over ``vocabulary``, which begins with ``SPECIAL``; text outside it becomes ``<unk>``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    longest_first = sorted(vocabulary[len(SPECIAL) :], key=len, reverse=True)
    pattern = Regex("|".join(re.escape(token) for token in longest_first))
    places = {token: index for index, token in enumerate(vocabulary)}
    backend = Tokenizer(models.WordLevel(places, SPECIAL[-1]))
    backend.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
    backend.post_processor = processors.TemplateProcessing(single="$A <sep>", special_tokens=[("<sep>", SEP)])
    backend.decoder = decoders.Fuse()
    special = {f"{token.strip('<>')}_token": token for token in SPECIAL}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=context_length,
        **special,
    )
