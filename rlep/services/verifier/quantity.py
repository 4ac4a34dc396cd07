"""Surroundings of a number: its unit and its base. A wrong one makes the answer wrong, whatever the digits are."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNIT_NAMES = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre 厘米", "m": "meter metre 米",
    "km": "kilometer kilometre 千米 公里",
    "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram gm gramme 克",
    "kg": "kilogram 千克 公斤", "lb": "pound", "oz": "ounce", "ml": "milliliter millilitre", "l": "liter litre", "gal": "gallon",
    "ms": "millisecond", "s": "second sec 秒", "min": "minute 分钟", "h": "hour hr 小时", "day": "天", "week": "", "month": "",
    "year": "yr 年", "deg": "degree", "rad": "radian", "dollar": "usd buck", "cent": "", "euro": "eur", "mph": "",
    "km/h": "kph kmh kmph", "m/s": "", "hz": "hertz", "n": "newton", "j": "joule", "w": "watt", "kw": "kilowatt",
    "v": "volt", "a": "ampere amp", "mol": "mole", "k": "kelvin", "unit": "", "yuan": "元", "acre": "", "hectare": "",
}  # fmt: skip
_BY_CASE = {"S": "siemens", "H": "henry", "G": "gauss", "M": "molar"} | {
    f"M{unit}": f"M{unit}" for unit in ("W", "J", "V", "N", "g", "m", "s", "Hz", "Pa", "eV")
}
"""Symbols of units that are others in lower case."""
_CANONICAL = {name: unit for unit, names in _UNIT_NAMES.items() for name in (unit, *names.split())}
_ANY_CASE = re.compile("K[MmGgWw]|C[Mm]|F[Tt]|L[Bb]|I[Nn]|Y[Dd]|O[Zz]|H[Rr]")
"""Two letters that are one unit, however they are written."""
_PREFIXED = re.compile(r"(?:da|[pnumcdhk])?(?:Hz|Pa|eV|Wb|Wh|Ah|[LNJWVAKF])")
"""A symbol of a unit in its own case, with no prefix or one below a million: no other unit has its letters."""
_DIGITAL = re.compile(r"[kKMGTPE]i?[bB](?:ps)?")
"""Amounts of bits (``b``) and bytes (``B``)."""
_CAPITAL = re.compile(r"Cal|[MGTP](?:mol|cal|bar|bit|ohm)s?")
"""Symbols that look like a word with a capital."""
_PLAIN_LETTERS = "mshgl"
"""Single letters that count as a unit without ``\\text``, and only after a plain number and a space."""
_OTHER_WORDS = """
    or and not nor if is are was when where which maybe possibly perhaps probably but for with then else only no yes
    either neither unless except plus minus power mod sin cos tan log ln exp pi root squared cubed factorial base percent
    pct percentage dozen hundred thousand million billion trillion half third quarter more less than least most about
    true false none null nan undefined correct incorrect right wrong guess infinity zero one two three four five six
    seven eight nine ten tenth hundredth thousandth millionth halve fourth fifth sixth seventh eighth ninth twelfth lakh
    crore gross score repeating recurring permille reciprocal inverse negated negative too much many few
    conjugate conj transpose transposed dagger complement k thousands
    halved doubled tripled quadrupled cut reduced increased decreased double triple twice imaginary binary octal
    hex hexadecimal decimal sign nope fail mille mio mrd mia mn bln mln tsd bps up down off modulo over under bc bce
