"""Units as texts, such as ``MPa``, ``kg m-3`` and ``1/s``: what they mean, and how one becomes the other, by pint.

Texts are written in the manner of UDUNITS (the CF conventions of climate and forecast data, section 3.1) or of pint:
names, products by a space, ``*`` or ``.``, quotients by ``/``, exponents behind ``^``, ``**`` or nothing, brackets. A
text of another form, and a name that pint does not know, is compared as it stands.

A text may be a stranger's. Pint evaluates expressions, and would raise minutes to any power: it is given single names
here, and what stands around them is read, and multiplied out, by this module."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pint

# Characters of a text that is read, and of a name in it: pint's search takes the square of the time.
MAX_LENGTH, MAX_NAME_LENGTH = 450, 40
# All exponents of a text together: no unit has so many.
MAX_POWER = 60
_SUPERSCRIPT_CHARACTERS = "⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹"
_SUPERSCRIPTS = str.maketrans(_SUPERSCRIPT_CHARACTERS, "-+0123456789")
# Micro and mu, ohm and omega, angstrom and the letter that looks like it.
_SPELLINGS = str.maketrans(
    {"°": "deg", "\u00b5": "u", "\u03bc": "u", "\u2126": "ohm", "\u03a9": "ohm", "\u212b": "angstrom"}
    | {"\u00c5": "angstrom"}
    | dict.fromkeys("·⋅×", " ")
)
_EXPONENT = r"(?:(?:\s*(?:\*\*|\^)\s*)?(?P<exponent>[+-]?[0-9]{1,2}(?:\.[0-9]{1,3})?)(?!\d|\.\d))?"
_TOKEN = re.compile(
    r"\s*(?:(?P<name>(?:[^\W\d]|[°%])+)|(?P<unity>1)(?![\w.])|(?P<close>\))|(?P<open>\()|(?P<product>[*.·⋅×])"
    rf"|(?P<quotient>/)){_EXPONENT}\s*"
)
# Names of UDUNITS that pint does not have, and symbols that are no letters.
_CELSIUS, _FAHRENHEIT = ("°C", "Celsius", "degree_C", "degrees_celsius"), ("°F", "Fahrenheit", "degree_F")
_UNITY = ("1", "dimensionless")
_NAMES = dict.fromkeys(_CELSIUS, "degC") | dict.fromkeys(_FAHRENHEIT, "degF")
_NAMES |= {"%": "percent", "°": "degree", "Kelvin": "kelvin"}
# To pint a millibarn and a trillionth of a pint, to others a millibar and parts in a trillion.
_AMBIGUOUS = ("mb", "ppt")
# A number of yarn, to others a newton meter; a scale of temperature that nobody uses.
_AMBIGUOUS_BASES = ("number_meter", "degree_Reaumur")
# Degrees, or a scale of temperature?
_DEGREES, _SCALES = {"deg", "degree", "degrees", "°"}, {"C", "F"}
# Units of one dimension whose numbers are not of one kind: a hertz is 2 pi radians a second.
_KINDS = {
    name: kind
    for kind, names in {
        "angle": "radian degree turn grade arcminute arcsecond milliarcsecond revolutions_per_minute "
        "revolutions_per_second",
        "hertz": "hertz",
        "becquerel": "becquerel curie rutherford",
        "count": "count counts_per_second",
        "gray": "gray rads",
        "sievert": "sievert rem",
        "candela": "candela",
        "lumen": "lumen lux",
        "bit": "bit byte baud",
    }.items()
    for name in names.split()
}
# The units of differences on scales whose zero is none.
_DIFFERENCES = dict.fromkeys(("degC", "celsius", "degree_Celsius", "degreeC", *_CELSIUS), "K")
_DIFFERENCES |= dict.fromkeys(("degF", "fahrenheit", "degree_Fahrenheit", "degreeF", *_FAHRENHEIT), "degR")
# Of numbers near one: conversions by pint are rounded.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Conversion:
    """The way from a unit to another: a number in the one, times ``factor``, plus ``offset``."""

    factor: float
    offset: float

    @property
    def is_identity(self) -> bool:
        """Return whether numbers stay as they are."""
        return abs(self.factor - 1) <= _ROUNDING and abs(self.offset) <= _ROUNDING

    def describe(self) -> str:
        """Return the conversion as an operation on numbers: ``* 1e-06``."""
        parts = [f"* {self.factor:.12g}"] if abs(self.factor - 1) > _ROUNDING else []
        parts += [f"{'+' if self.offset > 0 else '-'} {abs(self.offset):.12g}"] if abs(self.offset) > _ROUNDING else []
        return " ".join(parts)


def divide_units(of: str, by: str) -> str:
    """Return the unit of a derivative of a variable in the one unit by a variable in the other.

    Without one of them there is none. Derivatives are quotients of differences: those of degrees Celsius are kelvins.

    Example:
        ```python
        divide_units("MPa", "mm")  # MPa/(mm)
        ```
    """
    if not of or not by:
        return ""
    above, below = _DIFFERENCES.get(of, of), _DIFFERENCES.get(by, by)
    return above if below in _UNITY else f"{above}/({below})"


def spell_in_ascii(unit: str) -> str:
    """Return a unit for a text that has no other characters: ``um`` for micrometers, ``m^2`` for square meters."""
    powers = rf"(?:\^|\*\*)?([{_SUPERSCRIPT_CHARACTERS}]+)"
    text = re.sub(powers, lambda match: f"^{match[1].translate(_SUPERSCRIPTS)}", unit)
    return text.translate(_SPELLINGS)


def is_known(unit: str) -> bool:
    """Return whether a text is a unit that can be compared with others than itself."""
    return _parse(unit) is not None


def find_conversion(unit: str, wanted: str) -> Conversion | None:
    """Find how numbers in a unit become numbers in another one.

    Args:
        unit: The unit that numbers have.
        wanted: The unit that they should have.

    Returns:
        The conversion, or None if there is none, or if one of the units is not known.

    Example:
        ```python
        find_conversion("Pa", "MPa")  # Conversion(factor=1e-06, offset=0.0)
        ```
    """
    if unit == wanted:
        return Conversion(1.0, 0.0)
    source, target = _parse(unit), _parse(wanted)
    if source is None or target is None or _have_other_kinds(source, target):
        return None
    try:
        quantities = [_load_registry().Quantity(value, source.unit).to(target.unit) for value in (0.0, 1.0, 2.0)]
    except Exception:
        # Of pint's own errors and of arithmetic beyond a float: either way there is no conversion.
        return None
    of_0, of_1, of_2 = (float(quantity.magnitude) for quantity in quantities)
    # Decibels become powers by no factor.
    is_linear = abs(of_2 - 2 * of_1 + of_0) <= _ROUNDING * (abs(of_2) + abs(of_1) + abs(of_0))
    return Conversion(of_1 - of_0, of_0) if is_linear else None


@dataclass(frozen=True)
class _Parsed:
    """A unit of pint, and the kinds of what its names count."""

    unit: pint.Unit
    kinds: frozenset[str]


def _have_other_kinds(one: _Parsed, other: _Parsed) -> bool:
    """Return whether both say what they count, and say different things."""
    return bool(one.kinds and other.kinds and one.kinds != other.kinds)


@functools.cache
def _load_registry() -> pint.UnitRegistry:
    import pint

    return pint.UnitRegistry()


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> _Parsed | None:
    """Parse a unit; None for what is none."""
    powers = _read_powers(text)
    if powers is None:
        return None
    is_product = len(powers) > 1 or any(power != 1 for power in powers.values())
    unit, kinds = _load_registry().dimensionless, set[str]()
    for name, power in powers.items():
        factor = _find_unit(name, is_product=is_product)
        if factor is None:
            return None
        unit, kinds = unit * factor.unit ** float(power), kinds | (factor.kinds if power else set())
    # Alone it has to stay what it is: a product of degrees Celsius is one of differences.
    (single,) = powers if len(powers) == 1 else ("",)
    return _find_unit(single, is_product=False) if single and not is_product else _Parsed(unit, frozenset(kinds))


def _find_unit(name: str, *, is_product: bool) -> _Parsed | None:
    """Find a name in pint's registry: in a product a unit of differences, where it has one."""
    if name in _AMBIGUOUS or len(name) > MAX_NAME_LENGTH:
        return None
    registry, name = _load_registry(), _NAMES.get(name, name)
    try:
        prefix, base, _ = registry.parse_unit_name(name)[0]
        symbol = registry.get_symbol(base)
        singular = name[:-1] if symbol != base and name.endswith(f"{symbol}s") else ""
        # Pint takes "Pas" for several pascals, which others mean for pascal seconds.
        is_plural = singular and (prefix, base) == registry.parse_unit_name(singular)[0][:2]
        if is_plural or base in _AMBIGUOUS_BASES:
            return None
        is_difference = is_product and base in ("degree_Celsius", "degree_Fahrenheit")
        unit = registry.parse_units(f"delta_{prefix}{base}" if is_difference else name)
    except Exception:
        # Whatever it is that pint does not read here, it is no unit.
        return None
    return _Parsed(unit, frozenset({_KINDS[base]} if base in _KINDS else ()))


