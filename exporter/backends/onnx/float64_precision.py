"""Where torch.onnx and onnxruntime lose digits of float64, and what is done about it.

torch.onnx (2.13) writes each number of a graph, and what it computes of sizes, as float32, and casts it: ``1e-12``
becomes 9.99999996e-13. onnxruntime (1.26 and newer, pull request 28145) fuses a product of matrices with a number that
it is multiplied by, and keeps the number as float32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch


def translations() -> dict[Any, Any]:
    """In the place of torch's own: numbers as float64, cast to what they are wanted as."""
    import onnx_ir
    from onnxscript import opset18 as op

    double = onnx_ir.DataType.DOUBLE

    def number(value: Any) -> Any:
        if isinstance(value, (int, float)):
            made: Any = onnx_ir.tensor(float(value), dtype=double)
            return op.Constant(value=made)
        return value if value.dtype == double else op.Cast(value, to=double)

    def scalar_tensor(s: Any, dtype: int = 1, layout: str = "", device: str = "", pin_memory: bool = False) -> Any:
        return op.Cast(number(s), to=dtype)

    def sym_float(size: Any) -> Any:
        return op.Cast(size, to=double)

    def truediv(one: Any, other: Any) -> Any:
        return op.Div(number(one), number(other))

    return {
        torch.ops.aten.scalar_tensor.default: scalar_tensor,
        torch.sym_float: sym_float,
        operator.truediv: truediv,
    }


def retype(model: Any, exported: Any) -> None:
    """What is computed of sizes is declared as float32, too."""
    import onnx_ir

    names = {n.name for n in exported.graph.nodes if isinstance(n.meta.get("val"), torch.SymFloat)}
    for value in every_value(model):
        if value.name in names:
            value.dtype = onnx_ir.DataType.DOUBLE


def restore(model: Any, exported: Any) -> None:
    """Constants that torch.onnx made float32 of and casts back, as the numbers that they are in the program.

    Call it before anything folds the casts.
    """
    import onnx_ir

    known: dict[float, float] = {}
    for number in _numbers(exported):
        rounded = float(torch.tensor(number, dtype=torch.float32))
        if rounded != number and known.setdefault(rounded, number) != number:
            # Neighbours that are one float32: what is there is nobody's to say, and the comparison decides.
            known[rounded] = rounded
    double = onnx_ir.DataType.DOUBLE
    for node in list(every_node(model)):
        value = _constant(node)
        if value is None or value.dtype != onnx_ir.DataType.FLOAT or value.size != 1:
            continue
        number = known.get(float(value.numpy().reshape(())))
        casts = [use.node for use in node.outputs[0].uses() if _makes_double(use.node)]
        if number is None or not casts:
            continue
        made = onnx_ir.tensor(torch.full(tuple(value.shape), number, dtype=torch.float64).numpy())
        constant = onnx_ir.node("Constant", [], {"value": made})
        constant.outputs[0].dtype, constant.outputs[0].shape = double, value.shape
        constant.outputs[0].const_value = made
        constant.metadata_props.update(node.metadata_props)
        node.graph.insert_after(node, constant)
        for cast in casts:
            cast.replace_input_with(0, constant.outputs[0])


def _constant(node: Any) -> Any:
    import onnx_ir

    if node.op_type != "Constant":
        return None
    if "value_float" in node.attributes:
        return onnx_ir.tensor(node.attributes["value_float"].value, dtype=onnx_ir.DataType.FLOAT)
    return node.attributes["value"].value if "value" in node.attributes else None


def _makes_double(node: Any) -> bool:
    import onnx_ir

    if node.op_type == "CastLike":
        return node.inputs[1].dtype == onnx_ir.DataType.DOUBLE
    return node.op_type == "Cast" and node.attributes["to"].value == onnx_ir.DataType.DOUBLE


def _numbers(exported: Any) -> Iterator[float]:
    def found(value: Any) -> Iterator[float]:
        if isinstance(value, float):
            yield value
        elif isinstance(value, (list, tuple)):
            for one in value:
                yield from found(one)

    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            yield from found([*node.args, *node.kwargs.values()])


