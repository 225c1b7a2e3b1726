"""Workarounds where torch.onnx and onnxruntime lose digits of float64.

torch.onnx (2.13) writes each number of a graph, and what it computes of sizes, as float32, and casts it: ``1e-12``
becomes 9.99999996e-13. onnxruntime (1.26 and newer, pull request 28145) fuses a product of matrices with a number that
it is multiplied by, and keeps the number as float32."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from exporter.common import torch_internals


def make_translations() -> dict[Any, Any]:
    """Return replacements of torch's translations: numbers as float64, cast to the required dtype."""
    import onnx_ir
    from onnxscript import opset18 as op

    double = onnx_ir.DataType.DOUBLE

    def to_double(value: Any) -> Any:
        if isinstance(value, (int, float)):
            number: Any = onnx_ir.tensor(float(value), dtype=double)
            return op.Constant(value=number)
        return value if value.dtype == double else op.Cast(value, to=double)

    def scalar_tensor(s: Any, dtype: int = 1, layout: str = "", device: str = "", pin_memory: bool = False) -> Any:
        return op.Cast(to_double(s), to=dtype)

    def sym_float(size: Any) -> Any:
        return op.Cast(size, to=double)

    def truediv(dividend: Any, divisor: Any) -> Any:
        return op.Div(to_double(dividend), to_double(divisor))

    table = {torch.ops.aten.scalar_tensor.default: scalar_tensor}
    return table | {torch.sym_float: sym_float, operator.truediv: truediv}


def retype_constants_to_float64(model: Any, exported: Any) -> None:
    """Retype what is computed of sizes, which torch.onnx declares as float32, to float64."""
    import onnx_ir

    names = {n.name for n in exported.graph.nodes if isinstance(n.meta.get("val"), torch.SymFloat)}
    for value in iterate_values(model):
        if value.name in names:
            value.dtype = onnx_ir.DataType.DOUBLE


def restore_constants(model: Any, exported: Any) -> None:
    """Restore constants that torch.onnx wrote as float32 and casts back to the numbers of the program.

    Call it before anything folds the casts."""
    import onnx_ir

    originals: dict[float, float] = {}
    for number in _iterate_floats(exported):
        rounded = float(torch.tensor(number, dtype=torch.float32))
        if rounded != number and originals.setdefault(rounded, number) != number:
            # Neighbours with the same float32: the number is ambiguous, and the comparison of outputs decides.
            originals[rounded] = rounded
    double = onnx_ir.DataType.DOUBLE
    for node in list(iterate_nodes(model)):
        value = _get_constant(node)
        if value is None or value.dtype != onnx_ir.DataType.FLOAT or value.size != 1:
            continue
        number = originals.get(float(value.numpy().reshape(())))
        casts = [use.node for use in node.outputs[0].uses() if _is_cast_to_double(use.node)]
        if number is None or not casts:
            continue
        tensor = onnx_ir.tensor(torch.full(tuple(value.shape), number, dtype=torch.float64).numpy())
        constant = onnx_ir.node("Constant", [], {"value": tensor})
        constant.outputs[0].dtype, constant.outputs[0].shape = double, value.shape
        constant.outputs[0].const_value = tensor
        constant.metadata_props.update(node.metadata_props)
        node.graph.insert_after(node, constant)
        for cast in casts:
            cast.replace_input_with(0, constant.outputs[0])


def _get_constant(node: Any) -> Any:
    import onnx_ir

    if node.op_type != "Constant":
        return None
    if "value_float" in node.attributes:
        return onnx_ir.tensor(node.attributes["value_float"].value, dtype=onnx_ir.DataType.FLOAT)
    return node.attributes["value"].value if "value" in node.attributes else None


def _is_cast_to_double(node: Any) -> bool:
    import onnx_ir

    if node.op_type == "CastLike":
        return node.inputs[1].dtype == onnx_ir.DataType.DOUBLE
    return node.op_type == "Cast" and node.attributes["to"].value == onnx_ir.DataType.DOUBLE


def _iterate_floats(exported: Any) -> Iterator[float]:
    def walk_values(value: Any) -> Iterator[float]:
        if isinstance(value, float):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from walk_values(item)

    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            yield from walk_values([*node.args, *node.kwargs.values()])


def build_decompositions() -> dict[str, Callable[..., Any]]:
    """Return, by TorchScript operator, decompositions where ONNX has float32 attributes for the numbers."""
    aten: Any = torch.ops.aten
    replacements = {
        f"aten::{n}": _make_decomposition(getattr(aten, n), torch_internals.decomposition_table)
        for n in _WITH_ATTRIBUTES
    }
    layer_norm = replacements["aten::native_layer_norm"]
    replacements["aten::layer_norm"] = lambda *args: layer_norm(*args[:5])[0]
    return replacements


