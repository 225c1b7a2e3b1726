"""Functions of a batch as graphs, from runs on numbers.

``make_fx`` traces with symbolic sizes, at milliseconds an operation. Where the batch is the only size that varies, runs
at several batch sizes say as much: an integer that differs between the first two is a multiple of the batch size and a
number, which the third confirms, and everything else has to be the same. Values differ from run to run, too. A branch
on the batch size that all runs take the same way is not seen here, as in a trace at one size; the gate looks for it in
the model, and what is captured is compared with eager mode at other sizes."""

from __future__ import annotations

import contextlib
import copy
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
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from exporter.capture.determinant_gradients import SmallDeterminants
from exporter.capture.fx_tracing import DECOMPOSED, FxProgram, finish_program, list_written_arguments, trace_to_fx
from exporter.capture.origin_tracking import OriginTracker
from exporter.capture.value_reads import ValueReadRecorder
from exporter.common.tensors import bitwise_equal
from exporter.common.torch_hooks import DispatchHook
from exporter.model.eager.evaluation import deterministic_kernels

_aten: Any = torch.ops.aten
# Neither remainders nor quotients by small numbers are the same at all three.
BATCHES = (11, 14, 31)
# What the values of each run are multiplied by.
_SCALES = (1.0, 1.0078125, 0.9921875)
# Reads that go past torch's operators, by their names in a record of reads.
_UNSEEN = (".tolist()", ".numpy()", "numpy", "dlpack", "torch.tensor", "torch.as_tensor", "torch.asarray")
# Operators whose result hangs on values or on chance.
_VALUE = torch.Tag.data_dependent_output
_REFUSED = (torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)


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
    """The runs do not say what a function computes at other batch sizes."""


def trace_batch_program(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    batched: Collection[int],
    parameters: tuple[str, ...] = (),
    *,
    model: nn.Module,
) -> FxProgram:
    """Record ``function``, whose last inputs are ``parameters``; trace what the runs do not determine.

    The trace also tells why a function cannot be captured. Raises ``CaptureError``."""
    try:
        program = record_batch_program(function, inputs, batched, model)
    except NotRecordedError:
        return trace_to_fx(function, inputs, parameters, model=model)
    return dataclasses.replace(program, parameters=parameters)


def record_batch_program(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    batched: Collection[int],
    model: nn.Module | None = None,
) -> FxProgram:
    """Record ``function``, whose inputs at the places ``batched`` have the batch in front.

    Every operation gets its origin in ``model``. Raises ``NotRecordedError`` where the function fails, reads values, or
    differs between the runs in other ways than by the batch size: ``trace_to_fx`` tells more.

    Example:
        ```python
        record_batch_program(lambda x: (x.reshape(-1) * x.shape[0],), [torch.rand(5, 3)], [0])
        ```
    """
    if not all(inputs[i].shape[0] for i in batched):
        raise NotRecordedError("the sample has no rows")
    # The graph of the first run is kept, with its origins.
    models = (model, *[None] * (len(BATCHES) - 1))
    recordings = [_record(function, _select_rows(inputs, batched, run), m) for run, m in enumerate(models)]
    unified = _Unification(recordings)
    unified.unify_nodes(min(batched))
    graph = torch.fx.GraphModule(unified.first.constants, unified.first.graph)
    return finish_program(graph, unified.first.constants, len(inputs))


def _select_rows(inputs: Sequence[torch.Tensor], batched: Collection[int], run: int) -> list[torch.Tensor]:
    """Return the inputs of a run: so many rows, and values of its own."""
    rows = torch.arange(BATCHES[run]) + run
    selected = [t[rows.to(t.device) % t.shape[0]] if i in batched else t.clone() for i, t in enumerate(inputs)]
    return [t * _SCALES[run] if t.is_floating_point() or t.is_complex() else t for t in selected]


def _record(function: Callable[..., Any], inputs: list[torch.Tensor], model: nn.Module | None) -> _Recorder:
    recorder = _Recorder()
    for tensor in inputs:
        recorder.add_input(tensor)
    origins = OriginTracker(model, lambda: recorder.graph) if model is not None else contextlib.nullcontext()
    reader = ValueReadRecorder(has_constants=True)
    with deterministic_kernels(), SmallDeterminants(), reader, recorder, origins:
        try:
            results = function(*inputs)
        except Exception as error:
            raise NotRecordedError(f"the function fails: {error}") from error
    if unseen_reads := [read for read in reader.reads if read.kind in _UNSEEN]:
        raise NotRecordedError(f"values are read: {unseen_reads[0]}")
    recorder.graph.output(tuple(map(recorder.get_node, results)))
    recorder.forget_tensors()
    return recorder


