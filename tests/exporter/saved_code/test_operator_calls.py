"""Operators by the names that graphs have for them."""

from __future__ import annotations

import pytest
import torch

from exporter.saved_code.ir import Node
from exporter.saved_code.operator_calls import run_operator


def make_node(operator: str, outputs: int = 1) -> Node:
    return Node(operator, (), tuple(range(outputs)), ("Tensor",) * outputs)


def test_dtypes_are_numbers():
    (result,) = run_operator(make_node("aten::zeros"), [[2], 6, None, None, None])
    assert result.dtype == torch.float32
    with pytest.raises(NotImplementedError, match="dtype of number 12"):
        run_operator(make_node("aten::zeros"), [[2], 12, None, None, None])


@pytest.mark.parametrize("operator", ["aten::sort.int", "aten::reverse.t", "aten::clear.t"])
def test_what_writes_to_a_list_is_no_call(operator):
    """torch.ops would write to a copy, and nobody would see it."""
    numbers = [3, 1, 2]
    with pytest.raises(NotImplementedError, match="no form outside TorchScript"):
        run_operator(make_node(operator, 0), [numbers, False][: 2 if "sort" in operator else 1])
    assert numbers == [3, 1, 2]


def test_what_writes_to_a_tensor_does():
    tensor = torch.ones(2)
    run_operator(make_node("aten::add_.Tensor"), [tensor, torch.ones(2), 1])
    assert tensor.tolist() == [2.0, 2.0]
