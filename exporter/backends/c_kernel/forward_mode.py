"""Derivatives of expression nodes in forward mode (Griewank and Walther, Evaluating Derivatives, 2008, chapter 3).

A node that does not depend on a direction has no tangent in it: structural zeros are left out. At kinks the values are
those of torch's autograd. Solutions of Newton loops are differentiated by the implicit function theorem."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence

from exporter.archive.contract import TANGENT, Contract, strip_prefix
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
    ExprGraph,
)
from exporter.backends.c_kernel.names import leaf_name
from exporter.backends.c_kernel.newton_loop import NewtonLoop, find_loop_nodes
from exporter.backends.c_kernel.schedule import reachable_nodes

Direction = Hashable
# The tangents of a node, by the directions that it depends on.
Tangent = dict[Direction, int]
# Returns the partial derivatives by the arguments, as nodes; None for an argument without influence.
Partials = Callable[[ExprGraph, str, int, Sequence[int]], Sequence[int | None]]


class NoRuleError(Exception):
    """An operation that has no derivative rule."""


def _lift(function: Callable[[Callable[..., int], Callable[[float], int], int, int], int]) -> Partials:
    def differentiate(graph: ExprGraph, dtype: str, output: int, args: Sequence[int]) -> list[int | None]:
        def make(op: str, *operands: int) -> int:
            return graph.add(op, operands, dtype)

        return [function(make, lambda value: graph.add_constant(value, dtype), output, args[0])]

    return differentiate


def _differentiate_sqrt(graph: ExprGraph, dtype: str, output: int, args: Sequence[int]) -> list[int | None]:
    """Differentiate a square root; the derivative of a norm is 0 where the norm is."""
    zero = graph.add_constant(0.0, dtype)
    slope = graph.add("div", (graph.add_constant(0.5, dtype), output), dtype)
    if graph[output].extra != ("norm",):
        return [slope]
    return [graph.add("where", (graph.add("eq", (output, zero), BOOL), zero, slope), dtype)]


def _differentiate_pow(graph: ExprGraph, dtype: str, output: int, args: Sequence[int]) -> list[int | None]:
    """Differentiate as torch's pow_backward (torch/csrc/autograd/FunctionsManual.cpp): 0 by the exponent at base 0."""
    base, exponent = args
    unit, zero = graph.add_constant(1.0, dtype), graph.add_constant(0.0, dtype)
    lower = graph.add("pow", (base, graph.add("sub", (exponent, unit), dtype)), dtype)
    by_base = graph.add("mul", (exponent, lower), dtype)
    if graph.constant_value(exponent) == 0.0:
        by_base = zero
    elif graph.constant_value(exponent) is None:
        never = graph.add("eq", (exponent, zero), BOOL)
        by_base = graph.add("where", (never, zero, by_base), dtype)
    at_zero = graph.add("and", (graph.add("eq", (base, zero), BOOL), graph.add("le", (zero, exponent), BOOL)), BOOL)
    by_exponent = graph.add("mul", (output, graph.add("log", (base,), dtype)), dtype)
    return [by_base, graph.add("where", (at_zero, zero, by_exponent), dtype)]


def _differentiate_extremum(graph: ExprGraph, dtype: str, output: int, args: Sequence[int]) -> list[int | None]:
    """Differentiate ``max``, ``min``: half by each of two equal ones; a bound of ``clamp`` does not count where met."""
    a, b = args
    if graph[output].extra == ("of many",):
        raise NoRuleError("amax, amin")
    smaller = graph[output].op == "min"
    below = graph.add("lt", (a, b), BOOL)
    above = graph.add("lt", (b, a), BOOL)
    takes_a, takes_b = (below, above) if smaller else (above, below)
    unit, zero = graph.add_constant(1.0, dtype), graph.add_constant(0.0, dtype)
    tie = unit if graph[output].extra else graph.add_constant(0.5, dtype)
    at_tie = zero if graph[output].extra else tie
    by_a = graph.add("where", (takes_a, unit, graph.add("where", (takes_b, zero, tie), dtype)), dtype)
    by_b = graph.add("where", (takes_b, unit, graph.add("where", (takes_a, zero, at_tie), dtype)), dtype)
    return [by_a, by_b]


