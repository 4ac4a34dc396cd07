"""Questions and references for a run, each question once, and the order in which steps use them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from rlep.config.schema import Config
from rlep.core.errors import DataError
from rlep.core.plural import counted
from rlep.core.seeds import generator_for
from rlep.core.types import Int32Array, Int64Array, Message, Prompt, prompt_id_of
from rlep.data.prompt_files import read_rows
from rlep.data.prompt_rows import PLAIN, PromptRow, Wanted

Encode = Callable[[Sequence[Message]], Int32Array]
"""Chat messages to the token ids the model is shown, ``[prompt_length]``."""
Tell = Callable[[Sequence[tuple[str, PromptRow]]], Sequence[str]]
"""Prompt ids and rows to the text with which the environment of each begins; raises ``DataError`` where one does not."""

MAX_QUESTION_CHARACTERS = 1 << 20
"""A longer question counts as too long without being tokenised."""
NAMED_ROWS = 10
"""Bad rows of a file, and conflicts, that are named one by one."""
NAMED_CHARACTERS = 120
"""Of a question that is named."""


@dataclass(frozen=True, slots=True)
class PromptReport:
    """Counts of all rows of a file: ``rows = questions + duplicates + empty + no_reference + too_long``."""

    rows: int
    questions: int
    """Distinct questions kept."""
    duplicates: int
    """Rows that repeat an earlier question and reference."""
    empty: int
    """Rows without a question."""
    no_reference: int
    """Rows without a reference answer."""
    too_long: int
    """Distinct questions over the token limit."""
    conflicts: tuple[str, ...]
    """Questions that occur with two or more references; each pair is kept as a prompt of its own."""
    longest: int
    """Tokens of the longest prompt kept."""
    bad_rows: tuple[str, ...] = ()
    """Rows without a usable question or reference, as lines of text: each file's share, and its first ten rows."""
    sizes: tuple[int, ...] = field(default=(), compare=False)
    """Distinct questions kept of each file, in their order: one that several have is the first one's."""

    def lines(self) -> list[str]:
        """List the rows a user should look at: bad ones, and questions with more than one reference."""
        conflicts = [f"  {question[:NAMED_CHARACTERS]}" for question in self.conflicts[:NAMED_ROWS]]
        if conflicts:
            head = f"{counted(len(self.conflicts), 'question')} with two or more references, each kept as a prompt of its own:"
            more = len(self.conflicts) - NAMED_ROWS
            conflicts = [head, *conflicts, *([f"  and {more:,} more"] if more > 0 else [])]
        return [*self.bad_rows, *conflicts]

    def __str__(self) -> str:
        counts = [
            (self.duplicates, f"{counted(self.duplicates, 'duplicate')} merged"),
            (self.too_long, f"{self.too_long:,} too long"),
            (self.no_reference, f"{self.no_reference:,} without reference"),
            (self.empty, f"{self.empty:,} empty"),
            (len(self.conflicts), f"{counted(len(self.conflicts), 'question')} with conflicting references"),
        ]
        rest = "".join(f", {text}" for count, text in counts if count)
        longest = f" (longest prompt {counted(self.longest, 'token')})" if self.longest else ""
        return f"{counted(self.questions, 'question')} from {counted(self.rows, 'row')}{longest}{rest}"


@dataclass(frozen=True)
class PromptSet:
    """The distinct questions of one or more files, in the order they first occur."""

    prompts: tuple[Prompt, ...]
    report: PromptReport

    @cached_property
    def digest(self) -> str:
        """Hash (32 hex digits) over prompt ids, columns and what is told, in order: a resumed run refuses others by it."""
        digest = hashlib.blake2b(digest_size=16, person=b"rlep.dataset")
        for prompt in self.prompts:
            digest.update(prompt.id.encode() + prompt.columns.encode() + prompt.told.encode())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.prompts)


def load_prompts(
    paths: Sequence[Path],
    *,
    encode: Encode,
    max_tokens: int,
    max_bad_rows: float = 0.05,
    wanted: Wanted = PLAIN,
    tell: Tell | None = None,
) -> PromptSet:
    """The questions of verl-style or plain Parquet and JSONL files, merged by content hash.

    Args:
        paths: the files, read one after the other.
        encode: the chat template and tokenizer; called once per distinct question.
        max_tokens: prompts with more tokens are left out and counted.
        max_bad_rows: share of a file's rows, 0…1, that may be without a usable question or reference.
        wanted: parts of a question's first row beside question and reference, and the names of their columns.
        tell: gives the end of each distinct question; called once per file with such rows.

    Raises:
        DataError: a file or row that cannot be read (see ``read_rows``), a file with a larger share of bad rows
            (the message names the first ten), or no question is left.
    """
    intake, ends = _Intake(encode, max_tokens, tell), [0]
    for path in paths:
        bad = _BadRows(path)
        for row in read_rows(path, wanted):
            bad.see(row)
            intake.add(row)
        bad.check(max_bad_rows)
        intake.tell()
        intake.bad_rows += bad.lines()
        ends.append(len(intake.prompts))
    report = replace(intake.report(), sizes=tuple(end - begin for begin, end in pairwise(ends)))
    if not report.questions:
        raise DataError(f"{', '.join(map(str, paths)) or 'no files'}: no usable question: {_why_none(report, intake)}")
    return PromptSet(tuple(intake.prompts), report)


