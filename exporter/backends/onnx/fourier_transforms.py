"""Inverse Fourier transforms by forward ones, which onnxruntime computes with all digits of float64.

onnxruntime (1.31) scales an inverse transform by 1/n in float32, and torch.onnx writes a real one with an attribute
that the standard does not have (``onesided`` with ``inverse``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from exporter.backends.onnx.float64_precision import iterate_nodes


def replace_inverse_transforms(model: Any) -> None:
    """Replace each inverse transform along a dimension of a known size: x = conj(DFT(conj(X))) / n.

    One of half a spectrum gives real numbers: x = Re(DFT(conj(w X))) / n, where w is 2 for each entry whose mirror
    image is not there, and 1 for the first one, and the last one of an even n. Their imaginary parts have no effect.

    Cooley, Lewis and Welch, The fast Fourier transform algorithm, J. Sound Vib. 12 (1970), sec. 5."""
    for node in list(iterate_nodes(model)):
        if node.op_type == "DFT" and node.attributes.get("inverse") is not None and node.attributes["inverse"].value:
            _replace_inverse(node)


def _replace_inverse(node: Any) -> None:
    import onnx_ir

    x, axis = node.inputs[0], node.attributes["axis"].value
    is_half = bool(node.attributes["onesided"].value) if "onesided" in node.attributes else False
    if x.shape is None or x.dtype is None or not isinstance(x.shape[axis], int):
        return
    # Counted from the end: the last dimension has the real and the imaginary parts.
    axis -= len(x.shape) if axis >= 0 else 0
    stored = x.shape[axis]
    size = stored
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        length = node.inputs[1].const_value
        if length is None:
            return
        size = int(length.numpy().reshape(()))
    if is_half and stored != size // 2 + 1:
        return
    dtype = x.dtype.numpy()
    conjugate = np.array([1.0, -1.0], dtype)
    weights = np.ones(stored)
    if is_half:
        weights[1 : (size + 1) // 2] = 2.0
    before = conjugate * weights.reshape(stored, *[1] * (-axis - 1))
    # The places of the real part, for a slice.
    bounds = [np.array([number]) for number in (0, 1, -1)]
    arrays = [before.astype(dtype), np.array(size, dtype), np.array(size), *(bounds if is_half else [conjugate])]
    constants = [onnx_ir.node("Constant", [], {"value": onnx_ir.tensor(array)}) for array in arrays]
    first, divisor, length, *last = (constant.outputs[0] for constant in constants)
    arranged = onnx_ir.node("Mul", [x, first])
    attributes = {"axis": node.attributes["axis"].value, "inverse": 0, "onesided": 0}
    transformed = onnx_ir.node("DFT", [arranged.outputs[0], length], attributes)
    turned = onnx_ir.node("Slice" if is_half else "Mul", [transformed.outputs[0], *last])
    scaled = onnx_ir.node("Div", [turned.outputs[0], divisor])
    nodes = [*constants, arranged, transformed, turned, scaled]
    old, new = node.outputs[0], scaled.outputs[0]
    new.name, new.type, new.shape = old.name, old.type, old.shape
    for added in nodes:
        added.metadata_props.update(node.metadata_props)
    onnx_ir.convenience.replace_nodes_and_values(node.graph, node, [node], nodes, [old], [new])
