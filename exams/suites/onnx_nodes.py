"""ONNX's own tests of its operators: what computes the same in torch, through every format, and held against the
outputs that ONNX has published.

https://github.com/onnx/onnx/blob/main/docs/OnnxBackendTest.md"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from exams.examination import Case
from exams.onnx_equivalents import BUILDERS, NodeCall
from exams.pipelines import FILES, PUBLISHED
from exams.redrawing import spread
from exams.samples import Sample, Tensors

# torch computes something else: the last window of these has another number of numbers.
EXCEPTIONS = ("test_averagepool_2d_ceil_last_window_starts_on_pad",)
# What torch computes with; of the others it has the memory alone.
_DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)


@functools.cache
def _list_tests() -> dict[str, list[Any]]:
    """Return the tests of one operator each, of those that have a function of torch, by operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        tests = load_model_tests(kind="node")
    by_operator: dict[str, list[Any]] = {}
    for test in tests:
        nodes = test.model.graph.node if test.model is not None else []
        if len(nodes) == 1 and not nodes[0].domain and nodes[0].op_type in BUILDERS:
            by_operator.setdefault(nodes[0].op_type, []).append(test)
    return by_operator


def list_cases() -> list[str]:
    """List the operators."""
    return sorted(_list_tests())


def make_case(name: str, most: int) -> Case:
    """Make a case of the tests of an operator, of those that torch can compute."""
    samples = [sample for test in _list_tests()[name] if (sample := _make_sample(test)) is not None]
    return Case(spread(samples, most), (*FILES, PUBLISHED))


def _make_sample(test: Any) -> Sample | None:
    from onnx.helper import get_attribute_value

    (node,) = test.model.graph.node
    attributes = {a.name: _decode(get_attribute_value(a)) for a in node.attribute}
    (inputs, outputs), *_ = test.data_sets
    arrays = iter(inputs)
    try:
        tensors = [torch.from_numpy(np.array(next(arrays))) if name else None for name in node.input]
        function, count = BUILDERS[node.op_type](NodeCall(node.op_type, attributes, tensors))
        own = tuple(tensor for tensor in tensors[:count] if tensor is not None and tensor.dtype in _DTYPES)
        results = pytree.tree_leaves(function(*(tensor.clone() for tensor in own)))
        # torch returns fewer: no statistics, no places.
        published = tuple(torch.from_numpy(np.array(output)) for output in outputs[: len(results)])
    except (LookupError, TypeError, RuntimeError, IndexError):
        # What torch does not have, and numbers that NumPy and torch do not share.
        return None
    is_whole = own and len(own) == count and test.name not in EXCEPTIONS
    return Sample(function, _mirror(own), (own,), published=published) if is_whole else None


def _decode(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _mirror(tensors: Tensors) -> Tensors:
    """Return the same numbers in another order: of the same domain, as places too."""
    return tuple(tensor.flatten().flip(0).reshape(tensor.shape).clone() for tensor in tensors)