def _read_powers(text: str) -> Mapping[str, Fraction] | None:
    """Return the exponent of each name; None for a text that is no product of powers of names."""
    text = text.translate(_SUPERSCRIPTS)
    if len(text) > MAX_LENGTH:
        return None
    powers = dict[str, Fraction]()
    # For each open bracket the names before it, and the sign in front of it.
    outer: list[tuple[dict[str, Fraction], int]] = []
    place, sign, is_operand = 0, 1, False
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            return None
        place, power = match.end(), Fraction(match["exponent"] or 1)
        is_operator = match["product"] or match["quotient"]
        has_misplaced_exponent = match["exponent"] and (is_operator or match["open"])
        # To others "g0" is a constant and no power.
        if ((is_operator or match["close"]) and not is_operand) or has_misplaced_exponent or power == 0:
            return None
        if is_operator:
            sign, is_operand = (-1 if match["quotient"] else 1), False
        elif match["open"]:
            outer.append((powers, sign))
            powers, sign, is_operand = {}, 1, False
        elif match["close"]:
            if not outer:
                return None
            inner, (powers, sign) = powers, outer.pop()
            for name, inner_power in inner.items():
                powers[name] = powers.get(name, Fraction()) + sign * power * inner_power
            sign = 1
        else:
            name = match["name"]
            if name and name not in _UNITY:
                powers[name] = powers.get(name, Fraction()) + sign * power
            sign, is_operand = 1, True
        if sum(map(abs, powers.values())) > MAX_POWER:
            return None
    is_scale = powers.keys() & _DEGREES and powers.keys() & _SCALES
    return powers if is_operand and not outer and not is_scale else None
