"""Drivers that are asked for, another precision, and input files of NEML2 2."""

from __future__ import annotations

import json

import pytest
import torch
from decay_input import format_decay

import torchferry
from exporter.common.errors import SourceError, UsageError, WarmupError
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.frontends.neml2 import input_file
from torchferry.cli.app import run

DRIVERS = """
[Drivers]
  [again]
    type = TransientRegression
    driver = 'driver'
    reference = 'none.pt'
  []
  [rates]
    type = ModelUnitTest
    model = 'rate'
    input_Scalar_names = 'x'
    input_Scalar_values = '3'
    output_Scalar_names = 'x_rate'
    output_Scalar_values = '-3'
  []
  [other_rates]
    type = ModelUnitTest
    model = 'rate'
    input_Scalar_names = 'x'
    input_Scalar_values = '70'
    output_Scalar_names = 'x_rate'
    output_Scalar_values = '-70'
  []
  [idle]
    type = TransientRegression
    reference = 'none.pt'
  []
[]
"""
# As MOOSE's input files for NEML2 2.
OLD = """
[Models]
  [flow]
    type = ScalarLinearCombination
    from_var = 'state/a old_state/b forces/t'
    to_var = 'state/c'
    coefficients = '1 -1 2'
  []
  [model]
    type = ImplicitUpdate
    implicit_model = 'flow'
    solver = 'newton'
  []
[]
[Solvers]
  [newton]
    type = Newton
  []
[]
"""


@pytest.fixture
def decay(tmp_path):
    path = tmp_path / "decay.i"
    path.write_text(format_decay(2.0, 9) + DRIVERS)
    return path


@pytest.mark.parametrize(
    ("drivers", "models"),
    [(["rates"], ["rate"]), (["driver"], ["model"]), (["again"], ["model"]), (["rates", "again"], ["rate", "model"])],
)
def test_a_driver_says_which_models(decay, drivers, models):
    assert resolve.choose_models(ModelRequest(str(decay), drivers=tuple(drivers)), []) == models
    named = resolve.choose_models(ModelRequest(str(decay), drivers=tuple(drivers)), ["step"])
    assert named == ["step", *models]


def test_the_inputs_of_that_driver_alone(decay):
    (call,) = input_file.load(ModelRequest(str(decay), drivers=("other_rates",)), "rate", None).calls
    assert call[0].tolist() == [70.0]
    both = input_file.load(ModelRequest(str(decay), drivers=("rates", "other_rates")), "rate", None).calls
    assert [c[0].item() for c in both] == [3.0, 70.0]


@pytest.mark.parametrize(
    ("driver", "text"), [("rate", "no driver 'rate'.*\n.*\n.*did you mean 'rates'"), ("idle", "drives no model")]
)
def test_drivers_that_say_nothing(decay, driver, text):
    with pytest.raises(SourceError, match=text):
        torchferry.export(str(decay), drivers=[driver])


@pytest.mark.thorough
def test_the_commands_take_a_driver(decay, tmp_path, capfd):
    archive, history = tmp_path / "m.pt", tmp_path / "h.pt"
    assert run(["check", str(decay), "--driver", "rates", "-j", "1"]) == 0
    assert run(["export", str(decay), "--driver", "again", "-o", str(archive), "-j", "1"]) == 0
    assert run(["history", str(decay), "--driver", "again", "-o", str(history)]) == 0
    assert run(["run", str(archive), "--history", str(history)]) == 0
    capfd.readouterr()


@pytest.mark.thorough
def test_single_precision(decay, tmp_path, capfd):
    tolerances = ["Solvers/newton/abs_tol=1e-5", "Solvers/newton/rel_tol=1e-4"]
    archive, history = tmp_path / "m.pt", tmp_path / "h.pt"
    options = [*tolerances, "--driver", "driver", "--dtype", "float32"]
    assert run(["export", str(decay), *options, "--derivative", "x:*", "-o", str(archive), "--json"]) == 0
    findings = {f["check"]: f for f in json.loads(capfd.readouterr().out)[0]["findings"]}
    loss = findings["precision"]["reason"]
    assert findings["precision"]["what"] == "the model computes in float32"
    assert loss.endswith("at most (x)")
    assert 1e-9 < float(loss.split(" by ")[1].split()[0]) < 1e-4
    contract = torchferry.load(archive).contract
    assert {s.dtype for s in (*contract.inputs, *contract.outputs)} == {"float32"}
    assert {p.dtype for p in contract.parameters if p.name.startswith("newton.abs")} == {"float64"}
    assert run(["history", str(decay), *options, "-o", str(history)]) == 0
    assert run(["run", str(archive), "--history", str(history)]) == 0
    x = torch.load(history, weights_only=True)["expected/x"]
    assert x.dtype == torch.float32
    assert abs(x[-1].item() - 1.25**-8) < 1e-5


def test_a_tolerance_below_single_precision(decay):
    overrides = ["Solvers/newton/abs_tol=1e-14", "Solvers/newton/rel_tol=1e-14"]
    with pytest.raises(WarmupError, match=r"fix the solver.*abs_tol = 1e-14"):
        torchferry.export(str(decay), models=["model"], overrides=overrides, drivers=["driver"], dtype="float32")


def test_a_precision_that_there_is_not(decay, tmp_path):
    with pytest.raises(UsageError, match="--dtype\n  got: float16\n  expected: one of float64, float32"):
        torchferry.export(str(decay), models=["rate"], dtype="float16")
    with pytest.raises(UsageError, match="for input files\n  where: Linear\n  got: float32"):
        torchferry.export(torch.nn.Linear(1, 1), dtype="float32")
    with pytest.raises(UsageError, match="for input files"):
        torchferry.export("model.py:make", drivers=["driver"])
    assert [p.name for p in tmp_path.iterdir()] == ["decay.i"]


def test_a_file_of_neml2_2_is_recognised(tmp_path):
    (tmp_path / "old.i").write_text(OLD)
    with pytest.raises(SourceError, match="this is an input file of NEML2 2") as caught:
        torchferry.export(str(tmp_path / "old.i"), models=["model"])
    mend = caught.value.details["mend"]
    assert "line 11: for implicit_model equation_system" in mend
    assert "line 5: for from_var from" in mend
    assert "line 5: for old_state/NAME NAME~1" in mend
    # One of NEML2 3 that does not build is none.
    (tmp_path / "new.i").write_text("[Models]\n  [a]\n    type = ScalarLinearCombination\n    form = 'x'\n  []\n[]\n")
    with pytest.raises(SourceError, match="neml2 cannot build model 'a'"):
        torchferry.export(str(tmp_path / "new.i"))
