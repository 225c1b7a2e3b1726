"""One run of the model as a flat graph, with the values that Python read meanwhile and what they depend on.

Lighter than ``torch.jit.trace``: parameters are constants, and no module is made of it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from exporter.archive.method_names import METHOD
from exporter.capture.custom_functions import inline_custom_functions
from exporter.capture.data_dependence import SIZE, Dependence
from exporter.capture.forward_wrapper import make_argument_names
from exporter.capture.joint_graph import trace_joint_graph
from exporter.capture.scripting import find_marked_modules, make_opaque
from exporter.capture.torchscript_writer import emit_torchscript, find_varying_sizes
from exporter.capture.value_reads import Change, ValueRead, ValueReadRecorder, see_through_data
from exporter.common.errors import TorchferryError, summarize_error
from exporter.common.forking import time_limit
from exporter.common.script_loading import iterate_nodes, list_inputs, list_outputs
from exporter.common.tensors import count_writes
from exporter.common.torch_hooks import patch_forward
from exporter.common.torch_internals import record_graph, remove_dead_code
from exporter.common.user_code import user_traceback_location
from exporter.graph.torch_nodes import find_location
from exporter.model.eager.evaluation import call_model, evaluate, normalize_outputs
from exporter.model.source import Inputs, Source


@dataclass(frozen=True)
class RunRecording:
    """The record of one run.

    ``origins`` and ``labels``: for each read and each output the labels of ``Dependence``; the graph returns the
    outputs, then the values that were read. ``failure``: the error that the run raised; ``failed_at``: its line."""

    outputs: dict[str, torch.Tensor]
    reads: tuple[ValueRead, ...]
    origins: tuple[frozenset[str], ...]
    graph: Any
    labels: Mapping[str, frozenset[str]]
    failure: str = ""
    failed_at: str = ""


def record_run(
    source: Source, inputs: Inputs, changes: Mapping[int, Change] | None = None, seconds: float = 0.0
) -> RunRecording:
    """Run the model once under the tracer. Call it under ``eager_context``, in a forked process.

    ``seconds`` is for runs that may not end, where a loop was given another bound: it is then their ``failure``.
    A model that takes gradients itself is recorded as it is captured: no tensor has values then, and Python can read
    sizes alone."""
    if source.uses_autograd:
        return _record_with_backward(source, inputs)
    recorder = ValueReadRecorder(changes)
    outputs: dict[str, torch.Tensor] = {}

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs.update(normalize_outputs(call_model(source, tensors), source))
        with recorder.mark_reading():
            # With an alias constants, too, have a node in the graph.
            returned = tuple(map(torch.ops.aten.alias, outputs.values()))
            return returned + tuple(t for values in recorder.values for t in values)

    run_inputs = tuple(t.clone() for t in inputs)
    graph, failure, failed_at = None, "", ""
    opaque = {m: make_opaque(m, recorder.mark_reading) for m in find_marked_modules(source.parameter_module).values()}
    with (
        _ignore_warnings(), recorder, time_limit(seconds), inline_custom_functions(), patch_forward(opaque),
        see_through_data(),
    ):  # fmt: skip
        try:
            graph, _ = record_graph(run, run_inputs, lambda _: "", True, False)
        except Exception as error:
            failure, failed_at = summarize_error(error), user_traceback_location(error)
    detached = {name: value.detach().clone() for name, value in outputs.items()}
    origins: tuple[frozenset[str], ...] = (frozenset(),) * len(recorder.reads)
    labels: dict[str, frozenset[str]] = {}
    if graph is not None:
        dependence = Dependence(graph, [spec.name for spec in source.inputs])
        (returned,) = graph.outputs()
        positions = iter(list_inputs(returned.node()))
        labels = {name: dependence.find_labels([next(positions)]) for name in outputs}
        reads = zip(recorder.reads, recorder.values, strict=True)
        origins = tuple(dependence.find_labels([next(positions) for _ in vs], size=read.size) for read, vs in reads)
    return RunRecording(detached, tuple(recorder.reads), origins, graph, labels, failure, failed_at)


def _record_with_backward(source: Source, inputs: Inputs) -> RunRecording:
    try:
        outputs = evaluate(source, tuple(t.clone() for t in inputs))
        with _ignore_warnings(), inline_custom_functions():
            program = trace_joint_graph(source, inputs)
    except TorchferryError as error:
        return RunRecording({}, (), (), None, {}, error.details.get("got", error.what), error.details.get("where", ""))
    names = [spec.name for spec in source.inputs]
    arguments = make_argument_names(names)
    constant_names = {target: f"tf_held_{i}" for i, target in enumerate(program.constants)}
    varying = find_varying_sizes(source.inputs, bool(source.batch_ndim))
    text = emit_torchscript(program, METHOD, arguments, constant_names, varying, list(constant_names.values()))
    with _ignore_warnings():
        graph = getattr(torch.jit.CompilationUnit(text.replace("(self, ", "(", 1)), METHOD).graph
    (returned,) = graph.outputs()
    dependence = Dependence(graph, names)
    values = zip(outputs, list_inputs(returned.node()), strict=True)
    labels = {name: dependence.find_labels([value]) for name, value in values}
    sizes = frozenset(SIZE + spec.name for spec in source.inputs)
    return RunRecording(outputs, program.size_reads, (sizes,) * len(program.size_reads), graph, labels)


@contextlib.contextmanager
def _ignore_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# One operation: its name, its constants, and its inputs by the position of the operation that made them.
_Operation = tuple[str, str, tuple[Any, ...]]


def canonicalize(recording: RunRecording) -> list[tuple[_Operation, str]]:
    """Return the operations that an output depends on, without names, each with its line: equal for equal runs.

    Sizes and strides that the tracer noted are left out; literals, and the bytes of constant tensors, are not."""
    copy = recording.graph.copy()
    (returned,) = copy.outputs()
    returned_values = list_inputs(returned.node())[: len(recording.outputs)]
    copy.eraseOutput(0)
    for value in returned_values:
        copy.registerOutput(value)
    remove_dead_code(copy)
    number: dict[str, tuple[Any, Any]] = {v.debugName(): ("input", i) for i, v in enumerate(copy.inputs())}
    rows: list[tuple[_Operation, str]] = []
    for node in iterate_nodes(copy):
        operator = node.kind()
        if operator == "prim::Constant":
            (output,) = list_outputs(node)
            number[output.debugName()] = ("constant", _format_literal(output))
            continue
        inputs = tuple(number[value.debugName()] for value in list_inputs(node))
        extra = node.s("name") if operator == "prim::GetAttr" else ""
        for i, value in enumerate(list_outputs(node)):
            number[value.debugName()] = (len(rows), i)
        rows.append(((operator, extra, inputs), "" if operator == "aten::alias" else find_location(node)))
    rows.append((("return", "", tuple(number[value.debugName()] for value in copy.outputs())), ""))
    return rows


def _format_literal(value: Any) -> str:
    if value.node().mustBeNone():
        return "None"
    constant = value.toIValue()
    if isinstance(constant, torch.Tensor):
        return f"{constant.dtype} {list(constant.shape)} {digest(constant)}"
    return f"{type(constant).__name__} {constant!r}"


def digest(value: torch.Tensor) -> str:
    """Return a hash of a tensor's bytes, also without NumPy."""
    contiguous = value.detach().contiguous().resolve_conj().resolve_neg()
    size = contiguous.numel() * contiguous.element_size()
    return hashlib.sha256(ctypes.string_at(contiguous.data_ptr(), size) if size else b"").hexdigest()[:16]


def fingerprint_tensor(value: torch.Tensor) -> tuple[int, str]:
    """Return a digest with the number of writes in place: those of equal values count, too."""
    return count_writes(value), digest(value.to_dense() if value.layout != torch.strided else value)


def find_difference(a: list[tuple[_Operation, str]], b: list[tuple[_Operation, str]]) -> tuple[str, str] | None:
    """Return ``(file:line, what differs)`` of the first operation that two runs do not share; None for equal runs."""
    last = ""
    for (row, where), (other_row, other_where) in zip(a, b, strict=False):
        last = where or last
        if row == other_row:
            continue
        if row[0] == other_row[0]:
            operands = zip(row[2], other_row[2], strict=False)
            parts = [f"{p[1]} against {q[1]}" for p, q in operands if p != q and p[0] == q[0] == "constant"]
            return where or other_where or last, f"{row[0]}: {', '.join(parts) or 'other operands'}"
        return other_where or where or last, f"{row[0]} against {other_row[0]}"
    if len(a) == len(b):
        return None
    longer = max(a, b, key=len)
    return longer[min(len(a), len(b))][1] or last, f"{len(a)} operations against {len(b)}"
