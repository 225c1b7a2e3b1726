"""A load history through an archive: states are fed back, every step is held against eager mode."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cubic_models import Decay, F
from kernel_host import Mixed
from tampering import change_contract
from torch import nn

import torchferry
from exporter.common.errors import MismatchError, UsageError
from exporter.frontends import python_factory
from exporter.model.eager.recorded_history import record_load_history
from runtime_checks import history_plot, load_history, native_build
from torchferry.cli.app import run

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

STEPS, ROWS = 12, 5


class Second(nn.Module):
    """``y`` follows ``x``, and sees where ``x`` was two steps before."""

    signature = torchferry.Signature.of({"y~1": (), "x": (), "x~2": (), "dt": ()}, {"y": ()})

    def forward(self, old, x, before, dt):
        return old + dt * (x - 0.1 * before)


def composed():
    first = torchferry.ImplicitUpdate(Decay(), ["x"], name="first")
    return torchferry.ComposedModel([first, Second()], additional_outputs=["x"], name="two states")


def driven(model):
    """By hand, in eager mode."""
    generator = torch.Generator().manual_seed(0)
    dt = 0.1 + torch.rand(STEPS, ROWS, generator=generator, dtype=F)
    x, y = 3 * torch.rand(2, ROWS, generator=generator, dtype=F)
    arguments = {"prescribed/dt": dt, "initial/x~1": x, "initial/x~2": x + 0.5, "initial/y~1": y}
    before, result = x + 0.5, {"x": [], "y": []}
    for step in range(STEPS):
        inputs = {"x~1": x, "dt": dt[step], "y~1": y, "x~2": before}
        values = model(*(inputs[s.name] for s in model.signature.inputs))
        named = dict(zip((s.name for s in model.signature.outputs), values, strict=True))
        before, x, y = x, named["x"].detach(), named["y"].detach()
        result["x"].append(x)
        result["y"].append(y)
    return arguments | {f"expected/{n}": torch.stack(v) for n, v in result.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("history")
    model = composed()
    arguments = driven(model)
    first = {n: arguments[f"initial/{n}"] for n in ("x~1", "x~2", "y~1")} | {"dt": arguments["prescribed/dt"][0]}
    torchferry.export(model, output=folder / "m.pt", inputs=first)
    torch.save(arguments, folder / "history.pt")
    return folder / "m.pt", folder / "history.pt"


def test_every_step_is_that_of_eager_mode(files, tmp_path, capfd):
    path, arguments = files
    assert run(["run", str(path), "--history", str(arguments), "-o", str(tmp_path / "out.pt")]) == 0
    assert f"{STEPS} steps, equal to what is expected of x, y" in capfd.readouterr().out
    result = torch.load(tmp_path / "out.pt", weights_only=True)
    torch.testing.assert_close(
        result["y"], torch.load(arguments, weights_only=True)["expected/y"], rtol=1e-9, atol=1e-12
    )
    assert run(["run", str(path), "--history", str(arguments), "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert rows == {"steps": STEPS, "compared": ["x", "y"], "not_finite_from_step": None}


@pytest.fixture
def swapped(files, tmp_path):
    """The outputs have each other's names, so that each state is fed back into the other."""

    def swap(contract):
        contract["outputs"].reverse()
        contract["methods"]["forward"]["outputs"].reverse()

    other = tmp_path / "m.pt"
    other.write_bytes(files[0].read_bytes())
    change_contract(other, swap)
    return other


def test_states_that_are_fed_back_in_the_wrong_order(files, swapped):
    arguments, other = files[1], swapped
    model = torchferry.load(other)
    history = load_history.read(arguments, model.contract)
    with pytest.raises(MismatchError, match="at step 0"):
        load_history.check_history(model.contract, history, load_history.run(model, history))


def test_an_element_that_does_not_converge(files, tmp_path, capfd):
    path, arguments = files
    values = torch.load(arguments, weights_only=True)
    values = {n: v.clone() for n, v in values.items() if not n.startswith("expected")}
    values["prescribed/dt"][4, 2] = float("nan")
    torch.save(values, tmp_path / "h.pt")
    assert run(["run", str(path), "--history", str(tmp_path / "h.pt")]) == 0
    assert "from step 4 on some elements have not converged: 2 values at the end" in capfd.readouterr().out


