"""Traces of a warmed-up model by ``torch.jit.trace``."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from exporter.archive.method_names import METHOD
from exporter.capture import module_tree, newton_capture
from exporter.capture.custom_functions import inline_custom_functions
from exporter.capture.parameter_reads import ParameterReadRecorder
from exporter.capture.scripting import compile_submodule, find_marked_modules
from exporter.capture.value_reads import fresh_constants
from exporter.common.errors import CaptureError, TorchferryError, summarize_error
from exporter.common.script_loading import list_inputs, list_outputs
from exporter.common.torch_hooks import patch_forward
from exporter.common.torch_internals import TensorType, TracerWarning, TupleType, inline_calls, optimized_execution
from exporter.common.user_code import user_source_location, user_traceback_location
from exporter.model.compiled_model import list_compiled
from exporter.model.eager.evaluation import (
    call_model,
    evaluate,
    expand_constants,
    find_forward_line,
    normalize_outputs,
)
from exporter.model.eager.warmup import Warmup
from exporter.model.source import Inputs

# Calls of a submodule with more calls than this are inlined.
MAX_SUBMODULE_CALLS = 8


# The function to trace and its inputs, by method name.
Methods = Mapping[str, tuple[module_tree.Run, Inputs]]


def check_constant_outputs(warm: Warmup, module: torch.jit.ScriptModule) -> None:
    """Check that an output without a batch does not depend on the inputs: it would be a number of the whole batch.

    Equal values in some runs (``(x < -5).any()``) do not show this; the graph does. Raises ``CaptureError``."""
    graph = module._c._get_method(METHOD).graph.copy()
    inline_calls(graph)
    graph_outputs = list_inputs(next(iter(graph.outputs())).node())
    input_names = {value.debugName() for value in list(graph.inputs())[1:]}
    for spec, constant, value in zip(warm.output_specs, warm.constant, graph_outputs, strict=True):
        # make_forward_run expands such an output to the batch, with sizes that do come from an input.
        if constant and _reaches(value.node().inputsAt(0), input_names, set()):
            what = f"output {spec.name!r} of model {warm.source.name!r} does not carry the batch"
            where = find_forward_line(warm.source)
            got = f"shape {list(spec.shape)} at every batch size, computed from the inputs"
            expected = "shape [batch, ...], or an output that does not depend on the inputs"
            mend = "if the elements of a batch depend on each other: --batch no, or batch_ndim=0 in its signature"
            raise CaptureError(what, check="batch", where=where, got=got, expected=expected, mend=mend)


def _reaches(value: Any, names: set[str], visited: set[str]) -> bool:
    todo = [value]
    while todo:
        value = todo.pop()
        name = value.debugName()
        if name in names:
            return True
        if name not in visited:
            visited.add(name)
            todo += list_inputs(value.node())
    return False


def find_repeated_submodules(warm: Warmup) -> set[nn.Module]:
    """Find the modules that one run calls more than ``MAX_SUBMODULE_CALLS`` times.

    A trace creates a method for every call of a submodule, and torch's search for its name grows with the cube of
    their number: it took minutes for an unrolled iteration over slip systems."""
    counts: Counter[nn.Module] = Counter()

    def count(module: nn.Module, _: Any) -> None:
        counts[module] += 1

    hook = register_module_forward_pre_hook(count)
    try:
        evaluate(warm.source, warm.inputs)
    finally:
        hook.remove()
    return {module for module, calls in counts.items() if calls > MAX_SUBMODULE_CALLS}


def trace_recording_warnings(
    warm: Warmup, methods: Methods, inlined: set[nn.Module], loops: Mapping[str, newton_capture.CapturedLoop]
) -> tuple[torch.jit.ScriptModule, list[tuple[str, str]], dict[str, str]]:
    """Trace and return the module with its ``TracerWarning``s and the user's lines, and the paths of tensors whose
    numbers Python reads, with the lines; other warnings are passed on.

    The recorder creates constants of plain numbers with tracing paused, as plain constants."""
    with catch_tracer_warnings() as caught, ParameterReadRecorder() as recorder:
        module = trace_methods(warm, methods, {}, inlined, loops)
    return module, list(dict.fromkeys(caught)), recorder.paths


@contextlib.contextmanager
def catch_tracer_warnings() -> Iterator[list[tuple[str, str]]]:
    """Catch ``TracerWarning``s: the block gets a list of the user's lines and their texts; others are passed on."""
    caught: list[tuple[str, str]] = []
    other_warnings: list[tuple[Any, type[Warning], str, int]] = []

    def show(
        message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        # The warning's own location may be inside torch; the user's line is on the stack now.
        if issubclass(category, TracerWarning):
            caught.append((user_source_location() or f"{filename}:{lineno}", str(message).split(". ")[0]))
        else:
            other_warnings.append((message, category, filename, lineno))

    with warnings.catch_warnings():
        warnings.simplefilter("always", TracerWarning)
        warnings.showwarning = show
        yield caught
    for message, category, filename, lineno in other_warnings:
        warnings.warn_explicit(message, category, filename, lineno)


def make_forward_run(warm: Warmup) -> module_tree.Run:
    """Return the model as a function of tensors that returns a tuple; constant outputs are expanded to the batch."""
    source = warm.source

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = normalize_outputs(call_model(source, tensors), source)
        return tuple(expand_constants(outputs, warm.constant, tensors).values())

    return run


def trace_methods(
    warm: Warmup,
    methods: Methods,
    buffers: Mapping[str, Sequence[torch.Tensor]],
    inlined: set[nn.Module],
    loops: Mapping[str, newton_capture.CapturedLoop],
) -> torch.jit.ScriptModule:
    """Trace the methods into one module, which reads its constants from ``buffers``; marked modules are scripted."""
    source = warm.source
    modules = find_marked_modules(source.parameter_module)
    scripted = {path: solve.script() for path, solve in loops.items() if path in modules}
    scripted |= {path: compile_submodule(path, part) for path, part in modules.items() if path not in loops}
    runs = {name: run for name, (run, _) in methods.items()}
    root = module_tree.build(source.parameter_module, runs, buffers, inlined, scripted)
    example_inputs = {name: tuple(t.clone() for t in inputs) for name, (_, inputs) in methods.items()}
    try:
        replacements = {module: scripted[path] for path, module in modules.items()}
        # With optimisation the code of loops runs as fast, after seconds for each method.
        unoptimised = optimized_execution(False)
        with fresh_constants(), inline_custom_functions(), patch_forward(replacements), unoptimised:
            module = torch.jit.trace_module(root, example_inputs, check_trace=False, _store_inputs=False)
    except TorchferryError:
        raise
    except Exception as error:
        what, got = f"model {source.name!r} cannot be traced", summarize_error(error)
        where = _parse_location(str(error)) or user_traceback_location(error) or find_forward_line(source)
        expected, mend = "a forward that torch.jit.trace can follow", _suggest_mend(str(error))
        raise CaptureError(what, check="tracing", where=where, got=got, expected=expected, mend=mend) from error
    assert isinstance(module, torch.jit.ScriptModule)
    if list_compiled(source.parameter_module):
        # The innermost first: what is inlined around them has no calls left.
        for path, part in reversed(list(module.named_modules())):
            # What is compiled from its source has calls of its own.
            if any(path == outer or path.startswith(f"{outer}.") for outer in scripted):
                continue
            compiled: Any = part._c
            for name in compiled._method_names():
                graph = compiled._get_method(name).graph
                if graph.findNode("prim::CallFunction", True) is not None:
                    _inline_function(graph)
    return module


def _inline_function(graph: Any) -> None:
    """Write the code of what is compiled already where it is called; what the trace saw as a tensor has that type.

    Its function is not of the file that is written: constants in it would stay there."""
    for node in list(graph.nodes()):
        for value in list_outputs(node):
            if value.type().kind() != "OptionalType" or value.type().getElementType().kind() != "TensorType":
                continue
            # It raises where a call gives None after all.
            unwrapped = graph.create("aten::_unwrap_optional", [value], 1)
            unwrapped.output().setType(TensorType.get())
            unwrapped.insertAfter(node)
            value.replaceAllUsesAfterNodeWith(unwrapped, unwrapped.output())
        if node.kind() == "prim::TupleConstruct":
            node.output().setType(TupleType([value.type() for value in list_inputs(node)]))
    inline_calls(graph)


# Parts of torch's own messages, and remedies.
_MENDS = (
    ("requires grad as a constant", "register the layer: use nn.ModuleList or nn.ModuleDict instead of a list or dict"),
    ("stateless", "a trace cannot hold torch.func.functional_call: call the module itself, with its own parameters"),
    ("INTERNAL ASSERT", "outputs are tensors, or lists, tuples and dicts of tensors, which may not be None as a whole"),
    ("type None", "one of its outputs is None: call it from a module that returns the others"),
    ("vmap", "a trace cannot hold torch.func.vmap: write the batch dimension out"),
)


def _suggest_mend(text: str) -> str:
    suggestions = [mend for part, mend in _MENDS if part in text]
    return (suggestions or ["custom autograd functions and Python objects cannot be traced: write torch operations"])[0]


def _parse_location(text: str) -> str:
    match = re.search(r"^(\S+\.py)\((\d+)\)", text, re.MULTILINE)
    return f"{match[1]}:{match[2]}" if match else ""
