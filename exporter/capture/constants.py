"""Constants of a traced graph: folded, checked for the model's precision, lifted to buffers, pinned to a dtype."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.archive.tensor_spec import FLOATING, name_dtype
from exporter.common.errors import CaptureError
from exporter.common.script_loading import iterate_nodes, list_inputs
from exporter.common.tensors import bitwise_equal
from exporter.common.torch_internals import DeviceObjType, IntType, TensorType, parse_schema, remove_dead_code
from exporter.graph.torch_nodes import SCALAR_TYPES, find_location, iterate_graphs

# Operators that torch.tensor and torch.as_tensor leave in a trace, each with the constant as its first input. Where
# the graph writes in place, ``lift_constants`` makes the clone again.
_COPIES = ("aten::to", "aten::detach", "aten::lift_fresh", "aten::clone")
BUFFER = "torchferry_constant_"
_IN_PLACE = re.compile(r"aten::[a-z]\w*[a-z0-9]_|aten::_?index_put_|aten::set_")
# Dtypes as graphs write them: the numbers of c10/core/ScalarType.h.
_CODES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def iterate_tensor_constants(module: torch.jit.ScriptModule) -> Iterator[tuple[str, Any, Any]]:
    """Yield ``(submodule path, graph, node)`` for every tensor constant, in a fixed order."""
    for path, _, graph in iterate_graphs(module):
        for node in list(iterate_nodes(graph)):
            if _is_tensor_constant(node):
                yield path, graph, node


def fold_copies(module: torch.jit.ScriptModule) -> None:
    """Replace ``to`` and ``detach`` of a constant by a constant: they would bring it back to the traced device."""
    for _, _, graph in iterate_graphs(module):
        for node in list(iterate_nodes(graph)):
            if node.kind() not in _COPIES:
                continue
            source, *options = list_inputs(node)
            settings = [_get_constant(option) for option in options]
            are_options_constant = not any(s is _UNKNOWN or isinstance(s, torch.Tensor) for s in settings)
            if not _is_tensor_constant(source.node()) or not are_options_constant:
                continue
            value = source.node().t("value")
            dtypes = [s for s in settings if type(s) is int and s in _DTYPES]
            if node.kind() == "aten::to" and dtypes:
                value = value.to(_DTYPES[dtypes[0]])
            folded_node = graph.create("prim::Constant", [], 1)
            folded_node.t_("value", value.detach().clone())
            folded_node.output().setType(TensorType.get())
            folded_node.copyMetadata(node)
            folded_node.insertBefore(node)
            node.output().replaceAllUsesWith(folded_node.output())
            node.destroy()
        remove_dead_code(graph)


# Operations whose results are floating for integer inputs.
_FLOATING_FROM_INTEGERS = frozenset(
    """div true_divide mul add sub rsub pow exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan
    atan2 sinh cosh tanh asinh acosh atanh sigmoid reciprocal erf erfc deg2rad rad2deg sinc hypot logaddexp""".split()  # noqa: SIM905
)


def pin_numbers(module: torch.jit.ScriptModule) -> None:
    """Give Python numbers the dtype of the result that the trace saw.

    A trace keeps ``2.0`` as a float64 tensor without dimensions that torch knows to be a plain number. A saved file has
    lost this: next to integers, or to tensors without dimensions, the number would make the result float64."""
    for _, _, graph in iterate_graphs(module):
        for node in list(iterate_nodes(graph)):
            if not node.kind().startswith("aten::") or node.outputsSize() != 1:
                continue
            dtype = SCALAR_TYPES.get(node.output().type().scalarType()) if _is_tensor(node.output()) else None
            if dtype is None or not (dtype.is_floating_point or dtype.is_complex):
                continue
            if node.kind().removeprefix("aten::") in _FLOATING_FROM_INTEGERS and dtype.is_floating_point:
                _cast_integer_inputs(graph, node, dtype)
            inputs = list_inputs(node)
            numbers = [i for i, v in enumerate(inputs) if _is_number(v.node())]
            if any(_determines_dtype(v) for i, v in enumerate(inputs) if i not in numbers):
                continue
            for i in numbers:
                value = inputs[i].node().t("value")
                if value.dtype == dtype or not value.is_floating_point():
                    continue
                pinned = _insert_node(graph, "prim::Constant", [], node, TensorType.get())
                pinned.node().t_("value", value.to(dtype))
                node.replaceInput(i, pinned)
        remove_dead_code(graph)


def _cast_integer_inputs(graph: Any, node: Any, dtype: torch.dtype) -> None:
    """Cast integer inputs: a result of integers alone would have the default dtype of the loading process."""
    tensors = [(i, v) for i, v in enumerate(list_inputs(node)) if _is_tensor(v)]
    dtypes = [SCALAR_TYPES.get(v.type().scalarType()) for _, v in tensors if not _is_number(v.node())]
    if not dtypes or any(d is None or d.is_floating_point or d.is_complex for d in dtypes):
        return
    for i, value in tensors:
        if _is_number(value.node()):
            continue
        with graph.insert_point_guard(node):
            false, none = graph.insertConstant(False), graph.insertConstant(None)
            operands = [value, graph.insertConstant(_CODES[dtype]), false, false, none]
        node.replaceInput(i, _insert_node(graph, "aten::to", operands, node, value.type()))


def _insert_node(graph: Any, kind: str, operands: list[Any], anchor: Any, result_type: Any = None) -> Any:
    """Insert a node before ``anchor``, from the same line of the model, and return its value."""
    node = graph.create(kind, operands, 1)
    if result_type is not None:
        node.output().setType(result_type)
    node.copyMetadata(anchor)
    node.insertBefore(anchor)
    return node.output()


def _is_tensor(value: Any) -> bool:
    return value.type().kind() == "TensorType"


def _is_number(node: Any) -> bool:
    return _is_tensor_constant(node) and node.t("value").dim() == 0


def _determines_dtype(value: Any) -> bool:
    """Return whether a tensor alone determines the dtype of a result: floating, and with dimensions."""
    if not _is_tensor(value):
        return False
    dtype, ndim = SCALAR_TYPES.get(value.type().scalarType()), value.type().dim()
    return dtype is None or ndim is None or ((dtype.is_floating_point or dtype.is_complex) and ndim > 0)


_UNKNOWN = object()


def _get_constant(value: Any) -> Any:
    node = value.node()
    if node.mustBeNone():
        return None
    return value.toIValue() if node.kind() == "prim::Constant" else _UNKNOWN


def _is_tensor_constant(node: Any) -> bool:
    return node.kind() == "prim::Constant" and node.output().type().kind() == "TensorType"


def collect_distinct_constants(module: torch.jit.ScriptModule) -> dict[str, list[torch.Tensor]]:
    """Return the tensor constants of the graphs by submodule path, equal ones once."""
    constants: dict[str, list[torch.Tensor]] = {}
    for path, _, node in iterate_tensor_constants(module):
        value, distinct = node.t("value"), constants.setdefault(path, [])
        if not any(bitwise_equal(value, existing) for existing in distinct):
            distinct.append(value)
    return constants


class Places:
    """The places from which handwritten TorchScript reads tensors; constants are buffers of the top module."""

    def __init__(self, model: torch.nn.Module, constants: list[torch.Tensor]) -> None:
        self._paths = {id(t): path for path, t in [*model.named_buffers(), *model.named_parameters()]}
        self._constants = constants

    def make_room(self, value: torch.Tensor) -> None:
        """Add a constant for a tensor that is neither the model's nor equal to a constant that is there."""
        if id(value) not in self._paths and not any(bitwise_equal(value, constant) for constant in self._constants):
            self._constants.append(value.detach().clone())

    def format_expression(self, value: torch.Tensor) -> str:
        """Return the expression of ``self`` that reads the tensor."""
        if id(value) not in self._paths:
            index = next(i for i, constant in enumerate(self._constants) if bitwise_equal(value, constant))
            return f"self.{BUFFER}{index}"
        text = "self"
        for part in self._paths[id(value)].split("."):
            text = f"{text}.{part}" if part.isidentifier() else f'getattr({text}, "{part}")'
        return text


