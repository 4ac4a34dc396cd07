"""One notation for what people and models write: unicode, spacing, repeating decimals and old commands as plain LaTeX."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

SYMBOLS = {
    "π": "\\pi ", "∞": "\\infty ", "θ": "\\theta ", "α": "\\alpha ", "β": "\\beta ", "γ": "\\gamma ", "λ": "\\lambda ",
    "μ": "\\mu ", "φ": "\\phi ", "ω": "\\omega ", "Δ": "\\Delta ", "ε": "\\epsilon ", "σ": "\\sigma ", "τ": "\\tau ",
    "×": "\\times ", "⋅": "\\cdot ", "·": "\\cdot ", "∙": "\\cdot ", "÷": "/", "∕": "/", "⁄": "/", "±": "\\pm ",
    "∓": "\\mp ", "−": "-", "–": "-", "‐": "-", "‑": "-", "≤": "\\le ", "≥": "\\ge ", "⩽": "\\le ", "⩾": "\\ge ",
    "≠": "\\ne ", "≈": "\\approx ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "∅": "\\emptyset ", "ø": "\\emptyset ",
    "Ø": "\\emptyset ", "∖": "\\setminus ", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}",
    "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}", "°": "^\\circ ", "º": "^\\circ ", "∣": "|", "⟨": "(", "⟩": ")", "′": "'",
    "“": '"', "”": '"', "‘": "'", "’": "'", "∫": "\\int ", "∑": "\\sum ", "∏": "\\prod ", "⌊": "\\lfloor ", "⌋": "\\rfloor ",
    "⌈": "\\lceil ", "⌉": "\\rceil ", "∨": "\\vee ", "∧": "\\wedge ", "…": "\\ldots ", "¢": "\\text{ cents}",
    "、": ",", "،": ",", "٬": ",", "٫": ".", "µ": "\\mu ",
}  # fmt: skip
_TRANSLATION = str.maketrans(SYMBOLS)
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙₓ"
_RAISED_TO_PLAIN = str.maketrans(_RAISED, "0123456789+-()nix")
_LOWERED_TO_PLAIN = str.maketrans(_LOWERED, "0123456789+-()nx")
_RAISED_RUN = re.compile(f"[{_RAISED}]+")
_LOWERED_RUN = re.compile(f"[{_LOWERED}]+")
_ROOT = re.compile(r"([√∛∜])\s*(\((?:[^()]|\([^()]*\))*\)|\{[^{}]*\}|\d+(?:\.\d+)?|[a-zA-Z]|\\[a-zA-Z]+)")
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Marks that change the direction in which a text is shown."""
_ROOT_DEGREE = {"√": "", "∛": "[3]", "∜": "[4]"}

_ROW = re.compile(r"\\\\(?:\s*\[[^\[\]]*\])?")
_CARRIAGE = re.compile(r"\\cr(?![a-zA-Z])")
"""Plain TeX's end of a row."""
_ROW_MARK = "\ue000"
"""Stands for ``\\\\`` meanwhile: with a space behind, its second half would read as ``\\ ``."""

_RELATION = re.compile(r"[=<>]|\\(?:in|notin|[lg]e|ne|[lg]t|equiv)(?![a-zA-Z])")


def _connective(match: re.Match[str]) -> str:
    """*and* or *or* between two statements; between anything else the sign is an operation of its own."""
    sides = match.string[: match.start()], match.string[match.end() :]
    if not all(map(_RELATION.search, sides)):
        return match.group()
    return "\\text{ or }" if match.group() in ("\\lor", "\\vee") else "\\text{ and }"


