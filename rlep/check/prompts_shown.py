"""The questions as the model is shown them, and what a user should know of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlep.check.environment_starts import told_texts, tool_names
from rlep.config.schema import Config
from rlep.core.plural import counted, named
from rlep.core.progress import StartPhase
from rlep.data.prompt_rows import Wanted
from rlep.data.prompts import NAMED_CHARACTERS, PromptSet, load_prompts
from rlep.driver.crashes import is_function
from rlep.engines.tokenizer import Tokenizer


def wanted_of(config: Config, *, training: bool = False, candidates: bool = False, columns: bool = False) -> Wanted:
    """Return what is read of a row, by the names of ``[data]``, which a training set must have."""
    return Wanted(candidates, columns, question=config.data.question, answer=config.data.answer, strict=training)


def read_prompts(
    config: Config, paths: Sequence[Path], tokenizer: Tokenizer, *, training: bool, phase: StartPhase | None = None
) -> PromptSet:
    """The questions of ``paths`` as the model is shown them, and what each opens; with what their environments tell of them.

    ``phase`` shows how many environments have begun. Raises ``DataError``.
    """
    environment = config.environment
    asks = bool(environment.factory) or is_function(config.verifier.profile)
    found = load_prompts(
        paths,
        encode=tokenizer.encode_prompt,
        max_tokens=config.data.max_prompt_tokens,
        max_bad_rows=config.data.max_bad_rows,
        wanted=wanted_of(config, training=training, columns=asks),
        tell=(lambda rows: told_texts(environment, rows, phase)) if environment.factory else None,
    )
    opening = [tokenizer.opening(prompt.tokens, prompt.question) for prompt in found.prompts]
    prompts = tuple(replace(one, opening=mark) for one, mark in zip(found.prompts, opening, strict=True))
    return replace(found, prompts=prompts)


def unknown_text(found: PromptSet, tokenizer: Tokenizer) -> list[str]:
    """The number of questions that hold text that the tokenizer has no tokens for, and the first; no line where there is none."""
    unknown = tokenizer.unknown_id
    questions = [prompt.question for prompt in found.prompts if unknown is not None and unknown in prompt.tokens]
    if not questions:
        return []
    share = f"{len(questions):,} of {counted(len(found), 'question')} {'holds' if len(questions) == 1 else 'hold'}"
    return [f"{share} text that the tokenizer does not know, e.g. {questions[0][:NAMED_CHARACTERS]}"]


def prompt_notes(tokenizer: Tokenizer, found: Sequence[PromptSet | None], answer_after: str | None) -> list[str]:
    """Notes on the prompts: who opens or closes the thinking, which marks are special, a date in them, an EOS taken away.

    ``answer_after``: ``verifier.answer_after``.
    """
    lines = []
    if marks := tokenizer.thinking:
        lines.append(f"special tokens of the tokenizer: {', '.join(marks)}; verifier and reward function see them")
    prompts = [prompt for prompts in found if prompts is not None for prompt in prompts.prompts]
    openings = Counter(prompt.opening for prompt in prompts if prompt.opening)
    lines += [
        f"{count:,} of {counted(len(prompts), 'prompt')} end in {mark}: graded text begins with it, so that a response which "
        "does not close it has no answer"
        for mark, count in openings.items()
    ]
    if answer_after and prompts and tokenizer.decode(prompts[0].tokens).rstrip().endswith(answer_after):
        lines.append(
            f"prompts end in {answer_after}, and verifier.answer_after asks it of each response: one that does not write it "
            "again has no answer; leave verifier.answer_after out"
        )
    if tokenizer.tools and not (tokenizer.templated and re.search(r"\btools\b", tokenizer.chat_template)):
        lines.append(
            "the model is told of no tools: its chat template does not write them, so that the questions have to name "
            f"{named(tool_names(tokenizer.tools))}"
        )
    if tokenizer.appends_eos:
        lines.append("the tokenizer ends texts in its EOS: prompts are given without it")
    if tokenizer.dated:
        lines.append(
            "the chat template writes today's date into prompts: a run continued on another day has other prompts"
        )
    return lines