def _differentiate_div(graph: ExprGraph, dtype: str, output: int, args: Sequence[int]) -> list[int | None]:
    by_a = graph.add("div", (graph.add_constant(1.0, dtype), args[1]), dtype)
    return [by_a, graph.add("neg", (graph.add("div", (output, args[1]), dtype),), dtype)]


def _differentiate_atan2(graph: ExprGraph, dtype: str, output: int, args: Sequence[int]) -> list[int | None]:
    y, x = args
    square = graph.add("add", (graph.add("mul", (x, x), dtype), graph.add("mul", (y, y), dtype)), dtype)
    return [graph.add("div", (x, square), dtype), graph.add("neg", (graph.add("div", (y, square), dtype),), dtype)]


PARTIALS: dict[str, Partials] = {
    "sqrt": _differentiate_sqrt,
    "exp": _lift(lambda make, n, y, x: y),
    "exp2": _lift(lambda make, n, y, x: make("mul", y, n(math.log(2.0)))),
    "expm1": _lift(lambda make, n, y, x: make("add", y, n(1.0))),
    "log": _lift(lambda make, n, y, x: make("div", n(1.0), x)),
    "log2": _lift(lambda make, n, y, x: make("div", n(1.0 / math.log(2.0)), x)),
    "log10": _lift(lambda make, n, y, x: make("div", n(1.0 / math.log(10.0)), x)),
    "log1p": _lift(lambda make, n, y, x: make("div", n(1.0), make("add", x, n(1.0)))),
    "sin": _lift(lambda make, n, y, x: make("cos", x)),
    "cos": _lift(lambda make, n, y, x: make("neg", make("sin", x))),
    "tan": _lift(lambda make, n, y, x: make("add", n(1.0), make("mul", y, y))),
    "asin": _lift(lambda make, n, y, x: make("div", n(1.0), make("sqrt", make("sub", n(1.0), make("mul", x, x))))),
    "acos": _lift(lambda make, n, y, x: make("div", n(-1.0), make("sqrt", make("sub", n(1.0), make("mul", x, x))))),
    "atan": _lift(lambda make, n, y, x: make("div", n(1.0), make("add", n(1.0), make("mul", x, x)))),
    "sinh": _lift(lambda make, n, y, x: make("cosh", x)),
    "cosh": _lift(lambda make, n, y, x: make("sinh", x)),
    "tanh": _lift(lambda make, n, y, x: make("sub", n(1.0), make("mul", y, y))),
    "abs": _lift(lambda make, n, y, x: make("sign", x)),
    "erf": _lift(
        lambda make, n, y, x: make("mul", n(2.0 / math.sqrt(math.pi)), make("exp", make("neg", make("mul", x, x))))
    ),
    "pow": _differentiate_pow,
    "div": _differentiate_div,
    "atan2": _differentiate_atan2,
    "max": _differentiate_extremum,
    "min": _differentiate_extremum,
}
# Piecewise constant operations: their derivative is zero wherever it exists.
FLAT = {"floor", "ceil", "trunc", "round", "sign", "div_floor", "div_trunc", "lt", "le", "eq", "ne", "and", "or", "xor",
        "not", "isnan", "isinf", "isfinite", "const", "leaf", "singular", SEARCHED}  # fmt: skip


