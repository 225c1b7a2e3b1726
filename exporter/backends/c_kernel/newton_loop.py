"""Loops of one element, as terms: what depends on their own leaves is inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.backends.c_kernel.expression_graph import Terms


@dataclass(frozen=True)
class Loop:
    """A Newton loop of one element: its unknowns are leaves of ``residual``, and of ``matrix`` (row by row).
    ``settings`` are terms, by name."""

    path: str
    unknowns: tuple[int, ...]
    residual: tuple[int, ...]
    matrix: tuple[int, ...]
    settings: Mapping[str, int]
    strong_wolfe: bool
    searches: bool
    on_failure: str

    @property
    def size(self) -> int:
        return len(self.unknowns)


def region(terms: Terms, ends: Sequence[int], loop: int) -> list[int]:
    """What of ``ends`` depends on a loop's unknowns, in order."""
    found: set[int] = set()
    left = list(ends)
    while left:
        i = left.pop()
        if i not in found and terms.loops[i] >> loop & 1:
            found.add(i)
            left += terms[i].args
    return sorted(found)


def outside(terms: Terms, ends: Sequence[int], loop: int) -> tuple[int, ...]:
    """What a loop reads for ``ends`` that does not change in it."""
    inner = region(terms, ends, loop)
    read = (a for i in inner for a in terms[i].args)
    return tuple(dict.fromkeys(i for i in (*read, *ends) if not terms.loops[i] >> loop & 1))