_TEXT = r"\\(?:text|mathrm|mbox|textrm|rm|operatorname)\s*"
_COMMANDS = (
    (re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|mathstrut)(?![a-zA-Z])\.?"), ""),
    (re.compile(r"\\text(?:sf|tt|up|normal)(?=\{)"), r"\\text"),
    (re.compile(r"(?<![a-z}])\{\s*\\rm(?![a-zA-Z])([^{}]*)\}"), r"\\text{\1}"),
    (re.compile(r"\\!\s*|\\(?:bf|it|tiny|small|normalsize|[lL]arge|LARGE|[hH]uge)(?![a-zA-Z])"), ""),
    (re.compile(r"\\colon(?![a-zA-Z])"), ":"),
    (re.compile(r"(?<=\d)(?:\{,\}|\\,|\\ |~)(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\[,;:> ]|\\q?quad(?![a-zA-Z])|~|\\(?:thin|med|thick|enspace)space|\\hspace\{[^{}]*\}"), " "),
    (re.compile(r"\\varnothing(?![a-zA-Z])|\\O(?![a-zA-Z])|\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\(?:geqslant|geqq|geq)(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\(?:leqslant|leqq|leq)(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\neq(?![a-zA-Z])|\\not\s*=|!="), r"\\ne "),
    (re.compile(r"\\not\s*(?:(<|\\lt(?![a-zA-Z]))|(>|\\gt(?![a-zA-Z]))|(\\le(?![a-zA-Z]))|\\ge(?![a-zA-Z]))"),
     lambda match: ("\\ge ", "\\le ", "> ", "< ")[3 if match.lastindex is None else match.lastindex - 1]),
    (re.compile(r"\\text\{\s*\$([^${}]*)\$\s*\}"), r"\1"),
    (re.compile(r"\\begin\{array\}\{[lcr]\}([^&\ue000]*?)\\end\{array\}"), r"\1"),
    (re.compile(r"\\dots[bcmio]?(?![a-zA-Z])"), r"\\ldots "),
    (re.compile(r"\\(?:text|mathrm|mbox)\{\s*,\s*\}"), ","),
    (re.compile(r"\\(?:text|mathrm|mbox)\{\s*\^\\circ\s*([CF]?)\s*\}"), r"^\\circ \1"),
    (re.compile(r"\^?\s*\\degree(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\\pmod\s*\{\s*(\w+)\s*\}"), r"\\pmod \1 "),
    (re.compile(r"\\(?:text|mathrm|mbox)\{\s*(?:percent|per cent|pct|\\?%)\s*\}"), r"\\%"),
    (re.compile(r"\\(?:[lr]?vert|mid)(?![a-zA-Z])"), "|"),
    (re.compile(r"\\[lr]brace(?![a-zA-Z])"), lambda match: "\\{" if match.group()[1] == "l" else "\\}"),
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"\\lg(?![a-zA-Z])"), r"\\log_{10} "),
    (re.compile(r"\\log\s*_\s*(?:e(?![a-zA-Z])|\{\s*e\s*\})"), r"\\ln "),
    (re.compile(r"\\(?:lor|vee|land|wedge)(?![a-zA-Z])"), _connective),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"(?<=\d)\s*\\(?:text|mathrm)\{\s*[eE]\s*([+-]?\d+)\s*\}"), r"e\1"),
    (re.compile(r"(?<=\d)\s*\\(?:text|mathrm)\{\s*[eE]\s*\}\s*(?=[+-]?\d+\Z)"), r"e"),
    (re.compile(r"\\mathcal\s*\{?\s*O\s*\}?(?=\s*\()"), "O"),
    (re.compile(r"\\(?:mathrm|text|textit|mathit|operatorname)\{\s*([eix])\s*\}"), r"\1 "),
    (re.compile(r"\\operatorname\{(sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|ln|log|exp|gcd|lcm|max|min)\}"), r"\\\1 "),
    (re.compile(r"\\(?:operatorname|mathrm|text)\{\s*((?:a|ar|arc)?(?:sin|cos|tan|cot|sec|csc)h)\s*\}"), r"\\\1 "),
    (re.compile(r"\\(?:mathtt|mathsf|ensuremath)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\(?:mathbf|boldsymbol|bm|mathit|pmb)\{(?!\s*[a-zA-Z]*\s*\}|\s*\\[a-zA-Z]+\s*\})([^{}]*)\}"), r"\1"),
    (re.compile(r"(?<!\^)(?<!\^\{)\\underline\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\textrm(?=\{)"), r"\\text"),
    (re.compile(r"\\begin\{(?:aligned|align\*?|gathered|split|equation\*?)\}(?:\[[a-z]\])?((?:(?!\\\\|\ue000).)*?)\\end\{[a-z*]+\}",
                re.DOTALL), lambda match: match.group(1).replace("&", " ")),
    (re.compile(r"(?<=\d)\{:\}(?=\d)"), ":"),
    (re.compile(r"\\(?:fbox|framebox|ovalbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\(?:checkmark|blacksquare|square|qed)(?![a-zA-Z])\s*\Z"), ""),
    (re.compile(r"\\text\{\s*\.?\s*\}\s*\Z"), ""),
    (re.compile(r"\\math(?:op|ord|rel|bin|inner|strut)\s*(?=\{)"), ""),
    (re.compile(r"\\(?:text)?color\s*\{[^{}]*\}|\\[hv]?phantom\s*\{[^{}]*\}"), ""),
    (re.compile(r"\\frac\s*(\\(?:pi|theta|alpha|beta|lambda))\s*([0-9a-zA-Z])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\\(?:pi|theta|alpha|beta|lambda))\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"\\text\{\s*([+-]?\d[\d,]*(?:\.\d+)?)\s*\}"), r"\1"),
    (re.compile(r"(?<![\d/.,^_])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d/])"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"(?<=[(\[,])\s*\+\s*\\infty"), r"\\infty"),
)  # fmt: skip

_PLAIN_FUNCTIONS = (
    "abs|arcsin|arccos|arctan|asin|acos|atan|(?:a|ar|arc)?(?:sin|cos|tan|cot|sec|csc)h|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt"
    "|gcd|lcm|max|min"
)
_PLAIN_NAMES = (  # SymPy's and typewriter spelling
    (re.compile(r"\*\*"), "^"),
    (re.compile(rf"(?<![a-zA-Z\\])({_PLAIN_FUNCTIONS})(?=\s*[(\d\\]|\s+[a-zA-Z](?![a-zA-Z]))"), r"\\\1 "),
    (re.compile(r"(?<![a-zA-Z\\])[pP]i(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<![a-zA-Z\\])(?:inf|oo)(?![a-zA-Z])"), r"\\infty "),
    (re.compile(r"(?<![a-zA-Z\\])(alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi)(?![a-zA-Z])(?=\s*\S)"), r"\\\1 "),
)  # fmt: skip
_PLAIN_NAME = re.compile(
    rf"\*\*|(?<![a-zA-Z\\])(?:{_PLAIN_FUNCTIONS}|pi|Pi|inf|oo|alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi)(?![a-zA-Z])"
)
_PERCENT = re.compile(r"(?<=[\d}$])\s*\$?\s*(?:percent(?:age)?|per cent|pct)(?![a-zA-Z])")
_WORDS_IN_TEXT = re.compile(r"(\\(?:text[a-z]*|mathrm|mbox|operatorname|begin|end)\s*\{[^{}]*\})")
_NAME = rf"{_TEXT}\{{([^{{}}]*)\}}"
_UNITS = (  # \\mu\\text{m} and \\text{\\mu m} as \\text{um}, \\mathrm{J\\cdot s} as \\text{J s},
    (re.compile(rf"(?<=[\d}}])\s*\\mu\s*(?:{_TEXT}\{{\s*)?(mol|[mgsLlAFVWCHT])\s*\}}?\s*\Z"), r"\\text{ u\1}"),
    (re.compile(rf"{_TEXT}\{{\s*\\mu\s*"), r"\\text{u"),
    (re.compile(rf"({_TEXT}\{{[a-zA-Z ]*?[a-zA-Z])\s*\\cdot\s*(?=[a-zA-Z]+[\s}}])"), r"\1 "),
    # \frac{\text{m}}{\text{s}}, \text{m}/\text{s}, \mathrm{m s^{-2}}, \mathrm{cm^2} as \text{m/s}, ..., \text{cm}^{2}
    (re.compile(rf"\\frac\s*\{{\s*{_NAME}\s*\}}\s*\{{\s*{_NAME}([^{{}}]*)\}}"), r"\\text{\1/\2}\3"),
    (re.compile(rf"({_TEXT}\{{[^{{}}]*)\}}\s*/\s*{_TEXT}\{{\s*([^{{}}]*\}})"), r"\1/\2"),
    (re.compile(rf"({_TEXT}\{{\s*[a-zA-Z]+)(?:\s+|\s*\\cdot\s*)([a-zA-Z]+)\s*\^\s*\{{-1\}}\s*\}}"), r"\1/\2}"),
    (re.compile(rf"({_TEXT}\{{\s*[a-zA-Z]+)(?:\s+|\s*\\cdot\s*)([a-zA-Z]+)\s*\^\s*\{{-([23])\}}\s*\}}"), r"\1/\2}^{\3}"),
    (re.compile(rf"({_TEXT}\{{\s*[a-zA-Z]+)\s+([a-zA-Z]+)\s*\}}\s*\^\s*\{{-1\}}"), r"\1/\2}"),
    (re.compile(rf"({_TEXT}\{{\s*[a-zA-Z]+)\s+([a-zA-Z]+)\s*\}}\s*\^\s*\{{-([23])\}}"), r"\1/\2}^{\3}"),
    (re.compile(r"(?<=[\d}])\s*([kM]?)\s*\\Omega\s*\Z"), r"\\text{ \1ohm}"),
    (re.compile(rf"({_TEXT}\{{[a-zA-Z/. ]*)\^\s*\{{?([23])\}}?\s*\}}"), r"\1}^{\2}"),
)  # fmt: skip

_POWERS_OF_TEN = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MAGNITUDE = re.compile(rf"(?<=[\d}}])\s*(?:({_TEXT}\{{)\s*|\s)({'|'.join(_POWERS_OF_TEN)})(?![a-zA-Z])")
_NO_TEXT = re.compile(r"\\text\{\s*\}")
_BASE_WORDS = re.compile(
    rf"(?<=[0-9a-zA-Z)}}])\s*(?:_\s*\{{\s*)?(?:{_TEXT}\{{)?[\s(]*(?:in\s+)?base[\s~}}-]*(\d{{1,2}}|[a-z]{{3,7}})[\s)}}]*"
)
_PREAMBLE = re.compile(rf"\A{_TEXT}\{{\s*(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:?\s*\}}\s*[:=]?\s*", re.IGNORECASE)
_SPACED_GROUPS = re.compile(r"\A[+-]?\d{1,3}(?: \d{3})+(?!\d|\s+\d|\s*[/^])")
_APOSTROPHES = re.compile(r"(?<![\d'])\d{1,3}(?:'\d{3})+(?![\d'])")
_FACTORIAL_EQUALS = re.compile(r"(?<=\d)!=(?=\s*\d)")
_EXPONENT = re.compile(r"([+-]?\d+(?:\.\d+)?)[eE]\{?([+-]?\d{1,4})\}?")
_PERCENT_OF_MIXED = re.compile(r"(-?)\s*(\d*)\s*\\frac\s*(?:\{(\d+)\}\s*\{(\d+)\}|(\d)\s*(\d))\s*\\?%")
_OPEN_ENDED = re.compile(r"([\[\](])([^\[\]()]*,[^\[\]()]*)([\[\])])")
_SET_BUILDER = re.compile(
    r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?)\s*)?[|:]\s*(\s*[^{}|:]*(?:<|>|\\(?:[lg]|n)e)(?:[^{}|:]|\\text\{\s*(?:or|and)\s*\})*)\\\}"
)
_GROUPS = re.compile(r"\\[{}]|[()\[\]]|(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")

