"""Answer of a response: the text of it that counts; the written contract is ``docs/reference/verifier.md``."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Literal

from rlep.core.thinking import MARK

Profile = Literal["math", "math-bare", "strict-box"]

MAX_ANSWER_CHARS = 4000
"""Longer answers are never graded (``unparsable``)."""
MAX_DEPTH = 40
"""Neither are answers with deeper nesting of brackets."""

_BOX_TAIL = re.compile(r"\\boxed\s*\{([^{}\\]*)\}")
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_ANSWER_LINE = re.compile(
    r"^[ \t>#*_\u2192\u2705\u2714\u27a1\ufe0f\U0001f3af\U0001f449-]*(?:the[ \t]+)?(?:final[ \t]+)?answer"
    r"[ \t]{0,4}[*_]{0,3}[ \t]{0,4}[:\uff1a](.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_THINK_ENDS = ("hink", "HINK", "hought", "easoning", "HOUGHT", "EASONING", "<|channel|>")
_CHANNEL, _FINAL = "<|channel|>", "<|channel|>final<|message|>"
"""Marks of gpt-oss: its analysis and its comments have channels of their own."""
_BETWEEN = re.compile(
    r"(?:[\s$]|\\[,;:! ]|\\[()\[\]])*(?:(?:[,;&]|\\(?:text|mathrm|mbox)\{[\s,]*(?:and|or)?[\s,]*\}|\b(?:and|or)\b"
    r"|\\q?quad(?![a-zA-Z])|\(?\b(?:[a-h]|i{1,3}|iv|[1-9])[).])(?:[\s$]|\\[,;:! ]|\\[()\[\]])*)+"
)
"""Text that joins the boxes of one closing sentence: commas, *and*, *or*, a wide space, the labels of parts."""
_PERCENT = re.compile(r"(?:[\s$]|\\[,;:! ])*(?:\\?%|(?:percent|pct)(?![a-zA-Z]))")
_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{2,}")
_SENTENCE_END = re.compile(r"[.?!](?=\s)|\n\s*\n")
_DOLLARS = re.compile(r"(?<!\\)\$([^$]*[^$\\]|)\$(?!\d)")
_FINAL_NUMBER = re.compile(
    r"(?<![\w.,/^+-])(?<!\d[ :])(?<!\d: )(?<!\d : )(?<![+×*÷-] )([+-]?(?:\d[\d,]*(?:\.\d+)?|\.\d+))[\s.$*]*\Z"
)
"""Not a part of another, as of ``10-15``, ``3:4``, ``12 345`` and ``- 5``."""
_PLAIN = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-") | dict.fromkeys("\u00a0\u2009\u202f", " "))
_LAST_OF_WRAPPED = frozenset(".$)]*`")
_ESCAPED_TWICE = re.compile(r"(?:[^\\]|\\\\(?=[a-zA-Z]{2}|[{}%$,;:!()\[\]]))*")
"""LaTeX each of whose backslashes was escaped once more, as in JSON that was written twice: no row ends in it."""
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"))


def answer_of(text: str, *, truncated: bool, profile: Profile = "math") -> str | None:
    """The answer a response commits to, or None.

    In order: the text after the last closed think block; its last balanced box; its last ``Answer:`` line
    (not under ``strict-box``); a number at the very end (only under ``math-bare``). Of a truncated response only a
    closed box or a finished ``Answer:`` line counts.
    """
    final = after_thinking(text)
    if final is None:
        return None
    boxed = last_box(final)
    if boxed is not None:
        return clean(boxed) or None
    if profile == "strict-box":
        return None
    line = _answer_line(final, truncated)
    if line is not None:
        return line or None
    if profile == "math-bare" and not truncated and (match := _FINAL_NUMBER.search(final[-200:].translate(_PLAIN))):
        return match.group(1)
    return None


def after_thinking(text: str) -> str | None:
    """Return the text after the last ``</think>``, or of the last final channel; None where thinking has not ended."""
    if (">" not in text and "]" not in text and "▷" not in text) or not any(end in text for end in _THINK_ENDS):
        return text
    if _CHANNEL in text:
        if text.rfind(_CHANNEL) != (final := text.rfind(_FINAL)):
            return None
        text = text[final + len(_FINAL) :]
    after, opened = 0, False
    for mark in MARK.finditer(text):
        opened = not mark.group(1)
        after = after if opened else mark.end()
    return None if opened else text[after:]


def last_box(text: str) -> str | None:
    """The content of the outermost box that closes last, inner box commands removed; None without one.

    Boxes before it that only commas, *and*, *or* or the labels of parts separate from it belong to it: ``(2,2), (6,2)``.
    """
    start = text.rfind("\\boxed")
    if start < 0:
        return None
    if (simple := _BOX_TAIL.match(text, start)) and text.find("\\boxed") == start:
        return simple.group(1)
    found = _closed_boxes(text)
    if not found:
        return None
    last = [found[-1]]
    for box in reversed(found[:-1]):
        opening = text.rfind("\\boxed", box[1], last[0][0])
        if box[1] < last[0][0] and opening >= 0 and _BETWEEN.fullmatch(text, box[1] + 1, opening):
            last.insert(0, box)
        elif box[0] < last[0][0]:
            break
    return ", ".join(_without_boxes(text[start:end]).strip() for start, end in last)


def _without_boxes(content: str) -> str:
    """Balanced content with every inner ``\\boxed{x}`` replaced by ``x``; one linear pass."""
    if "\\boxed" not in content:
        return content
    kept: list[str] = []
    is_box: list[bool] = []
    position = 0
    for match in _BRACES.finditer(content):
        mark = match.group()
        drop = False
        if mark.startswith("\\boxed"):
            is_box.append(True)
            drop = True
        elif mark == "{":
            is_box.append(False)
        elif mark == "}" and is_box:
            drop = is_box.pop()
        if drop:
            kept.append(content[position : match.start()])
            position = match.end()
    kept.append(content[position:])
    return "".join(kept)


def _closed_boxes(text: str) -> list[tuple[int, int]]:
    """``(start, end)`` of the content of each outermost box, in the order of their closing braces; one linear pass."""
    open_braces: list[int] = []  # start of content for a box, -1 for any other brace
    found: list[tuple[int, int]] = []
    for match in _BRACES.finditer(text):
        mark = match.group()
        if mark == "}":
            if open_braces and (start := open_braces.pop()) >= 0:
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, match.start()))
        elif mark == "{":
            open_braces.append(-1)
        elif mark.startswith("\\boxed"):
            open_braces.append(match.end())
    return found


def percent_behind_box(text: str) -> bool:
    """Tell whether a per cent sign directly follows the last box, as in ``\\boxed{28}\\,\\%``."""
    found = _closed_boxes(text)
    return bool(found) and _PERCENT.match(text, found[-1][1] + 1) is not None


def _answer_line(text: str, truncated: bool) -> str | None:
    """The cleaned content of the last ``Answer:`` line, empty where it says nothing; None without such a line."""
    if "nswer" not in text and "NSWER" not in text:
        return None
    last = None
    for match in _ANSWER_LINE.finditer(text):
        last = match
    if last is None or (truncated and last.end() == len(text)):
        return None
    return clean(last.group(1).strip(" \t*_"))


def clean(answer: str) -> str:
    """Trim white space, math and markdown delimiters around the whole answer, and a trailing period; undo a second escaping."""
    answer = _stripped(answer)
    if "\\\\" in answer and _ESCAPED_TWICE.fullmatch(answer):
        answer = answer.replace("\\\\", "\\")
    changed = answer[-1:] in _LAST_OF_WRAPPED and len(answer) <= MAX_ANSWER_CHARS
    while changed and answer:
        changed = False
        if answer[-1] == "." and not answer.endswith(".."):
            answer, changed = answer[:-1].rstrip(), True
        if answer.endswith("**") and "**" not in answer[:-2]:
            answer, changed = answer[:-2].rstrip(), True
        for opening, closing in _WRAPPERS:
            inner = answer[len(opening) : -len(closing)]
            wrapped = answer.startswith(opening) and answer.endswith(closing) and len(answer) > len(opening + closing)
            if wrapped and opening not in inner and closing not in inner:
                answer, changed = _stripped(inner), True
    return answer


def _stripped(answer: str) -> str:
    """Without white space around it, nor the backslashes of a control space (``\\ ``) or a line break at the end."""
    answer = answer.strip()
    return answer.rstrip("\\").rstrip() if answer.endswith("\\") else answer


def _is_short(between: str) -> bool:
    """Tell whether two boxes of a reference stand in one sentence, at most three words apart."""
    return not _SENTENCE_END.search(between) and len(_WORD.findall(between.replace("\\boxed", ""))) <= 3


def reference_fault(text: str) -> str:
    """Why a reference says nothing that an answer could be compared with; empty where it does."""
    stated = reference_of(text)
    if len(stated) > MAX_ANSWER_CHARS:
        return f"the reference has {len(stated):,} characters, more than {MAX_ANSWER_CHARS:,}: state the answer alone, or box it"
    if _SENTENCE_END.search(stated) and len(_WORD.findall(stated)) >= 12:
        return "the reference is a text of several sentences without a box: state the answer alone, or box it"
    return ""


def reference_of(text: str) -> str:
    """The answer a reference states: the boxes of its last sentence that has one, else all of it."""
    text = _listed(text)
    boxed = last_box(text)
    found = _closed_boxes(text) if boxed is not None else []
    while len(found) > 1 and not all(_is_short(text[one[1] : two[0]]) for one, two in pairwise(found)):
        found = found[1:]
    if len(found) > 1:
        boxed = ", ".join(_without_boxes(text[start:end]).strip() for start, end in found)
    return clean(_DOLLARS.sub(r"\1", text) if boxed is None else boxed)


def _listed(text: str) -> str:
    """Read JSON's list of one text, as Skywork has its references; a list of numbers may be the answer itself."""
    if not text.lstrip().startswith("["):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found[0] if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str) else text


def is_too_large(reference: str, answer: str) -> bool:
    """Tell whether a pair is beyond the contract's sizes and is ``unparsable`` without a worker."""
    return len(answer) > MAX_ANSWER_CHARS or len(reference) > MAX_ANSWER_CHARS or depth_of(answer) > MAX_DEPTH


def depth_of(text: str) -> int:
    """Return the depth to which brackets of any kind are nested."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}" and depth:
            depth -= 1
    return deepest
