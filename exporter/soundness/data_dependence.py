"""What a traced value depends on: the data of inputs, their sizes, random numbers.

A walk through the recorded calls in order. Writes in place reach every view of what was written. It may say too much,
never too little: what it names is a lead for a check that runs the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from exporter.graph.torch_nodes import nodes

RANDOM = "random numbers"
SIZE, COUNT = "size of ", "count in "
_SIZES = {"aten::size", "aten::numel", "aten::sym_size", "aten::sym_numel", "aten::len", "prim::shape", "aten::stride"}
_OF_SHAPE = re.compile(r"aten::(\w+_like|new_\w+|dim|is_floating_point|is_complex)|prim::(device|dtype)")
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
    """Labels are names of inputs (their data), ``size of NAME``, ``count in NAME`` (a size that data decide: how many
    elements are positive), and ``random numbers``."""

    def __init__(self, graph: Any, names: Sequence[str]) -> None:
        self._data: dict[str, frozenset[str]] = {}
        self._shape: dict[str, frozenset[str]] = {}
        self._base: dict[str, str] = {}
        self._written: dict[str, frozenset[str]] = {}
        for value, name in zip(graph.inputs(), names, strict=False):
            self._data[value.debugName()] = frozenset({name})
            self._shape[value.debugName()] = frozenset({SIZE + name})
        for node in nodes(graph):
            self._visit(node)

    def of(self, values: Iterable[Any], *, size: bool = False) -> frozenset[str]:
        """What these values (or their sizes) depend on."""
        known = [value.debugName() for value in values]
        return _union((self._shape.get(n, frozenset()) for n in known) if size else map(self._of, known))

    def _root(self, name: str) -> str:
        while name in self._base:
            name = self._base[name]
        return name

    def _of(self, name: str) -> frozenset[str]:
        return self._data.get(name, frozenset()) | self._written.get(self._root(name), frozenset())

    def _visit(self, node: Any) -> None:
        kind, inputs = node.kind(), list(node.inputs())
        names = [value.debugName() for value in inputs]
        tensors = [n for n, v in zip(names, inputs, strict=True) if _holds_tensors(v)]
        numbers = [n for n in names if n not in tensors]
        data = _union(map(self._of, names))
        shape = _union(self._shape.get(n, frozenset()) for n in names) | _union(map(self._of, numbers))
        if kind in _SIZES:
            data, shape = _union(self._shape.get(n, frozenset()) for n in names), frozenset()
        elif _OF_SHAPE.fullmatch(kind):
            data = _union(map(self._of, names[1:]))
        elif _sized_by_data(node, kind, inputs):
            shape |= frozenset(label if label.startswith((SIZE, COUNT)) else COUNT + label for label in data)
        if is_random(node):
            data |= {RANDOM}
        for value in node.outputs():
            self._data[value.debugName()] = data
            self._shape[value.debugName()] = shape
        if not names:
            return
        if _IN_PLACE.fullmatch(kind):
            root = self._root(names[0])
            self._written[root] = self._written.get(root, frozenset()) | data
        if _IN_PLACE.fullmatch(kind) or _VIEWS.fullmatch(kind):
            for value in node.outputs():
                if self._root(value.debugName()) != self._root(names[0]):
                    self._base[value.debugName()] = self._root(names[0])


def is_random(node: Any) -> bool:
    """Whether an operator draws random numbers, as its schema's tags say; dropout only where it is on."""
    if not node.kind().startswith("aten::"):
        return False
    packet = getattr(torch.ops.aten, node.kind().removeprefix("aten::"), None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    if not any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads):
        return False
    names = [a.name for a in torch._C.parse_schema(node.schema()).arguments]
    settings = {
        name: value.toIValue()
        for name, value in zip(names, node.inputs(), strict=False)
        if value.node().kind() == "prim::Constant"
    }
    off = [settings.get("train"), settings.get("training")]
    return not any(value is False for value in off) and settings.get("dropout_p", settings.get("p")) != 0.0


def _sized_by_data(node: Any, kind: str, inputs: list[Any]) -> bool:
    if kind in _INDEXED:
        return any(map(_is_mask, inputs[1:]))
    if kind == "aten::where":
        return len(inputs) == 1
    if kind == "aten::repeat_interleave":
        return any(_holds_tensors(value) for value in inputs[1:2])
    return bool(_DATA_SIZED.fullmatch(kind))


def _holds_tensors(value: Any) -> bool:
    kind = value.type()
    while kind.kind() in ("ListType", "OptionalType"):
        kind = kind.getElementType()
    return kind.kind() in ("TensorType", "TupleType")


def _is_mask(value: Any) -> bool:
    elements = list(value.node().inputs()) if value.node().kind() == "prim::ListConstruct" else [value]
    return any(v.type().kind() == "TensorType" and v.type().scalarType() in ("Bool", "Byte") for v in elements)


def _union(labels: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*labels)