def lift_constants(module: torch.jit.ScriptModule) -> None:
    """Read every tensor constant from the buffer of equal value in its box, each buffer once per graph.

    torch does not treat two reads as the same value. A graph that writes in place gets a copy in every call: the buffer
    must not change between calls."""
    buffers: dict[str, list[tuple[str, torch.Tensor]]] = {}
    for path, child in module.named_modules():
        named_buffers = child.named_buffers(recurse=False)
        buffers[path] = [(name, value) for name, value in named_buffers if name.startswith(BUFFER)]
    # In any graph: a constant may be passed to the submodule that writes.
    writes = any(_IN_PLACE.fullmatch(node.kind()) for _, _, g in iterate_graphs(module) for node in iterate_nodes(g))
    reads: dict[tuple[int, str], Any] = {}
    constant_nodes = list(iterate_tensor_constants(module))
    for path, graph, node in constant_nodes:
        value = node.t("value")
        name = next((name for name, buffer in buffers[path] if bitwise_equal(buffer, value)), None)
        if name is None:
            what, where = "two traces of the same model have different constants", find_location(node)
            got = f"{value.dtype} {list(value.shape)}: {value.flatten()[:4].tolist()}"
            expected, mend = "the same constants in every run", "create constants in __init__"
            raise CaptureError(what, check="constants", where=where, got=got, expected=expected, mend=mend)
        if (id(graph), name) not in reads:
            reads[id(graph), name] = _insert_buffer_read(graph, name, node)
        value = reads[id(graph), name]
        if writes:
            # An insert point left at a destroyed node would end the process in a later pass of torch.
            with graph.insert_point_guard(node):
                none = graph.insertConstant(None)
            value = _insert_node(graph, "aten::clone", [value, none], node)
        node.output().replaceAllUsesWith(value)
        node.destroy()


