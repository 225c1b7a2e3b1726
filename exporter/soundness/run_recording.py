"""One run of the model as a flat graph, with what Python read meanwhile and what that depends on.

Lighter than ``torch.jit.trace``: parameters are constants, and no module is made of it.
"""

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
from exporter.capture.custom_functions import functions_inlined
from exporter.capture.forward_wrapper import argument_names
from exporter.capture.joint_graph import followed
from exporter.capture.scripting import as_one, marked
from exporter.capture.torchscript_writer import torchscript, varying_sizes
from exporter.capture.value_reads import Change, Read, ReadRecorder
from exporter.common.errors import TorchferryError, first_line
from exporter.common.forking import no_longer_than
from exporter.common.torch_hooks import called_instead
from exporter.graph.torch_nodes import location, nodes
from exporter.model.eager.evaluation import evaluate, flatten, raised_at
from exporter.model.source import Inputs, Source
from exporter.soundness.data_dependence import SIZE, Dependence


@dataclass(frozen=True)
class Recording:
    """``origins`` and ``labels``: for each read and each output the labels of ``Dependence``; the graph returns the
    outputs, then what was read. ``failure``: what the run raised, and where."""

    outputs: dict[str, torch.Tensor]
    reads: tuple[Read, ...]
    origins: tuple[frozenset[str], ...]
    graph: Any
    labels: Mapping[str, frozenset[str]]
    failure: str = ""
    failed_at: str = ""


def record(
    source: Source, inputs: Inputs, changes: Mapping[int, Change] | None = None, seconds: float = 0.0
) -> Recording:
    """Run the model once under the tracer. Call it under ``inference_conditions``, in a process of its own.

    ``seconds`` is for runs that may not end, where a loop was given another bound: it is then their ``failure``.
    A model that takes gradients itself is followed as it is captured: no tensor has values then, and what Python asks
    is of sizes alone.
    """
    if source.differentiates:
        return _followed(source, inputs)
    recorder = ReadRecorder(changes)
    outputs: dict[str, torch.Tensor] = {}

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs.update(flatten(source.module(*tensors), source))
        with recorder.reading():
            # Constants, too, have a place in the graph then.
            returned = tuple(map(torch.ops.aten.alias, outputs.values()))
            return returned + tuple(t for values in recorder.values for t in values)

    given = tuple(t.clone() for t in inputs)
    graph, failure, failed_at = None, "", ""
    opaque = {m: as_one(m, recorder.reading) for m in marked(source.named).values()}
    with _quiet(), recorder, no_longer_than(seconds), functions_inlined(), called_instead(opaque):
        try:
            graph, _ = torch._C._create_graph_by_tracing(run, given, lambda _: "", True, False)
        except Exception as error:
            failure, failed_at = first_line(error), raised_at(error)
    kept = {name: value.detach().clone() for name, value in outputs.items()}
    origins: tuple[frozenset[str], ...] = (frozenset(),) * len(recorder.reads)
    labels: dict[str, frozenset[str]] = {}
    if graph is not None:
        known = Dependence(graph, [spec.name for spec in source.inputs])
        (returned,) = graph.outputs()
        places = iter(list(returned.node().inputs()))
        labels = {name: known.of([next(places)]) for name in outputs}
        origins = tuple(
            known.of([next(places) for _ in values], size=read.size)
            for read, values in zip(recorder.reads, recorder.values, strict=True)
        )
    return Recording(kept, tuple(recorder.reads), origins, graph, labels, failure, failed_at)


def _followed(source: Source, inputs: Inputs) -> Recording:
    try:
        outputs = evaluate(source, tuple(t.clone() for t in inputs))
        with _quiet(), functions_inlined():
            program = followed(source, inputs)
    except TorchferryError as error:
        return Recording({}, (), (), None, {}, error.details.get("got", error.what), error.details.get("where", ""))
    names = [spec.name for spec in source.inputs]
    arguments = argument_names(names)
    held = {target: f"tf_held_{i}" for i, target in enumerate(program.constants)}
    varying = varying_sizes(source.inputs, bool(source.batch_ndim))
    text = torchscript(program, METHOD, arguments, held, varying, list(held.values()))
    with _quiet():
        graph = getattr(torch.jit.CompilationUnit(text.replace("(self, ", "(", 1)), METHOD).graph
    (returned,) = graph.outputs()
    known = Dependence(graph, names)
    labels = {name: known.of([value]) for name, value in zip(outputs, returned.node().inputs(), strict=True)}
    sizes = frozenset(SIZE + spec.name for spec in source.inputs)
    return Recording(outputs, program.compared, (sizes,) * len(program.compared), graph, labels)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# One operation: what it is, its constants, and its inputs by the position of what made them.
_Row = tuple[str, str, tuple[Any, ...]]


def canonical(recording: Recording) -> list[tuple[_Row, str]]:
    """The operations that an output depends on, without names, each with its line: equal where two runs did the same.

    Sizes and strides that the tracer noted are left out; literals, and the bytes of constant tensors, are not.
    """
    copy = recording.graph.copy()
    (returned,) = copy.outputs()
    kept = list(returned.node().inputs())[: len(recording.outputs)]
    copy.eraseOutput(0)
    for value in kept:
        copy.registerOutput(value)
    torch._C._jit_pass_dce(copy)
    number: dict[str, tuple[Any, Any]] = {v.debugName(): ("input", i) for i, v in enumerate(copy.inputs())}
    rows: list[tuple[_Row, str]] = []
    for node in nodes(copy):
        kind = node.kind()
        if kind == "prim::Constant":
            (output,) = node.outputs()
            number[output.debugName()] = ("constant", _literal(output))
            continue
        inputs = tuple(number[value.debugName()] for value in node.inputs())
        extra = node.s("name") if kind == "prim::GetAttr" else ""
        for i, value in enumerate(node.outputs()):
            number[value.debugName()] = (len(rows), i)
        rows.append(((kind, extra, inputs), "" if kind == "aten::alias" else location(node)))
    rows.append((("return", "", tuple(number[value.debugName()] for value in copy.outputs())), ""))
    return rows


def _literal(value: Any) -> str:
    if value.node().mustBeNone():
        return "None"
    held = value.toIValue()
    if isinstance(held, torch.Tensor):
        return f"{held.dtype} {list(held.shape)} {digest(held)}"
    return f"{type(held).__name__} {held!r}"


def digest(value: torch.Tensor) -> str:
    """Of a tensor's bytes, also where NumPy is not there to give them."""
    held = value.detach().contiguous().resolve_conj().resolve_neg()
    size = held.numel() * held.element_size()
    return hashlib.sha256(ctypes.string_at(held.data_ptr(), size) if size else b"").hexdigest()[:16]


def difference(a: list[tuple[_Row, str]], b: list[tuple[_Row, str]]) -> tuple[str, str] | None:
    """``(file:line, what differs)`` of the first operation that two runs do not share; None where they did the same."""
    last = ""
    for (row, where), (other, elsewhere) in zip(a, b, strict=False):
        last = where or last
        if row == other:
            continue
        if row[0] == other[0]:
            parts = [
                f"{p[1]} against {q[1]}"
                for p, q in zip(row[2], other[2], strict=False)
                if p != q and p[0] == q[0] == "constant"
            ]
            return where or elsewhere or last, f"{row[0]}: {', '.join(parts) or 'other operands'}"
        return elsewhere or where or last, f"{row[0]} against {other[0]}"
    if len(a) != len(b):
        longer = a if len(a) > len(b) else b
        return longer[min(len(a), len(b))][1] or last, f"{len(a)} operations against {len(b)}"
    return None
