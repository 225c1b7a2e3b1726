"""What an exam says of a sample in a pipeline, and how a row of the table writes that for all samples of a case.

A cell of the table reads ``verified``, ``refused: REASON``, ``wrong: REASON``, or, where samples differ,
``verified 3 of 5; refused 1 4: REASON``, with the numbers of the samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

STATES = VERIFIED, REFUSED, WRONG = "verified", "refused", "wrong"
# Longer reasons are cut: their first words say what is missing.
LONGEST = 160
_SOME = re.compile(rf"({REFUSED}|{WRONG}) ([\d -]+): ")


@dataclass(frozen=True)
class Verdict:
    """The state of one sample in one pipeline; ``reason`` says why it is not verified."""

    state: str
    reason: str = ""


PASS = Verdict(VERIFIED)


def write_cell(verdicts: Mapping[int, Verdict]) -> str:
    """Write the verdicts on the samples of a case as one text; empty if there is none.

    Example:
        ```python
        write_cell({0: PASS, 1: Verdict(REFUSED, "no such operator")})  # "verified 1 of 2; refused 1: no such operator"
        ```
    """
    if not verdicts:
        return ""
    parts = []
    for state in (WRONG, REFUSED):
        numbers = [number for number, verdict in sorted(verdicts.items()) if verdict.state == state]
        if numbers:
            which = "" if len(numbers) == len(verdicts) else f" {_join_numbers(numbers)}"
            parts.append(f"{state}{which}: {_shorten(verdicts[numbers[0]].reason)}")
    count = sum(verdict.state == VERIFIED for verdict in verdicts.values())
    if count:
        parts.insert(0, VERIFIED if count == len(verdicts) else f"{VERIFIED} {count} of {len(verdicts)}")
    return "; ".join(parts)


def read_unverified(text: str, count: int) -> set[int]:
    """Return the numbers of the samples, of ``count``, that a cell says are not verified."""
    if text.startswith((f"{REFUSED}: ", f"{WRONG}: ")):
        return set(range(count))
    numbers: set[int] = set()
    for _, listed in _SOME.findall(text):
        for piece in listed.split():
            first, _, last = piece.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def classify_cell(text: str) -> str:
    """Return the state of a cell; of one in which samples differ, the worst."""
    return next((state for state in (WRONG, REFUSED) if re.search(rf"(^|; ){state}\b", text)), VERIFIED)


def _join_numbers(numbers: list[int]) -> str:
    """Join sorted numbers, with ``a-b`` for three and more in a row."""
    pieces, start = [], numbers[0]
    for number, following in zip(numbers, [*numbers[1:], -1], strict=True):
        if following != number + 1:
            pieces += [f"{start}-{number}"] if number > start + 1 else [str(n) for n in range(start, number + 1)]
            start = following
    return " ".join(pieces)


def _shorten(reason: str) -> str:
    line = " ".join(reason.replace(";", ",").split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1].rstrip() + "…"
