"""Which change of a function asks for another graph, and what ``inspect --autograd`` says of a file."""

import json
import os
from pathlib import Path

import pytest
import torch
from project import ROOT
from training_functions import exported, layer, training

import torchferry
from exporter.graph.provenance import OpenedArchive, open_archive
from exporter.graph.respecialization import (
    CONSTANTS,
    DTYPE,
    OPERATIONS,
    SIZE,
    STRUCTURE,
    VARIABLES,
    respecialization_reasons,
)
from exporter.saved_code.origin import BACKWARD, FORWARD
from runtime_checks.runners.confined_calls import is_confined
from torchferry import pipeline
from torchferry.cli.app import run

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

F = torch.float64


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("against") / "old.pt"
    exported(training(), path)
    return path


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (lambda: training(model=layer(3)), []),
        (lambda: training(lambda y: (y * y).sum()), [STRUCTURE]),
        (lambda: training(hook=lambda g: g * 2), [STRUCTURE]),
        (lambda: training(size=12), [SIZE]),
        (lambda: training(lambda y: y.sum() + y.detach().sin().sum()), [OPERATIONS]),
    ],
    ids=["other parameters", "another loss", "a hook", "a static size", "what has no gradient"],
)
def test_what_asks_for_another_graph(plain, tmp_path, function, kinds):
    item = exported(function(), tmp_path / "m.pt", against=plain)
    assert item.reasons is not None
    assert [r.kind for r in item.reasons] == kinds, item.reasons


def test_a_change_of_structure_is_said_with_its_line(plain, tmp_path):
    item = exported(training(lambda y: (y * y).sum()), tmp_path / "m.pt", against=plain)
    assert item.reasons
    reason = item.reasons[0]
    assert "MulBackward0" in reason.text
    assert "training_functions.py" in reason.text


def test_other_variables_dtypes_and_constants(tmp_path):
    def scaled(factor, name="x", dtype="float64"):
        @torchferry.declare({name: ("n", 2)}, dtype=dtype)
        def function(*values):
            x = values[0].requires_grad_()
            return torch.autograd.grad((x**2).sum() * factor, x)[0]

        return function

    exported(scaled(2.0), tmp_path / "old.pt")
    old = open_archive(tmp_path / "old.pt")
    for position, (function, kind) in enumerate(
        [(scaled(3.0), CONSTANTS), (scaled(2.0, "y"), VARIABLES), (scaled(2.0, dtype="float32"), DTYPE)]
    ):
        exported(function, tmp_path / f"{position}.pt")
        assert kind in {r.kind for r in respecialization_reasons(old, open_archive(tmp_path / f"{position}.pt"))}


def test_the_command_line(plain, tmp_path, capfd):
    assert run(["inspect", str(plain), "--autograd"]) == 0
    shown = capfd.readouterr().out
    assert "graphs with a backward pass: 1" in shown
    assert "AddmmBackward0" in shown
    assert run(["inspect", str(plain), "--autograd", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert {row["origin"]["part"] for row in rows["forward_batch"]} == {FORWARD, BACKWARD}
    source = f"{ROOT}/examples/train_step.py:loss_and_grad"
    assert run(["export", source, "-o", str(tmp_path / "m.pt"), "--against", str(plain)]) == 0
    message = " ".join("".join(capfd.readouterr()).split())
    assert "does not serve this model: variables: inputs are x, target; they were x" in message
    assert run(["export", source, "-o", str(tmp_path / "n.pt"), "--against", str(tmp_path / "no.pt")]) != 0
    assert not (tmp_path / "n.pt").exists()


def test_an_earlier_file_is_read_in_confinement(plain, tmp_path, monkeypatch):
    """Torch reads what somebody else may have written, before and after the export."""
    receiver, sender = os.pipe()

    def watch(path: Path) -> OpenedArchive:
        os.write(sender, b"y" if is_confined() else b"n")
        return open_archive(path)

    monkeypatch.setattr(pipeline, "open_archive", watch)
    source = f"{ROOT}/examples/train_step.py:loss_and_grad"
    torchferry.export(source, output=tmp_path / "m.pt", against=plain)
    assert os.read(receiver, 16) == b"yyy"


def test_what_a_file_without_backward_pass_says(eq_path, capfd):
    assert run(["inspect", str(eq_path), "--autograd"]) == 0
    assert "graphs with a backward pass: 0" in capfd.readouterr().out


def test_against_a_file_whose_constants_are_others(tmp_path):
    """A parameter that cannot be set in the earlier file is a constant of it."""
    model = layer()
    exported(training(model=model), tmp_path / "old.pt", parameters=["model.weight"])
    with torch.no_grad():
        model.get_parameter("bias").add_(1)
    item = exported(training(model=model), tmp_path / "m.pt", parameters=["model.weight"], against=tmp_path / "old.pt")
    assert item.reasons
    assert (item.reasons[0].kind, "model.bias" in item.reasons[0].text) == (CONSTANTS, True)