NONE = pytest.mark.parametrize(
    ("change", "message", "natively_said"),
    [
        (lambda h: h.pop("initial/x~1"), "no initial value of 'x~1'", "no initial value of 'x~1'"),
        (lambda h: h.pop("prescribed/dt"), "the number of steps", "no number of steps"),
        (
            lambda h: h.update({"prescribed/dt": h["prescribed/dt"][:-1]}),
            "prescribed/dt: 11, expected/x: 12",
            "2 lengths",
        ),
        (lambda h: h.update({"prescribed/dt": h["prescribed/dt"].float()}), "another shape or dtype", "wrong dtype"),
        (lambda h: h.update({"prescribed/dtt": h["prescribed/dt"]}), "no variable 'dtt'", "no variable 'dtt'"),
        (lambda h: h.update({"initial/y~1": torch.tensor(1)}), "another shape or dtype", "wrong dtype"),
        (lambda h: h.update({"prescribed/dt": h["prescribed/dt"][0]}), "the number of steps", "lengths"),
        (lambda h: h.update({"other": torch.ones(1)}), "an unknown entry", "something else"),
    ],
)


@NONE
def test_histories_that_are_none(files, tmp_path, change, message, natively_said):
    path, arguments = files
    values = torch.load(arguments, weights_only=True)
    change(values)
    torch.save(values, tmp_path / "h.pt")
    with pytest.raises(UsageError) as caught:
        load_history.read(tmp_path / "h.pt", torchferry.load(path).contract)
    assert message in str(caught.value)


def test_a_file_that_is_none(files, tmp_path):
    contract = torchferry.load(files[0]).contract
    (tmp_path / "text.pt").write_text("no tensors")
    for name, message in (("text.pt", "does not load"), ("no.pt", "no history file")):
        with pytest.raises(UsageError, match=message):
            load_history.read(tmp_path / name, contract)