"""
_NOT_UNITS = frozenset(_OTHER_WORDS.split())
_DENIAL = re.compile(r"(?!speed|seed|feed|breed|shed|bed|weed|reed|sled)\w{2,}ed|\w+(?:ible|eous|ious|less)|extraneous")
"""Last words of what says that a number does not count; before a noun (``6 possible values``) they describe it."""
_NO_UNIT = re.compile(
    r"\w+illion|[bmt]n|pp[mbt]"
    r"|yocto|zepto|atto|femto|pico|nano|micro|milli|centi|deci|kilo|mega|giga|tera|peta"
)
"""Words for other scales of a number."""

_TEXT = r"\\(?:text|mathrm|mbox|textrm|textbf|textit|rm|operatorname|hbox)\s*"
_RAISED = r"(?:\s*\^\s*\{?\s*([23])\s*\}?)?"
_TEXT_UNIT = re.compile(rf"(.*\S)\s*{_TEXT}\{{\s*([^{{}}]{{1,40}}?)\s*\}}{_RAISED}\s*", re.DOTALL)
_BARE_UNIT = re.compile(
    rf"(.*[\d)}}.])(\s*)([a-zA-Z\u4e00-\u9fff][a-zA-Z\u4e00-\u9fff./ ]{{0,30}}){_RAISED}\s*", re.DOTALL
)
_DEGREE_UNIT = re.compile(rf"(.*\S)\s*\^\s*\{{?\s*\\circ\s*\}}?\s*(?:{_TEXT}\{{\s*)?([CFcf]?)\s*\}}?\s*", re.DOTALL)
_MONEY = re.compile(r"(-?)\s*(?:\\?\$|\\(?:text|mathrm)\{\s*\\?\$\s*\}|[€£])\s*(.*)", re.DOTALL)
_MONEY_AFTER = re.compile(r"(.*\d)\s*(?:\\?\$|[€£])\s*", re.DOTALL)
_ALL_TEXT = re.compile(rf"{_TEXT}\{{([^{{}}\\]*\d[^{{}}\\]*)\}}")
_BETWEEN = re.compile(rf"(,(?:\s*{_TEXT}\{{\s*(?:and|or)\s*\}})?|{_TEXT}\{{\s*(?:and|or)\s*\}}|\s(?:and|or)\s)")
_BASE = re.compile(
    rf"[({{\s]*(?:{_TEXT}\{{)?\s*(-?[0-9a-zA-Z]+(?:\.[0-9a-zA-Z]+)?)[)}}\s]*_\s*[{{(\s]*(?:{_TEXT}\{{?)?[\s(]*"
    r"(\d{1,2}|two|three|four|five|six|seven|eight|nine|ten|twelve|sixteen)[\s)}]*",
    re.IGNORECASE,
)
_BASE_NAMES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12,
    "sixteen": 16,
}  # fmt: skip
_NUMERIC = re.compile(r"(?:[\d\s.,+\-*/^(){}]|\\(?:frac|sqrt|binom|pi|cdot|times|pm|infty)(?![a-zA-Z])|\\?%|\[\d\])+")
_COUNT = re.compile(rf"(?:{_NUMERIC.pattern}|!)+")
"""Also with factorials, before a noun; behind an amount of money ``!`` is none."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An answer taken apart, e.g. ``5\\text{ cm}^2`` as ``5`` and ``cm^2``, or ``1010_2`` as ``1010`` and 2."""

    body: str
    unit: str | None = None
    base: int | None = None


def read(latex: str) -> Quantity:
    """Split an answer in plain LaTeX into its number and what stands around it."""
    if match := _ALL_TEXT.fullmatch(latex):
        latex = match.group(1)
    if match := _BASE.fullmatch(latex):
        name = match.group(2).lower()
        base = _BASE_NAMES.get(name) or int(name)
        if 2 <= base <= 36 and _has_digits_of(match.group(1), base):
            return Quantity(match.group(1).upper(), None, base)
    for split in (_list, _money, _degrees, _text_unit, _bare_unit):
        if (quantity := split(latex)) is not None:
            return quantity
    return Quantity(latex)


def disagree(reference: Quantity, answer: Quantity) -> bool:
    """Tell whether unit or base make the answer wrong.

    A missing unit takes the other side's. A missing base takes the reference's; an answer in a base other than ten
    to a reference without one is wrong.
    """
    if reference.unit is not None and answer.unit is not None and reference.unit != answer.unit:
        return True
    if answer.base is not None:
        return answer.base != (reference.base or 10)
    return False


def _has_digits_of(digits: str, base: int) -> bool:
    """Tell whether these are digits of the base; letters alone (``FF``) only where they cannot be a variable's name."""
    try:
        int(digits.replace(".", ""), base)
    except ValueError:
        return False
    return any(character.isdigit() for character in digits) or (base == 16 and len(digits) > 1)


def _list(latex: str) -> Quantity | None:
    """Numbers of which each has the same unit behind it."""
    pieces = _BETWEEN.split(latex)
    parts = [read(piece.strip()) for piece in pieces[::2]] if len(pieces) > 1 else []
    units = {part.unit for part in parts}
    if len(units) != 1 or None in units:
        return None
    joints = [*pieces[1::2], ""]
    return Quantity("".join(part.body + joint for part, joint in zip(parts, joints, strict=True)), parts[0].unit)