@dataclass(slots=True)
class _BadRows:
    """The rows of one file that have no usable question or reference."""

    path: Path
    rows: int = 0
    count: int = 0
    first: list[str] = field(default_factory=list)

    def see(self, row: PromptRow) -> None:
        self.rows += 1
        if row.fault:
            self.count += 1
            if self.count <= NAMED_ROWS:
                self.first.append(f"  {row.place}: {row.fault}")

    def lines(self) -> list[str]:
        if not self.count:
            return []
        share = f"{self.count:,} of {counted(self.rows, 'row')} ({100 * self.count / self.rows:.1f} %)"
        more = [f"  and {self.count - NAMED_ROWS:,} more"] if self.count > NAMED_ROWS else []
        return [f"{self.path}: {share} have no usable question or answer, and are left out", *self.first, *more]

    def check(self, most: float) -> None:
        if self.count > most * self.rows:
            limit = f"data.max_bad_rows = {100 * most:g} %: fix the rows, or allow a larger share"
            raise DataError("\n".join([*self.lines(), f"these are more than {limit}"]))


class _Intake:
    """Takes rows one by one; holds only what is kept, however often a row is repeated."""

    def __init__(self, encode: Encode, max_tokens: int, tell: Tell | None) -> None:
        self.prompts: list[Prompt] = []
        self.rows = self.duplicates = self.empty = self.no_reference = self.too_long = 0
        self.shortest_refused = 0
        self.bad_rows: list[str] = []
        self._encode = encode
        self._max_tokens = max_tokens
        self._tell = tell
        self._untold: list[tuple[str, PromptRow]] = []
        self._texts: set[tuple[str, str]] = set()
        self._ids: set[str] = set()
        self._references: dict[str, str] = {}
        self._conflicts: dict[str, str] = {}

    def add(self, row: PromptRow) -> None:
        self.rows += 1
        question = row.question
        if not question.strip():
            self.empty += 1
        elif not row.reference:
            self.no_reference += 1
        elif (question, row.reference) in self._texts:  # spares hashing: DAPO-Math-17k repeats each row 100 times
            self.duplicates += 1
        else:
            self._texts.add((question, row.reference))
            self._add_distinct_text(row, question)

    def _add_distinct_text(self, row: PromptRow, question: str) -> None:
        prompt_id = prompt_id_of(question, row.reference)
        if prompt_id in self._ids:
            self.duplicates += 1
            return
        self._ids.add(prompt_id)
        question_id = prompt_id_of(question, "")
        if self._references.setdefault(question_id, row.reference) != row.reference:
            self._conflicts.setdefault(question_id, question)
        if len(question) > MAX_QUESTION_CHARACTERS:
            self.too_long += 1
            return
        if self._tell is None:
            self._keep(prompt_id, row, "")
        else:
            self._untold.append((prompt_id, row))

    def tell(self) -> None:
        """Keep the rows so far, with the texts that their environments begin with."""
        rows, self._untold = self._untold, []
        told = self._tell(rows) if self._tell is not None and rows else ()
        for (prompt_id, row), text in zip(rows, told, strict=True):
            self._keep(prompt_id, row, text)

    def _keep(self, prompt_id: str, row: PromptRow, told: str) -> None:
        *before, last = row.messages
        tokens = self._encode((*before, replace(last, content=last.content + told)) if told else row.messages)
        if len(tokens) > self._max_tokens:
            self.too_long += 1
            self.shortest_refused = min(self.shortest_refused or len(tokens), len(tokens))
            return
        question = row.question + told
        self.prompts.append(
            Prompt(prompt_id, question, row.reference, tokens, row.data_source, columns=row.columns, told=told)
        )

    def report(self) -> PromptReport:
        return PromptReport(
            rows=self.rows,
            questions=len(self.prompts),
            duplicates=self.duplicates,
            empty=self.empty,
            no_reference=self.no_reference,
            too_long=self.too_long,
            conflicts=tuple(self._conflicts.values()),
            longest=max((len(prompt.tokens) for prompt in self.prompts), default=0),
            bad_rows=tuple(self.bad_rows),
        )


def _why_none(report: PromptReport, intake: _Intake) -> str:
    if not report.rows:
        return "there are no rows"
    why = f"{counted(report.rows, 'row')}, {report.empty:,} without question, {report.no_reference:,} without reference"
    if report.too_long:
        limit = f"the limit of {intake._max_tokens} prompt tokens"
        why += f", {report.too_long:,} over {limit} (the shortest has {intake.shortest_refused})"
    return why


