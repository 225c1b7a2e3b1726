"""Derivatives of terms in forward mode (Griewank and Walther, Evaluating Derivatives, 2008, chapter 3).

A term that does not depend on a direction has no tangent in it: zeros are left out by structure. At kinks the values
are those of torch's autograd. Solutions of Newton loops are differentiated by the implicit function theorem.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence

from exporter.archive.contract import TANGENT, Contract, bare
from exporter.archive.tensor_spec import TensorSpec
from exporter.backends.c_kernel import direction_batching, table_lookup
from exporter.backends.c_kernel.expression_graph import (
    BOOL,
    COLUMNS,
    F64,
    LU,
    NEWTON,
    READ,
    REAL,
    SEARCHED,
    SOLVED,
    Terms,
)
from exporter.backends.c_kernel.names import leaf_name
from exporter.backends.c_kernel.newton_loop import Loop, region
from exporter.backends.c_kernel.schedule import reached

Direction = Hashable
# Of a term: its tangent in each direction that it depends on.
Tangent = dict[Direction, int]
# Partial derivatives by the arguments, as terms; None where it does not depend on one.
Partials = Callable[[Terms, str, int, Sequence[int]], Sequence[int | None]]


class NoRuleError(Exception):
    """An operation that has no derivative here."""


def _unary(function: Callable[[Callable[..., int], Callable[[float], int], int, int], int]) -> Partials:
    def partials(terms: Terms, kind: str, own: int, args: Sequence[int]) -> list[int | None]:
        def make(op: str, *of: int) -> int:
            return terms.make(op, of, kind)

        return [function(make, lambda value: terms.constant(value, kind), own, args[0])]

    return partials


def _root(terms: Terms, kind: str, own: int, args: Sequence[int]) -> list[int | None]:
    """That of a norm is 0 where the norm is."""
    zero = terms.constant(0.0, kind)
    found = terms.make("div", (terms.constant(0.5, kind), own), kind)
    if terms[own].extra != ("norm",):
        return [found]
    return [terms.make("where", (terms.make("eq", (own, zero), BOOL), zero, found), kind)]


def _raised(terms: Terms, kind: str, own: int, args: Sequence[int]) -> list[int | None]:
    """torch's pow_backward (torch/csrc/autograd/FunctionsManual.cpp): 0 by the exponent at a base of 0."""
    base, exponent = args
    one, zero = terms.constant(1.0, kind), terms.constant(0.0, kind)
    lower = terms.make("pow", (base, terms.make("sub", (exponent, one), kind)), kind)
    by_base = terms.make("mul", (exponent, lower), kind)
    if terms.value(exponent) == 0.0:
        by_base = zero
    elif terms.value(exponent) is None:
        never = terms.make("eq", (exponent, zero), BOOL)
        by_base = terms.make("where", (never, zero, by_base), kind)
    at_zero = terms.make("and", (terms.make("eq", (base, zero), BOOL), terms.make("le", (zero, exponent), BOOL)), BOOL)
    by_exponent = terms.make("mul", (own, terms.make("log", (base,), kind)), kind)
    return [by_base, terms.make("where", (at_zero, zero, by_exponent), kind)]


def _larger(terms: Terms, kind: str, own: int, args: Sequence[int]) -> list[int | None]:
    """Half by each of two that are equal, as in ``maximum``; a bound of ``clamp`` does not count where it is met."""
    a, b = args
    if terms[own].extra == ("of many",):
        raise NoRuleError("amax, amin")
    smaller = terms[own].op == "min"
    below = terms.make("lt", (a, b), BOOL)
    above = terms.make("lt", (b, a), BOOL)
    takes_a, takes_b = (below, above) if smaller else (above, below)
    one, zero = terms.constant(1.0, kind), terms.constant(0.0, kind)
    tie = one if terms[own].extra else terms.constant(0.5, kind)
    at_tie = zero if terms[own].extra else tie
    by_a = terms.make("where", (takes_a, one, terms.make("where", (takes_b, zero, tie), kind)), kind)
    by_b = terms.make("where", (takes_b, one, terms.make("where", (takes_a, zero, at_tie), kind)), kind)
    return [by_a, by_b]


