"""Constants of a traced graph: folded, held to the model's precision, lifted to buffers, pinned to a dtype."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.archive.tensor_spec import FLOATING
from exporter.common.errors import CaptureError
from exporter.common.tensors import same_bits
from exporter.graph.torch_nodes import SCALAR_TYPES, graphs, location, nodes

# What torch.tensor and torch.as_tensor leave behind in a trace, each with the constant as its first input. A clone is
# made again by ``lift`` where the graph writes in place.
_COPIES = ("aten::to", "aten::detach", "aten::lift_fresh", "aten::clone")
BUFFER = "torchferry_constant_"
_IN_PLACE = re.compile(r"aten::[a-z]\w*[a-z0-9]_|aten::_?index_put_|aten::set_")
# How graphs spell dtypes: the numbers of c10/core/ScalarType.h.
_CODES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def tensor_constants(module: torch.jit.ScriptModule) -> Iterator[tuple[str, Any, Any]]:
    """``(submodule path, graph, node)`` of every constant that holds a tensor, in a fixed order."""
    for path, _, graph in graphs(module):
        for node in list(nodes(graph)):
            if _is_tensor_constant(node):
                yield path, graph, node


def fold_copies(module: torch.jit.ScriptModule) -> None:
    """``to`` and ``detach`` of a constant become the constant: they would bring it back to the traced device."""
    for _, _, graph in graphs(module):
        for node in list(nodes(graph)):
            if node.kind() not in _COPIES:
                continue
            held, *options = node.inputs()
            settings = [_constant(option) for option in options]
            known = not any(s is _UNKNOWN or isinstance(s, torch.Tensor) for s in settings)
            if not _is_tensor_constant(held.node()) or not known:
                continue
            value = held.node().t("value")
            dtypes = [s for s in settings if type(s) is int and s in _DTYPES]
            if node.kind() == "aten::to" and dtypes:
                value = value.to(_DTYPES[dtypes[0]])
            folded = graph.create("prim::Constant", [], 1)
            folded.t_("value", value.detach().clone())
            folded.output().setType(torch._C.TensorType.get())
            folded.copyMetadata(node)
            folded.insertBefore(node)
            node.output().replaceAllUsesWith(folded.output())
            node.destroy()
        torch._C._jit_pass_dce(graph)


# Operations that make floating results of whole numbers.
_FLOATING_OF_WHOLE = frozenset(
    """div true_divide mul add sub rsub pow exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan
    atan2 sinh cosh tanh asinh acosh atanh sigmoid reciprocal erf erfc deg2rad rad2deg sinc hypot logaddexp""".split()  # noqa: SIM905
)


def pin_numbers(module: torch.jit.ScriptModule) -> None:
    """Give Python's numbers the dtype that they had no say in.

    A trace keeps ``2.0`` as a float64 tensor without dimensions that torch knows to be a plain number, and what is
    saved does not know it any more: beside whole numbers, or beside tensors without dimensions, it would make the
    result float64. The dtype of the result that the trace saw is given to the number instead.
    """
    for _, _, graph in graphs(module):
        for node in list(nodes(graph)):
            if not node.kind().startswith("aten::") or node.outputsSize() != 1:
                continue
            made = node.output().type()
            wanted = SCALAR_TYPES.get(made.scalarType()) if made.kind() == "TensorType" else None
            if wanted is None or not (wanted.is_floating_point or wanted.is_complex):
                continue
            if node.kind().removeprefix("aten::") in _FLOATING_OF_WHOLE and wanted.is_floating_point:
                _cast_whole_inputs(graph, node, wanted)
            inputs = list(node.inputs())
            numbers = [
                i for i, v in enumerate(inputs) if _is_tensor_constant(v.node()) and not v.node().t("value").dim()
            ]
            if any(_decides(v) for i, v in enumerate(inputs) if i not in numbers):
                continue
            for i in numbers:
                value = inputs[i].node().t("value")
                if value.dtype == wanted or not value.is_floating_point():
                    continue
                pinned = graph.create("prim::Constant", [], 1)
                pinned.t_("value", value.to(wanted))
                pinned.output().setType(torch._C.TensorType.get())
                pinned.copyMetadata(node)
                pinned.insertBefore(node)
                node.replaceInput(i, pinned.output())
        torch._C._jit_pass_dce(graph)


def _cast_whole_inputs(graph: Any, node: Any, wanted: torch.dtype) -> None:
    """A result of whole numbers alone would have the default dtype of whoever loads the file."""
    tensors = [(i, v) for i, v in enumerate(node.inputs()) if v.type().kind() == "TensorType"]
    dtypes = [SCALAR_TYPES.get(v.type().scalarType()) for _, v in tensors if not _is_number(v.node())]
    if not dtypes or any(d is None or d.is_floating_point or d.is_complex for d in dtypes):
        return
    for i, value in tensors:
        if _is_number(value.node()):
            continue
        with graph.insert_point_guard(node):
            no, none = graph.insertConstant(False), graph.insertConstant(None)
            cast = graph.create("aten::to", [value, graph.insertConstant(_CODES[wanted]), no, no, none], 1)
        cast.output().setType(value.type())
        cast.copyMetadata(node)
        cast.insertBefore(node)
        node.replaceInput(i, cast.output())


def _is_number(node: Any) -> bool:
    return _is_tensor_constant(node) and node.t("value").dim() == 0


def _decides(value: Any) -> bool:
    """Whether a tensor decides the dtype of a result by itself: floating, and with dimensions."""
    kind = value.type()
    if kind.kind() != "TensorType":
        return False
    dtype = SCALAR_TYPES.get(kind.scalarType())
    return dtype is None or kind.dim() is None or ((dtype.is_floating_point or dtype.is_complex) and kind.dim() > 0)


_UNKNOWN = object()


def _constant(value: Any) -> Any:
    node = value.node()
    if node.mustBeNone():
        return None
    return value.toIValue() if node.kind() == "prim::Constant" else _UNKNOWN


def _is_tensor_constant(node: Any) -> bool:
    return node.kind() == "prim::Constant" and node.output().type().kind() == "TensorType"


def distinct_values(module: torch.jit.ScriptModule) -> dict[str, list[torch.Tensor]]:
    """The tensors that the graphs hold as constants, by submodule path, equal ones once."""
    found: dict[str, list[torch.Tensor]] = {}
    for path, _, node in tensor_constants(module):
        value, known = node.t("value"), found.setdefault(path, [])
        if not any(same_bits(value, other) for other in known):
            known.append(value)
    return found


class Places:
    """Where TorchScript that is written by hand reads a tensor of the model from; constants have buffers at the top."""

    def __init__(self, named: torch.nn.Module, constants: list[torch.Tensor]) -> None:
        self._paths = {id(t): path for path, t in [*named.named_buffers(), *named.named_parameters()]}
        self._constants = constants

    def make_room(self, value: torch.Tensor) -> None:
        if id(value) not in self._paths and not any(same_bits(value, other) for other in self._constants):
            self._constants.append(value.detach().clone())

    def of(self, value: torch.Tensor) -> str:
        """An expression of ``self``."""
        if id(value) not in self._paths:
            at = next(i for i, other in enumerate(self._constants) if same_bits(value, other))
            return f"self.{BUFFER}{at}"
        text = "self"
        for part in self._paths[id(value)].split("."):
            text = f"{text}.{part}" if part.isidentifier() else f'getattr({text}, "{part}")'
        return text


def lift(module: torch.jit.ScriptModule) -> None:
    """Read every tensor constant from the buffer of equal value that stands ready in its box, each buffer once: torch
    does not take two reads for the same value.

    A graph that writes in place gets a copy at every call: the buffer must not remember the last one.
    """
    buffers: dict[str, list[tuple[str, torch.Tensor]]] = {}
    for path, child in module.named_modules():
        held = child.named_buffers(recurse=False)
        buffers[path] = [(name, value) for name, value in held if name.startswith(BUFFER)]
    # Anywhere: a constant may be handed to the submodule that writes.
    writes = any(_IN_PLACE.fullmatch(node.kind()) for _, _, graph in graphs(module) for node in nodes(graph))
    reads: dict[tuple[int, str], Any] = {}
    found = list(tensor_constants(module))
    for path, graph, node in found:
        value = node.t("value")
        name = next((name for name, held in buffers[path] if same_bits(held, value)), None)
        if name is None:
            raise CaptureError(
                "two traces of one model hold different constants",
                check="constants",
                where=location(node),
                got=f"{value.dtype} {list(value.shape)}: {value.flatten()[:4].tolist()}",
                expected="the same constants in every run",
                mend="make constants in __init__",
            )
        if (id(graph), name) not in reads:
            reads[id(graph), name] = _read(graph, name, node)
        value = reads[id(graph), name]
        if writes:
            # Left at a node that is destroyed, the place ends the process in a later pass of torch's.
            with graph.insert_point_guard(node):
                copy = graph.create("aten::clone", [value, graph.insertConstant(None)], 1)
            copy.copyMetadata(node)
            copy.insertBefore(node)
            value = copy.output()
        node.output().replaceAllUsesWith(value)
        node.destroy()


def _read(graph: Any, name: str, like: Any) -> Any:
    """Before all that the graph does."""
    read = graph.create("prim::GetAttr", [next(graph.inputs())], 1)
    read.s_("name", name)
    read.output().setType(torch._C.TensorType.get())
    read.copyMetadata(like)
    read.insertBefore(next(graph.nodes()))
    return read.output()


def pin_dtypes(module: torch.jit.ScriptModule) -> None:
    """Give ``zeros``, ``full``, ``arange``, ... without a dtype the one that the trace saw.

    Left open, it would be the default dtype of whoever loads the file.
    """
    for _, _, graph in graphs(module):
        for node in list(nodes(graph)):
            if not node.kind().startswith("aten::") or node.outputsSize() != 1:
                continue
            inputs = list(node.inputs())
            kind = node.output().type()
            if kind.kind() != "TensorType" or any(v.type().kind() == "TensorType" for v in inputs):
                continue
            names = [a.name for a in torch._C.parse_schema(node.schema()).arguments]
            if "dtype" not in names:
                continue
            at = names.index("dtype")
            if _constant(inputs[at]) is not None or kind.scalarType() not in SCALAR_TYPES:
                continue
            with graph.insert_point_guard(node):
                pinned = graph.insertConstant(_CODES[SCALAR_TYPES[kind.scalarType()]])
            node.replaceInput(at, pinned)


def follow_inputs(module: torch.jit.ScriptModule) -> None:
    """Literal devices become the device of the graph's first tensor, and the literal dtype of a tensor that is
    made afresh its dtype where the two agree: what is made in ``forward`` then moves with the archive."""
    for _, _, graph in graphs(module):
        tensors = [v for v in list(graph.inputs())[1:] if v.type().kind() == "TensorType"]
        if not tensors:
            continue
        first = tensors[0]
        for node in list(nodes(graph)):
            if not node.kind().startswith("aten::"):
                continue
            for i, value in enumerate(list(node.inputs())):
                if value.type().kind() == "DeviceObjType" and value.node().kind() == "prim::Constant":
                    node.replaceInput(i, _property(graph, node, "prim::device", first, torch._C.DeviceObjType.get()))
            _follow_dtype(graph, node, first)
        torch._C._jit_pass_dce(graph)


def fixed_devices(module: torch.jit.ScriptModule) -> list[Finding]:
    """Devices and tensors that are written into a graph: they would stay where they are when the archive moves.

    Found by a look at every constant, so it takes no other device to see it.
    """
    found = []
    for path, _, graph in graphs(module):
        for node in nodes(graph):
            kind = node.output().type().kind() if node.outputsSize() == 1 else ""
            if node.kind() != "prim::Constant" or kind not in ("DeviceObjType", "TensorType"):
                continue
            uses = [use.user for use in node.output().uses()]
            if not uses:
                continue
            what = f"device {node.s('value')!r}" if kind == "DeviceObjType" else "a tensor"
            found.append(
                Finding(
                    "device",
                    f"{what} is fixed in the graph and stays there when the archive is moved to a GPU",
                    location(uses[0]),
                    severity="unsound",
                    evidence=f"{what} in {uses[0].kind()}" + (f", in submodule {path!r}" if path else ""),
                    mend="make it with device=x.device where an input x is at hand, or as a buffer in __init__",
                )
            )
    return found


def _follow_dtype(graph: Any, node: Any, first: Any) -> None:
    made = node.output().type() if node.outputsSize() == 1 else None
    if made is None or made.kind() != "TensorType" or any(v.type().kind() == "TensorType" for v in node.inputs()):
        return
    names = [a.name for a in torch._C.parse_schema(node.schema()).arguments]
    floating = ("Double", "Float", "Half", "BFloat16")
    if "dtype" in names and made.scalarType() == first.type().scalarType() and made.scalarType() in floating:
        dtype = _property(graph, node, "prim::dtype", first, torch._C.IntType.get())
        node.replaceInput(names.index("dtype"), dtype)


def _property(graph: Any, node: Any, kind: str, of: Any, result: Any) -> Any:
    read = graph.create(kind, [of], 1)
    read.output().setType(result)
    read.copyMetadata(node)
    read.insertBefore(node)
    return read.output()


# A constant: the path of the submodule that holds it, the line that made it, its value.
Constant = tuple[str, str, torch.Tensor]


def traced_constants(module: torch.jit.ScriptModule) -> Iterator[Constant]:
    for path, _, node in tensor_constants(module):
        yield path, location(node), node.t("value")


def lost_precision(constants: Iterable[Constant], dtypes: list[str]) -> list[Finding]:
    """Constants that their dtype could not hold, in a wider model: ``torch.tensor(0.1)`` is float32 by default."""
    order = {dtype: i for i, dtype in enumerate(FLOATING)}
    floating = [dtype for dtype in dtypes if dtype in order]
    if not floating:
        return []
    widest = min(floating, key=order.__getitem__)
    found = []
    for path, where, value in constants:
        dtype = str(value.dtype).removeprefix("torch.")
        if order.get(dtype, -1) <= order[widest] or not _rounded(value):
            continue
        numbers = f"{dtype} {value.flatten()[:4].tolist()} in a {widest} model"
        found.append(
            Finding(
                "precision",
                "a constant has the wrong dtype and has lost precision",
                where,
                severity="unsound",
                evidence=numbers + (f", in submodule {path!r}" if path else ""),
                mend="make it with dtype=x.dtype, device=x.device, or as a buffer in __init__",
            )
        )
    return found


def _rounded(value: torch.Tensor) -> bool:
    """Whether a number was meant that the dtype cannot hold: 0.1 was; 0.25, 3.0 and 2**-24 were not.

    A rounded number uses its whole mantissa; one with half of it free was meant as it is (1 in 2**12 is mistaken).
    """
    bits = 12 if value.dtype == torch.float32 else 5
    numbers = value.detach().cpu().to(torch.float64).flatten()
    mantissas, _ = torch.frexp(numbers[torch.isfinite(numbers)])
    return bool(((mantissas * 2.0**bits) % 1 != 0).any())