class ForwardMode:
    """Forward mode: the tangents of nodes, each computed once. ``seeds`` are the tangents of nodes that are given."""

    def __init__(self, graph: ExprGraph, loops: Mapping[int, NewtonLoop], seeds: Mapping[int, Tangent]) -> None:
        self.graph, self.loops = graph, loops
        self.tangents: dict[int, Tangent] = dict(seeds)
        self._multi_tangents: dict[int, list[Tangent]] = {}

    def differentiate(self, ends: Sequence[int]) -> list[Tangent]:
        """Return the tangents of ``ends``. Raises ``NoRuleError`` for an operation whose derivative is not known."""
        for i in reachable_nodes(self.graph, ends, self.tangents):
            if i not in self.tangents:
                self.tangents[i] = self._differentiate_node(i)
        return [self.tangents[i] for i in ends]

    def _differentiate_node(self, i: int) -> Tangent:
        graph, node = self.graph, self.graph[i]
        make = graph.add
        if node.op in FLAT or node.op in (LU, SOLVED, NEWTON, COLUMNS):
            return {}
        if node.op == "pick":
            return self._differentiate_pick(node.args[0], node.extra[0])
        tangents = [self.tangents[a] for a in node.args]
        directions = list(dict.fromkeys(d for t in tangents for d in t))
        if not directions or node.dtype not in REAL:
            return {}
        dtype = node.dtype
        if node.op in ("add", "sub"):
            return {d: self._combine(node.op, tangents[0].get(d), tangents[1].get(d), dtype) for d in directions}
        if node.op in ("neg", "cast"):
            return {d: make(node.op, (t,), dtype) for d, t in tangents[0].items()}
        if node.op == "where":
            zero = graph.add_constant(0.0, dtype)
            _, first, second = tangents
            return {
                d: make("where", (node.args[0], first.get(d, zero), second.get(d, zero)), dtype) for d in directions
            }
        if node.op == READ:
            return {
                d: table_lookup.read_sparse_table(graph, [t.get(d) for t in tangents[1:]], node.args[0])
                for d in directions
            }
        if node.op == "mul":
            partials: Sequence[int | None] = [node.args[1], node.args[0]]
        elif node.extra == ("sigmoid",):
            # Where the exponential is infinite the chain rule would give 0 times infinity.
            raise NoRuleError("sigmoid")
        elif node.op == "div" and not tangents[1]:
            return {d: make("div", (t, node.args[1]), dtype) for d, t in tangents[0].items()}
        elif node.op in PARTIALS:
            partials = PARTIALS[node.op](graph, dtype, i, node.args)
        else:
            raise NoRuleError(node.op)
        return {d: self._apply_chain_rule(partials, [t.get(d) for t in tangents], dtype) for d in directions}

    def _apply_chain_rule(self, partials: Sequence[int | None], tangents: Sequence[int | None], dtype: str) -> int:
        products = [
            self.graph.add("mul", (p, t), dtype)
            for p, t in zip(partials, tangents, strict=True)
            if t is not None and p is not None
        ]
        total = products[0]
        for product in products[1:]:
            total = self.graph.add("add", (total, product), dtype)
        return total

    def _combine(self, op: str, a: int | None, b: int | None, dtype: str) -> int:
        if a is not None and b is not None:
            return self.graph.add(op, (a, b), dtype)
        if a is not None:
            return a
        assert b is not None
        return self.graph.add("neg", (b,), dtype) if op == "sub" else b

    def _differentiate_pick(self, parent: int, index: int) -> Tangent:
        if parent not in self._multi_tangents:
            op = self.graph[parent].op
            if op == COLUMNS:
                raise NoRuleError("derivatives of derivatives")
            self._multi_tangents[parent] = (
                self._differentiate_solve(parent) if op == SOLVED else self._differentiate_newton(parent)
            )
        tangents = self._multi_tangents[parent]
        return tangents[index] if index < len(tangents) else {}

    def _differentiate_solve(self, parent: int) -> list[Tangent]:
        """Differentiate ``A x = b``: ``A dx = db - dA x``."""
        graph, node = self.graph, self.graph[parent]
        n, transposed = node.extra[0], bool(node.extra[1])
        factors, *sides = node.args
        matrix = graph[factors].args
        self.differentiate([*matrix, *sides])
        x = [graph.add("pick", (parent,), F64, (k,)) for k in range(n)]
        right: list[Tangent] = []
        for row in range(n):
            tangent = dict(self.tangents[sides[row]])
            for column in range(n):
                entry = matrix[column * n + row if transposed else row * n + column]
                for d, t in self.tangents[entry].items():
                    product = graph.add("mul", (t, x[column]), F64)
                    previous = tangent.get(d)
                    tangent[d] = self._combine("sub", previous, product, F64)
            right.append(tangent)
        return self._solve_directions(factors, right, n, transposed=transposed)

    def _solve_directions(self, factors: int, right: Sequence[Tangent], n: int, *, transposed: bool) -> list[Tangent]:
        graph = self.graph
        zero = graph.add_constant(0.0, F64)
        tangents: list[Tangent] = [{} for _ in range(n)]
        for d in dict.fromkeys(d for tangent in right for d in tangent):
            operands = (factors, *(tangent.get(d, zero) for tangent in right))
            for k, pick in enumerate(graph.unpack(SOLVED, operands, (n, transposed), [F64] * n)):
                tangents[k][d] = pick
        return tangents

    def _differentiate_newton(self, parent: int) -> list[Tangent]:
        """Differentiate ``r(u, fixed) = 0``: ``dr/du du = -dr`` at the solution."""
        graph, node = self.graph, self.graph[parent]
        index = node.extra[0]
        loop = self.loops[index]
        n = loop.size
        if not node.extra[1]:
            raise NoRuleError("a Newton loop without its matrix")
        picks = [graph.add("pick", (parent,), F64, (k,)) for k in range(n + n * n)]
        self.differentiate(node.args)
        # A solution in the loop reads the matrix of factors that are computed before the loop.
        read = [*node.args, *(a for factors in node.args if graph[factors].op == LU for a in graph[factors].args)]
        inner = ForwardMode(graph, self.loops, {a: self.tangents[a] for a in read} | {u: {} for u in loop.unknowns})
        tangents = inner.differentiate(loop.residual)
        solution = dict(zip(loop.unknowns, picks[:n], strict=True))
        right = [
            {
                d: graph.add("neg", (substitute_unknowns(graph, [t], solution, index)[0],), F64)
                for d, t in tangent.items()
            }
            for tangent in tangents
        ]
        factors = graph.add(LU, picks[n:], F64, (n,))
        return self._solve_directions(factors, right, n, transposed=False)


