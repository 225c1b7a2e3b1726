"""Submodules that data decide: they are compiled by themselves, and what cannot be compiled is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchferry
from exporter.common.errors import MismatchError, UnsoundError
from exporter.model.jit_marks import get_deciding_line, get_mark

F = torch.float64
PLACE = Path(__file__)


class Iterating(nn.Module):
    """Newton's method, in a method of its own, until every row has converged."""

    def __init__(self) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(3.0, dtype=F))

    def solve(self, load: torch.Tensor) -> torch.Tensor:
        x = torch.ones_like(load)
        for _ in range(50):
            residual = x**self.exponent + x - load
            if bool((residual.abs() < 1e-12).all()):  # DECIDES
                break
            x = x - residual / (self.exponent * x ** (self.exponent - 1) + 1)
        return x

    def forward(self, load: torch.Tensor) -> torch.Tensor:
        return self.solve(load)


class Unreadable(nn.Module):
    def forward(self, load: torch.Tensor) -> torch.Tensor:
        if load.sum() > 3:
            return load
        return load * len(globals())


class Model(nn.Module):
    def __init__(self, *laws: nn.Module) -> None:
        super().__init__()
        self.laws = nn.ModuleList(laws)

    def forward(self, load: torch.Tensor) -> torch.Tensor:
        for law in self.laws:
            load = law(load.abs() + 0.5)
        return load


class Drawing(Model):
    def forward(self, load: torch.Tensor) -> torch.Tensor:
        return super().forward(load) + torch.rand(())


class Branching(Model):
    def forward(self, load: torch.Tensor) -> torch.Tensor:
        load = super().forward(load)
        return load if load.sum() > 1 else 2 * load


def draw(rows: int = 4, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.rand(rows, 2, generator=torch.Generator().manual_seed(rows), dtype=F)


def find_line() -> str:
    lines = PLACE.read_text().splitlines()
    return str(next(number for number, line in enumerate(lines, 1) if line.endswith("# DECIDES")))


def export(model: nn.Module, folder: Path, notices: list[str] | None = None, **options: Any) -> Any:
    def watch(step: Any) -> None:
        if step.is_notice and notices is not None:
            notices.append(step.part)

    return torchferry.export(model, inputs={"load": draw()}, output=folder / "m.pt", watch=watch, **options)[0]


def test_parts_are_compiled_by_themselves(tmp_path):
    """Both submodules of the class that has the line; the model around them is traced."""
    model, notices = Model(Iterating(), Iterating(), nn.Tanh()), list[str]()
    exported = export(model, tmp_path, notices)
    assert [text.partition(":")[0] for text in notices] == [
        f"submodule 'laws.{i}' is compiled from its source" for i in (0, 1)
    ]
    findings = [f for f in exported.contract.findings if f.check == "script"]
    assert [f.what for f in findings] == [text.partition(":")[0] for text in notices]
    assert {(f.where.rpartition(":")[2], f.reason) for f in findings} == {(find_line(), "data decide what it computes")}
    for scale in (1e-3, 1.0, 1e5):
        load = draw(9, scale)
        with torch.no_grad():
            torch.testing.assert_close(torchferry.load(exported.path)(load)[0], model(load), rtol=1e-12, atol=0)
    assert {"prim::Loop", "aten::tanh"} <= set(exported.contract.operators)
    assert [(get_mark(law), get_deciding_line(law)) for law in model.laws] == [("trace", "")] * 3


def test_a_mark_of_the_user_is_there_again(tmp_path):
    law = torchferry.mark(Iterating(), jit="trace")
    export(Model(law), tmp_path)
    assert vars(law)["torchferry_jit"] == "trace"


def test_check_says_the_same():
    (checked,) = torchferry.check(Model(Iterating()), inputs={"load": draw()})
    assert [f.what for f in checked.findings] == ["submodule 'laws.0' is compiled from its source"]


def test_what_cannot_be_compiled_is_refused_by_name(tmp_path):
    notices = list[str]()
    with pytest.raises(
        UnsoundError, match=r"TorchScript cannot compile submodule 'laws\.1' as it is: .*globals"
    ) as caught:
        export(Model(Iterating(), Unreadable()), tmp_path, notices)
    assert caught.value.details["check"] == "data read"
    assert (notices, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize(("model", "check"), [(Branching, "data read"), (Drawing, "random numbers")])
def test_it_would_not_be_enough(tmp_path, model, check):
    """The model itself branches, or something else is wrong: nothing is compiled, and the export runs once."""
    notices, law = list[str](), Iterating()
    with pytest.raises(UnsoundError) as caught:
        export(model(law), tmp_path, notices)
    assert check in {f.check for f in caught.value.findings if f.severity == "unsound"}
    assert (notices, get_mark(law)) == ([], "trace")


def test_rows_that_depend_on_each_other_are_still_seen(tmp_path):
    class Gathering(nn.Module):
        def forward(self, load: torch.Tensor) -> torch.Tensor:
            if load.sum() > 30:
                return load
            return load * load

    model = Model(Gathering())
    with pytest.raises(MismatchError, match="depend on each other"):
        export(model, tmp_path, batch="yes")
    assert get_mark(model.laws[0]) == "trace"
    exported = export(model, tmp_path, batch="no")
    for scale in (1.0, 100.0):
        load = draw(4, scale)
        torch.testing.assert_close(torchferry.load(exported.path)(load)[0], model(load))