def natively(path, history_file):
    harness = native_build.build() / "bin" / "torchferry_verify"
    command = [harness, path, "--history", history_file, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def test_in_c_every_step_is_that_of_eager_mode(files):
    code, message = natively(*files)
    assert code == 0
    assert message["history"]["steps"] == STEPS
    assert message["history"]["comparisons"] == 2 * STEPS
    assert message["history"]["not_finite_from_step"] is None
    assert 0 <= message["history"]["outputs"]["y"]["max_rel"] < 1e-9


def test_outputs_of_every_type(tmp_path):
    """Truth values and whole numbers have no rounding."""
    inputs = {name: value.repeat(2, *[1] * value.dim()) for name, value in Mixed.draw(6).items()}
    torchferry.export(Mixed(), output=tmp_path / "m.pt", inputs=Mixed.draw(9))
    model = torchferry.load(tmp_path / "m.pt")
    history = load_history.LoadHistory(inputs, {}, {}, 2)
    expected = load_history.run(model, history)
    assert {value.dtype for value in expected.values()} == {F, torch.bool, torch.int64, torch.float32}
    values = {f"prescribed/{n}": v for n, v in inputs.items()} | {f"expected/{n}": v for n, v in expected.items()}
    torch.save(values, tmp_path / "h.pt")
    assert run(["run", str(tmp_path / "m.pt"), "--history", str(tmp_path / "h.pt")]) == 0
    assert natively(tmp_path / "m.pt", tmp_path / "h.pt")[0] == 0
    (truth,) = (name for name, value in values.items() if name.startswith("expected") and value.dtype == torch.bool)
    values[truth][1, 2] ^= True
    torch.save(values, tmp_path / "h.pt")
    assert run(["run", str(tmp_path / "m.pt"), "--history", str(tmp_path / "h.pt")]) == 5
    assert natively(tmp_path / "m.pt", tmp_path / "h.pt")[0] == 5


@pytest.mark.parametrize(("error", "code"), [(1e-20, 0), (1e-6, 5)])
def test_numbers_that_are_rounding_beside_those_of_other_steps(files, tmp_path, error, code):
    """The first step moves nothing: its state is 0, and a machine that rounds otherwise has what rounding leaves."""
    path, arguments = files
    values = torch.load(arguments, weights_only=True)
    values = {name: value.clone() for name, value in values.items() if not name.startswith("expected")}
    values["prescribed/dt"][0] = 0.0
    values["initial/y~1"].zero_()
    torch.save(values, tmp_path / "h.pt")
    model = torchferry.load(path)
    expected = load_history.run(model, load_history.read(tmp_path / "h.pt", model.contract))["y"]
    assert not expected[0].any()
    assert expected[-1].abs().min() > 0.1
    expected[0] += error
    torch.save(values | {"expected/y": expected}, tmp_path / "h.pt")
    assert run(["run", str(path), "--history", str(tmp_path / "h.pt")]) == code
    assert natively(path, tmp_path / "h.pt")[0] == code


def test_in_c_states_that_are_fed_back_in_the_wrong_order(files, swapped):
    code, message = natively(swapped, files[1])
    assert code == 5
    assert message["history"]["difference"]["step"] == 0


def test_in_c_a_step_that_is_off_by_a_little(files, tmp_path):
    values = torch.load(files[1], weights_only=True)
    values["expected/y"][7, 2] *= 1 + 1e-7
    torch.save(values, tmp_path / "h.pt")
    code, message = natively(files[0], tmp_path / "h.pt")
    assert code == 5
    result = message["history"]["difference"]
    assert (result["step"], result["output"], result["worst"]) == (7, "y", [2])


@NONE
def test_in_c_histories_that_are_none(files, tmp_path, change, message, natively_said):
    values = torch.load(files[1], weights_only=True)
    change(values)
    torch.save(values, tmp_path / "h.pt")
    code, text = natively(files[0], tmp_path / "h.pt")
    assert (code, text["exit_code"]) == (2, 2)
    assert natively_said in text["error"]


def test_an_output_of_another_batch(files, tmp_path):
    values = torch.load(files[1], weights_only=True)
    values["expected/y"] = values["expected/y"][:, :1]
    torch.save(values, tmp_path / "h.pt")
    code, message = natively(files[0], tmp_path / "h.pt")
    assert code == 5
    assert "shape" in message["history"]["difference"]["reason"]


class Difference(nn.Module):
    """Looks two steps back, and not one."""

    signature = torchferry.Signature.of({"x": (3,), "x~2": (3,)}, {"y": (3,)})

    def forward(self, x, before):
        return x - before


def test_a_recorded_history_that_looks_two_steps_back():
    series = torch.rand(7, 2, 3, dtype=F)
    source = python_factory.source_from_module(Difference(), "d", {"x": series[2], "x~2": series[0]}, "here")
    calls = tuple((series[k], series[k - 2]) for k in range(2, 7))
    result = record_load_history(dataclasses.replace(source, calls=calls))
    assert sorted(result.initial) == ["x~1", "x~2"]
    torch.testing.assert_close(result.expected["y"], series[2:] - series[:-2], rtol=0, atol=0)
    shuffled = (*calls[:3], calls[4], calls[3])
    with pytest.raises(UsageError, match="not one history"):
        record_load_history(dataclasses.replace(source, calls=shuffled))


def test_a_vector_without_steps(tmp_path):
    """Its components would be taken for steps."""
    contract: Any = SimpleNamespace(inputs=Difference.signature.inputs, outputs=Difference.signature.outputs)
    torch.save({"prescribed/x": torch.ones(3, dtype=F)}, tmp_path / "h.pt")
    with pytest.raises(UsageError, match="another shape"):
        load_history.read(tmp_path / "h.pt", contract)


@pytest.mark.thorough
def test_a_picture(files, tmp_path, capfd):
    path, arguments = files
    command = ["run", str(path), "--history", str(arguments), "--plot"]
    assert run([*command, str(tmp_path / "p.svg"), "--curve", "x:dt", "--curve", "y"]) == 0
    text = (tmp_path / "p.svg").read_text()
    # An element's way is one line of as many points as there are steps, in each of the two panels.
    lines = [d for d in re.findall(r'<path d="([^"]*)" clip-path', text) if d.count("L") == STEPS - 1]
    assert len(lines) == 2 * ROWS
    assert run([*command, str(tmp_path / "q.png")]) == 0
    for curve, name, message in (
        ("z", "p.svg", "no variable 'z'"),
        ("x[0]", "p.svg", "no such"),
        ("x", "p.xy", "format"),
    ):
        (tmp_path / name).unlink(missing_ok=True)
        assert run([*command, str(tmp_path / name), "--curve", curve]) == 2
        assert message in capfd.readouterr().err
        assert not (tmp_path / name).exists()


def test_components_of_a_tensor():
    values = {"stress": torch.arange(24.0).reshape(2, 3, 2, 2), "t": torch.zeros(2)}
    ((up, over),) = history_plot.parse_curves(["stress[1,0]:t"], values, {"stress": 2, "t": 0})
    assert up.values.tolist() == [[2.0, 6.0, 10.0], [14.0, 18.0, 22.0]]
    assert over.values.shape == (2, 1)
    with pytest.raises(UsageError, match=r"stress\[0 to 1, 0 to 1\]"):
        history_plot.parse_curves(["stress[2,0]"], values, {"stress": 2, "t": 0})