def _make_decomposition(packet: Any, table: Any) -> Callable[..., Any]:
    """Return torch's own decomposition for float64, and the operator itself for everything else."""

    def run(*args: Any) -> Any:
        first = next(v for v in args if isinstance(v, torch.Tensor))
        operator = packet.default
        arguments = operator._schema.arguments
        keywords = {a.name: v for a, v in zip(arguments, args, strict=False) if a.kwarg_only}
        positional = [v for a, v in zip(arguments, args, strict=False) if not a.kwarg_only]
        function = table.get(operator, operator) if first.dtype == torch.float64 else operator
        return function(*positional, **keywords)

    return run


_WITH_ATTRIBUTES = (
    "leaky_relu", "hardsigmoid", "hardswish", "softshrink", "hardshrink", "threshold", "native_layer_norm", "addmm",
    "baddbmm", "addmv", "logit",
)  # fmt: skip


def keep_small_terms(model: Any) -> None:
    """Keep what onnxruntime (1.31) drops: sums with a number that is 0 in float32, and products with one that is 1."""
    import onnx_ir

    for node in list(iterate_nodes(model)):
        if node.op_type not in ("Add", "Sub", "Mul", "Div"):
            continue
        # For Sub and Div only the second operand can be dropped.
        places = (0, 1) if node.op_type in ("Add", "Mul") else (1,)
        for place in places:
            value = node.inputs[place].const_value if node.inputs[place] is not None else None
            if value is None or value.dtype != onnx_ir.DataType.DOUBLE or value.size != 1:
                continue
            number = float(value.numpy().reshape(()))
            single = float(torch.tensor(number, dtype=torch.float32))
            adds = node.op_type in ("Add", "Sub")
            if single != (0.0 if adds else 1.0) or number == single:
                continue
            operand = node.inputs[1 - place]
            factor = {"Add": number, "Sub": -number, "Mul": number - 1.0, "Div": 1.0 / number - 1.0}[node.op_type]
            value = onnx_ir.tensor(torch.tensor(factor, dtype=torch.float64).numpy())
            new_nodes = [onnx_ir.node("Constant", [], {"value": value})]
            term = new_nodes[0].outputs[0]
            if not adds:
                new_nodes.append(onnx_ir.node("Mul", [operand, term]))
                term = new_nodes[-1].outputs[0]
            new_nodes.append(onnx_ir.node("Sum", [operand, term]))
            old, new = node.outputs[0], new_nodes[-1].outputs[0]
            new.name, new.type, new.shape = old.name, old.type, old.shape
            for new_node in new_nodes:
                new_node.metadata_props.update(node.metadata_props)
            onnx_ir.convenience.replace_nodes_and_values(node.graph, node, [node], new_nodes, [old], [new])
            break


def replace_matmul(model: Any) -> None:
    """Replace products of float64 matrices by operators that onnxruntime does not fuse with numbers."""
    import onnx_ir

    for node in list(iterate_nodes(model)):
        shapes = [value.shape for value in node.inputs if value is not None]
        double = all(value is not None and value.dtype == onnx_ir.DataType.DOUBLE for value in node.inputs)
        if node.op_type != "MatMul" or not double or any(shape is None or len(shape) < 2 for shape in shapes):
            continue
        if all(len(shape) == 2 for shape in shapes):
            replacement = onnx_ir.node("Gemm", list(node.inputs))
        elif equation := _build_equation(*map(len, shapes)):
            replacement = onnx_ir.node("Einsum", list(node.inputs), {"equation": equation})
        else:
            continue
        old = node.outputs[0]
        new = replacement.outputs[0]
        new.name, new.type, new.shape = old.name, old.type, old.shape
        replacement.metadata_props.update(node.metadata_props)
        replace = onnx_ir.convenience.replace_nodes_and_values
        replace(node.graph, node, [node], [replacement], [old], replacement.outputs)


def _build_equation(left_rank: int, right_rank: int) -> str:
    """Return Einsum's equation for a matrix product in batches of these ranks; empty if there is none."""
    if left_rank == right_rank:
        return "...ij,...jk->...ik"
    return "...ij,jk->...ik" if right_rank == 2 else "ij,...jk->...ik" if left_rank == 2 else ""


def iterate_nodes(model: Any) -> Iterator[Any]:
    """Yield all nodes, those of inner graphs and functions included."""
    import onnx_ir

    yield from onnx_ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from onnx_ir.traversal.RecursiveGraphIterator(function)


def iterate_values(model: Any) -> Iterator[Any]:
    """Yield all values of a model: inputs, initializers and outputs of nodes."""
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in iterate_nodes(model):
        yield from node.outputs
