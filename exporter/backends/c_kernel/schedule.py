"""In which order terms are computed, and where their values are kept.

Terms fall into levels: scalars that are computed together in one loop over the lanes, which a compiler vectorises;
calls of libm and reads of tables, each in a loop of its own, which it does not; and whole blocks (a factorisation, a
solution, a Newton loop). Values that are used outside of their own loop have a slot: a row of one number for each lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from exporter.backends.c_kernel.c_expressions import LIBM
from exporter.backends.c_kernel.expression_graph import BOOL, SEVERAL, TABLES, Terms

# Scalars of one function in C: compilers take more than linear time over longer ones.
CHUNK = 1_200
SCALARS, CALLS, BLOCK = "scalars", "calls", "block"
# What is computed for each element, though it may be of parameters alone.
_EACH = (*SEVERAL, *TABLES, "pick", "singular")


@dataclass(frozen=True)
class Step:
    """``scalars`` and ``calls`` are terms in their order; a ``block`` is one."""

    what: str
    terms: tuple[int, ...]


@dataclass
class Slots:
    """Rows of numbers, by kind, and which term stands in which. ``contiguous`` ones are asked for together."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[int, tuple[str, int]] = field(default_factory=dict)

    def take(self, kind: str, count: int = 1) -> int:
        first = self.counts[kind]
        self.counts[kind] += count
        return first

    def give(self, term: int, kind: str) -> None:
        if term not in self.places:
            self.places[term] = (kind, self.take(kind))


def uniform(terms: Terms, ends: Iterable[int]) -> list[int]:
    """The terms below ``ends`` that are the same for all elements: of parameters alone. Constants are none of them."""
    found: dict[int, None] = {}
    for i in reached(terms, ends, ()):
        term = terms[i]
        alone = term.op != "const" and not terms.rows[i] and not terms.loops[i]
        if alone and term.op not in _EACH and all(a in found or terms[a].op == "const" for a in term.args):
            found[i] = None
    return list(found)


def alike(terms: Terms, numbers: Sequence[int]) -> bool:
    """Whether these are the same for all elements, and there before the first is computed."""
    if any(terms.rows[i] or terms.loops[i] for i in numbers):
        return False
    return all(terms[i].op not in _EACH for i in reached(terms, numbers, ()))


def held(terms: Terms, needed: Iterable[int]) -> dict[tuple[int, ...], tuple[str, int]]:
    """Tables that are numbers of a parameter as they stand in memory: its name, and where they begin."""
    found = {}
    for numbers in {terms[i].args[1:] for i in needed if terms[i].op in TABLES}:
        first = terms[numbers[0]]
        if first.op == "leaf" and first.kind != BOOL:
            name, start, _ = first.extra
            if all(terms[n].op == "leaf" and terms[n].extra[:2] == (name, k) for k, n in enumerate(numbers, start)):
                found[numbers] = (name, start)
    return found


def reached(terms: Terms, ends: Iterable[int], known: Collection[int]) -> list[int]:
    """What is to be computed for ``ends`` where ``known`` is there already, in an order that can be followed."""
    found: set[int] = set()
    left = list(ends)
    while left:
        i = left.pop()
        if i not in found and i not in known:
            found.add(i)
            left += terms[i].args
    return sorted(found)


def steps(terms: Terms, needed: Sequence[int]) -> list[Step]:
    """``needed`` as ``reached`` gives it. Picks and constants are no steps."""
    level: dict[int, int] = {}
    by: dict[tuple[int, int], list[int]] = {}
    for i in needed:
        term = terms[i]
        if term.op in ("const", "leaf"):
            continue
        at = max((level.get(a, 0) for a in term.args), default=0)
        if term.op in ("pick", "singular"):
            level[i] = at
            if term.op == "singular":
                by.setdefault((at, 0), []).append(i)
            continue
        order = 2 if term.op in SEVERAL else 1 if term.op in LIBM or term.op in TABLES else 0
        by.setdefault((at, order), []).append(i)
        # What follows a call or a block is of the next level.
        level[i] = at + (order > 0)
    found = []
    for (_, order), members in sorted(by.items()):
        if order == 2:
            found += [Step(BLOCK, (i,)) for i in members]
        elif order == 1:
            found.append(Step(CALLS, tuple(members)))
        else:
            found += [Step(SCALARS, tuple(members[i : i + CHUNK])) for i in range(0, len(members), CHUNK)]
    return found


def place(terms: Terms, order: Sequence[Step], ends: Iterable[int], slots: Slots, known: Mapping[int, object]) -> None:
    """Give a slot to each scalar that is used outside of its own step, or asked for at the end."""
    at = {i: number for number, step in enumerate(order) for i in step.terms}
    kept = {i for i in ends if i in at}
    for number, step in enumerate(order):
        for i in step.terms:
            if step.what == CALLS:
                kept.add(i)
            for a in terms[i].args:
                if a in at and (at[a] != number or step.what != SCALARS):
                    kept.add(a)
    for i in sorted(kept):
        if terms[i].op not in SEVERAL and i not in known:
            slots.give(i, terms[i].kind)
