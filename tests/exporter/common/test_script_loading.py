"""The operators that a file may call: one list, in both languages, and nothing on it that acts."""

from __future__ import annotations

import list_operators
import pytest

from exporter.archive import onnx_data
from exporter.common.script_loading import OPERATORS


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