def substitute_unknowns(graph: ExprGraph, ends: Sequence[int], replacements: Mapping[int, int], loop: int) -> list[int]:
    """Return ``ends`` with other nodes in the place of a loop's unknowns."""
    mapping = dict(replacements)
    for i in find_loop_nodes(graph, ends, loop):
        if i not in mapping:
            node = graph[i]
            mapping[i] = graph.add(node.op, [mapping.get(a, a) for a in node.args], node.dtype, node.extra)
    return [mapping.get(i, i) for i in ends]


def add_loop_matrices(graph: ExprGraph, loops: Mapping[int, NewtonLoop], ends: Sequence[int]) -> list[int]:
    """Return ``ends`` with Newton loops that return their matrix as well."""
    mapping: dict[int, int] = {}
    for i in reachable_nodes(graph, ends, ()):
        node = graph[i]
        args = tuple(mapping[a] for a in node.args)
        if node.op == NEWTON and not node.extra[1]:
            mapping[i] = graph.add(NEWTON, args, node.dtype, (node.extra[0], True))
        elif node.op == "pick" and graph[node.args[0]].op == NEWTON and args != node.args:
            n, index = loops[graph[node.args[0]].extra[0]].size, node.extra[0]
            mapping[i] = graph.add("pick", args, node.dtype, (index if index < n else index + n * n,))
        else:
            mapping[i] = i if args == node.args else graph.add(node.op, args, node.dtype, node.extra)
    return [mapping[i] for i in ends]


def estimate_count(
    graph: ExprGraph, loops: Mapping[int, NewtonLoop], ends: Sequence[int], leaves: Sequence[int]
) -> int:
    """Estimate the number of nodes of the derivatives of ``ends`` by ``leaves``, one for each direction."""
    order = reachable_nodes(graph, ends, ())
    bits = direction_batching.find_dependences(graph, order, {leaf: 1 << k for k, leaf in enumerate(leaves)})
    total = 0
    for i in order:
        node = graph[i]
        inner = len(find_loop_nodes(graph, loops[node.extra[0]].residual, node.extra[0])) if node.op == NEWTON else 1
        total += inner * bits[i].bit_count()
    return total