_INFINITY = re.compile(r"(?<![a-zA-Z\\])(?:\\text\{\s*)?infinity(?:\s*\})?(?![a-zA-Z])", re.IGNORECASE)
_BAR = r"\\(?:overline|bar|dot)\s*\{?\s*(\d{1,60})\s*\}?"
_REPEATING = re.compile(rf"(?<![\d.])(\d{{1,60}})\.(\d{{0,60}})(?:{_BAR}|\((\d{{1,60}})\)(?!\s*[\^\d]))")
_DOTTED = re.compile(r"(?<![\d.])(\d{1,60})\.(\d{3,120})\s*(?:\\[lc]?dots|\\ldots|\.\.\.)")
_DEGREES_IN_FUNCTION = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)\s*[({]?\s*)(\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))"
)


def to_latex(text: str) -> str:
    """Text in plain LaTeX; never shorter of meaning: only spelling changes."""
    if not text.isascii():
        text = _from_unicode(text)
    text = _FACTORIAL_EQUALS.sub("! =", text).replace("!=", "\\ne ").replace(">=", "\\ge ").replace("<=", "\\le ")
    if "perc" in text or "pct" in text:
        text = _PERCENT.sub("\\\\%", text)
    if _PLAIN_NAME.search(text):
        text = _with_plain_names(text)
    if "\\cr" in text:
        text = _CARRIAGE.sub(r"\\\\", text)
    if any(mark in text for mark in "\\~/{"):
        text = _ROW.sub(_ROW_MARK, text)
        for pattern, replacement in _COMMANDS:
            text = pattern.sub(replacement, text)
        text = _DEGREES_IN_FUNCTION.sub(r"\1(\\frac{\2\\pi}{180})", text)
        for pattern, replacement in _UNITS:
            text = pattern.sub(replacement, text)
        text = text.replace(_ROW_MARK, "\\\\ ")
    if "." in text:
        text = _DOTTED.sub(_dotted_fraction, _REPEATING.sub(_repeating_fraction, text))
    if "," in text:
        text = _without_groups(text)
    if "'" in text:
        text = _APOSTROPHES.sub(lambda match: match.group().replace("'", ""), text)
    if "%" in text:
        text = _PERCENT_OF_MIXED.sub(_percent_of_mixed, text)
    text = _SPACED_GROUPS.sub(lambda match: match.group().replace(" ", ""), text.strip().lstrip("=").strip())
    text = _with_words(text)
    return _half_open(_SET_BUILDER.sub(_condition, text))