def _insert_buffer_read(graph: Any, name: str, template_node: Any) -> Any:
    """Insert a read of the buffer before all other nodes of the graph."""
    read_node = graph.create("prim::GetAttr", [next(graph.inputs())], 1)
    read_node.s_("name", name)
    read_node.output().setType(TensorType.get())
    read_node.copyMetadata(template_node)
    read_node.insertBefore(next(graph.nodes()))
    return read_node.output()


def pin_dtypes(module: torch.jit.ScriptModule) -> None:
    """Give ``zeros``, ``full``, ``arange``, ... without a dtype the one that the trace saw.

    Without it, they would use the default dtype of the loading process."""
    for _, _, graph in iterate_graphs(module):
        for node in list(iterate_nodes(graph)):
            if not node.kind().startswith("aten::") or node.outputsSize() != 1:
                continue
            inputs = list_inputs(node)
            if not _is_tensor(node.output()) or any(map(_is_tensor, inputs)):
                continue
            scalar_type = node.output().type().scalarType()
            names = [a.name for a in parse_schema(node.schema()).arguments]
            if "dtype" not in names:
                continue
            index = names.index("dtype")
            if _get_constant(inputs[index]) is not None or scalar_type not in SCALAR_TYPES:
                continue
            with graph.insert_point_guard(node):
                dtype_code = graph.insertConstant(_CODES[SCALAR_TYPES[scalar_type]])
            node.replaceInput(index, dtype_code)


def follow_inputs(module: torch.jit.ScriptModule) -> None:
    """Replace literal devices by the device of the graph's first tensor: an input, else a tensor of the module.

    The literal dtype of a newly created tensor becomes the dtype of that input if the two agree: tensors created in
    ``forward`` then move with the archive."""
    boxes = dict(module.named_modules())
    for path, _, graph in iterate_graphs(module):
        first = _get_first_tensor(graph)
        literals = _list_literal_devices(graph)
        if first is None and literals:
            first = _insert_tensor_read(graph, boxes[path])
        if first is None:
            continue
        for node, i in literals:
            device = _insert_node(graph, "prim::device", [first], node, DeviceObjType.get())
            node.replaceInput(i, device)
        for node in list(iterate_nodes(graph)):
            if node.kind().startswith("aten::"):
                _follow_dtype(graph, node, first)
        remove_dead_code(graph)


def find_boxes_without_device(module: torch.jit.ScriptModule) -> dict[str, torch.dtype]:
    """Return the submodules that create tensors and have none, nor an input, whose device these could follow: the dtype
    of the first one by path."""
    boxes, dtypes = dict(module.named_modules()), dict[str, torch.dtype]()
    for path, _, graph in iterate_graphs(module):
        literals = _list_literal_devices(graph) if _get_first_tensor(graph) is None else []
        if literals and next(_iterate_tensors(boxes[path]), None) is None:
            scalar_type = literals[0][0].output().type().scalarType()
            dtypes.setdefault(path, SCALAR_TYPES.get(scalar_type, torch.get_default_dtype()))
    return dtypes


def _get_first_tensor(graph: Any) -> Any:
    return next((v for v in list(graph.inputs())[1:] if _is_tensor(v)), None)


def _list_literal_devices(graph: Any) -> list[tuple[Any, int]]:
    """Return operators that are given a literal device, with the position of that input."""
    return [
        (node, i)
        for node in iterate_nodes(graph)
        if node.kind().startswith("aten::")
        for i, value in enumerate(list_inputs(node))
        if value.type().kind() == "DeviceObjType" and value.node().kind() == "prim::Constant"
    ]


