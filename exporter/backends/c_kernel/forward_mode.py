"""Derivatives of expression nodes in forward mode (Griewank and Walther, Evaluating Derivatives, 2008, chapter 3).

A node that does not depend on a direction has no tangent in it: structural zeros are left out. At kinks the values are
those of torch's autograd. Solutions of Newton loops are differentiated by the implicit function theorem."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Hashable, Mapping, Sequence

from exporter.archive.contract import COTANGENT, TANGENT, Contract, strip_prefix
from exporter.archive.tensor_spec import TensorSpec
from exporter.backends.c_kernel import direction_batching, table_lookup
from exporter.backends.c_kernel.expression_graph import (
    COLUMNS,
    F64,
    LU,
    NEWTON,
    READ,
    REAL,
    SOLVED,
    Expr,
    ExprGraph,
    leaf_name,
)
from exporter.backends.c_kernel.newton_loop import NewtonLoop, find_loop_nodes
from exporter.backends.c_kernel.rules.derivatives import FLAT, NoRuleError, differentiate_operation
from exporter.backends.c_kernel.schedule import reachable_nodes

Direction = Hashable
# The tangents of a node, by the directions that it depends on.
Tangent = dict[Direction, int]
Loops = Mapping[int, NewtonLoop]


class ForwardMode:
    """Forward mode: the tangents of nodes, each computed once. ``seeds`` are the tangents of nodes that are given."""

    def __init__(self, graph: ExprGraph, loops: Loops, seeds: Mapping[int, Tangent]) -> None:
        self.graph, self.loops = graph, loops
        self.tangents: dict[int, Tangent] = dict(seeds)
        self._multi_tangents: dict[int, list[Tangent]] = {}

    def differentiate(self, ends: Sequence[int]) -> list[Tangent]:
        """Return the tangents of ``ends``. Raises ``NoRuleError`` for an operation whose derivative is not known."""
        for i in reachable_nodes(self.graph, ends, self.tangents):
            if i not in self.tangents:
                self.tangents[i] = self.differentiate_node(i)
        return [self.tangents[i] for i in ends]

    def differentiate_node(self, i: int) -> Tangent:
        """Return the tangents of a node from those of its arguments. Raises ``NoRuleError``."""
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
            sides = {d: [t.get(d, zero) for t in tangents[1:]] for d in directions}
            return {d: make("where", (node.args[0], *values), dtype) for d, values in sides.items()}
        if node.op == READ:
            tables = {d: [t.get(d) for t in tangents[1:]] for d in directions}
            return {d: table_lookup.read_sparse_table(graph, row, node.args[0]) for d, row in tables.items()}
        if node.extra == ("sigmoid",):
            # Where the exponential is infinite the chain rule would give 0 times infinity.
            raise NoRuleError("sigmoid")
        if node.op == "div" and not tangents[1]:
            return {d: make("div", (t, node.args[1]), dtype) for d, t in tangents[0].items()}
        partials = differentiate_operation(node.op, Expr(graph, i), [Expr(graph, a) for a in node.args])
        return {d: self._apply_chain_rule(partials, [t.get(d) for t in tangents], dtype) for d in directions}

    def _apply_chain_rule(self, partials: Sequence[int], tangents: Sequence[int | None], dtype: str) -> int:
        pairs = [(p, t) for p, t in zip(partials, tangents, strict=True) if t is not None]
        products = [Expr(self.graph, self.graph.add("mul", pair, dtype)) for pair in pairs]
        return functools.reduce(operator.add, products).index

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
            differentiate = self._differentiate_solve if op == SOLVED else self._differentiate_newton
            self._multi_tangents[parent] = differentiate(parent)
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

        def negate(node: int) -> int:
            return graph.add("neg", (substitute_unknowns(graph, [node], solution, index)[0],), F64)

        right = [{d: negate(t) for d, t in tangent.items()} for tangent in tangents]
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


def add_loop_matrices(graph: ExprGraph, loops: Loops, ends: Sequence[int]) -> list[int]:
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


def estimate_count(graph: ExprGraph, loops: Loops, ends: Sequence[int], leaves: Sequence[int]) -> int:
    """Estimate the number of nodes of the derivatives of ``ends`` by ``leaves``, one for each direction."""
    order = reachable_nodes(graph, ends, ())
    bits = direction_batching.find_dependences(graph, order, {leaf: 1 << k for k, leaf in enumerate(leaves)})
    total = 0
    for i in order:
        node = graph[i]
        inner = len(find_loop_nodes(graph, loops[node.extra[0]].residual, node.extra[0])) if node.op == NEWTON else 1
        total += inner * bits[i].bit_count()
    return total


def build_jacobian(graph: ExprGraph, loops: Loops, ends: Sequence[int], leaves: Sequence[int]) -> list[int]:
    """Build the derivatives of ``ends`` by ``leaves``, row by row.

    Raises ``NoRuleError`` for an operation whose derivative is not known."""
    all_double = all(graph[i].dtype == F64 for i in (*ends, *leaves))
    if all_double and estimate_count(graph, loops, ends, leaves) > direction_batching.MANY:
        loop = graph.new_loop()
        name, rows = f"direction:{loop}", [graph.batch_rows[leaf] for leaf in leaves]
        directions = [graph.add_leaf(name, k, F64, row, 1 << loop) for k, row in enumerate(rows)]
        seeds: dict[int, Tangent] = {leaf: {"": d} for leaf, d in zip(leaves, directions, strict=True)}
        tangents, zero = ForwardMode(graph, loops, seeds).differentiate(ends), graph.add_constant(0.0, F64)
        return direction_batching.add_direction_loop(graph, loop, directions, [t.get("", zero) for t in tangents])
    seeds = {leaf: {k: graph.add_constant(1.0, graph[leaf].dtype)} for k, leaf in enumerate(leaves)}
    zeros = [graph.add_constant(0.0, graph[i].dtype) for i in ends]
    rows = zip(ForwardMode(graph, loops, seeds).differentiate(ends), zeros, strict=True)
    return [tangent.get(k, zero) for tangent, zero in rows for k in range(len(leaves))]


def build_derivatives(
    graph: ExprGraph, loops: Loops, contract: Contract, method: str, forward: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Build what ``jacobian``, ``jvp`` or ``vjp`` returns, from the nodes that ``forward`` returns.

    Raises ``NoRuleError`` for an operation whose derivative is not known, and for a method that is none of them."""
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
        # A block or a tangent is the input's, where a parameter has its name.
        if variable.dtype not in REAL or variable.name in leaves:
            continue
        parameter = variable not in contract.inputs
        name = leaf_name(variable.name) if parameter else variable.name
        numbers = range(math.prod(variable.static_shape if isinstance(variable, TensorSpec) else variable.shape))
        row = 0 if parameter else batch_row
        leaves[variable.name] = [graph.add_leaf(name, k, variable.dtype, row) for k in numbers]
        tangent = TANGENT + variable.name
        if tangent in spec.inputs:
            directions = [graph.add_leaf(tangent, k, variable.dtype, batch_row) for k in numbers]
            seeds |= {leaf: {"": direction} for leaf, direction in zip(leaves[variable.name], directions, strict=True)}
    blocks = _build_blocks(graph, loops, [o for o in spec.outputs if not isinstance(o, str)], nodes_by_output, leaves)
    pulled = _pull_cotangents(graph, loops, contract, method, nodes_by_output, leaves)
    forward_mode = ForwardMode(graph, loops, seeds)
    results: list[tuple[int, ...]] = []
    for output in spec.outputs:
        if not isinstance(output, str):
            results.append(blocks[output])
            continue
        if output in pulled:
            results.append(pulled[output])
            continue
        if strip_prefix(output) not in nodes_by_output:
            raise NoRuleError(output)
        nodes = nodes_by_output[strip_prefix(output)]
        if output.startswith(TANGENT):
            zeros = [graph.add_constant(0.0, graph[i].dtype) for i in nodes]
            nodes = [t.get("", z) for t, z in zip(forward_mode.differentiate(nodes), zeros, strict=True)]
        results.append(tuple(nodes))
    return results


