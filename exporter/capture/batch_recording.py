"""Functions of a batch as graphs, from two runs on numbers.

``make_fx`` traces with symbolic sizes, at milliseconds an operation. Where the batch is the only size that varies, two
runs at two batch sizes say as much: an integer that differs between them is a multiple of the batch size and a number,
and everything else has to be the same. The runs also differ in all values, so that one that Python read shows itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx.node import map_aggregate

from exporter.capture.fx_tracing import DECOMPOSED, FxProgram, finish_program, trace_to_fx
from exporter.capture.origin_tracking import OriginTracker
from exporter.capture.value_reads import ValueReadRecorder
from exporter.common.tensors import bitwise_equal
from exporter.common.torch_hooks import DispatchHook
from exporter.model.eager.evaluation import deterministic_kernels

_aten: Any = torch.ops.aten
# Primes, which no product of a model's own sizes equals in both runs.
BATCHES = (11, 13)
# What the values of the second run are multiplied by.
_SCALE = 1.0078125
# Reads that go past torch's operators, by their names in a record of reads.
_UNSEEN = (".tolist()", ".numpy()", "numpy", "dlpack")
# Operators whose result hangs on values or on chance.
_REFUSED = (
    torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded,
)  # fmt: skip


@dataclass(frozen=True)
class BatchSize:
    """A size that depends on the batch: ``factor`` times the batch size, plus ``offset``."""

    factor: int
    offset: int

    def evaluate(self, batch: int) -> int:
        """Return the size at a batch of this size."""
        return self.factor * batch + self.offset


BATCH = BatchSize(1, 0)


@dataclass(frozen=True)
class ValueShape:
    """Shape and dtype of a tensor in a graph."""

    shape: tuple[int | BatchSize, ...]
    dtype: torch.dtype

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)


class NotRecordedError(Exception):
    """Two runs do not say what a function computes at other batch sizes."""


def trace_batch_program(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    batched: Collection[int],
    parameters: tuple[str, ...] = (),
    *,
    model: nn.Module,
) -> FxProgram:
    """Record ``function``, whose last inputs are ``parameters``; trace what two runs do not determine.

    The trace also tells why a function cannot be captured. Raises ``CaptureError``."""
    try:
        program = record_batch_program(function, inputs, batched, model)
    except Exception:
        return trace_to_fx(function, inputs, parameters, model=model)
    return dataclasses.replace(program, parameters=parameters)


def record_batch_program(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    batched: Collection[int],
    model: nn.Module | None = None,
) -> FxProgram:
    """Record ``function``, whose inputs at the places ``batched`` have the batch in front, the first among them.

    Every operation gets its origin in ``model``. Raises ``NotRecordedError`` where the graph would hold for these runs
    alone, and whatever the function raises; ``trace_to_fx`` tells more of either.

    Example:
        ```python
        record_batch_program(lambda x: (x.reshape(-1) * x.shape[0],), [torch.rand(5, 3)], [0])
        ```
    """
    recordings = [_record(function, _select_rows(inputs, batched, run), model) for run in range(len(BATCHES))]
    unified = _Unification(*recordings)
    unified.unify_nodes(min(batched))
    graph = torch.fx.GraphModule(unified.first.constants, unified.first.graph)
    return finish_program(graph, unified.first.constants, len(inputs))


def _select_rows(inputs: Sequence[torch.Tensor], batched: Collection[int], run: int) -> list[torch.Tensor]:
    """Return the inputs of a run: so many rows, and values of its own."""
    rows = torch.arange(BATCHES[run]) + run
    selected = [t[rows.to(t.device) % t.shape[0]] if i in batched else t.clone() for i, t in enumerate(inputs)]
    return [t * _SCALE if run and t.is_floating_point() else t for t in selected]


def _record(function: Callable[..., Any], inputs: list[torch.Tensor], model: nn.Module | None) -> _Recorder:
    recorder = _Recorder()
    for tensor in inputs:
        recorder.add_input(tensor)
    origins = OriginTracker(model, lambda: recorder.graph) if model is not None else contextlib.nullcontext()
    with deterministic_kernels(), ValueReadRecorder() as reader, recorder, origins:
        results = function(*inputs)
    if unseen_reads := [read for read in reader.reads if read.kind in _UNSEEN]:
        raise NotRecordedError(f"values are read: {unseen_reads[0]}")
    recorder.graph.output(tuple(map(recorder.get_node, results)))
    return recorder


class _Recorder(DispatchHook):
    """A mode that runs operators on numbers, and writes each into ``graph``."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self._nodes: dict[int, torch.fx.Node] = {}
        # A tensor that is gone would leave its identity to another.
        self._tensors: list[torch.Tensor] = []
        self._depends_on_inputs: set[torch.fx.Node] = set()

    def add_input(self, tensor: torch.Tensor) -> None:
        """Make a tensor an input of the graph."""
        node = self.graph.placeholder(f"arg{len(self._tensors)}_1")
        self._depends_on_inputs.add(node)
        self._keep(tensor, node)

    def get_node(self, tensor: torch.Tensor) -> torch.fx.Node:
        """Return the node of a tensor, which is a constant if no operation made it."""
        if id(tensor) not in self._nodes:
            name = f"_tensor_constant{len(self.constants)}"
            self.constants[name] = tensor
            self._keep(tensor, self.graph.create_node("get_attr", name))
        return self._nodes[id(tensor)]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (replacement := _get_decomposition(func)) is not None:
            with self:
                return replacement(*args, **kwargs)
        node_args, node_kwargs = map_aggregate((args, kwargs), self._convert)  # pyright: ignore[reportArgumentType]
        result = func(*args, **kwargs)
        # A fresh constant may be written to: the file makes a copy in each call.
        target = _aten.lift_fresh_copy.default if func is _aten.lift_fresh.default else func
        node = self.graph.create_node("call_function", target, node_args, node_kwargs)  # pyright: ignore[reportArgumentType]
        is_dependent = not self._depends_on_inputs.isdisjoint(node.all_input_nodes)
        if any(tag in func.tags for tag in _REFUSED):
            self.graph.erase_node(node)
            if is_dependent or torch.Tag.data_dependent_output not in func.tags:
                raise NotRecordedError(f"{func} depends on values or on chance")
            # A number that is the same in every call.
            return result
        if is_dependent:
            self._depends_on_inputs.add(node)
        if isinstance(result, torch.Tensor):
            self._keep(result, node)
        elif isinstance(result, (list, tuple)):
            for i, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    item = self.graph.call_function(operator.getitem, (node, i))
                    self._keep(part, item)
                    if is_dependent:
                        self._depends_on_inputs.add(item)
        return result

    def _convert(self, value: Any) -> Any:
        return self.get_node(value) if isinstance(value, torch.Tensor) else value

    def _keep(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        node.meta["val"] = tuple(tensor.shape), tensor.dtype
        self._nodes[id(tensor)] = node
        self._tensors.append(tensor)


@functools.cache
def _get_decomposition(func: Any) -> Callable[..., Any] | None:
    """Return what computes an operator from others that a file can hold; None for one that it can hold itself."""
    if func in DECOMPOSED:
        return DECOMPOSED[func]
    return func.decompose if func._can_decompose() else None


class _Unification:
    """Two recordings as one: ``first``, with sizes of the batch in place of the numbers that differ."""

    def __init__(self, first: _Recorder, second: _Recorder) -> None:
        self.first = first
        self._second = second
        self._size_nodes: dict[BatchSize, torch.fx.Node] = {}
        self._partners: dict[torch.fx.Node, torch.fx.Node] = {}

    def unify_nodes(self, batched: int) -> None:
        """Unify all nodes in order; the input at ``batched`` has the batch in front. Raises ``NotRecordedError``."""
        nodes, others = list(self.first.graph.nodes), list(self._second.graph.nodes)
        if len(nodes) != len(others):
            raise NotRecordedError(f"{len(nodes)} and {len(others)} operations")
        inputs = [node for node in nodes if node.op == "placeholder"]
        self._batched, self._last = inputs[batched], inputs[-1]
        for node, other in zip(nodes, others, strict=True):
            if (node.op, node.target) != (other.op, other.target):
                raise NotRecordedError(f"{node.target} and {other.target}")
            self._partners[node] = other
            if node.op == "get_attr":
                self._check_constants(str(node.target))
            node.args, node.kwargs = self._unify(node.args, other.args), self._unify(node.kwargs, other.kwargs)
            if "val" in node.meta:
                (shape, dtype), (other_shape, other_dtype) = node.meta["val"], other.meta["val"]
                if dtype != other_dtype or len(shape) != len(other_shape):
                    raise NotRecordedError(f"{node.target} gives {dtype} {shape} and {other_dtype} {other_shape}")
                node.meta["val"] = ValueShape(tuple(map(_unify_sizes, shape, other_shape)), dtype)

    def _check_constants(self, name: str) -> None:
        value, other = self.first.constants[name], self._second.constants[name]
        if value is not other and not (value.dtype == other.dtype and bitwise_equal(value, other)):
            raise NotRecordedError(f"a constant of shape {tuple(value.shape)} differs from call to call")

    def _unify(self, value: Any, other: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            if self._partners.get(value) is other:
                return value
        elif type(value) is type(other):
            if isinstance(value, (list, tuple)) and len(value) == len(other):
                return type(value)(map(self._unify, value, other))
            if isinstance(value, dict) and value.keys() == other.keys():
                return {key: self._unify(part, other[key]) for key, part in value.items()}
            if type(value) is int:
                size = _unify_sizes(value, other)
                return size if isinstance(size, int) else self._make_size_node(size)
            if value == other or (isinstance(value, float) and math.isnan(value) and math.isnan(other)):
                return value
        raise NotRecordedError(f"{value} and {other}")

    def _make_size_node(self, size: BatchSize) -> torch.fx.Node:
        if size in self._size_nodes:
            return self._size_nodes[size]
        if size == BATCH:
            call: tuple[Any, tuple[Any, ...]] = _aten.sym_size.int, (self._batched, 0)
        elif size.offset:
            call = operator.add, (self._make_size_node(BatchSize(size.factor, 0)), size.offset)
        else:
            call = operator.mul, (self._make_size_node(BATCH), size.factor)
        with self.first.graph.inserting_after(self._last):
            self._last = self.first.graph.call_function(*call)
        self._last.meta["val"] = size
        self._size_nodes[size] = self._last
        return self._last


def _unify_sizes(size: int, other: int) -> int | BatchSize:
    """Return the size of which two runs show two; raises ``NotRecordedError`` if no multiple of the batch does."""
    if size == other:
        return size
    factor, remainder = divmod(other - size, BATCHES[1] - BATCHES[0])
    offset = size - factor * BATCHES[0]
    # A power of the batch size looks like a large offset.
    if remainder or factor < 1 or abs(offset) >= BATCHES[0] // 2:
        raise NotRecordedError(f"sizes {size} and {other} at batches of {BATCHES}")
    return BatchSize(factor, offset)
