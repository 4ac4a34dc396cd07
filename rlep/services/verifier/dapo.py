"""The reward of the DAPO recipe, for reproduction: the last ``Answer:`` in the last 300 characters, as a string.

The steps and word lists are those of the published recipe (verl's ``math_dapo``, after Minerva's appendix D).
"""

from __future__ import annotations

import re

_TAIL = 300
_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_REPLACED = (
    ("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text"),
    (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}"),
)  # fmt: skip
_REMOVED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points", "feet",
    "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}",
    "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots",
)  # fmt: skip
_UNWRAPPED = (
    (re.compile(r"(\\text\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\textbf\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\overline\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\boxed\{)(.*)(\})"), r"\2"),
    (re.compile(r"(frac)([^{])(.)"), r"frac{\2}{\3}"),
    (re.compile(r"(sqrt)([^{])"), r"sqrt{\2}"),
)


def answer_of(text: str) -> str | None:
    """The normalised answer of a response, or None without an ``Answer:`` near its end that says something."""
    found = _LINE.findall(text[-_TAIL:])
    return normalise(found[-1]) or None if found else None


def normalise(answer: str) -> str:
    """The recipe's normal form of an answer."""
    answer = answer.rsplit("=", 1)[-1]
    for old, new in _REPLACED:
        answer = answer.replace(old, new)
    for word in _REMOVED:
        answer = answer.replace(word, "")
    answer = re.sub(r"(.*?)(\$)(.*?)(\$)(.*)", "$\\3$", answer)
    for pattern, kept in _UNWRAPPED:
        answer = pattern.sub(kept, answer)
    answer = answer.replace("$", "")
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()