@dataclass(frozen=True, slots=True)
class SetShare:
    """A training set's part of every step: of P prompts, those from ``low`` to ``high``."""

    name: str
    first: int
    """Index of its first prompt among all."""
    count: int
    """Its prompts."""
    low: Fraction
    high: Fraction

    def taken(self, step: int) -> int:
        """Its prompts in all steps before ``step``: a rounded product, so that no step depends on those before it."""
        return math.floor(step * self.high) - math.floor(step * self.low)

    @property
    def epoch(self) -> int:
        """The largest number of steps in a row, beginning anywhere, that it has distinct prompts for."""
        both_round = self.low.denominator > 1 and self.high.denominator > 1
        return math.floor((self.count - both_round) / (self.high - self.low))


@dataclass(frozen=True, slots=True)
class PromptOrder:
    """Order in which steps use the prompts: epochs of fresh permutations, a last incomplete step of an epoch dropped.

    Worked example: 10 prompts, 4 per step: steps 0 and 1 take 8 of the first permutation, steps 2 and 3 take 8 of the
    second. Every method is a pure function of (seed, step), so a resumed run needs nothing but its step number.

    Several sets have epochs of their own. Sets of weight 3 and 1 with 6 prompts a step: 4 and 2, 5 and 1, 4 and 2, …, which is
    exact over any even number of steps.
    """

    count: int
    """Prompts in the dataset."""
    per_step: int
    """P: prompts a step uses."""
    seed: int
    """The run's seed."""
    sets: tuple[SetShare, ...] = ()
    """Parts of several training sets; none where there is one."""

    def __post_init__(self) -> None:
        if not 1 <= self.per_step <= self.count:
            raise DataError(
                f"a step uses {self.per_step} prompts, the dataset has {self.count}: each step needs distinct prompts, "
                "at least one"
            )
        for part in self.sets:
            share = part.high - part.low
            if share < 1:
                raise DataError(
                    f"data.train: the weight of {part.name} gives {float(share):g} of {counted(self.per_step, 'prompt')} a step, "
                    "at least 1 is needed: raise it, or rollout.prompts"
                )
            if not part.epoch:
                raise DataError(
                    f"data.train: the weight of {part.name} asks for {float(share):g} prompts a step, and it has "
                    f"{counted(part.count, 'question')} of its own: lower it, or rollout.prompts"
                )

    @property
    def parts(self) -> tuple[SetShare, ...]:
        """Training sets with their parts of a step."""
        return self.sets or (SetShare("", 0, self.count, Fraction(0), Fraction(self.per_step)),)

    @property
    def steps_per_epoch(self) -> int:
        """Steps until every prompt was offered once, but for those that are dropped: ``count % per_step`` of a single set."""
        return max(part.epoch for part in self.parts)

    def step(self, step: int) -> Int64Array:
        """Indices of the prompts of step ``step`` (counted from 0), all distinct, ``[P]``."""
        chosen = []
        for number, part in enumerate(self.parts):
            epoch = step // part.epoch
            address = ("prompts", epoch, number) if number else ("prompts", epoch)
            order = generator_for(self.seed, *address).permutation(part.count)
            before = part.taken(epoch * part.epoch)
            chosen.append(part.first + order[part.taken(step) - before : part.taken(step + 1) - before])
        if len(chosen) == 1:
            return chosen[0]
        mixed = np.concatenate(chosen)
        return mixed[generator_for(self.seed, "prompts", "mixed", step).permutation(len(mixed))]

    def refill(self, step: int, round_number: int, count: int, exclude: Collection[int]) -> Int64Array:
        """Up to ``count`` further prompts for a step whose groups were filtered out by dynamic sampling, shared as a step is.

        None of ``exclude`` (the indices the step has already used) is among them. Fewer come back, in the end none,
        when the dataset is exhausted; where one set is, the others fill its part.
        """
        order = generator_for(self.seed, "prompts", "refill", step, round_number).permutation(self.count)
        used = np.fromiter(exclude, dtype=np.int64, count=len(exclude))
        left = order[~np.isin(order, used)]
        shares = []
        for part in self.parts:
            own = left[(left >= part.first) & (left < part.first + part.count)]
            scale = Fraction(count, self.per_step)
            shares.append(own[: math.floor(scale * part.high) - math.floor(scale * part.low)])
        first = np.isin(left, np.concatenate(shares))
        return np.concatenate([left[first], left[~first]])[:count]


def order_of(config: Config, report: PromptReport) -> PromptOrder:
    """Return the order in which a run's steps use its questions, by the weights of ``data.train``.

    Raises ``DataError`` where there are fewer than a step uses, in all or of one set.
    """
    sets, per_step, seed = config.data.train, config.rollout.prompts, config.run.seed
    if len(sets) == 1:
        return PromptOrder(report.questions, per_step, seed)
    weights = [Fraction(str(one.weight)) for one in sets]
    ends = [per_step * sum(weights[:end], Fraction(0)) / sum(weights) for end in range(len(sets) + 1)]
    parts = [
        SetShare(str(one.path), sum(report.sizes[:number]), report.sizes[number], ends[number], ends[number + 1])
        for number, one in enumerate(sets)
    ]
    return PromptOrder(report.questions, per_step, seed, tuple(parts))