def build_jacobian(
    graph: ExprGraph, loops: Mapping[int, NewtonLoop], ends: Sequence[int], leaves: Sequence[int]
) -> list[int]:
    """Build the derivatives of ``ends`` by ``leaves``, row by row.

    Raises ``NoRuleError`` for an operation whose derivative is not known."""
    all_double = all(graph[i].dtype == F64 for i in (*ends, *leaves))
    if all_double and estimate_count(graph, loops, ends, leaves) > direction_batching.MANY:
        loop = graph.new_loop()
        directions = [
            graph.add_leaf(f"direction:{loop}", k, F64, graph.batch_rows[leaf], 1 << loop)
            for k, leaf in enumerate(leaves)
        ]
        forward_mode = ForwardMode(
            graph, loops, {leaf: {"": direction} for leaf, direction in zip(leaves, directions, strict=True)}
        )
        zero = graph.add_constant(0.0, F64)
        return direction_batching.add_direction_loop(
            graph, loop, directions, [t.get("", zero) for t in forward_mode.differentiate(ends)]
        )
    forward_mode = ForwardMode(
        graph, loops, {leaf: {k: graph.add_constant(1.0, graph[leaf].dtype)} for k, leaf in enumerate(leaves)}
    )
    zeros = [graph.add_constant(0.0, graph[i].dtype) for i in ends]
    return [
        t.get(k, z) for t, z in zip(forward_mode.differentiate(ends), zeros, strict=True) for k in range(len(leaves))
    ]


def build_derivatives(
    graph: ExprGraph, loops: Mapping[int, NewtonLoop], contract: Contract, method: str, forward: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Build what ``jacobian`` or ``jvp`` returns, from the nodes that ``forward`` returns.

    Raises ``NoRuleError`` for an operation whose derivative is not known, and for a method that is neither."""
    spec = contract.methods[method]
    names = [o.name for o in contract.outputs]
    flat = add_loop_matrices(graph, loops, [i for output in forward for i in output])
    nodes_by_output, offset = {}, 0
    for name, output in zip(names, forward, strict=True):
        nodes_by_output[name], offset = flat[offset : offset + len(output)], offset + len(output)
    batch_row = 1
    leaves: dict[str, list[int]] = {}
    seeds: dict[int, Tangent] = {}
    for variable in (*contract.inputs, *contract.parameters):
        if variable.dtype not in REAL:
            continue
        parameter = variable not in contract.inputs
        name = leaf_name(variable.name) if parameter else variable.name
        numbers = range(math.prod(variable.static_shape if isinstance(variable, TensorSpec) else variable.shape))
        leaves[variable.name] = [
            graph.add_leaf(name, k, variable.dtype, 0 if parameter else batch_row) for k in numbers
        ]
        tangent = TANGENT + variable.name
        if tangent in spec.inputs:
            directions = [graph.add_leaf(tangent, k, variable.dtype, batch_row) for k in numbers]
            seeds |= {leaf: {"": direction} for leaf, direction in zip(leaves[variable.name], directions, strict=True)}
    blocks = _build_blocks(graph, loops, [o for o in spec.outputs if not isinstance(o, str)], nodes_by_output, leaves)
    forward_mode = ForwardMode(graph, loops, seeds)
    results: list[tuple[int, ...]] = []
    for output in spec.outputs:
        if not isinstance(output, str):
            results.append(blocks[output])
            continue
        if strip_prefix(output) not in nodes_by_output:
            raise NoRuleError(output)
        nodes = nodes_by_output[strip_prefix(output)]
        if output.startswith(TANGENT):
            zeros = [graph.add_constant(0.0, graph[i].dtype) for i in nodes]
            nodes = [t.get("", z) for t, z in zip(forward_mode.differentiate(nodes), zeros, strict=True)]
        results.append(tuple(nodes))
    return results


def _build_blocks(
    graph: ExprGraph,
    loops: Mapping[int, NewtonLoop],
    pairs: Sequence[tuple[str, str]],
    nodes_by_output: Mapping[str, Sequence[int]],
    leaves: Mapping[str, Sequence[int]],
) -> dict[tuple[str, str], tuple[int, ...]]:
    """Build the jacobian blocks from one matrix: of all outputs, by all inputs that are requested."""
    outputs, inputs = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True)) if pairs else ([], [])
    all_leaves = [leaf for wrt in inputs for leaf in leaves[wrt]]
    entries = iter(build_jacobian(graph, loops, [i for output in outputs for i in nodes_by_output[output]], all_leaves))
    blocks: dict[tuple[str, str], list[int]] = {(output, wrt): [] for output in outputs for wrt in inputs}
    for output in outputs:
        for _, wrt in itertools.product(nodes_by_output[output], inputs):
            blocks[output, wrt] += itertools.islice(entries, len(leaves[wrt]))
    return {block: tuple(block_entries) for block, block_entries in blocks.items()}
