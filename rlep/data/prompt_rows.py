"""One row of question and reference, out of the raw columns of a file."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from rlep.core.errors import DataError
from rlep.core.types import Asked, Message, question_text

QUESTION_COLUMNS = ("problem", "question", "prompt")
"""Names of a plain question column, tried in this order, in any capitalisation."""
REFERENCE_COLUMNS = ("answer", "reference", "ground_truth", "expected_answer", "final_answer")
"""Names of a plain reference column, tried in this order, in any capitalisation."""

_FINAL = re.compile(r"(?:(?:\A|\n)[ \t]*####(?!#)(?P<line>[^\n]*)|\s####[ \t]*(?P<number>[-+$]?[\d.,/]*%?))\Z")


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One row of a dataset, as found: nothing is merged or filtered yet."""

    messages: tuple[Message, ...]
    reference: str
    """The reference answer; empty where the row has none."""
    data_source: str
    candidates: tuple[str, ...] = ()
    """Answers as texts, where the file has them and they were asked for."""
    fault: str = field(default="", compare=False)
    """Why the row has no usable question or reference; empty where it has both."""
    place: str = field(default="", compare=False)
    """Place in its file: ``line 3``, or ``row 3`` of Parquet."""
    columns: str = field(default="", compare=False)
    """The whole row, a JSON object without its ``candidates``, where it was asked for."""

    @property
    def question(self) -> str:
        """The contents of all messages, joined by blank lines."""
        return question_text(self.messages)

    @property
    def asked(self) -> Asked:
        """The question as a reward function may ask for it."""
        return Asked(self.question, self.columns)


Adapter = Callable[[Mapping[str, object], str], PromptRow]
"""Turns one raw row into a ``PromptRow``; raises ``ValueError`` saying what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Parts of a row beside question, reference and source that its reader asks for, and names that its file lacks."""

    candidates: bool = False
    """Its responses, which may be megabytes."""
    columns: bool = False
    """All of its columns."""
    source: str = ""
    """Data source of a row that states none; empty: the file's name."""
    question: str | None = None
    """Column of the question (``data.question``); None: one of the known names."""
    answer: str | None = None
    """Column of the reference (``data.answer``); None: one of the known names."""
    strict: bool = True
    """A file without a column that is named is refused; otherwise it is read by the known names."""


PLAIN = Wanted()


def adapt(adapter: Adapter, raw: Mapping[str, object], path: Path, place: str, wanted: Wanted) -> PromptRow:
    """The row at ``place``. Raises ``DataError``, naming file and place, where it is malformed."""
    try:
        row = replace(adapter(raw, wanted.source or path.stem), place=place)
        row.question.encode()
        row.reference.encode()
        row.data_source.encode()
        if wanted.candidates:
            row = replace(row, candidates=_candidates(raw))
        if wanted.columns:
            row = replace(row, columns=_columns(raw, row.data_source))
    except UnicodeEncodeError as error:
        raise DataError(f"{path}, {place}: text that has no UTF-8 form: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, {place}: {error}") from error
    return row


def adapter_for(columns: Sequence[str], wanted: Wanted = PLAIN) -> Adapter | None:
    """Return the reader of rows with these columns; None where no question or no reference column is among them."""
    named = [name for name in (wanted.question, wanted.answer) if name is not None]
    if not {*named} & {*columns} and not (named and wanted.strict) and {"prompt", "reward_model"} <= {*columns}:
        return _verl_row
    question = _named(columns, wanted.question, QUESTION_COLUMNS, strict=wanted.strict)
    reference = _named(columns, wanted.answer, REFERENCE_COLUMNS, strict=wanted.strict)
    return None if question is None or reference is None else _plain_adapter(question, reference)


def row_without_columns(columns: Sequence[str], place: str, wanted: Wanted) -> PromptRow:
    """The row of a file whose earlier rows had no known columns either."""
    names: Sequence[str] = [
        name for name in (wanted.question, wanted.answer) if name is not None and name not in columns
    ]
    if not (names and wanted.strict):
        names = QUESTION_COLUMNS if _known(columns, QUESTION_COLUMNS) is None else REFERENCE_COLUMNS
    faults = [_absent(columns, name) for name in names]
    fault = next((fault for fault in faults if "but" in fault), f"no {'/'.join(names)}")
    return PromptRow((), "", "", fault=fault, place=place)


def unknown_columns(columns: Sequence[str], path: Path, wanted: Wanted) -> DataError:
    """The error for a file in which no row has the columns that are named, or known ones."""
    found = f"Found: {', '.join(columns) or 'none'}"
    for key, name in (("data.question", wanted.question), ("data.answer", wanted.answer)):
        if name is not None and name not in columns and wanted.strict:
            return DataError(f"{path}: no column {name}, which {key} names. {found}")
    return DataError(
        f"{path}: no known question and reference columns. {found}. Known: prompt with reward_model.ground_truth (verl); or "
        f"{'/'.join(QUESTION_COLUMNS)} with {'/'.join(REFERENCE_COLUMNS)}; name others by data.question and data.answer"
    )


def _named(columns: Sequence[str], name: str | None, known: Sequence[str], *, strict: bool) -> str | None:
    """The column of this name; where it is not there and need not be, or none is named, one of the known."""
    if name in columns:
        return name
    return None if name is not None and strict else _known(columns, known)


def _known(columns: Sequence[str], names: Sequence[str]) -> str | None:
    by_name = {column.casefold(): column for column in reversed(columns)}
    return next((by_name[name] for name in names if name in by_name), None)


