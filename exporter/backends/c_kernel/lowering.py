"""A method of an archive as scalar nodes of one element of the batch, with proof that elements do not see each other.

The graph is run on nodes for two elements: a node that depends on both is refused where it is made. It is run again for
three, in another order: the same element must have the same nodes, at any position and in any number of elements."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.archive.contract import COTANGENT, TANGENT, Contract, Solver
from exporter.archive.tensor_spec import list_dynamic_sizes
from exporter.backends.backend import KernelOptions
from exporter.backends.c_kernel import forward_mode, newton_step, reduced_system
from exporter.backends.c_kernel.expression_graph import COLUMNS, F64, I64, MOST, NEWTON, ExprGraph, leaf_name
from exporter.backends.c_kernel.newton_loop import NewtonLoop, Reduction, find_loop_nodes, list_outer_inputs
from exporter.backends.c_kernel.rules.derivatives import NoRuleError
from exporter.backends.c_kernel.rules.linear_systems import NO_ERRORS
from exporter.backends.c_kernel.schedule import reachable_nodes
from exporter.backends.c_kernel.symbolic_tensor import SymbolicDispatch, SymbolicTensor
from exporter.backends.torch_export.graph_interpreter import TracedInterpreter, format_origin
from exporter.common.errors import TorchferryError, UnsupportedError, summarize_error
from exporter.common.torch_internals import disable_current_modes
from exporter.graph.loading import LoadedModule, resolve_captured_method
from exporter.graph.reader import list_settable_tensors
from exporter.saved_code.ir import Node, SavedGraphs

# One element of a Newton loop: the nodes of its guess and fixed inputs, and the symbols that these are of.
Element = tuple[torch.Tensor, Sequence[torch.Tensor], Sequence[SymbolicTensor]]


@dataclass(frozen=True)
class LoweredMethod:
    """One method on one element: ``outputs`` are nodes, flattened, in the contract's order. ``parameters`` are those
    that it reads, by name, with their values in the file."""

    method: str
    graph: ExprGraph
    inputs: tuple[str, ...]
    outputs: tuple[tuple[int, ...], ...]
    parameters: Mapping[str, torch.Tensor]
    loops: Mapping[int, NewtonLoop]
    notes: tuple[str, ...] = ()
    # Where the derivatives come from: "captured" or "forward mode".
    how: str = ""


class ArchiveLowering:
    """Lowering of the methods of one archive, in one expression graph."""

    def __init__(self, module: LoadedModule, contract: Contract, options: KernelOptions | None = None) -> None:
        check_fixed_shapes(contract)
        self._options = options or KernelOptions()
        self.graph = ExprGraph(finite_math=self._options.finite_math)
        self.loops: dict[int, NewtonLoop] = {}
        self._outputs: dict[str, list[tuple[int, ...]]] = {}
        self._module, self._contract = module, contract
        self._dispatch = SymbolicDispatch(self.graph)
        self._tensors: dict[str, SymbolicTensor] = {}
        self._solves: dict[tuple[Any, ...], int] = {}
        # Notes on what the interpreter left out of residuals.
        self._notes: list[str] = []
        self._solvers = {s.path: s for s in contract.solvers}
        values = {**module.named_parameters, **module.named_buffers}
        settable = sorted(list_settable_tensors(contract) or ())
        self._values = {n: values[n].detach().clone() for n in settable if n in values}

    def lower_method(self, method: str) -> LoweredMethod:
        """Lower a method. Raises ``UnsupportedError``, with model and line, for one that cannot be a kernel."""
        notes: list[str] = []
        with torch.no_grad(), self._locate_errors(method):
            outputs, how = self._differentiate_forward(method), "forward mode"
            # A loop over directions stands for more nodes than a captured graph should have.
            if outputs is None or not any(self.graph[i].op == COLUMNS for i in self._list_needed(outputs)):
                try:
                    captured, notes = self._lower_batch_independent(method)
                except UnsupportedError:
                    # What backward formulas are written with may have no form where the function itself has one.
                    outputs = outputs or self._differentiate_forward(method, COTANGENT)
                    if outputs is None:
                        raise
                else:
                    if outputs is None or self._estimate_cost(captured) < self._estimate_cost(outputs):
                        outputs, how = captured, "captured"
        self._outputs[method] = outputs
        names, values, loops = self._contract.methods[method].inputs, self._values, dict(self.loops)
        all_notes = (*notes, *self._notes)
        return LoweredMethod(method, self.graph, names, tuple(outputs), values, loops, all_notes, how)

    def _lower_batch_independent(self, method: str) -> tuple[list[tuple[int, ...]], list[str]]:
        """Lower the captured graph, and prove that an element's nodes do not depend on the batch around it."""
        graphs = self._read_graphs(method)
        batched = bool(self._contract.batch.ndim)
        first, notes = self._run_graph(graphs, method, (0, 1) if batched else ())
        again, _ = self._run_graph(graphs, method, (1, 2, 0)) if batched else (first, [])
        for spec, value, value_again in zip(self._contract.methods[method].outputs, first, again, strict=True):
            at_start, at_end = (value[0], value_again[-1]) if batched else (value, value_again)
            independent = all(self.graph.batch_rows[i] in (0, 1) for i in at_start.reshape(-1).tolist())
            if not independent or not torch.equal(at_start, at_end):
                what = "the result of an element depends on the batch around it"
                where, mend = f"method {method!r}, output {spec!r}", "use the .pt: a kernel is a loop over elements"
                expected = "the same operations at every position in a batch of any size"
                raise UnsupportedError(what, check="kernel", where=where, expected=expected, mend=mend)
        return [tuple((value[0] if batched else value).reshape(-1).tolist()) for value in first], notes

    def _differentiate_forward(self, method: str, kind: str = TANGENT) -> list[tuple[int, ...]] | None:
        """Differentiate ``forward``; None for a method without blocks and without derivatives of this kind, and for an
        operation without a rule."""
        forward = self._outputs.get("forward")
        spec = self._contract.methods[method]
        if forward is None or not any(not isinstance(o, str) or o.startswith(kind) for o in spec.outputs):
            return None
        try:
            return forward_mode.build_derivatives(self.graph, self.loops, self._contract, method, forward)
        except NoRuleError:
            return None

    def _list_needed(self, outputs: Sequence[Sequence[int]]) -> list[int]:
        return reachable_nodes(self.graph, [i for ends in outputs for i in ends], ())

    def _estimate_cost(self, outputs: Sequence[Sequence[int]]) -> int:
        """Count operations; those of a loop as often as it may well run."""
        needed = self._list_needed(outputs)
        loops = [self.graph[i] for i in needed if self.graph[i].op == NEWTON]
        inner = sum(len(find_loop_nodes(self.graph, self.loops[t.extra[0]].matrix, t.extra[0])) for t in loops)
        return len(needed) + 6 * inner

    def _read_graphs(self, method: str) -> SavedGraphs:
        loops = list(self._solvers)
        parts = [f"{path}.{part}.forward" for path in loops for part in ("residual", "jacobian")]
        captured = resolve_captured_method(self._module.method_names, method)
        return self._module.read_methods([captured, *parts], loops)

    @contextlib.contextmanager
    def _locate_errors(self, method: str) -> Iterator[None]:
        try:
            yield
        except TorchferryError as error:
            error.details["where"] = error.details.get("where") or self.graph.origin or f"method {method!r}"
            raise
        except Exception as error:
            expected, mend = "operators on tensors whose shapes are known", "use the .pt"
            what, where, got = f"method {method!r} has no form as a kernel", self.graph.origin, summarize_error(error)
            raise UnsupportedError(what, check="kernel", where=where, got=got, expected=expected, mend=mend) from error

    def _run_graph(self, graphs: SavedGraphs, method: str, batch_rows: Sequence[int]) -> tuple[list[Any], list[str]]:
        interpreter = self._make_interpreter(graphs)
        inputs = []
        for name in self._contract.methods[method].inputs:
            spec = self._contract.input_spec(name)
            dtype = getattr(torch, spec.dtype)
            rows = [1 << row for row in batch_rows] or [1]
            each = [self._dispatch.add_leaves(name, spec.static_shape, dtype, row) for row in rows]
            inputs.append(SymbolicTensor(torch.stack(each) if batch_rows else each[0], dtype))
        with self._dispatch:
            results = interpreter.run(resolve_captured_method(self._module.method_names, method), inputs)
        outputs = []
        for name, value in zip(self._contract.methods[method].outputs, results, strict=True):
            spec = self._contract.output_spec(name)
            if value.factored_matrix is not None:
                raise self._dispatch.unsupported_error("the factors of a matrix as an output")
            typed = self._dispatch.cast(value, getattr(torch, spec.dtype))
            self.graph.check_unmixed(typed.ids.reshape(-1).tolist())
            outputs.append(typed.ids.expand((*((len(batch_rows),) if batch_rows else ()), *spec.static_shape)))
        return outputs, interpreter.notes

    def _make_interpreter(self, graphs: SavedGraphs) -> TracedInterpreter:
        tensors = {key: self._get_tensor(key, graphs) for key in graphs.tensors}

        def solve_loop(path: str, inputs: Sequence[Any]) -> tuple[SymbolicTensor, ...]:
            # The solve computes on node indices, not on symbolic tensors.
            with disable_current_modes():
                return self._solve_batch(graphs, path, inputs)

        return TracedInterpreter(graphs, tensors, solve_loop, self._track_origin, NO_ERRORS)

    def _get_tensor(self, key: str, graphs: SavedGraphs) -> SymbolicTensor:
        if key not in self._tensors:
            value = self._values.get(key)
            if value is None:
                self._tensors[key] = self._dispatch.to_symbol(graphs.tensors[key])
            else:
                ids = self._dispatch.add_leaves(leaf_name(key), value.shape, value.dtype)
                self._tensors[key] = SymbolicTensor(ids, value.dtype)
        # The graph may write to the tensor: it gets its own.
        return SymbolicTensor(self._tensors[key].ids.clone(), self._tensors[key].dtype)

    def _track_origin(self, node: Node) -> contextlib.AbstractContextManager[Any]:
        # A line without an origin has the origin of the line before it.
        self.graph.origin = format_origin(node.origin) or self.graph.origin
        return contextlib.nullcontext()

    def _solve_batch(self, graphs: SavedGraphs, path: str, inputs: Sequence[Any]) -> tuple[SymbolicTensor, ...]:
        """Return what ``NewtonSolver.forward`` returns, for each element."""
        u, fixed_inputs, tangents = inputs
        guess: SymbolicTensor = u
        batched = int(self._module.get_value(f"{path}.batched"))
        solutions = []
        for i, row in enumerate(guess.ids):
            element_inputs = [t.ids[i] if k < batched else t.ids for k, t in enumerate(fixed_inputs)]
            element = (row, element_inputs, fixed_inputs)
            solutions.append(self._solve_element(graphs, self._solvers[path], element, bool(tangents)))
        n = guess.ids.shape[-1]
        u, matrix, *rest = (torch.tensor(p, dtype=torch.int64) for p in zip(*solutions, strict=True))
        matrix = matrix.reshape(-1, n, n) if tangents else matrix.reshape(0, n, n)
        dtypes = (torch.int64, guess.dtype, torch.int64, guess.dtype)
        scalars = (SymbolicTensor(ids[:, 0], dtype) for ids, dtype in zip(rest, dtypes, strict=True))
        return SymbolicTensor(u, guess.dtype), SymbolicTensor(matrix, guess.dtype), *scalars

    def _solve_element(
        self, graphs: SavedGraphs, solver: Solver, element: Element, tangents: bool
    ) -> tuple[list[int], ...]:
        guess, fixed_inputs, _ = element
        graph = self.graph
        u0 = guess.reshape(-1).tolist()
        flat = [i for t in fixed_inputs for i in t.reshape(-1).tolist()]
        key = (solver.path, tuple(u0), tuple(flat))
        n, is_first = len(u0), not any(graph.batch_rows[i] & ~1 for i in (*u0, *flat))
        if key not in self._solves:
            # Nothing of the other elements is written: their solves only show whether the first one depends on them.
            self._solves[key] = self._lower_loop(graphs, solver, key, element) if is_first else graph.new_loop()
        index = self._solves[key]
        loop_inputs = list_outer_inputs(graph, self.loops[index], index) if is_first else flat
        dtypes = [F64] * n + ([F64] * (n * n) if tangents else []) + [I64, F64, I64]
        results = graph.unpack(NEWTON, (*u0, *loop_inputs), (index, tangents), dtypes)
        u, rest = results[:n], results[n:]
        matrix, (iterations, norm, status) = (rest[: n * n], rest[n * n :]) if tangents else ([], rest)
        factor = graph.add_constant(1.0, F64)
        if solver.on_failure != "last":
            converged = graph.add("eq", (status, graph.add_constant(0, I64)), "bool")
            factor = graph.add("where", (converged, factor, graph.add_constant(float("nan"), F64)), F64)
        return u, matrix, [iterations], [norm], [status], [factor]

    def _lower_loop(self, graphs: SavedGraphs, solver: Solver, key: Any, element: Element) -> int:
        _, fixed_inputs, symbols = element
        graph, dispatch = self.graph, self._dispatch
        index = self.graph.new_loop()
        path, u0, flat = key
        dtype = torch.float64
        if any(graph.loops[i] for i in (*u0, *flat)):
            raise dispatch.unsupported_error("a Newton loop within another one", "loops that are not nested")
        if any(graph[i].dtype != F64 for i in u0):
            raise dispatch.unsupported_error(f"a Newton loop in {graph[u0[0]].dtype}", "float64")
        batch_rows = functools.reduce(lambda a, i: a | graph.batch_rows[i], [*u0, *flat], 0)
        unknowns = dispatch.add_leaves(f"unknowns:{index}", (len(u0),), dtype, batch_rows, 1 << index)
        batched = int(self._module.get_value(f"{path}.batched"))
        nodes = [t.clone()[None] if k < batched else t.clone() for k, t in enumerate(fixed_inputs)]
        inputs = [SymbolicTensor(ids, s.dtype) for ids, s in zip(nodes, symbols, strict=True)]
        interpreter = self._make_interpreter(graphs)
        point = SymbolicTensor(unknowns[None], dtype)
        with dispatch:
            residual_value = interpreter.run(f"{path}.residual.forward", [point, inputs])
        residual = residual_value.ids.reshape(-1).tolist()

        def run_captured() -> list[int]:
            with dispatch:
                residual_value, _ = interpreter.run(f"{path}.jacobian.forward", [point, inputs])
            return residual_value.ids.reshape(-1).tolist()

        settings = {}
        for name, value in solver.settings.items():
            full_name = f"{path}.{name}"
            parameter = self._values.get(full_name)
            dtype_name = I64 if name in ("max_its", "trials") else F64
            if parameter is None:
                settings[name] = graph.add_constant(value, dtype_name)
            else:
                settings[name] = int(dispatch.add_leaves(leaf_name(full_name), (), parameter.dtype))
        matrix = self._choose_matrix(residual, run_captured, unknowns.tolist(), index)
        self._notes += interpreter.notes
        searches = solver.settings.get("trials", 0) > 0 or graph.constant_value(settings["trials"]) is None
        parts = (tuple(unknowns.tolist()), tuple(residual), tuple(matrix), settings)
        step = self._build_step(residual, matrix, unknowns.tolist(), index)
        reduction = self._build_reduction(residual, step, unknowns.tolist(), index)
        policy = (bool(self._module.get_value(f"{path}.strong_wolfe")), searches, solver.on_failure)
        self.loops[index] = NewtonLoop(path, *parts, *policy, step, reduction)
        return index

    def _build_reduction(
        self, residual: list[int], step: Sequence[int], unknowns: list[int], index: int
    ) -> Reduction | None:
        """Return the reduced system, where a step in it takes less than half of the operations of one in the whole."""
        if not step or self._options.reduce == "none":
            return None
        whole = len(find_loop_nodes(self.graph, [*residual, *step], index))
        return reduced_system.build_reduction(self.graph, self.loops, residual, unknowns, index, whole // 2)

    def _build_step(self, residual: list[int], matrix: list[int], unknowns: list[int], index: int) -> tuple[int, ...]:
        """Return the step without a matrix, where it takes fewer operations than to build and to eliminate that."""
        with_matrix = len(find_loop_nodes(self.graph, [*residual, *matrix], index)) + 2 * len(unknowns) ** 3 // 3
        # The sizes of entries that are never pivots are nodes as well, which nothing uses.
        most = min(4 * with_matrix, (MOST - len(self.graph)) // 8)
        step = newton_step.build_step(self.graph, self.loops, residual, unknowns, index, most)
        return step if len(find_loop_nodes(self.graph, [*residual, *step], index)) < with_matrix else ()

    def _choose_matrix(
        self, residual: list[int], run_captured: Callable[[], list[int]], unknowns: list[int], index: int
    ) -> list[int]:
        """Return the matrix as captured, or by forward mode: the one with fewer operations."""
        try:
            forward_matrix = forward_mode.build_jacobian(self.graph, self.loops, residual, unknowns)
        except NoRuleError:
            return run_captured()
        if any(self.graph[i].op == COLUMNS for i in find_loop_nodes(self.graph, forward_matrix, index)):
            return forward_matrix
        captured_matrix = run_captured()
        candidates = (forward_matrix, captured_matrix)
        counts = [len(find_loop_nodes(self.graph, [*residual, *ends], index)) for ends in candidates]
        return forward_matrix if counts[0] <= counts[1] else captured_matrix


def check_fixed_shapes(contract: Contract) -> None:
    """Check that tensors have fixed shapes; raise ``UnsupportedError`` for sizes that only a call knows."""
    names = list_dynamic_sizes(contract.inputs)
    if names:
        what, got = "a kernel is for tensors of fixed shape", f"open sizes {', '.join(names)}"
        expected, mend = "a batch of small tensors", "use the .pt; or export it with fixed sizes (--sizes fixed)"
        raise UnsupportedError(what, check="kernel", where=contract.name, got=got, expected=expected, mend=mend)
