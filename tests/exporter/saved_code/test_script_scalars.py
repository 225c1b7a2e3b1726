"""Operators on numbers, texts and lists, against TorchScript's own."""

from __future__ import annotations

import pytest
import torch

from exporter.common.torch_hooks import ignore_deprecations
from exporter.saved_code.script_scalars import SCALARS


@pytest.mark.parametrize(
    ("name", "overload", "arguments"),
    [
        ("len", "str", ("Größe",)),
        ("floordiv", "int", (-7, 2)),
        ("remainder", "int", (-7, 2)),
        ("remainder", "float", (-7.5, 2.0)),
        ("__range_length", "default", (10, 1, -3)),
        ("__derive_index", "default", (2, 10, -3)),
        ("div", "int", (7, 2)),
        ("pow", "int_float", (2, -1.5)),
        ("sorted", "int", ([3, 1, 2],)),
        ("Int", "float", (-2.75,)),
        ("Bool", "float", (0.0,)),
    ],
)
def test_as_torchscript_computes_it(name, overload, arguments):
    wanted = getattr(getattr(torch.ops.aten, name), overload)(*arguments)
    got = SCALARS[f"aten::{name}"](*arguments)
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize("text", ["{} of {}, {{}} {", "{x} {}", "no place", "{}{}{}"])
def test_texts_as_torchscript_formats_them(text):
    with ignore_deprecations():
        unit = torch.jit.CompilationUnit(
            f"def f(a: int, b: float, c: bool) -> str:\n  return {text!r}.format(a, b, c)\n"
        )
    wanted = unit.f(3, 0.5, True)
    assert SCALARS["aten::format"](text, 3, 0.5, True) == wanted


def test_a_text_reads_no_attribute():
    assert SCALARS["aten::format"]("{0.__class__} {}", 3) == "{0.__class__} 3"


def test_too_few_values_for_a_text():
    with pytest.raises(RuntimeError, match="Too few arguments"):
        SCALARS["aten::format"]("{} {}", 1)