def _absent(columns: Sequence[str], key: str) -> str:
    near = difflib.get_close_matches(key, columns, n=1)
    return f'no "{key}"' + (f', but "{near[0]}"' if near else "")


def _fault(raw: Mapping[str, object], key: str) -> str:
    """Why ``raw[key]`` holds no text."""
    if key not in raw:
        return _absent(list(raw), key)
    value = raw[key]
    if value is None:
        return f'"{key}" is null'
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, float):
        said = "NaN" if math.isnan(value) else "infinite, or too large for a number of 64 bits: write it as a text"
        return f'"{key}" is {said}'
    return f'"{key}" is blank' if not isinstance(value, str) or not value.strip() else f'"{key}" has nothing after ####'


def _verl_row(raw: Mapping[str, object], stem: str) -> PromptRow:
    reward = _reward_of(raw)
    if reward is not None and not isinstance(reward, dict):
        raise ValueError(f"reward_model is {type(reward).__name__}, expected a struct with ground_truth")
    row = PromptRow(_messages(raw.get("prompt")), _reference((reward or {}).get("ground_truth")), _source(raw, stem))
    if not row.question.strip():
        return replace(row, fault=_fault(raw, "prompt"))
    if not row.reference:
        return replace(row, fault=_fault(raw, "reward_model") if reward is None else _fault(reward, "ground_truth"))
    return row


def _reward_of(raw: Mapping[str, object]) -> object:
    """``reward_model``, which some write as JSON."""
    reward = raw.get("reward_model")
    return json.loads(reward) if isinstance(reward, str) else reward


def _candidates(raw: Mapping[str, object]) -> tuple[str, ...]:
    """Answers as texts: ``reward_model.candidates``, else ``candidates``, else none."""
    reward = _reward_of(raw)
    found = reward.get("candidates") if isinstance(reward, dict) else None
    found = raw.get("candidates") if found is None else found
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError("candidates are no list of texts")
    for text in found:
        text.encode()
    return tuple(found)


def _columns(raw: Mapping[str, object], source: str) -> str:
    """The row as JSON, times as text, without bytes and without its own responses; it always has a ``data_source``."""
    columns = {name: value for name, value in raw.items() if name != "candidates"}
    try:
        reward = _reward_of(raw)
    except ValueError:  # a text of another meaning
        reward = None
    if isinstance(reward, dict) and "candidates" in reward:
        rest = {name: value for name, value in reward.items() if name != "candidates"}
        columns["reward_model"] = json.dumps(rest) if isinstance(raw["reward_model"], str) else rest
    return json.dumps({"data_source": source} | _plain_mapping(columns), sort_keys=True)


def _plain_mapping(value: Mapping[str, object]) -> dict[str, object]:
    return {str(name): _plain(part) for name, part in value.items() if not isinstance(part, bytes)}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value if not isinstance(part, bytes)]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _plain_adapter(question: str, reference: str) -> Adapter:
    def adapt(raw: Mapping[str, object], stem: str) -> PromptRow:
        answer = _final_answer(_reference(raw.get(reference)))
        row = PromptRow(_messages(raw.get(question)), answer, _source(raw, stem))
        if row.reference and row.question.strip():
            return row
        return replace(row, fault=_fault(raw, reference if row.question.strip() else question))

    return adapt


def _final_answer(reference: str) -> str:
    """The reference, of GSM8K's, which write the whole solution and then a line ``#### 72``, what is in that line.

    Behind a text in the same line only a number is taken, so that programs stay whole.
    """
    found = _FINAL.search(text := reference.strip())
    return text if found is None else (found["line"] or found["number"] or "").strip()


def _source(raw: Mapping[str, object], stem: str) -> str:
    """The data source without line breaks and spaces that a name of a metric cannot have."""
    source = raw.get("data_source")
    names = (source if isinstance(source, str) else "", stem, "data")
    return next(name for text in names if (name := " ".join(text.split())))


def _messages(prompt: object) -> tuple[Message, ...]:
    """Chat messages out of a list of ``{role, content}``, that list as JSON, or plain text (one user message)."""
    if prompt is None:
        return ()
    if isinstance(prompt, str):
        parsed = _parsed_messages(prompt)
        return (Message("user", prompt),) if parsed is None else parsed
    if not isinstance(prompt, list):
        raise ValueError(f"the question is {type(prompt).__name__}, expected text or a list of messages")
    return tuple(_message(item) for item in prompt)


def _parsed_messages(text: str) -> tuple[Message, ...] | None:
    """The messages in a JSON text, or None where the text is an ordinary question such as ``[x] + 1 = ?``."""
    if not text.lstrip().startswith("["):
        return None
    try:
        items = json.loads(text)
        return tuple(_message(item) for item in items) if items else None
    except (ValueError, RecursionError):
        return None


def _message(item: object) -> Message:
    if isinstance(item, dict):
        role, content = item.get("role"), item.get("content")
        if isinstance(role, str) and isinstance(content, str):
            return Message(role, content)
    raise ValueError("a message needs a text role and a text content")


def _reference(value: object) -> str:
    """The reference as text: numbers are written out, a list of one is unwrapped; None and NaN are empty."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _digits(value)
    raise ValueError(f"the reference is {type(value).__name__}, expected one text or number")


def _digits(value: float | Decimal) -> str:
    """A finite number written out, as it is spelled at its shortest, without exponent and zeros behind the last digit."""
    if isinstance(value, int):
        return str(value)
    text = format(Decimal(str(value)), "f")
    whole = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if whole == "-0" else whole