def _with_plain_names(text: str) -> str:
    """``2*pi``, ``sqrt(3)`` and ``x**2`` as LaTeX, but not within words."""
    parts = _WORDS_IN_TEXT.split(text)
    for index in range(0, len(parts), 2):
        for pattern, replacement in _PLAIN_NAMES:
            parts[index] = pattern.sub(replacement, parts[index])
    return "".join(parts)


def _condition(match: re.Match[str]) -> str:
    """The condition of a set, where it is about the set's own letter, which has no name then."""
    condition = re.sub(rf"(?<![a-zA-Z\\]){match.group(1)}(?![a-zA-Z])", r"\\text{#}", match.group(2))
    return match.group() if condition == match.group(2) else condition


def _with_words(text: str) -> str:
    """Words that stand for mathematics: ``infinity``, ``million``, ``base two``; and ``6e23``."""
    if "nfin" in text:
        text = _INFINITY.sub(r"\\infty", text)
    if "illion" in text or "thousand" in text or "hundred" in text:
        text = _NO_TEXT.sub("", _MAGNITUDE.sub(_power_of_ten, text))
    if "nswer" in text:
        text = _PREAMBLE.sub("", text)
    if "base" in text:
        text = _BASE_WORDS.sub(r"_{\1}", text)
    if match := _EXPONENT.fullmatch(text):
        text = f"{match.group(1)}\\times 10^{{{int(match.group(2))}}}"
    return text


