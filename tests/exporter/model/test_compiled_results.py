"""Selection of the tensors among the results of compiled code, some of which are None."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from project import skip_checks
from torch import nn

import torchferry
from exporter.common.tensors import bitwise_equal
from exporter.common.torch_hooks import ignore_deprecations
from exporter.model.compiled_model import wrap_compiled
from exporter.model.compiled_results import select_tensors

X = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
ODD = 'a b"ü\\142]'


class Nested(nn.Module):
    def forward(
        self, x: torch.Tensor, y: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None], tuple[list[torch.Tensor], torch.Tensor | None]]:
        return x * 2, {'a b"ü\\142]': x, "none": y}, ([x - 1, x + 3], y)


class Numbered(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[int, torch.Tensor | None]:
        result: dict[int, torch.Tensor | None] = {-3: x, 5: None}
        return result


class Outer(nn.Module):
    """A model in Python with a part in TorchScript, of whose results one is None."""

    def __init__(self) -> None:
        super().__init__()
        with ignore_deprecations():
            self.inner = torch.jit.script(Nested())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        double, by_key, _ = self.inner(x)
        return torch.sin(double) if by_key["none"] is None else double


def test_a_part_of_a_model(tmp_path):
    with skip_checks():
        (exported,) = torchferry.export(Outer(), inputs={"x": X}, output=tmp_path / "outer.pt")
    assert bitwise_equal(torchferry.load(exported.path)(3 * X)[0], torch.sin(6 * X))


def compile_function(module: nn.Module) -> tuple[Any, Any]:
    with ignore_deprecations():
        compiled = torch.jit.script(module)
    return compiled, wrap_compiled(compiled).__dict__["_torchferry_code"].function


def test_a_trace_sees_tensors_alone():
    compiled, function = compile_function(Nested())
    selected = select_tensors(function, compiled(X))
    assert selected is not None
    first, by_key, (pair, last) = selected(2 * X, None)
    assert bitwise_equal(first, 4 * X)
    assert list(by_key) == [ODD, "none"]
    assert bitwise_equal(by_key[ODD], 2 * X)
    assert by_key["none"] is last is None
    assert [bitwise_equal(a, b) for a, b in zip(pair, (2 * X - 1, 2 * X + 3), strict=True)] == [True, True]
    with ignore_deprecations():
        traced: Any = torch.jit.trace(lambda x: selected(x, None)[2][0][1], (X,), check_trace=False)
        with pytest.raises(RuntimeError, match="type None"):
            torch.jit.trace(lambda x: function(x, None)[2][0][1], (X,), check_trace=False)
    assert bitwise_equal(traced(X * 3), X * 3 + 3)


def test_whole_numbers_as_keys():
    compiled, function = compile_function(Numbered())
    selected = select_tensors(function, compiled(X))
    assert selected is not None
    assert bitwise_equal(selected(X)[-3], X)
    assert selected(X)[5] is None


def test_what_was_none_and_is_none_no_more_is_left_out_and_the_other_way_round_is_an_error():
    compiled, function = compile_function(Nested())
    selected = select_tensors(function, compiled(X))
    assert selected is not None
    assert selected(X, X)[1]["none"] is None
    whole = select_tensors(function, (*compiled(X, X)[:2], ([X, X], None)))
    assert whole is not None
    with pytest.raises(RuntimeError, match="null optional"):
        whole(X, None)


@pytest.mark.parametrize("result", [X, (X, X), [X, {"a": X}], (None, None), None])
def test_nothing_is_selected_where_nothing_is_none_or_everything(result):
    assert select_tensors(None, result) is None
