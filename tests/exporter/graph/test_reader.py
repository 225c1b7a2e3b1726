"""Calls of a submodule that are read once give the graphs that reading each of them gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graph_mutations import module_of
from project import mark_thorough_after
from torch import nn

from exporter.graph import reader
from exporter.graph.canonical_text import format_canonical_text
from exporter.graph.reader import read


class Law(nn.Module):
    """A submodule whose graph depends on its arguments: values, numbers, and branches that use them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a: torch.Tensor, b: torch.Tensor, power: int) -> torch.Tensor:
        total = a * self.scale
        if bool(b.sum() > 0):
            for i in range(power):
                total = total + a**i - b
        return total


class Pair(nn.Module):
    """Calls of one law: with other values, with one value twice, with another number, one inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.law = Law()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = self.law(x, y, 2)
        second = self.law(y, x, 2)
        same = self.law(x, x, 2)
        if bool(first.sum() > 0):
            same = self.law(same, second, 2)
        return first + self.law(x, y, 3), second, same

    @torch.jit.export
    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.law(x + 1.0, x, 2)


class Forgetful(dict[Any, Any]):
    """Known calls that are never known."""

    def get(self, key: Any, default: Any = None) -> Any:
        return default


def read_each_call(module: torch.jit.ScriptModule, monkeypatch: pytest.MonkeyPatch) -> reader.SavedGraphs:
    original = reader._GraphReader.__init__
    with monkeypatch.context() as patch:
        patch.setattr(reader._GraphReader, "__init__", lambda self, t, calls, *a: original(self, t, Forgetful(), *a))
        return read(module)


@pytest.mark.parametrize("name", mark_thorough_after(3, ["pair", "perzyna", "composed", "return_map"]))
def test_calls_that_are_repeated(name, monkeypatch):
    module = torch.jit.script(Pair()) if name == "pair" else module_of(name)
    each, once = read_each_call(module, monkeypatch), read(module)
    assert once.graphs == each.graphs
    assert format_canonical_text(once) == format_canonical_text(each)


def test_arguments_that_are_mixed_up_are_seen(monkeypatch):
    """The control: calls of other values, of which one is taken for the other."""
    module = torch.jit.script(Pair())
    each = read_each_call(module, monkeypatch)
    monkeypatch.setattr(reader, "_describe_arguments", lambda arguments: ("any",) * len(arguments))
    assert read(module).graphs != each.graphs