def _quotient(terms: Terms, kind: str, own: int, args: Sequence[int]) -> list[int | None]:
    by_a = terms.make("div", (terms.constant(1.0, kind), args[1]), kind)
    return [by_a, terms.make("neg", (terms.make("div", (own, args[1]), kind),), kind)]


def _angle(terms: Terms, kind: str, own: int, args: Sequence[int]) -> list[int | None]:
    y, x = args
    square = terms.make("add", (terms.make("mul", (x, x), kind), terms.make("mul", (y, y), kind)), kind)
    return [terms.make("div", (x, square), kind), terms.make("neg", (terms.make("div", (y, square), kind),), kind)]


PARTIALS: dict[str, Partials] = {
    "sqrt": _root,
    "exp": _unary(lambda make, n, y, x: y),
    "exp2": _unary(lambda make, n, y, x: make("mul", y, n(math.log(2.0)))),
    "expm1": _unary(lambda make, n, y, x: make("add", y, n(1.0))),
    "log": _unary(lambda make, n, y, x: make("div", n(1.0), x)),
    "log2": _unary(lambda make, n, y, x: make("div", n(1.0 / math.log(2.0)), x)),
    "log10": _unary(lambda make, n, y, x: make("div", n(1.0 / math.log(10.0)), x)),
    "log1p": _unary(lambda make, n, y, x: make("div", n(1.0), make("add", x, n(1.0)))),
    "sin": _unary(lambda make, n, y, x: make("cos", x)),
    "cos": _unary(lambda make, n, y, x: make("neg", make("sin", x))),
    "tan": _unary(lambda make, n, y, x: make("add", n(1.0), make("mul", y, y))),
    "asin": _unary(lambda make, n, y, x: make("div", n(1.0), make("sqrt", make("sub", n(1.0), make("mul", x, x))))),
    "acos": _unary(lambda make, n, y, x: make("div", n(-1.0), make("sqrt", make("sub", n(1.0), make("mul", x, x))))),
    "atan": _unary(lambda make, n, y, x: make("div", n(1.0), make("add", n(1.0), make("mul", x, x)))),
    "sinh": _unary(lambda make, n, y, x: make("cosh", x)),
    "cosh": _unary(lambda make, n, y, x: make("sinh", x)),
    "tanh": _unary(lambda make, n, y, x: make("sub", n(1.0), make("mul", y, y))),
    "abs": _unary(lambda make, n, y, x: make("sign", x)),
    "erf": _unary(
        lambda make, n, y, x: make("mul", n(2.0 / math.sqrt(math.pi)), make("exp", make("neg", make("mul", x, x))))
    ),
    "pow": _raised,
    "div": _quotient,
    "atan2": _angle,
    "max": _larger,
    "min": _larger,
}
# Steps: their derivative is zero wherever it is.
FLAT = {"floor", "ceil", "trunc", "round", "sign", "div_floor", "div_trunc", "lt", "le", "eq", "ne", "and", "or", "xor",
        "not", "isnan", "isinf", "isfinite", "const", "leaf", "singular", SEARCHED}  # fmt: skip