def _money(latex: str) -> Quantity | None:
    if (match := _MONEY.fullmatch(latex)) and _NUMERIC.fullmatch(match.group(2)):
        return Quantity(match.group(1) + match.group(2), _currency(latex))
    if (match := _MONEY_AFTER.fullmatch(latex)) and _NUMERIC.fullmatch(match.group(1)):
        return Quantity(match.group(1), _currency(latex))
    return None


def _currency(latex: str) -> str:
    return "euro" if "€" in latex else "pound sterling" if "£" in latex else "dollar"


def _degrees(latex: str) -> Quantity | None:
    match = _DEGREE_UNIT.fullmatch(latex)
    if match is None or not _NUMERIC.fullmatch(match.group(1).rpartition("=")[2]):
        return None
    return Quantity(match.group(1), "deg" + match.group(2).upper())


def _text_unit(latex: str) -> Quantity | None:
    match = _TEXT_UNIT.fullmatch(latex)
    if match is None:
        return None
    body, name, power = match.groups()
    unit = canonical_unit(name, power)
    if unit is None or not (_COUNT.fullmatch(body.rpartition("=")[2]) or unit.split("^")[0] in _UNIT_NAMES):
        return None
    return Quantity(body, unit)


def _bare_unit(latex: str) -> Quantity | None:
    match = _BARE_UNIT.fullmatch(latex)
    if match is None or not _COUNT.fullmatch(match.group(1)):
        return None
    body, space, name, power = match.groups()
    name = name.strip(" .")
    if len(name) == 1 and name.isascii() and not (space and name in _PLAIN_LETTERS):
        return None
    unit = canonical_unit(name, power)
    known = unit is not None and unit.split("^")[0] in _UNIT_NAMES
    if unit is None or not (known or (space and len(name) > 3)):
        return None
    return Quantity(body, unit)


def canonical_unit(name: str, power: str | None) -> str | None:
    """``centimetres`` as ``cm``, ``square feet`` as ``ft^2``, an unknown noun in the singular; None for other words."""
    if name.strip() in _BY_CASE:
        return _BY_CASE[name.strip()] + (f"^{power}" if power else "")
    if name.strip() == "K":
        return "k" + (f"^{power}" if power else "")
    words = name.replace("\\", " ").replace(".", " ").replace("-", " ").split()
    words = [re.sub("[A-Za-z]+", lambda found: _in_case(found[0]), word) for word in words]
    if (
        not words
        or len(words) > 4
        or not all(re.fullmatch(r"[A-Za-z/$]+", word) or word in _CANONICAL for word in words)
    ):
        return None
    if any(_is_no_unit(word) for word in words) or _DENIAL.fullmatch(words[-1]):
        return None
    if words[0] in ("square", "sq", "cubic", "cu") and len(words) > 1:
        power = "2" if words[0].startswith("sq") else "3"
        words = words[1:]
    singular = [_CANONICAL.get(word) or _CANONICAL.get(_singular(word)) or _singular(word) for word in words]
    unit = " ".join(singular).replace(" per ", "/")
    unit = {"mi/h": "mph", "km/hour": "km/h"}.get(unit, unit)
    return f"{unit}^{power}" if power else unit


def known_unit(word: str) -> str | None:
    """``feet`` as ``ft``; None for a word that is no unit of the list, and for single letters but ``h`` and ``s``."""
    unit = canonical_unit(word, None) if len(word) > 1 or word in "hs" else None
    return unit if unit in _UNIT_NAMES else None


def _in_case(word: str) -> str:
    """A word in lower case, or a symbol as it stands where its case tells units apart: ``mA`` and ``MA``, ``cal`` and ``Cal``."""
    small = word.lower()
    if _DIGITAL.fullmatch(word):
        return word.replace("K", "k")
    named = len(word) > 2 and (small in _CANONICAL or _singular(small) in _CANONICAL)
    if named or len(word) > 4 or _ANY_CASE.fullmatch(word) or _PREFIXED.fullmatch(word):
        return small
    return small if len(word) > 2 and word.istitle() and not _CAPITAL.fullmatch(word) else word


def _is_no_unit(word: str) -> bool:
    """Tell whether a word says something of a number; ``roots`` are counted, a ``root`` is taken."""
    word = word.lower()
    return word in _NOT_UNITS or (_singular(word) in _NOT_UNITS and word != "roots") or bool(_NO_UNIT.fullmatch(word))


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word
