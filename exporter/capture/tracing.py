"""``torch.jit.trace`` of a warmed-up model. Whether it lost meaning is for the soundness gate to say.

The model is traced twice: the first trace shows which tensors are constants of it, and the one that is kept reads them
from buffers.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.jit._trace import TracerWarning
from torch.nn.modules.module import register_module_forward_pre_hook

from exporter.archive.contract import NEWTON_OUTPUTS, Finding, MethodSpec
from exporter.archive.derivative_request import Wanted
from exporter.archive.method_names import METHOD, NEWTON_INFO
from exporter.capture import constants, derivative_plan, module_tree, newton_capture
from exporter.capture.batch_chunking import sliceable, sliced
from exporter.capture.custom_functions import functions_inlined
from exporter.capture.derivative_methods import define
from exporter.capture.forward_wrapper import argument_names, forward_source
from exporter.capture.joint_graph import constants_of, followed
from exporter.capture.operator_rewrites import operators, rewrite_operators, share
from exporter.capture.scripting import compiled, marked, said_of
from exporter.capture.settable_parameters import settable
from exporter.capture.torchscript_writer import torchscript, varying_sizes
from exporter.capture.value_reads import ReadRecorder, fresh_constants
from exporter.common.errors import CaptureError, TorchferryError, first_line
from exporter.common.torch_hooks import called_instead, quiet_deprecations
from exporter.common.user_code import user_line
from exporter.model.eager.evaluation import evaluate, flatten, forward_line, inference_conditions, raised_at
from exporter.model.eager.warmup import Warmup
from exporter.model.implicit.implicit_update import newton_info
from exporter.model.source import Inputs

# More calls of one submodule than this are inlined where they stand.
METHODS = 8


@dataclass(frozen=True)
class Captured:
    """The module to save, the operators that it calls, the parameters that can be set, what was seen.

    ``warned``: what torch's tracer said, as ``(line of the user's, text)``: leads, not verdicts.
    """

    module: torch.jit.ScriptModule
    operators: tuple[str, ...]
    parameters: tuple[str, ...]
    findings: tuple[Finding, ...]
    warned: tuple[tuple[str, str], ...] = ()
    methods: Mapping[str, MethodSpec] = field(default_factory=dict)


# Inputs and what is run with them, by the name of the method that is traced.
Methods = Mapping[str, tuple[module_tree.Run, Inputs]]


def capture(
    warm: Warmup,
    inputs: Inputs,
    seed: int,
    wanted: Wanted | None = None,
    solves: Mapping[str, newton_capture.Captured] | None = None,
) -> Captured:
    """The module to save, traced at ``inputs``, and findings of a look at its constants. ``wanted``: its derivatives;
    ``solves``: the loops of implicit updates, by path.

    Raises ``CaptureError`` where there is no trace, or where an output without a batch depends on the inputs;
    ``OperatorError`` for an operator of a source library.
    """
    source, solves = warm.source, solves or {}
    generator = torch.Generator().manual_seed(seed)
    with inference_conditions(source), quiet_deprecations():
        inlined = called_often(warm)
        chosen = derivative_plan.plan(warm, wanted, inputs) if wanted else derivative_plan.Plan(Wanted())
        program = followed(source, inputs, warm.constant) if source.differentiates else None
        methods = {METHOD: (_forward(warm), inputs)} if program is None else {}
        if solves:
            methods[NEWTON_INFO] = (functools.partial(newton_info, source), inputs)
        first, warned = _heard(warm, {**methods, **chosen.traced}, inlined, solves)
        if program is None:
            refuse_dependent_constants(warm, first)
        constants.pin_numbers(first)
        constants.fold_copies(first)
        made_here = [*constants.traced_constants(first), *(constants_of(source, program) if program else ())]
        findings = constants.lost_precision(made_here, [spec.dtype for spec in source.inputs])
        # The same lines warn again.
        warnings.simplefilter("ignore", TracerWarning)
        buffers = constants.distinct_values(first)
        places = constants.Places(source.named, buffers.setdefault("", []))
        held = program.constants if program is not None else {}
        for value in (*held.values(), *chosen.constants(bool(source.batch_ndim))):
            places.make_room(value)
        module = _trace(warm, {**methods, **chosen.traced}, buffers, inlined, solves)
        constants.pin_numbers(module)
        constants.fold_copies(module)
        constants.lift(module)
        constants.pin_dtypes(module)
        constants.follow_inputs(module)
        findings += [
            *constants.fixed_devices(module),
            *said_of([path for path in marked(source.named) if path not in solves]),
        ]
        if program is not None:
            names = argument_names([s.name for s in source.inputs])
            read = {target: places.of(value) for target, value in held.items()}
            varying = varying_sizes(source.inputs, bool(source.batch_ndim))
            module.define(torchscript(program, METHOD, names, read, varying))
            refuse_dependent_constants(warm, module)
        rewrite_operators(module)
        operators(module)
        contiguous = warm.contiguous or program is not None
        inner = METHOD
        # A Newton loop has slices of its own.
        if sliceable(warm) and not solves:
            names = argument_names([s.name for s in source.inputs])
            inner = sliced(module, "forward", inner, names, len(warm.output_specs))
        whole = (source.inputs, len(warm.output_specs), bool(source.batch_ndim), contiguous)
        module.define(forward_source(*whole, inner=inner))
        made = define(warm, chosen, module, places.of)
        if solves:
            made["newton_info"] = MethodSpec(tuple(s.name for s in source.inputs), tuple(NEWTON_OUTPUTS))
            info = (source.inputs, len(NEWTON_OUTPUTS), bool(source.batch_ndim), contiguous)
            module.define(forward_source(*info, name="newton_info", inner=NEWTON_INFO))
        rewrite_operators(module)
        share(module)
        blocks = [o for o in made["jacobian"].outputs if not isinstance(o, str)] if "jacobian" in made else []
        # Draws may be ones that do not converge.
        parameters, frozen = settable(warm, module, warm.inputs if solves else inputs, generator, blocks)
    return Captured(module, operators(module), parameters, (*findings, *frozen), tuple(warned), made)


def refuse_dependent_constants(warm: Warmup, module: torch.jit.ScriptModule) -> None:
    """An output without a batch must not depend on the inputs: it would be one number made of the whole batch.

    That it was equal in some runs (``(x < -5).any()``) does not show it; the graph does.
    """
    graph = module._c._get_method(METHOD).graph.copy()
    torch._C._jit_pass_inline(graph)
    returned = list(next(iter(graph.outputs())).node().inputs())
    own = {value.debugName() for value in list(graph.inputs())[1:]}
    for spec, constant, value in zip(warm.output_specs, warm.constant, returned, strict=True):
        # _trace gives such an output its batch by an expand; its sizes do come from an input.
        if constant and _reaches(next(iter(value.node().inputs())), own, set()):
            raise CaptureError(
                f"output {spec.name!r} of model {warm.source.name!r} does not carry the batch",
                check="batch",
                where=forward_line(warm.source),
                got=f"shape {list(spec.shape)} at every batch size, computed from the inputs",
                expected="shape [batch, ...], or an output that does not depend on the inputs",
                mend="declare batch_ndim=0 in the signature if the elements of a batch depend on each other",
            )


def _reaches(value: Any, names: set[str], seen: set[str]) -> bool:
    todo = [value]
    while todo:
        value = todo.pop()
        name = value.debugName()
        if name in names:
            return True
        if name not in seen:
            seen.add(name)
            todo += list(value.node().inputs())
    return False


def called_often(warm: Warmup) -> set[nn.Module]:
    """Modules that one run calls more than ``METHODS`` times.

    A trace makes a method of every call of a submodule, and torch's search for its name grows with the cube of
    their number: an unrolled iteration over slip systems took minutes for it.
    """
    counts: Counter[nn.Module] = Counter()

    def count(module: nn.Module, _: Any) -> None:
        counts[module] += 1

    hook = register_module_forward_pre_hook(count)
    try:
        evaluate(warm.source, warm.inputs)
    finally:
        hook.remove()
    return {module for module, calls in counts.items() if calls > METHODS}


def _heard(
    warm: Warmup, methods: Methods, inlined: set[nn.Module], solves: Mapping[str, newton_capture.Captured]
) -> tuple[torch.jit.ScriptModule, list[tuple[str, str]]]:
    """A trace, and the ``TracerWarning``s that it drew, with the user's line; other warnings are passed on.

    The recorder makes constants of plain numbers with tracing paused, as plain constants.
    """
    caught: list[tuple[str, str]] = []
    others: list[tuple[Any, type[Warning], str, int]] = []

    def show(
        message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
    ) -> None:
        # The warning's own place may be a line of torch's; the user's is on the stack now.
        if issubclass(category, TracerWarning):
            caught.append((user_line() or f"{filename}:{lineno}", str(message).split(". ")[0]))
        else:
            others.append((message, category, filename, lineno))

    with warnings.catch_warnings():
        warnings.simplefilter("always", TracerWarning)
        warnings.showwarning = show
        with ReadRecorder():
            module = _trace(warm, methods, {}, inlined, solves)
    for message, category, filename, lineno in others:
        warnings.warn_explicit(message, category, filename, lineno)
    return module, list(dict.fromkeys(caught))


def _forward(warm: Warmup) -> module_tree.Run:
    source = warm.source

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = tuple(flatten(source.module(*tensors), source).values())
        if not any(warm.constant):
            return outputs
        size = tensors[0].shape[0]
        return tuple(
            value.expand((size, *value.shape)) if constant else value
            for value, constant in zip(outputs, warm.constant, strict=True)
        )

    return run


def _trace(
    warm: Warmup,
    methods: Methods,
    buffers: Mapping[str, Sequence[torch.Tensor]],
    inlined: set[nn.Module],
    solves: Mapping[str, newton_capture.Captured],
) -> torch.jit.ScriptModule:
    source = warm.source
    modules = marked(source.named)
    scripted = {
        path: solves[path].scripted() if path in solves else compiled(path, module) for path, module in modules.items()
    }
    root = module_tree.build(
        source.named, {name: run for name, (run, _) in methods.items()}, buffers, inlined, scripted
    )
    given = {name: tuple(t.clone() for t in inputs) for name, (_, inputs) in methods.items()}
    try:
        instead = {module: scripted[path] for path, module in modules.items()}
        with fresh_constants(), functions_inlined(), called_instead(instead):
            module = torch.jit.trace_module(root, given, check_trace=False, _store_inputs=False)
    except TorchferryError:
        raise
    except Exception as error:
        raise CaptureError(
            f"model {source.name!r} cannot be traced",
            check="tracing",
            where=_line_of(str(error)) or raised_at(error) or forward_line(source),
            got=first_line(error),
            expected="a forward that torch.jit.trace can follow",
            mend=_mend(str(error)),
        ) from error
    assert isinstance(module, torch.jit.ScriptModule)
    return module


# Parts of torch's own messages, and what helps.
_MENDS = (
    ("requires grad as a constant", "register the layer: nn.ModuleList or nn.ModuleDict instead of a list or dict"),
    ("stateless", "a trace cannot hold torch.func.functional_call: call the module itself, with its own parameters"),
    ("vmap", "a trace cannot hold torch.func.vmap: write the batch dimension out"),
)


def _mend(text: str) -> str:
    fits = [mend for part, mend in _MENDS if part in text]
    return (fits or ["custom autograd functions and Python objects cannot be traced: write them with torch's own"])[0]


def _line_of(text: str) -> str:
    match = re.search(r"^(\S+\.py)\((\d+)\)", text, re.MULTILINE)
    return f"{match[1]}:{match[2]}" if match else ""