class Pusher:
    """Tangents of terms, each computed once. ``seeds`` are those of terms that are given."""

    def __init__(self, terms: Terms, loops: Mapping[int, Loop], seeds: Mapping[int, Tangent]) -> None:
        self.terms, self.loops = terms, loops
        self.known: dict[int, Tangent] = dict(seeds)
        self._several: dict[int, list[Tangent]] = {}

    def of(self, ends: Sequence[int]) -> list[Tangent]:
        """Raises ``NoRuleError`` for an operation whose derivative is not known."""
        for i in reached(self.terms, ends, self.known):
            if i not in self.known:
                self.known[i] = self._pushed(i)
        return [self.known[i] for i in ends]

    def _pushed(self, i: int) -> Tangent:
        terms, term = self.terms, self.terms[i]
        make = terms.make
        if term.op in FLAT or term.op in (LU, SOLVED, NEWTON, COLUMNS):
            return {}
        if term.op == "pick":
            return self._picked(term.args[0], term.extra[0])
        tangents = [self.known[a] for a in term.args]
        directions = list(dict.fromkeys(d for t in tangents for d in t))
        if not directions or term.kind not in REAL:
            return {}
        kind = term.kind
        if term.op in ("add", "sub"):
            return {d: self._sum(term.op, tangents[0].get(d), tangents[1].get(d), kind) for d in directions}
        if term.op in ("neg", "cast"):
            return {d: make(term.op, (t,), kind) for d, t in tangents[0].items()}
        if term.op == "where":
            zero = terms.constant(0.0, kind)
            _, first, second = tangents
            return {d: make("where", (term.args[0], first.get(d, zero), second.get(d, zero)), kind) for d in directions}
        if term.op == READ:
            return {
                d: table_lookup.read_sparse(terms, [t.get(d) for t in tangents[1:]], term.args[0]) for d in directions
            }
        if term.op == "mul":
            partials: Sequence[int | None] = [term.args[1], term.args[0]]
        elif term.extra == ("sigmoid",):
            # Where the exponential is infinite its chain would be 0 times infinity.
            raise NoRuleError("sigmoid")
        elif term.op == "div" and not tangents[1]:
            return {d: make("div", (t, term.args[1]), kind) for d, t in tangents[0].items()}
        elif term.op in PARTIALS:
            partials = PARTIALS[term.op](terms, kind, i, term.args)
        else:
            raise NoRuleError(term.op)
        return {d: self._chained(partials, [t.get(d) for t in tangents], kind) for d in directions}

    def _chained(self, partials: Sequence[int | None], tangents: Sequence[int | None], kind: str) -> int:
        parts = [
            self.terms.make("mul", (p, t), kind)
            for p, t in zip(partials, tangents, strict=True)
            if t is not None and p is not None
        ]
        found = parts[0]
        for part in parts[1:]:
            found = self.terms.make("add", (found, part), kind)
        return found

    def _sum(self, op: str, a: int | None, b: int | None, kind: str) -> int:
        if a is not None and b is not None:
            return self.terms.make(op, (a, b), kind)
        if a is not None:
            return a
        assert b is not None
        return self.terms.make("neg", (b,), kind) if op == "sub" else b

    def _picked(self, whole: int, place: int) -> Tangent:
        if whole not in self._several:
            op = self.terms[whole].op
            if op == COLUMNS:
                raise NoRuleError("derivatives of derivatives")
            self._several[whole] = self._of_solution(whole) if op == SOLVED else self._of_newton(whole)
        found = self._several[whole]
        return found[place] if place < len(found) else {}

    def _of_solution(self, whole: int) -> list[Tangent]:
        """Of ``A x = b``: ``A dx = db - dA x``."""
        terms, term = self.terms, self.terms[whole]
        n, transposed = term.extra[0], bool(term.extra[1])
        factors, *sides = term.args
        matrix = terms[factors].args
        self.of([*matrix, *sides])
        x = [terms.make("pick", (whole,), F64, (k,)) for k in range(n)]
        right: list[Tangent] = []
        for row in range(n):
            found = dict(self.known[sides[row]])
            for column in range(n):
                entry = matrix[column * n + row if transposed else row * n + column]
                for d, t in self.known[entry].items():
                    part = terms.make("mul", (t, x[column]), F64)
                    before = found.get(d)
                    found[d] = self._sum("sub", before, part, F64)
            right.append(found)
        return self._solved(factors, right, n, transposed=transposed)

    def _solved(self, factors: int, right: Sequence[Tangent], n: int, *, transposed: bool) -> list[Tangent]:
        terms = self.terms
        zero = terms.constant(0.0, F64)
        found: list[Tangent] = [{} for _ in range(n)]
        for d in dict.fromkeys(d for one in right for d in one):
            given = (factors, *(one.get(d, zero) for one in right))
            for k, pick in enumerate(terms.picks(SOLVED, given, (n, transposed), [F64] * n)):
                found[k][d] = pick
        return found

    def _of_newton(self, whole: int) -> list[Tangent]:
        """Of ``r(u, held) = 0``: ``dr/du du = -dr`` at the solution."""
        terms, term = self.terms, self.terms[whole]
        index = term.extra[0]
        loop = self.loops[index]
        n = loop.size
        if not term.extra[1]:
            raise NoRuleError("a Newton loop without its matrix")
        picks = [terms.make("pick", (whole,), F64, (k,)) for k in range(n + n * n)]
        self.of(term.args)
        # A solution in the loop reads the matrix of factors that are made before it.
        read = [*term.args, *(a for factors in term.args if terms[factors].op == LU for a in terms[factors].args)]
        inner = Pusher(terms, self.loops, {a: self.known[a] for a in read} | {u: {} for u in loop.unknowns})
        tangents = inner.of(loop.residual)
        places = dict(zip(loop.unknowns, picks[:n], strict=True))
        moved = [
            {d: terms.make("neg", (substituted(terms, [t], places, index)[0],), F64) for d, t in one.items()}
            for one in tangents
        ]
        factors = terms.make(LU, picks[n:], F64, (n,))
        return self._solved(factors, moved, n, transposed=False)


