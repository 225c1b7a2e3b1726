"""The operators that a file may call: one list, in both languages, and nothing on it that acts."""

from __future__ import annotations

import list_operators
import pytest
import torch
from torch import nn

from exporter.archive import onnx_data
from exporter.common.script_loading import OPERATORS, count_graph_nodes, iterate_nodes, list_inputs, list_outputs


def test_the_native_library_has_the_same_list():
    assert list_operators.NATIVE.read_text() == list_operators.format_native("\n".join(sorted(OPERATORS)))


@pytest.mark.parametrize("name", ["aten::add", "aten::where", "prim::If"])
def test_what_computes_is_on_it(name):
    assert name in OPERATORS


@pytest.mark.parametrize(
    "name", ["aten::manual_seed", "aten::save", "aten::from_file", "aten::_print", "aten::_reshape_alias", "prim::fork"]
)
def test_what_acts_is_not(name):
    assert name not in OPERATORS
    assert name not in list_operators.list_pure_operators()


def test_the_list_of_the_standard_is_that_of_the_package():
    pytest.importorskip("onnx")
    here = list_operators.list_onnx_operators()
    assert here <= onnx_data.OPERATORS
    assert "Add" in here
    assert "RandomNormalLike" not in onnx_data.OPERATORS


class Nested(nn.Module):
    def forward(self, x):
        parts = [x, 2 * x]
        for i in range(3):
            if i > 1:
                x = torch.where(x > 0, x, -x) if bool(x.sum() > 0) else x.min(0)[0].expand(3)
            x = x + 1
        return x, len(parts)


def walk_by_torchs_iterators(block):
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from walk_by_torchs_iterators(inner)


def test_nodes_are_walked_as_torchs_own_iterators_do():
    module = torch.jit.script(Nested())
    expected = list(walk_by_torchs_iterators(module.graph))
    assert {"prim::If", "prim::Loop", "prim::TupleConstruct"} <= {node.kind() for node in expected}
    assert list(map(str, iterate_nodes(module.graph))) == list(map(str, expected))
    assert count_graph_nodes(module) == len(expected)
    for node in expected:
        for listed, iterated in ((list_inputs(node), node.inputs()), (list_outputs(node), node.outputs())):
            assert [value.debugName() for value in listed] == [value.debugName() for value in iterated]