def _power_of_ten(match: re.Match[str]) -> str:
    return f"\\times 10^{{{_POWERS_OF_TEN[match.group(2)]}}}{match.group(1) or ''}"


def _percent_of_mixed(match: re.Match[str]) -> str:
    """``33\\frac{1}{3}\\%``, in which the percent sign would be the fraction's alone, as 1/3."""
    sign, whole, top, bottom, short_top, short_bottom = match.groups()
    divisor = int(bottom or short_bottom)
    if not divisor:
        return match.group()
    return f"{sign}\\frac{{{int(whole or 0) * divisor + int(top or short_top)}}}{{{100 * divisor}}}"


def _without_groups(text: str) -> str:
    """Thousands groups closed up, ``1,234\\pi`` as ``1234\\pi``, but not within brackets, where commas part elements."""
    depth, kept, position = 0, [], 0
    for match in _GROUPS.finditer(text):
        mark = match.group()
        if mark[-1].isdigit():
            if depth == 0:
                kept.append(text[position : match.start()] + mark.replace(",", ""))
                position = match.end()
        else:
            depth += 1 if mark in ("(", "[", "\\{") else -1
    return "".join(kept) + text[position:]


def _half_open(text: str) -> str:
    """``]1,3]`` and ``[1,3[`` as ``(1,3]`` and ``[1,3)``."""
    match = _OPEN_ENDED.fullmatch(text)
    if match is None or (match.group(1) != "]" and match.group(3) != "["):
        return text
    opening, inside, closing = match.groups()
    return ("(" if opening == "]" else opening) + inside + (")" if closing == "[" else closing)