class _Recorder(DispatchHook):
    """A mode that runs operators on numbers, and writes each into ``graph``."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        # By weak references: what eager mode no longer needs is gone here too.
        self._nodes = WeakTensorKeyDictionary()
        self._dependent_nodes: set[torch.fx.Node] = set()
        # A write to a view reaches all that share its memory.
        self._dependent_memory: set[StorageWeakRef] = set()

    def add_input(self, tensor: torch.Tensor) -> None:
        """Make a tensor an input of the graph."""
        node = self.graph.placeholder(f"arg{len(self._dependent_nodes)}_1")
        self._dependent_nodes.add(node)
        self._keep(tensor, node)

    def get_node(self, tensor: torch.Tensor) -> torch.fx.Node:
        """Return the node of a tensor, which is a constant if no operation made it."""
        if tensor not in self._nodes:
            name = f"_tensor_constant{len(self.constants)}"
            self.constants[name] = tensor
            self._keep(tensor, self.graph.create_node("get_attr", name))
        return self._nodes[tensor]

    def forget_tensors(self) -> None:
        """Keep the graph and its constants alone."""
        self._nodes = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (replacement := _get_decomposition(func)) is not None:
            with self:
                return replacement(*args, **kwargs)
        if func is _aten.lift_fresh.default:
            # A fresh constant may be written to: the file makes a copy in each call, and so does this run.
            func = _aten.lift_fresh_copy.default
        tensors: list[torch.Tensor] = []
        node_args, node_kwargs = map_aggregate((args, kwargs), lambda value: self._convert(value, tensors))  # pyright: ignore[reportArgumentType]
        is_dependent = any(self._is_dependent(t) for t in tensors)
        if func._schema.is_mutable and is_dependent:
            written = [value for _, value in list_written_arguments(func, args, kwargs)]
            self._dependent_memory.update(_get_memory(t) for t in written if isinstance(t, torch.Tensor))
        if _is_refused(func, args) or (is_dependent and _VALUE in func.tags):
            raise NotRecordedError(f"{func} depends on values or on chance")
        result = func(*args, **kwargs)
        if _VALUE not in func.tags:
            # Otherwise it is a number, the same in every call.
            self._add_node(func, (node_args, node_kwargs), result, is_dependent=is_dependent)
        return result

    def _add_node(self, func: Any, arguments: Any, result: Any, *, is_dependent: bool) -> None:
        node = self.graph.create_node("call_function", func, *arguments)
        parts = [(result, node)] if isinstance(result, torch.Tensor) else []
        if isinstance(result, (list, tuple)):
            pieces = [(i, part) for i, part in enumerate(result) if isinstance(part, torch.Tensor)]
            parts = [(part, self.graph.call_function(operator.getitem, (node, i))) for i, part in pieces]
        for part, part_node in parts:
            self._keep(part, part_node)
            if is_dependent:
                self._dependent_nodes.add(part_node)

    def _convert(self, value: Any, tensors: list[torch.Tensor]) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(value)
        return self.get_node(value)

    def _is_dependent(self, tensor: torch.Tensor) -> bool:
        return self._nodes[tensor] in self._dependent_nodes or _get_memory(tensor) in self._dependent_memory

    def _keep(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        node.meta["val"] = tuple(tensor.shape), tensor.dtype
        self._nodes[tensor] = node


def _get_memory(tensor: torch.Tensor) -> StorageWeakRef:
    # Not its address, where a later tensor may lie once this one is gone.
    return StorageWeakRef(tensor.untyped_storage())


def _is_refused(func: Any, args: tuple[Any, ...]) -> bool:
    if func is _aten.index.Tensor:
        # By whole numbers; a mask selects as many elements as are true.
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return any(tag in func.tags for tag in _REFUSED)


@functools.cache
def _get_decomposition(func: Any) -> Callable[..., Any] | None:
    """Return what computes an operator from others that a file can hold; None for one that it can hold itself."""
    if func in DECOMPOSED:
        return DECOMPOSED[func]
    return func.decompose if func._can_decompose() else None


def describe_traced_sizes(program: FxProgram, batched: int) -> FxProgram:
    """Describe the values of a traced program as those of a recorded one, whose input at ``batched`` has the batch.

    A program with sizes that are no multiple of the batch stays as it is."""
    graph = copy.deepcopy(program.graph.graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    batch = inputs[batched].meta["val"].shape[0]
    if not isinstance(batch, torch.SymInt):
        return program
    symbol = batch.node._expr
    # Every other size is fixed by the contract.
    sizes = [size for node in inputs for size in node.meta["val"].shape if isinstance(size, torch.SymInt)]
    numbers = {size.node._expr: size.node.hint for size in sizes}

    def convert(size: Any) -> int | BatchSize:
        if isinstance(size, int):
            return size
        values = [size.node._expr.subs({**numbers, symbol: rows}) for rows in BATCHES]
        if not all(value.is_Integer for value in values):
            raise NotRecordedError(f"{size} depends on values")
        return _unify_sizes(list(map(int, values)))

    try:
        for node in graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                node.meta["val"] = ValueShape(tuple(map(convert, value.shape)), value.dtype)
            elif isinstance(value, torch.SymInt):
                node.meta["val"] = convert(value)
    except NotRecordedError:
        return program
    return dataclasses.replace(program, graph=torch.fx.GraphModule(program.graph, graph))


class _Unification:
    """Recordings as one: ``first``, with sizes of the batch in place of the numbers that differ."""

    def __init__(self, recordings: Sequence[_Recorder]) -> None:
        self.first, *_ = self._recordings = recordings
        self._size_nodes: dict[BatchSize, torch.fx.Node] = {}
        self._partners: dict[torch.fx.Node, Sequence[torch.fx.Node]] = {}

    def unify_nodes(self, batched: int) -> None:
        """Unify all nodes in order; the input at ``batched`` has the batch in front. Raises ``NotRecordedError``."""
        rows = [list(recording.graph.nodes) for recording in self._recordings]
        if len(set(map(len, rows))) > 1:
            raise NotRecordedError(f"{list(map(len, rows))} operations")
        inputs = [node for node in rows[0] if node.op == "placeholder"]
        self._batched, self._last = inputs[batched], inputs[-1]
        for nodes in zip(*rows, strict=True):
            node = nodes[0]
            if len({(n.op, n.target) for n in nodes}) > 1:
                raise NotRecordedError(f"different operations: {nodes}")
            self._partners[node] = nodes
            if node.op == "get_attr":
                self._check_constants(str(node.target))
            node.args, node.kwargs = self._unify([n.args for n in nodes]), self._unify([n.kwargs for n in nodes])
            if "val" in node.meta:
                shapes, dtypes = zip(*(n.meta["val"] for n in nodes), strict=True)
                if len(set(dtypes)) > 1 or len(set(map(len, shapes))) > 1:
                    raise NotRecordedError(f"{node.target} gives {dtypes} {shapes}")
                node.meta["val"] = ValueShape(tuple(map(_unify_sizes, zip(*shapes, strict=True))), dtypes[0])

    def _check_constants(self, name: str) -> None:
        value, *others = [recording.constants[name] for recording in self._recordings]
        if not all(value is other or bitwise_equal(value, other) for other in others):
            raise NotRecordedError(f"a constant of shape {tuple(value.shape)} differs from call to call")

    def _unify(self, values: Sequence[Any]) -> Any:
        """Return what stands for the values of an argument in all recordings."""
        value = values[0]
        if len(set(map(type, values))) > 1:
            raise NotRecordedError(f"different arguments: {values}")
        if isinstance(value, torch.fx.Node):
            if tuple(values) == tuple(self._partners.get(value, ())):
                return value
        elif isinstance(value, (list, tuple)):
            if len(set(map(len, values))) == 1:
                return type(value)(map(self._unify, zip(*values, strict=True)))
        elif isinstance(value, dict):
            if all(value.keys() == other.keys() for other in values):
                return {key: self._unify([other[key] for other in values]) for key in value}
        elif type(value) is int:
            size = _unify_sizes(values)
            return size if isinstance(size, int) else self._make_size_node(size)
        elif (isinstance(value, float) and all(map(math.isnan, values))) or all(value == other for other in values):
            return value
        raise NotRecordedError(f"different arguments: {values}")

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


def _unify_sizes(sizes: Sequence[int]) -> int | BatchSize:
    """Return the size of which each run shows one; raises ``NotRecordedError`` if no multiple of the batch does."""
    if len(set(sizes)) == 1:
        return sizes[0]
    factor = (sizes[1] - sizes[0]) // (BATCHES[1] - BATCHES[0])
    size = BatchSize(factor, sizes[0] - factor * BATCHES[0])
    if factor < 1 or any(size.evaluate(batch) != seen for batch, seen in zip(BATCHES, sizes, strict=True)):
        raise NotRecordedError(f"sizes {tuple(sizes)} at batches of {BATCHES}")
    return size