def decompositions() -> dict[str, Callable[..., Any]]:
    """By TorchScript operator: what ONNX has operators for whose numbers are attributes, which are float32."""
    from torch._decomp import decomposition_table

    aten: Any = torch.ops.aten
    found = {f"aten::{name}": _decomposed(getattr(aten, name), decomposition_table) for name in _WITH_ATTRIBUTES}
    normalized = found["aten::native_layer_norm"]
    found["aten::layer_norm"] = lambda *given: normalized(*given[:5])[0]
    return found


def _decomposed(packet: Any, table: Any) -> Callable[..., Any]:
    """torch's own decomposition, for float64; everything else stays the operator that it is."""

    def run(*given: Any) -> Any:
        first = next(v for v in given if isinstance(v, torch.Tensor))
        operator = packet.default
        arguments = operator._schema.arguments
        free = {a.name: v for a, v in zip(arguments, given, strict=False) if a.kwarg_only}
        ordered = [v for a, v in zip(arguments, given, strict=False) if not a.kwarg_only]
        chosen = table.get(operator, operator) if first.dtype == torch.float64 else operator
        return chosen(*ordered, **free)

    return run


_WITH_ATTRIBUTES = (
    "leaky_relu",
    "hardsigmoid",
    "hardswish",
    "softshrink",
    "hardshrink",
    "threshold",
    "native_layer_norm",
    "addmm",
    "baddbmm",
    "addmv",
    "logit",
)


def keep_small_terms(model: Any) -> None:
    """onnxruntime (1.31) drops an addition of a number that is 0 as float32, and a product with one that is 1."""
    import onnx_ir

    for node in list(every_node(model)):
        if node.op_type not in ("Add", "Sub", "Mul", "Div"):
            continue
        # A number less than another is no term to be dropped.
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
            other = node.inputs[1 - place]
            factor = {"Add": number, "Sub": -number, "Mul": number - 1.0, "Div": 1.0 / number - 1.0}[node.op_type]
            made = [
                onnx_ir.node(
                    "Constant", [], {"value": onnx_ir.tensor(torch.tensor(factor, dtype=torch.float64).numpy())}
                )
            ]
            term = made[0].outputs[0]
            if not adds:
                made.append(onnx_ir.node("Mul", [other, term]))
                term = made[-1].outputs[0]
            made.append(onnx_ir.node("Sum", [other, term]))
            old, new = node.outputs[0], made[-1].outputs[0]
            new.name, new.type, new.shape = old.name, old.type, old.shape
            for one in made:
                one.metadata_props.update(node.metadata_props)
            onnx_ir.convenience.replace_nodes_and_values(node.graph, node, [node], made, [old], [new])
            break


def without_matmul(model: Any) -> None:
    """Products of float64 matrices by operators that onnxruntime does not fuse with numbers."""
    import onnx_ir

    for node in list(every_node(model)):
        shapes = [value.shape for value in node.inputs if value is not None]
        double = all(value is not None and value.dtype == onnx_ir.DataType.DOUBLE for value in node.inputs)
        if node.op_type != "MatMul" or not double or any(shape is None or len(shape) < 2 for shape in shapes):
            continue
        if all(len(shape) == 2 for shape in shapes):
            made = onnx_ir.node("Gemm", list(node.inputs))
        elif equation := _equation(*map(len, shapes)):
            made = onnx_ir.node("Einsum", list(node.inputs), {"equation": equation})
        else:
            continue
        old = node.outputs[0]
        made.outputs[0].name, made.outputs[0].type, made.outputs[0].shape = old.name, old.type, old.shape
        made.metadata_props.update(node.metadata_props)
        onnx_ir.convenience.replace_nodes_and_values(node.graph, node, [node], [made], [old], made.outputs)


def _equation(one: int, other: int) -> str:
    """Of the product of matrices in batches of these numbers of dimensions; empty where Einsum has none."""
    if one == other:
        return "...ij,...jk->...ik"
    return "...ij,jk->...ik" if other == 2 else "ij,...jk->...ik" if one == 2 else ""


def every_node(model: Any) -> Iterator[Any]:
    """Those of inner graphs and functions, too."""
    import onnx_ir

    yield from onnx_ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from onnx_ir.traversal.RecursiveGraphIterator(function)


def every_value(model: Any) -> Iterator[Any]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in every_node(model):
        yield from node.outputs