def substituted(terms: Terms, ends: Sequence[int], places: Mapping[int, int], loop: int) -> list[int]:
    """``ends`` with other terms in the place of a loop's unknowns."""
    known = dict(places)
    for i in region(terms, ends, loop):
        if i not in known:
            term = terms[i]
            known[i] = terms.make(term.op, [known.get(a, a) for a in term.args], term.kind, term.extra)
    return [known.get(i, i) for i in ends]


def with_matrices(terms: Terms, loops: Mapping[int, Loop], ends: Sequence[int]) -> list[int]:
    """``ends`` with Newton loops that give their matrix as well."""
    known: dict[int, int] = {}
    for i in reached(terms, ends, ()):
        term = terms[i]
        args = tuple(known[a] for a in term.args)
        if term.op == NEWTON and not term.extra[1]:
            known[i] = terms.make(NEWTON, args, term.kind, (term.extra[0], True))
        elif term.op == "pick" and terms[term.args[0]].op == NEWTON and args != term.args:
            n, place = loops[terms[term.args[0]].extra[0]].size, term.extra[0]
            known[i] = terms.make("pick", args, term.kind, (place if place < n else place + n * n,))
        else:
            known[i] = i if args == term.args else terms.make(term.op, args, term.kind, term.extra)
    return [known[i] for i in ends]


def count(terms: Terms, loops: Mapping[int, Loop], ends: Sequence[int], leaves: Sequence[int]) -> int:
    """About how many terms the derivatives of ``ends`` by ``leaves`` have, one for each direction."""
    order = reached(terms, ends, ())
    bits = direction_batching.dependence(terms, order, {leaf: 1 << k for k, leaf in enumerate(leaves)})
    found = 0
    for i in order:
        term = terms[i]
        inner = len(region(terms, loops[term.extra[0]].residual, term.extra[0])) if term.op == NEWTON else 1
        found += inner * bits[i].bit_count()
    return found


