"""Units as texts, such as ``MPa``, ``kg m-3`` and ``1/s``: what they mean, and how one becomes the other, by pint.

Texts are written in the manner of UDUNITS (the CF conventions of climate and forecast data, section 3.1) or of pint:
names, products by a space, ``*`` or ``.``, quotients by ``/``, whole exponents behind ``^``, ``**`` or nothing. A text
of another form, and a name that pint does not know, is compared as it stands."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pint

# A name with its exponent, the number one, an operator, a bracket. An exponent of more digits no unit has, and a
# power of a power might be beyond all numbers.
_TOKEN = re.compile(
    r"\s*(?:(?P<name>(?:[^\W\d]|[°%])+)|(?P<one>1)(?!\w)|(?P<close>\))|(?P<open>\()|(?P<product>[*.·])|(?P<quotient>/))"
    r"(?:(?:\s*(?:\*\*|\^)\s*)?(?P<exponent>[+-]?\d{1,2})(?!\d))?\s*"
)
_NAMES = {"%": "percent", "°C": "degC", "°F": "degF", "°": "degree"}
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
        parts = [f"* {self.factor:g}"] if abs(self.factor - 1) > _ROUNDING else []
        parts += [f"{'+' if self.offset > 0 else '-'} {abs(self.offset):g}"] if abs(self.offset) > _ROUNDING else []
        return " ".join(parts)


def divide_units(of: str, by: str) -> str:
    """Return the unit of a derivative of a variable in the one unit by a variable in the other.

    Without one of them there is none.

    Example:
        ```python
        divide_units("MPa", "mm")  # MPa/(mm)
        ```
    """
    if not of or not by:
        return ""
    return of if by == "1" else f"{of}/({by})"


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
    import pint

    source, target = _parse(unit), _parse(wanted)
    if source is None or target is None:
        return None
    try:
        of_0, of_1, of_2 = (_registry().Quantity(v, source).to(target).magnitude for v in (0.0, 1.0, 2.0))
    except (pint.PintError, ArithmeticError, ValueError):
        return None
    # Decibels become powers by no factor.
    is_linear = abs(of_2 - 2 * of_1 + of_0) <= _ROUNDING * (abs(of_2) + abs(of_1) + abs(of_0))
    return Conversion(float(of_1 - of_0), float(of_0)) if is_linear else None


@functools.cache
def _registry() -> pint.UnitRegistry:
    import pint

    return pint.UnitRegistry()


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> pint.Unit | None:
    """Parse a unit. Only names, whole exponents and operators reach pint, which evaluates whatever numbers it meets."""
    import pint

    expression = _rewrite(text)
    if not expression:
        return None
    try:
        return _registry().parse_units(expression)
    except (pint.PintError, ArithmeticError, ValueError, SyntaxError, TypeError, AssertionError, RecursionError):
        return None


def _rewrite(text: str) -> str:
    """Rewrite a text as an expression of pint; the empty text for what is none."""
    parts, place, depth = list[str](), 0, 0
    is_operand = False
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            return ""
        place = match.end()
        name, exponent = match["name"], match["exponent"]
        if match["product"] or match["quotient"]:
            if not is_operand or exponent:
                return ""
            parts.append("/" if match["quotient"] else "*")
            is_operand = False
            continue
        if match["close"]:
            depth -= 1
            if not is_operand or depth < 0:
                return ""
        elif is_operand:
            parts.append("*")
        if match["open"]:
            depth += 1
            if exponent:
                return ""
        is_operand = not match["open"]
        parts.append(_NAMES.get(name, name) if name else match["one"] or match["close"] or match["open"])
        parts += [f"**{int(exponent)}"] if exponent else []
    return "".join(parts) if is_operand and not depth else ""
