"""A model directory that is small, untrained, and built like Qwen3's: made on the spot.

The template has the switch ``enable_thinking``, forgets the thinking of earlier turns, and writes no BOS. The think marks are
tokens of the vocabulary, special ones only where asked for. ``<|im_end|>`` ends a turn; ``generation_config.json`` names
``<|endoftext|>`` too.
"""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from tests.engines.test_thinking_tokens import write

TEMPLATE = """\
{%- for message in messages %}
{%- set text = message.content %}
{%- if message.role == 'assistant' and '</think>' in text %}{% set text = text.split('</think>')[-1].lstrip() %}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # not hidden / heads, as in Qwen3-0.6B; the smallest that vLLM computes on CPUs
    "max_position_embeddings": 256,
}


def write_tokenizer(directory: Path, *, special: bool = False) -> list[int]:
    """Write the tokenizer; the ids of its two EOS, that of a turn first. ``special``: the think marks are special tokens."""
    write(directory, TEMPLATE, special=special, turns=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(directory))
    return [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]


def write_qwen3(directory: Path, *, special: bool = False) -> Path:
    """Write the whole model; the directory. ``special``: as in ``write_tokenizer``."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    ends = write_tokenizer(directory, special=special)
    rows = len(PreTrainedTokenizerFast.from_pretrained(str(directory)))
    torch.manual_seed(0)
    spread = {"initializer_range": 0.15}  # at 0.02 the tied head repeats the last token, whatever was asked
    config = Qwen3Config(
        **SHAPE, **spread, vocab_size=rows, tie_word_embeddings=True, bos_token_id=None, eos_token_id=ends[0]
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "pad_token_id": ends[1]}))
    return directory
