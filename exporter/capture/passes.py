"""Capture of a warmed-up model: named passes over one state. The soundness gate decides whether it lost meaning.

The model is traced twice: the first trace shows which tensors are its constants, and the second, which is kept, reads
them from buffers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from exporter.archive.contract import NEWTON_OUTPUTS, Finding, MethodSpec
from exporter.archive.derivative_request import ResolvedDerivatives
from exporter.archive.method_names import METHOD, NEWTON_INFO
from exporter.capture import constants
from exporter.capture.batch_chunking import add_chunked_method, is_chunkable
from exporter.capture.derivative_methods import define_derivative_methods
from exporter.capture.derivative_plan import DerivativePlan, plan_derivatives
from exporter.capture.forward_wrapper import emit_forward_source, make_argument_names
from exporter.capture.joint_graph import list_program_constants, trace_joint_graph
from exporter.capture.newton_capture import CapturedLoop
from exporter.capture.operator_rewrites import eliminate_common_subexpressions, list_operators, rewrite_operators
from exporter.capture.scripting import find_marked_modules, scripting_findings
from exporter.capture.settable_parameters import find_settable_parameters
from exporter.capture.torchscript_writer import emit_torchscript, find_varying_sizes
from exporter.capture.tracing import (
    Methods,
    check_constant_outputs,
    find_repeated_submodules,
    make_forward_run,
    trace_methods,
    trace_recording_warnings,
)
from exporter.common.torch_hooks import ignore_deprecations
from exporter.common.torch_internals import TracerWarning
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.warmup import Warmup
from exporter.model.implicit.implicit_update import collect_newton_info
from exporter.model.source import Inputs


@dataclass(frozen=True)
class CaptureResult:
    """The module to save, the operators that it calls, the parameters that can be set, and the findings.

    ``tracer_warnings`` are those of torch's tracer, as ``(user's line, text)``: hints, not verdicts."""

    module: torch.jit.ScriptModule
    operators: tuple[str, ...]
    parameters: tuple[str, ...]
    findings: tuple[Finding, ...]
    tracer_warnings: tuple[tuple[str, str], ...] = ()
    methods: Mapping[str, MethodSpec] = field(default_factory=dict)


class CaptureState:
    """What the passes work on: the model and what is asked of it, then the module and what is known of it."""

    def __init__(
        self,
        warm: Warmup,
        inputs: Inputs,
        seed: int,
        resolved_derivatives: ResolvedDerivatives | None,
        loops: Mapping[str, CapturedLoop],
    ) -> None:
        source = warm.source
        self.warm, self.source, self.inputs, self.loops = warm, source, inputs, loops
        self.is_batched = bool(source.batch_ndim)
        self.argument_names = make_argument_names([s.name for s in source.inputs])
        self.generator = torch.Generator().manual_seed(seed)
        self.inlined: set[nn.Module] = find_repeated_submodules(warm)
        self.plan = DerivativePlan(ResolvedDerivatives())
        if resolved_derivatives:
            self.plan = plan_derivatives(warm, resolved_derivatives, inputs)
        # A model that takes gradients is a program of operators: a trace would lose its backward pass.
        self.program = trace_joint_graph(source, inputs, warm.constant) if source.uses_autograd else None
        self.module: torch.jit.ScriptModule
        self.places: constants.Places
        self.buffers: Mapping[str, Sequence[torch.Tensor]] = {}
        self.findings: list[Finding] = []
        self.tracer_warnings: list[tuple[str, str]] = []
        self.read_tensors: Mapping[str, str] = {}
        self.method_specs: dict[str, MethodSpec] = {}
        self.parameters: tuple[str, ...] = ()

    @property
    def methods(self) -> Methods:
        """Return the methods to trace."""
        methods = {METHOD: (make_forward_run(self.warm), self.inputs)} if self.program is None else {}
        if self.loops:
            methods[NEWTON_INFO] = (functools.partial(collect_newton_info, self.source), self.inputs)
        return {**methods, **self.plan.traced_methods}

    @property
    def is_contiguous(self) -> bool:
        """Return whether inputs are made contiguous first: a graph of operators depends on the traced strides."""
        return self.warm.contiguous or self.program is not None


def find_constants(state: CaptureState) -> None:
    """Trace once to find the constants, and the buffers that hold them in the second trace."""
    source, program = state.source, state.program
    first, state.tracer_warnings, state.read_tensors = trace_recording_warnings(
        state.warm, state.methods, state.inlined, state.loops
    )
    if program is None:
        check_constant_outputs(state.warm, first)
    constants.pin_numbers(first)
    constants.fold_copies(first)
    all_constants = [*constants.locate_constants(first), *(list_program_constants(source, program) if program else ())]
    state.findings += constants.find_lost_precision(all_constants, [spec.dtype for spec in source.inputs])
    # The second trace would repeat the warnings.
    warnings.simplefilter("ignore", TracerWarning)
    buffers = constants.collect_distinct_constants(first)
    for path, dtype in constants.find_boxes_without_device(first).items():
        # Without numbers: it moves with the file, as what is created there has to.
        buffers.setdefault(path, []).append(torch.empty(0, dtype=dtype))
    state.places = constants.Places(source.parameter_module, buffers.setdefault("", []))
    program_constants = program.constants.values() if program is not None else ()
    for value in (*program_constants, *state.plan.list_constants(state.is_batched)):
        state.places.make_room(value)
    state.buffers = buffers


def trace_module(state: CaptureState) -> None:
    """Trace the module that is kept, with its constants in buffers."""
    state.module = trace_methods(state.warm, state.methods, state.buffers, state.inlined, state.loops)


def settle_constants(state: CaptureState) -> None:
    """Move constants of the graph to attributes, and make dtypes and devices follow the inputs."""
    constants.pin_numbers(state.module)
    constants.fold_copies(state.module)
    constants.lift_constants(state.module)
    constants.pin_dtypes(state.module)
    constants.follow_inputs(state.module)
    marked = [path for path in find_marked_modules(state.source.parameter_module) if path not in state.loops]
    state.findings += [*constants.find_fixed_devices(state.module), *scripting_findings(marked)]


def define_program(state: CaptureState) -> None:
    """Define the method of a model that takes gradients itself, from its program."""
    if state.program is None:
        return
    expressions = {target: state.places.format_expression(value) for target, value in state.program.constants.items()}
    varying = find_varying_sizes(state.source.inputs, state.is_batched)
    state.module.define(emit_torchscript(state.program, METHOD, state.argument_names, expressions, varying))
    check_constant_outputs(state.warm, state.module)


def simplify_operators(state: CaptureState) -> None:
    """Rewrite operators whose result depends on the runtime. Raises ``OperatorError`` for one of a source library."""
    rewrite_operators(state.module)
    list_operators(state.module)


def define_forward(state: CaptureState) -> None:
    """Define ``forward`` around the traced method: it takes any batch, large ones in chunks."""
    inner = METHOD
    count = len(state.warm.output_specs)
    # A Newton solver has its own chunks.
    if is_chunkable(state.warm) and not state.loops:
        inner = add_chunked_method(state.module, "forward", inner, state.argument_names, count)
    inputs = state.source.inputs
    state.module.define(emit_forward_source(inputs, count, state.is_batched, state.is_contiguous, inner=inner))


def define_derivatives(state: CaptureState) -> None:
    """Define the methods that return derivatives."""
    state.method_specs = define_derivative_methods(state.warm, state.plan, state.module, state.places.format_expression)


def define_newton_info(state: CaptureState) -> None:
    """Define the method that says how the loops of an implicit model went."""
    if not state.loops:
        return
    inputs = state.source.inputs
    state.method_specs["newton_info"] = MethodSpec(tuple(s.name for s in inputs), tuple(NEWTON_OUTPUTS))
    options = (inputs, len(NEWTON_OUTPUTS), state.is_batched, state.is_contiguous)
    state.module.define(emit_forward_source(*options, name="newton_info", inner=NEWTON_INFO))


def merge_operators(state: CaptureState) -> None:
    """Rewrite the operators of the new methods too, and compute each common subexpression once."""
    rewrite_operators(state.module)
    eliminate_common_subexpressions(state.module)


def find_parameters(state: CaptureState) -> None:
    """Find the parameters that stay settable: setting them changes the outputs as in eager mode."""
    spec = state.method_specs.get("jacobian")
    blocks = [o for o in spec.outputs if not isinstance(o, str)] if spec else []
    # Random samples may not converge.
    inputs = state.warm.inputs if state.loops else state.inputs
    state.parameters, frozen = find_settable_parameters(
        state.warm, state.module, inputs, state.generator, blocks, state.read_tensors
    )
    state.findings += frozen


PASSES: tuple[Callable[[CaptureState], None], ...] = (
    find_constants, trace_module, settle_constants, define_program, simplify_operators, define_forward,
    define_derivatives, define_newton_info, merge_operators, find_parameters,
)  # fmt: skip


def capture(
    warm: Warmup,
    inputs: Inputs,
    seed: int,
    resolved_derivatives: ResolvedDerivatives | None = None,
    loops: Mapping[str, CapturedLoop] | None = None,
) -> CaptureResult:
    """Trace the module to save at ``inputs``, and inspect its constants.

    ``resolved_derivatives`` are those to be defined; ``loops``: those of implicit updates, of solvers and predictors.

    Raises ``CaptureError`` if there is no trace, or if an output without a batch depends on the inputs;
    ``OperatorError`` for an operator of a source library."""
    with eager_context(warm.source), ignore_deprecations():
        state = CaptureState(warm, inputs, seed, resolved_derivatives, loops or {})
        for run_pass in PASSES:
            run_pass(state)
        operators, findings = list_operators(state.module), tuple(state.findings)
    warnings_of_tracer = tuple(state.tracer_warnings)
    return CaptureResult(state.module, operators, state.parameters, findings, warnings_of_tracer, state.method_specs)
