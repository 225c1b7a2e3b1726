"""Elements that fail: their inputs as both languages write them, and their iterations one by one."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from native_build import verify_natively
from torch import nn

import torchferry
from exporter.common.errors import UsageError
from runtime_checks.failure_replay import Failures, read_failures, replay_iterations, write_failures
from torchferry import ImplicitUpdate, Settings, Signature
from torchferry.cli.app import run

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

F = torch.float64
MAX_ITS = 6


class Root(nn.Module):
    """``u^2 = g``: the closer the guess the fewer steps; there is no root of a ``g`` below zero."""

    signature = Signature.of({"u": (), "u~1": (), "g": ()}, {"u_residual": ()})

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=F))

    def forward(self, u, before, g):
        return self.scale * (u * u - g) + 0 * before


def make_root() -> nn.Module:
    return ImplicitUpdate(Root(), ["u"], settings=Settings(abs_tol=1e-12, rel_tol=1e-10, max_its=MAX_ITS))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("root") / "root.pt"
    inputs = {"u~1": torch.rand(20, dtype=F) + 1, "g": torch.rand(20, dtype=F) + 1}
    torchferry.export(make_root(), output=path, inputs=inputs)
    return path


@pytest.fixture
def history(tmp_path):
    """The third element of a batch of 2 x 2 has no root in the second step, the fourth is far from it."""
    g = torch.tensor([[[4.0, 9.0], [4.0, 9.0]], [[4.0, 9.0], [-1.0, 1e12]], [[4.0, 9.0], [4.0, 9.0]]], dtype=F)
    start = torch.full((2, 2), 2.0, dtype=F)
    torch.save({"prescribed/g": g, "initial/u~1": start}, tmp_path / "h.pt")
    return tmp_path / "h.pt"


def test_both_languages_write_the_same(archive, history, tmp_path, capfd):
    ours, theirs = tmp_path / "ours.pt", tmp_path / "theirs.pt"
    assert run(["run", str(archive), "--history", str(history), "--failures", str(ours)]) == 0
    assert verify_natively(archive, "--history", history, "--failures", theirs)[0] == 0
    contents = [dict(torch.load(path, weights_only=True)) for path in (ours, theirs)]
    assert contents[0].keys() == contents[1].keys() == {"inputs/u~1", "inputs/g", "elements", "step"}
    for name, value in contents[0].items():
        assert torch.equal(value, contents[1][name]), name
    assert contents[0]["elements"].tolist() == [2, 3]
    assert contents[0]["step"].item() == 1
    assert contents[0]["inputs/g"].tolist() == [-1.0, 1e12]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["h.pt", "ours.pt", "theirs.pt"]
    capfd.readouterr()


def test_iterations_are_those_of_newton(archive, history, tmp_path, capfd):
    failures, table = tmp_path / "f.pt", tmp_path / "iterations.csv"
    assert verify_natively(archive, "--history", history, "--failures", failures)[0] == 0
    command = ["run", str(archive), "--replay", str(failures)]
    assert run([*command, "-o", str(table), "--plot", str(tmp_path / "i.svg"), "--curve", "residual_norm"]) == 0
    assert "the maximum number of iterations was reached" in capfd.readouterr().out
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["point"] == "1"]
    u, g = 3.0, 1e12
    for row in rows:
        assert float(row["u"]) == pytest.approx(u, rel=1e-12)
        assert float(row["residual_norm"]) == pytest.approx(abs(u * u - g), rel=1e-9)
        u -= (u * u - g) / (2 * u)
    assert len(rows) == MAX_ITS + 1
    assert run([*command, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["iterations"] == MAX_ITS + 1
    assert report["status"] == [1, 1]


def test_the_model_is_as_it_was(archive, history, tmp_path):
    failures = tmp_path / "f.pt"
    assert verify_natively(archive, "--history", history, "--failures", failures)[0] == 0
    model = torchferry.load(archive)
    failed = read_failures(failures, model.contract)
    replay_iterations(model, failed)
    assert torch.isnan(model.call("forward", failed.inputs)["u"]).all()
    assert dict(model.module.named_parameters())["newton.max_its"].item() == MAX_ITS
    # What converges ends the replay.
    good = {"u~1": torch.tensor([2.0], dtype=F), "g": torch.tensor([4.1], dtype=F)}
    assert len(replay_iterations(model, Failures(good))["u"]) <= MAX_ITS


def test_elements_have_parameters_of_their_own(archive, tmp_path, capfd):
    """``scale`` times the residual has the same roots and other norms; a limit of iterations ends earlier."""
    inputs = {"u~1": torch.tensor([3.0, 2.0, 3.0, 2.0], dtype=F), "g": torch.tensor([1e12, 4.1, 1e12, 1e12], dtype=F)}
    own = {"residual.scale": torch.tensor([1.0, 1.0, 4.0, 1.0], dtype=F), "newton.max_its": torch.tensor([6, 6, 6, 2])}
    write_failures(tmp_path / "f.pt", Failures(inputs, own), torch.arange(4), 0)
    model = torchferry.load(archive)
    failures = read_failures(tmp_path / "f.pt", model.contract)
    values = replay_iterations(model, failures)
    norms = values["residual_norm"]
    assert torch.equal(norms[:, 2], 4 * norms[:, 0])
    assert torch.equal(norms[3:, 3], norms[2, 3].expand(len(norms) - 3))
    assert norms[2, 3] != norms[1, 3]
    assert values["status"][-1].tolist() == [1, 0, 1, 1]
    alone = replay_iterations(model, Failures({name: value[:1] for name, value in inputs.items()}))
    assert torch.equal(alone["u"][:, 0], values["u"][:, 0])
    assert {name: dict(model.module.named_parameters())[name].item() for name in own} == {
        "residual.scale": 1.0,
        "newton.max_its": MAX_ITS,
    }
    assert run(["run", str(archive), "--replay", str(tmp_path / "f.pt"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["status"] == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters/other": torch.ones(1, dtype=F)}, "no parameter 'other'"),
        ({"parameters/residual.scale": torch.ones(1)}, "no parameter 'residual.scale' of this archive"),
        ({"parameters/residual.scale": torch.ones((), dtype=F)}, "no parameter 'residual.scale' of this archive"),
        ({"parameters/residual.scale": torch.ones(2, dtype=F)}, "no one number of elements"),
        ({"inputs/g": torch.ones(0, dtype=F), "inputs/u~1": torch.ones(0, dtype=F)}, "no one number of elements"),
        ({"inputs/g": torch.ones(2, dtype=F)}, "no one number of elements"),
    ],
)
def test_a_file_that_fits_no_elements(archive, tmp_path, change, message):
    content = {"inputs/u~1": torch.ones(1, dtype=F), "inputs/g": torch.ones(1, dtype=F)}
    torch.save(tuple((content | change).items()), tmp_path / "f.pt")
    with pytest.raises(UsageError, match=message):
        read_failures(tmp_path / "f.pt", torchferry.load(archive).contract)


def test_nothing_is_written_where_nothing_fails(archive, history, tmp_path):
    content = torch.load(history, weights_only=True)
    torch.save({**content, "prescribed/g": content["prescribed/g"][:1]}, history)
    failures = tmp_path / "f.pt"
    assert run(["run", str(archive), "--history", str(history), "--failures", str(failures)]) == 0
    assert verify_natively(archive, "--history", history, "--failures", failures)[0] == 0
    assert not failures.exists()


def test_what_cannot_be_replayed(archive, history, tmp_path, capfd):
    rates = archive.parents[0] / "linear.pt"
    torchferry.export(nn.Sequential(nn.Linear(2, 2)), output=rates, inputs={"input": torch.rand(3, 2)})
    torch.save((("inputs/input", torch.rand(1, 2)),), tmp_path / "linear_inputs.pt")
    assert run(["run", str(rates), "--replay", str(tmp_path / "linear_inputs.pt")]) == 2
    assert "no iterations to replay" in capfd.readouterr().err
    single = torch.ones(2)
    for wrong in ((("inputs/g", single.double()),), (("inputs/g", single), ("inputs/u~1", single)), [1]):
        torch.save(wrong, tmp_path / "wrong.pt")
        with pytest.raises(UsageError, match=r"has no input|does not load"):
            read_failures(tmp_path / "wrong.pt", torchferry.load(archive).contract)
    assert run(["run", str(archive), "--replay", str(history), "--history", str(history)]) == 2
    assert run(["run", str(archive), "--replay", str(history), "--failures", "f.pt"]) == 2
    code, report = verify_natively(archive, "--history", history, "--failures", tmp_path / "none" / "f.pt")
    assert code != 0
    assert "cannot be written" in str(report)


@pytest.mark.thorough
def test_several_solves_have_a_column_each(tmp_path, capfd):
    class Next(nn.Module):
        signature = Signature.of({"v": (), "v~1": (), "u": ()}, {"v_residual": ()})

        def forward(self, v, before, u):
            return v * v * v - u + 0 * before

    second = ImplicitUpdate(Next(), ["v"], name="second")
    path = tmp_path / "two.pt"
    inputs = {"u~1": torch.rand(5, dtype=F) + 1, "g": torch.rand(5, dtype=F) + 1, "v~1": torch.ones(5, dtype=F)}
    torchferry.export(torchferry.ComposedModel([make_root(), second]), output=path, inputs=inputs)
    torch.save(tuple((f"inputs/{name}", value[:2]) for name, value in inputs.items()), tmp_path / "f.pt")
    command = ["run", str(path), "--replay", str(tmp_path / "f.pt"), "-o", str(tmp_path / "i.csv")]
    assert run([*command, "--plot", str(tmp_path / "i.svg")]) == 0
    with (tmp_path / "i.csv").open(newline="") as file:
        names = next(csv.reader(file))
    assert [n for n in names if n.startswith("residual_norm")] == ["residual_norm[0]", "residual_norm[1]"]
    capfd.readouterr()