def _pull_cotangents(
    graph: ExprGraph,
    loops: Loops,
    contract: Contract,
    method: str,
    nodes_by_output: Mapping[str, Sequence[int]],
    leaves: Mapping[str, Sequence[int]],
) -> dict[str, tuple[int, ...]]:
    """Build the cotangents of inputs: the derivatives of one number, the sum of outputs times their cotangents."""
    spec = contract.methods[method]
    asked: list[str] = [o for o in spec.outputs if isinstance(o, str) and o.startswith(COTANGENT)]
    total = Expr(graph, graph.add_constant(0.0, F64))
    for name, nodes in nodes_by_output.items():
        if asked and COTANGENT + name in spec.inputs:
            for k, node in enumerate(nodes):
                seed = Expr(graph, graph.add_leaf(COTANGENT + name, k, graph[node].dtype, 1))
                total += (seed * Expr(graph, node)).cast(F64)
    inputs, result = {s.name for s in contract.inputs}, {}
    for output in asked:
        name = strip_prefix(output)
        if name not in inputs:
            # That of a parameter is a sum over elements.
            raise NoRuleError(output)
        wrt = leaves[name]
        entries = [Expr(graph, i) for i in build_jacobian(graph, loops, [total.index], wrt)]
        result[output] = tuple(e.cast(graph[i].dtype).index for e, i in zip(entries, wrt, strict=True))
    return result


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
