"""Derivatives in one direction after the other: terms for one direction, and a loop over all of them.

Terms for every direction leave out what is zero by structure, but there are as many times more of them. Directions of
which no number depends on two are taken at once (Curtis, Powell and Reid, "On the estimation of sparse Jacobian
matrices", 1974).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from exporter.backends.c_kernel.expression_graph import COLUMNS, F64, REAL, Terms
from exporter.backends.c_kernel.newton_loop import outside, region

# Terms of derivatives, as many as there are without what is zero by structure: more of them become a loop.
MANY = 20_000


@dataclass(frozen=True)
class Columns:
    """``tangents`` are terms of ``seeds``: leaves, of which those of a group are 1 and all others 0. ``depends`` has a
    bit of each tangent for each seed. The numbers are row by row: of each tangent one for each seed."""

    scope: int
    seeds: tuple[int, ...]
    tangents: tuple[int, ...]
    depends: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        return len(self.tangents) * len(self.seeds)

    def of_seeds(self) -> list[int]:
        """The group of each."""
        return [next(g for g, group in enumerate(self.groups) if k in group) for k in range(len(self.seeds))]

    def column(self, group: int, tangent: int) -> int:
        """Which seed's a tangent is in a group; -1 where it depends on none."""
        return next((k for k in self.groups[group] if self.depends[tangent] >> k & 1), -1)


def dependence(terms: Terms, order: Iterable[int], seeds: Mapping[int, int]) -> dict[int, int]:
    """Of each term in ``order`` the bits of what it depends on; of ``seeds`` they are given."""
    found = dict(seeds)
    for i in order:
        if i not in found:
            bits = 0
            for a in terms[i].args:
                bits |= found.get(a, 0)
            found[i] = bits if terms[i].kind in REAL else 0
    return found


def grouped(depends: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Each direction in the first group of which no number depends on it and on another."""
    groups: list[list[int]] = []
    taken: list[int] = []
    for k in range(count):
        rows = sum(1 << e for e, bits in enumerate(depends) if bits >> k & 1)
        free = next((g for g, used in enumerate(taken) if not used & rows), None)
        if free is None:
            groups.append([k])
            taken.append(rows)
        else:
            groups[free].append(k)
            taken[free] |= rows
    return tuple(map(tuple, groups))


def columns(terms: Terms, scope: int, seeds: Sequence[int], tangents: Sequence[int]) -> list[int]:
    """The derivatives of numbers whose ``tangents`` are terms of ``seeds``, row by row."""
    order = region(terms, tangents, scope)
    known = dependence(terms, order, {seed: 1 << k for k, seed in enumerate(seeds)})
    depends = tuple(known.get(t, 0) for t in tangents)
    made = Columns(scope, tuple(seeds), tuple(tangents), depends, grouped(depends, len(seeds)))
    whole = terms.make(COLUMNS, outside(terms, tangents, scope), F64, (made,))
    zero = terms.constant(0.0, F64)
    return [
        terms.make("pick", (whole,), F64, (e * len(seeds) + k,)) if bits >> k & 1 else zero
        for e, bits in enumerate(depends)
        for k in range(len(seeds))
    ]
