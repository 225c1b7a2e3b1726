"""Dependence of traced values on the data of inputs, their sizes, and random numbers.

The recorded calls are walked in order. A write in place reaches every view of the tensor that it writes to. The
result may contain too much, never too little: it is a hint for a check that runs the model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from exporter.common.script_loading import iterate_nodes, list_inputs, list_outputs
from exporter.common.torch_internals import parse_schema

RANDOM = "random numbers"
SIZE, COUNT = "size of ", "count in "
_SIZES = {"aten::size", "aten::numel", "aten::sym_size", "aten::sym_numel", "aten::len", "prim::shape", "aten::stride"}
_SHAPE_ONLY = re.compile(r"aten::(\w+_like|new_\w+|dim|is_floating_point|is_complex)|prim::(device|dtype)")
_DATA_SIZED = re.compile(r"aten::(nonzero\w*|argwhere|masked_select|_?unique\w*|bincount)")
_INDEXED = {"aten::index", "aten::_index"}
_VIEWS = re.compile(
    r"aten::(select|slice|view|view_as|reshape|reshape_as|expand|expand_as|permute|transpose|t|numpy_T|mT|unsqueeze|"
    r"squeeze|unbind|split\w*|chunk|narrow|as_strided|diagonal|detach|alias|unfold|flatten|unflatten|movedim|real|imag|"
    r"swapaxes|swapdims|contiguous|to|ravel|tensor_split|[hvd]split|view_as_real|view_as_complex)"
    r"|prim::(ListUnpack|TupleUnpack|ListConstruct|TupleConstruct)"
)
_IN_PLACE = re.compile(r"aten::(?!__)\w*[a-z0-9]_")


class Dependence:
    """The labels that each value of a graph depends on.

    Labels are names of inputs (their data), ``size of NAME``, ``count in NAME`` (a size that data decide: how many
    elements are positive), and ``random numbers``."""

    def __init__(self, graph: Any, names: Sequence[str]) -> None:
        self._data: dict[str, frozenset[str]] = defaultdict(frozenset)
        self._shape: dict[str, frozenset[str]] = defaultdict(frozenset)
        self._write_labels: dict[str, frozenset[str]] = defaultdict(frozenset)
        self._base: dict[str, str] = {}
        for value, name in zip(graph.inputs(), names, strict=False):
            self._data[value.debugName()] = frozenset({name})
            self._shape[value.debugName()] = frozenset({SIZE + name})
        for node in iterate_nodes(graph):
            self._visit(node)

    def find_labels(self, values: Iterable[Any], *, size: bool = False) -> frozenset[str]:
        """Return the labels that these values (or their sizes) depend on."""
        names = [value.debugName() for value in values]
        return _merge_labels(self._shape[n] if size else self._find_data_labels(n) for n in names)

    def _find_root(self, name: str) -> str:
        while name in self._base:
            name = self._base[name]
        return name

    def _find_data_labels(self, name: str) -> frozenset[str]:
        return self._data[name] | self._write_labels[self._find_root(name)]

    def _visit(self, node: Any) -> None:
        operator, inputs = node.kind(), list_inputs(node)
        names = [value.debugName() for value in inputs]
        numbers = [n for n, v in zip(names, inputs, strict=True) if not _holds_tensors(v)]
        data, sizes = _merge_labels(map(self._find_data_labels, names)), _merge_labels(self._shape[n] for n in names)
        shape = sizes | _merge_labels(map(self._find_data_labels, numbers))
        if operator in _SIZES:
            data, shape = sizes, frozenset()
        elif _SHAPE_ONLY.fullmatch(operator):
            data = _merge_labels(map(self._find_data_labels, names[1:]))
        elif _is_sized_by_data(node, operator, inputs):
            shape |= frozenset(label if label.startswith((SIZE, COUNT)) else COUNT + label for label in data)
        if is_random(node):
            data |= {RANDOM}
        for value in list_outputs(node):
            self._data[value.debugName()] = data
            self._shape[value.debugName()] = shape
        if not names:
            return
        if _IN_PLACE.fullmatch(operator):
            self._write_labels[self._find_root(names[0])] |= data
        if _IN_PLACE.fullmatch(operator) or _VIEWS.fullmatch(operator):
            for value in list_outputs(node):
                if self._find_root(value.debugName()) != self._find_root(names[0]):
                    self._base[value.debugName()] = self._find_root(names[0])


def reads_shape_only(node: Any) -> bool:
    """Return whether an operation asks its first input for its shape, dtype or device, and not for its numbers."""
    return node.kind() in _SIZES or bool(_SHAPE_ONLY.fullmatch(node.kind()))


def is_random(node: Any) -> bool:
    """Return whether an operator draws random numbers, by its schema's tags; dropout only where it is on."""
    if not node.kind().startswith("aten::"):
        return False
    packet = getattr(torch.ops.aten, node.kind().removeprefix("aten::"), None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    if not any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads):
        return False
    names = [a.name for a in parse_schema(node.schema()).arguments]
    pairs = zip(names, list_inputs(node), strict=False)
    settings = {name: value.toIValue() for name, value in pairs if value.node().kind() == "prim::Constant"}
    is_off = settings.get("train") is False or settings.get("training") is False
    return not is_off and settings.get("dropout_p", settings.get("p")) != 0.0


def _is_sized_by_data(node: Any, operator: str, inputs: list[Any]) -> bool:
    if operator in _INDEXED:
        return any(map(_is_mask, inputs[1:]))
    if operator == "aten::where":
        return len(inputs) == 1
    if operator == "aten::repeat_interleave":
        return any(_holds_tensors(value) for value in inputs[1:2])
    return bool(_DATA_SIZED.fullmatch(operator))


def _holds_tensors(value: Any) -> bool:
    value_type = value.type()
    while value_type.kind() in ("ListType", "OptionalType"):
        value_type = value_type.getElementType()
    return value_type.kind() in ("TensorType", "TupleType")


def _is_mask(value: Any) -> bool:
    elements = list_inputs(value.node()) if value.node().kind() == "prim::ListConstruct" else [value]
    return any(v.type().kind() == "TensorType" and v.type().scalarType() in ("Bool", "Byte") for v in elements)


def _merge_labels(labels: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*labels)
