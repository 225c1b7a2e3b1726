"""What ``torchferry evaluate`` is given as texts: values to vary, and names of variables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from exporter.common.errors import UsageError

VALUES = 10**6


def parse_study(text: str) -> tuple[str, tuple[float, ...]]:
    """Return the name and the values of ``NAME=LOW:HIGH:COUNT``, ``NAME=LOW:HIGH:COUNT:log`` or ``NAME=A,B,...``.

    Raises ``UsageError`` for another text, and for numbers that are not finite."""
    name, equals, rest = text.partition("=")
    try:
        values = _parse_values(rest)
    except ValueError:
        values = ()
    if not (name and equals and values) or not all(map(math.isfinite, values)):
        expected = "NAME=LOW:HIGH:COUNT, NAME=LOW:HIGH:COUNT:log, or NAME=VALUE,VALUE,..."
        mend = "give finite numbers, at least one of them; above 0 with log"
        raise UsageError("values to vary are not understood", where="--vary", got=text, expected=expected, mend=mend)
    return name, values


def _parse_values(text: str) -> tuple[float, ...]:
    parts = text.split(":")
    if len(parts) == 1:
        return tuple(map(float, text.split(",")))
    if len(parts) < 3:
        raise ValueError(text)
    low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
    if not 1 <= count <= VALUES or len(parts) > 4 or parts[3:] not in ([], ["log"]):
        raise ValueError(text)
    if parts[3:]:
        low, high = math.log(low), math.log(high)
    steps = [low + (high - low) * k / max(count - 1, 1) for k in range(count)]
    values = [math.exp(value) for value in steps] if parts[3:] else steps
    # The ends are as they were given.
    return tuple([float(parts[0]), *values[1:-1], float(parts[1])][:count] if count > 1 else values)


def parse_pairs(texts: Sequence[str], option: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of ``INPUT=VARIABLE`` texts. Raises ``UsageError`` for another text."""
    pairs = [text.partition("=") for text in texts]
    if wrong := next((t for t, (a, _, b) in zip(texts, pairs, strict=True) if not (a and b)), None):
        raise UsageError("a name is not understood", where=option, got=wrong, expected="INPUT=VARIABLE")
    return tuple((a, b) for a, _, b in pairs)
