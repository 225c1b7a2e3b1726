"""Loops in the file: what a Newton solver or a coordinate descent calls is captured as graphs, and the loop around
them is compiled."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from exporter.archive.tensor_spec import TensorSpec, infer_spec
from exporter.capture.batch_recording import describe_traced_sizes, trace_batch_program
from exporter.capture.constant_folding import fold_batch_constants
from exporter.capture.duplicate_elimination import eliminate_duplicates
from exporter.capture.fx_tracing import FxProgram
from exporter.capture.operator_rewrites import rewrite_operators
from exporter.capture.torchscript_writer import emit_torchscript
from exporter.common.errors import CaptureError, TorchferryError, summarize_error
from exporter.common.tensors import all_close
from exporter.common.torch_hooks import ignore_deprecations, patch_forward, pause_tracing
from exporter.common.torch_internals import get_tracing_state, optimized_execution
from exporter.model.eager.evaluation import evaluate
from exporter.model.eager.warmup import find_finite_rows
from exporter.model.implicit.coordinate_descent import CoordinateDescent, DescentCall
from exporter.model.implicit.newton_solver import NewtonSolver, find_solvers
from exporter.model.implicit.owner_tensors import list_batched, read_tensors
from exporter.model.implicit.solve_recording import SolverArguments, record_solver_calls
from exporter.model.source import Inputs, Source

# The results of a solver.
SOLVER_RESULTS = ("unknowns", "Jacobians", "iterations", "norms of the residual", "status", "factors")
SOLVER_GRAPHS, DESCENT_GRAPHS = ("residual", "jacobian"), ("rate", "tangent")


@dataclass(frozen=True)
class CapturedLoop:
    """A loop and the graphs that it calls by name, functions of ``(u, *held)``, of which ``batched`` by position have
    the batch."""

    loop: NewtonSolver | CoordinateDescent
    graphs: Mapping[str, FxProgram]
    batched: Sequence[int]

    def script(self) -> torch.jit.ScriptModule:
        """Compile the loop, anew in each call: the passes of a capture modify what they are given."""
        loop = copy.copy(self.loop)
        loop._modules = {}
        for name, program in self.graphs.items():
            loop.__dict__.pop(name)
            loop.add_module(name, _script_graph(program, self.batched))
        return torch.jit.script(loop)


def capture_solver(path: str, loop: NewtonSolver, arguments: Inputs) -> CapturedLoop:
    """Capture a solver from the inputs of one solve, under ``eager_context``; raises ``CaptureError``."""
    inputs = arguments[0], loop.collect_args(arguments[1:])
    batched = range(1 + loop.batched)
    graphs = {name: trace_loop_graph(getattr(loop, name), inputs, batched, path, loop) for name in SOLVER_GRAPHS}
    return CapturedLoop(loop, graphs, batched)


def capture_descent(path: str, loop: CoordinateDescent, recorded: DescentCall) -> CapturedLoop:
    """Capture a coordinate descent from one of its calls; raises ``TorchferryError``, also where it computes something
    else than that call did."""
    (coupling, force, args), expected = recorded
    # Parameters by element are those of the call, as values are.
    own_count = len(loop.names) - len(list_batched(loop.owner, loop.names))
    values = args[: len(args) - own_count]
    tensors = [*values, *read_tensors(loop.owner, loop.names[len(loop.names) - own_count :])]
    component = loop.component(tensors, 0)
    w = force.select(-1, 0).clone()
    batched = [0, *(i for i, t in enumerate(component[: len(values)], 1) if t.ndim and t.shape[0] == w.shape[0])]
    arguments = w, component
    graphs = {name: trace_loop_graph(getattr(loop, name), arguments, batched, path, loop) for name in DESCENT_GRAPHS}
    captured = CapturedLoop(loop, graphs, batched)
    try:
        result = captured.script()(coupling, force, tensors)
    except RuntimeError as error:
        raise CaptureError("the loops of a predictor do not run", where=path, got=summarize_error(error)) from error
    if not all_close(result, expected):
        what, got = "a predictor does not compute in the file what it computes in eager mode", "other rates"
        raise CaptureError(what, check="implicit", where=path, got=got, expected="the same rates")
    return captured


def compile_descent(loop: CoordinateDescent, recorded: DescentCall) -> Callable[..., torch.Tensor]:
    """Compile a coordinate descent from one of its calls, to be run many times; one that cannot be stays as it is."""
    try:
        with ignore_deprecations():
            return _make_forward(capture_descent("the predictor", loop, recorded).script())
    except TorchferryError:
        return loop.forward


def check_own_parameters(path: str, solver: CapturedLoop, model: nn.Module) -> None:
    """Check that the graphs read no parameter but the loop's own: the file would keep a copy of another.

    Raises ``CaptureError``."""
    parameter_names = {p.data_ptr(): name for name, p in model.named_parameters() if p.numel()}
    for program in solver.graphs.values():
        for value in program.constants.values():
            if value.numel() and value.data_ptr() in parameter_names:
                what = f"the loop of {path!r} reads a parameter that is not its own"
                got, expected = parameter_names[value.data_ptr()], "parameters of the residual, or of the law of rates"
                mend = "register the module with this parameter as a submodule of it"
                raise CaptureError(what, check="implicit", where=path, got=got, expected=expected, mend=mend)


def check_solver(path: str, solver: CapturedLoop, samples: Sequence[Inputs]) -> None:
    """Check that the compiled solver takes the iterations of eager mode, to the last. Raises ``CaptureError``."""
    compiled, loop = _make_forward(solver.script()), solver.loop
    assert isinstance(loop, NewtonSolver)
    for guess, *arguments in samples:
        tensors = loop.collect_args(arguments)
        expected, actual = (run(guess, tensors, True) for run in (loop.forward, compiled))
        for name, expected_value, actual_value in zip(SOLVER_RESULTS, expected, actual, strict=True):
            if not all_close(actual_value, expected_value):
                what = f"the implicit update {path!r} is not solved as in eager mode"
                got = f"{name} differ at a batch of {guess.shape[0]}"
                expected_text = "the iterations of eager mode"
                raise CaptureError(what, check="implicit", where=path, got=got, expected=expected_text)


def check_failure_visible(path: str, loop: NewtonSolver, source: Source, inputs: Inputs) -> None:
    """Check that an element that this solver does not solve has NaN in some output. Raises ``CaptureError``."""
    if not loop.fails_by_nan:
        return

    def forward_without_convergence(u: torch.Tensor, fixed: list[torch.Tensor], tangents: bool = False) -> Any:
        *results, status, factor = forward(u, fixed, tangents)
        return *results, torch.ones_like(status), torch.full_like(factor, float("nan"))

    forward = loop.forward
    with patch_forward({loop: forward_without_convergence}):
        good = find_finite_rows(evaluate(source, inputs))
    if good is None or bool(good.any()):
        what = f"the model hides that {path!r} has not converged"
        got = "outputs that are finite where the unknowns are NaN"
        expected = "NaN in some output of each element that has not converged"
        mend = "return the unknowns too, or do not select with torch.where on solved values"
        raise CaptureError(what, check="implicit", where=path, got=got, expected=expected, mend=mend)


@contextlib.contextmanager
def replace_loops(captured: Mapping[str, CapturedLoop]) -> Iterator[None]:
    """Run loops as they will run in the file: some ten times as fast as in eager mode."""
    with patch_forward({loop.loop: _make_forward(loop.script()) for loop in captured.values()}):
        yield


def _make_forward(compiled: torch.jit.ScriptModule) -> Callable[..., Any]:
    def forward(*arguments: Any) -> Any:
        state = get_tracing_state()
        # With optimisation it is as fast, after a second that every process would spend again.
        with pause_tracing(state) if state else contextlib.nullcontext(), optimized_execution(False):
            return compiled(*arguments)

    return forward


def trace_loop_graph(
    function: Any, arguments: SolverArguments, batched: Sequence[int], path: str, model: nn.Module
) -> FxProgram:
    """Trace a function of a loop to a graph without batch constants; raises ``CaptureError``."""
    guess, fixed_tensors = arguments

    def run(u: torch.Tensor, *fixed_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = function(u, list(fixed_values))
        return result if isinstance(result, tuple) else (result,)

    try:
        inputs = (guess, *fixed_tensors)
        program = eliminate_duplicates(trace_batch_program(run, inputs, batched, model=model))
        return fold_batch_constants(describe_traced_sizes(program, batched[0]), inputs)
    except CaptureError as error:
        error.details["where"] = error.details.get("where") or path
        raise


class _GraphConstants(nn.Module):
    """The constants of a graph."""

    # The name of the class in files, wherever its source stands.
    _jit_override_qualname = "__torch__.torchferry.Graph"

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        for i, value in enumerate(values.values()):
            self.register_buffer(f"tf_{i}", value.detach().clone())


def _script_graph(program: FxProgram, batched: Sequence[int]) -> torch.jit.ScriptModule:
    # A new class each time: TorchScript gives modules of one class one set of methods.
    module = torch.jit.script(type("Graph", (_GraphConstants,), {})(program.constants))
    names = [f"x{i}" for i in range(program.inputs)]
    places = {target: f"self.tf_{i}" for i, target in enumerate(program.constants)}
    module.define(emit_torchscript(program, "graph", names, places, [(i, 0) for i in batched]))
    rewrite_operators(module)
    arguments = ", ".join(["u", *(f"held[{i}]" for i in range(program.inputs - 1))])
    (output,) = (node for node in program.graph.graph.nodes if node.op == "output")
    returns, tail = ("Tuple[Tensor, Tensor]", "") if len(output.args[0]) == 2 else ("Tensor", "[0]")
    head = f"def forward(self, u: Tensor, held: List[Tensor]) -> {returns}:"
    module.define(f"{head}\n    return self.graph({arguments}){tail}\n")
    return module


def compute_solutions(source: Source, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Return the results of all solves of a run, one after the other."""
    return tuple(value for _, _, results in record_solver_calls(source, inputs) for value in results)


def list_solution_specs(source: Source, inputs: Inputs) -> tuple[TensorSpec, ...]:
    """Return the specs of the results of all solves of a run."""
    return tuple(infer_spec(f"solved_{i}", v, 1) for i, v in enumerate(compute_solutions(source, inputs)))


@contextlib.contextmanager
def reuse_solutions(source: Source, values: Sequence[torch.Tensor]) -> Iterator[None]:
    """Make the solves of a run return ``values``, in the order of ``compute_solutions``."""
    remaining = list(values)

    def run(u: torch.Tensor, fixed_tensors: list[torch.Tensor], tangents: bool = False) -> tuple[torch.Tensor, ...]:
        results, remaining[: len(SOLVER_RESULTS)] = tuple(remaining[: len(SOLVER_RESULTS)]), []
        return results

    with patch_forward(dict.fromkeys(find_solvers(source.parameter_module).values(), run)):
        yield