def _from_unicode(text: str) -> str:
    text = _ROOT.sub(_root, text.rstrip("。． "))
    text = _ROOT.sub(_root, text)  # a root of a root
    text = _RAISED_RUN.sub(lambda run: "^{" + run.group().translate(_RAISED_TO_PLAIN) + "}", text)
    text = _LOWERED_RUN.sub(lambda run: "_{" + run.group().translate(_LOWERED_TO_PLAIN) + "}", text)
    text = "".join(map(_spelled, text)).translate(_TRANSLATION)
    return unicodedata.normalize("NFKC", text)


def _root(match: re.Match[str]) -> str:
    radicand = match.group(2)
    inner = radicand[1:-1] if radicand[0] in "({" else radicand
    return f"\\sqrt{_ROOT_DEGREE[match.group(1)]}{{{inner}}}"


def _spelled(character: str) -> str:
    """A vulgar fraction as ``\\frac``, a format character as nothing, any space as one; anything else as it is."""
    if character.isascii():
        return character
    if unicodedata.category(character) == "Nd":
        return str(unicodedata.digit(character))
    if character in _DIRECTIONS:
        return character  # no grammar reads it: what is shown is another text
    if unicodedata.category(character) in ("Cf", "Cc"):
        return ""
    if unicodedata.category(character) == "Zs":
        return " "
    if unicodedata.category(character) == "No" and (parts := unicodedata.normalize("NFKC", character)).count("⁄") == 1:
        top, bottom = parts.split("⁄")
        return f"\\frac{{{top}}}{{{bottom}}}"
    return character


def _repeating_fraction(match: re.Match[str]) -> str:
    whole, lead, barred, parenthesised = match.groups()
    return _fraction(whole, lead, barred or parenthesised)


def _dotted_fraction(match: re.Match[str]) -> str:
    """``0.333...`` as 1/3, where the shown digits end in a block seen at least three times, or twice from two digits on."""
    whole, digits = match.groups()
    for period in range(1, len(digits) // 2 + 1):
        times = 3 if period == 1 else 2
        block = digits[-period:]
        if len(digits) >= period * times and digits.endswith(block * times):
            lead = digits
            while lead.endswith(block):
                lead = lead[:-period]
            return _fraction(whole, lead, block)
    return match.group()


def _fraction(whole: str, lead: str, block: str) -> str:
    """``whole.lead(block)`` exactly: the block over as many nines, shifted behind the lead."""
    value = Fraction(int(whole + lead)) + Fraction(int(block), 10 ** len(block) - 1)
    value /= 10 ** len(lead)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