def matrix(terms: Terms, loops: Mapping[int, Loop], ends: Sequence[int], leaves: Sequence[int]) -> list[int]:
    """The derivatives of ``ends`` by ``leaves``, row by row.

    Raises ``NoRuleError`` for an operation whose derivative is not known.
    """
    alike = all(terms[i].kind == F64 for i in (*ends, *leaves))
    if alike and count(terms, loops, ends, leaves) > direction_batching.MANY:
        loop = terms.loop()
        along = [terms.leaf(f"direction:{loop}", k, F64, terms.rows[leaf], 1 << loop) for k, leaf in enumerate(leaves)]
        pusher = Pusher(terms, loops, {leaf: {"": one} for leaf, one in zip(leaves, along, strict=True)})
        zero = terms.constant(0.0, F64)
        return direction_batching.columns(terms, loop, along, [t.get("", zero) for t in pusher.of(ends)])
    pusher = Pusher(terms, loops, {leaf: {k: terms.constant(1.0, terms[leaf].kind)} for k, leaf in enumerate(leaves)})
    zeros = [terms.constant(0.0, terms[i].kind) for i in ends]
    return [t.get(k, z) for t, z in zip(pusher.of(ends), zeros, strict=True) for k in range(len(leaves))]


def derivatives(
    terms: Terms, loops: Mapping[int, Loop], contract: Contract, method: str, forward: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """What ``jacobian`` or ``jvp`` returns, from the terms that ``forward`` does.

    Raises ``NoRuleError`` for an operation whose derivative is not known, and for a method of another kind.
    """
    spec = contract.methods[method]
    names = [one.name for one in contract.outputs]
    flat = with_matrices(terms, loops, [i for output in forward for i in output])
    pieces, at = {}, 0
    for name, output in zip(names, forward, strict=True):
        pieces[name], at = flat[at : at + len(output)], at + len(output)
    row = 1
    leaves: dict[str, list[int]] = {}
    seeds: dict[int, Tangent] = {}
    for given in (*contract.inputs, *contract.parameters):
        if given.dtype not in REAL:
            continue
        parameter = given not in contract.inputs
        name = leaf_name(given.name) if parameter else given.name
        numbers = range(math.prod(given.fixed if isinstance(given, TensorSpec) else given.shape))
        leaves[given.name] = [terms.leaf(name, k, given.dtype, 0 if parameter else row) for k in numbers]
        tangent = TANGENT + given.name
        if tangent in spec.inputs:
            along = [terms.leaf(tangent, k, given.dtype, row) for k in numbers]
            seeds |= {leaf: {"": one} for leaf, one in zip(leaves[given.name], along, strict=True)}
    blocks = _blocks(terms, loops, [o for o in spec.outputs if not isinstance(o, str)], pieces, leaves)
    pusher = Pusher(terms, loops, seeds)
    found: list[tuple[int, ...]] = []
    for output in spec.outputs:
        if not isinstance(output, str):
            found.append(blocks[output])
            continue
        if bare(output) not in pieces:
            raise NoRuleError(output)
        own = pieces[bare(output)]
        if output.startswith(TANGENT):
            zeros = [terms.constant(0.0, terms[i].kind) for i in own]
            own = [t.get("", z) for t, z in zip(pusher.of(own), zeros, strict=True)]
        found.append(tuple(own))
    return found


def _blocks(
    terms: Terms,
    loops: Mapping[int, Loop],
    wanted: Sequence[tuple[str, str]],
    pieces: Mapping[str, Sequence[int]],
    leaves: Mapping[str, Sequence[int]],
) -> dict[tuple[str, str], tuple[int, ...]]:
    """Of one matrix: by all inputs that are asked for, of all outputs."""
    outputs, inputs = (list(dict.fromkeys(names)) for names in zip(*wanted, strict=True)) if wanted else ([], [])
    of_all = [leaf for by in inputs for leaf in leaves[by]]
    whole = iter(matrix(terms, loops, [i for of in outputs for i in pieces[of]], of_all))
    found: dict[tuple[str, str], list[int]] = {(of, by): [] for of in outputs for by in inputs}
    for of in outputs:
        for _, by in itertools.product(pieces[of], inputs):
            found[of, by] += itertools.islice(whole, len(leaves[by]))
    return {block: tuple(own) for block, own in found.items()}