def _iterate_tensors(box: torch.jit.ScriptModule) -> Iterator[str]:
    """Yield the names of a module's tensors, floating ones first: dtypes may follow those."""
    tensors = [*box.named_parameters(), *box.named_buffers()]
    return (name for name, _ in sorted(tensors, key=lambda entry: not entry[1].is_floating_point()))


def _insert_tensor_read(graph: Any, box: torch.jit.ScriptModule) -> Any:
    """Insert a read of the first tensor of a module before all other nodes of its graph; return None if it has none."""
    name = next(_iterate_tensors(box), "")
    if not name:
        return None
    value, first, child = next(graph.inputs()), next(graph.nodes()), box
    for part in name.split("."):
        child = getattr(child, part)
        node = graph.create("prim::GetAttr", [value], 1)
        node.s_("name", part)
        is_module = isinstance(child, torch.jit.ScriptModule)
        node.output().setType(child._c._type() if is_module else TensorType.create_from_tensor(child))
        node.insertBefore(first)
        value = node.output()
    return value


def find_fixed_devices(module: torch.jit.ScriptModule) -> list[Finding]:
    """Find devices and tensors that are written into a graph: they would not move with the archive.

    This looks at every constant, so it needs no second device."""
    findings = []
    for path, _, graph in iterate_graphs(module):
        for node in iterate_nodes(graph):
            type_name = node.output().type().kind() if node.outputsSize() == 1 else ""
            if node.kind() != "prim::Constant" or type_name not in ("DeviceObjType", "TensorType"):
                continue
            uses = [use.user for use in node.output().uses()]
            if not uses:
                continue
            subject = f"device {node.s('value')!r}" if type_name == "DeviceObjType" else "a tensor"
            what = f"{subject} is fixed in the graph and does not move to a GPU with the archive"
            evidence = f"{subject} in {uses[0].kind()}" + (f", in submodule {path!r}" if path else "")
            mend = "create it with device=x.device for an input x, or as a buffer in __init__"
            where = find_location(uses[0])
            findings.append(Finding("device", what, where, severity="unsound", evidence=evidence, mend=mend))
    return findings


def _follow_dtype(graph: Any, node: Any, first: Any) -> None:
    if node.outputsSize() != 1 or not _is_tensor(node.output()) or any(map(_is_tensor, list_inputs(node))):
        return
    names = [a.name for a in parse_schema(node.schema()).arguments]
    scalar_type = node.output().type().scalarType()
    is_floating = scalar_type in ("Double", "Float", "Half", "BFloat16")
    if "dtype" in names and is_floating and scalar_type == first.type().scalarType():
        dtype = _insert_node(graph, "prim::dtype", [first], node, IntType.get())
        node.replaceInput(names.index("dtype"), dtype)


# A constant: the path of its submodule, the line that created it, its value.
Constant = tuple[str, str, torch.Tensor]


def locate_constants(module: torch.jit.ScriptModule) -> Iterator[Constant]:
    """Yield each tensor constant with its submodule path and source line."""
    for path, _, node in iterate_tensor_constants(module):
        yield path, find_location(node), node.t("value")


def find_lost_precision(constants: Iterable[Constant], dtypes: list[str]) -> list[Finding]:
    """Find constants rounded to a narrower dtype than the model's: ``torch.tensor(0.1)`` is float32 by default."""
    order = {dtype: i for i, dtype in enumerate(FLOATING)}
    floating = [dtype for dtype in dtypes if dtype in order]
    if not floating:
        return []
    widest = min(floating, key=order.__getitem__)
    findings = []
    for path, where, value in constants:
        dtype = name_dtype(value)
        if order.get(dtype, -1) <= order[widest] or not _is_rounded(value):
            continue
        evidence = f"{dtype} {value.flatten()[:4].tolist()} in a {widest} model"
        evidence += f", in submodule {path!r}" if path else ""
        what = "a constant has the wrong dtype and has lost precision"
        mend = "create it with dtype=x.dtype, device=x.device, or as a buffer in __init__"
        findings.append(Finding("precision", what, where, severity="unsound", evidence=evidence, mend=mend))
    return findings


def _is_rounded(value: torch.Tensor) -> bool:
    """Return whether a number looks rounded to its dtype: 0.1 does; 0.25, 3.0 and 2**-24 do not.

    A rounded number uses its whole mantissa; one with half of it free is taken as exact (1 in 2**12 is mistaken)."""
    bits = 12 if value.dtype == torch.float32 else 5
    numbers = value.detach().cpu().to(torch.float64).flatten()
    mantissas, _ = torch.frexp(numbers[torch.isfinite(numbers)])
    return bool(((mantissas * 2.0**bits) % 1 != 0).any())
