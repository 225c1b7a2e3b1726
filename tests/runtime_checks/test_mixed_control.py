"""Material points under mixed control, against closed forms and against the same path by strains alone."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys

import numpy
import pytest
import torch
from native_build import verify_natively
from project import ARTIFACTS, mark_thorough_after
from torch import nn

import torchferry
from exporter.common.errors import MismatchError, MissingRuntimeError, UsageError
from runtime_checks import load_path, mixed_control
from runtime_checks.mixed_control import CONTROL_STATUS, MaterialPoints, check_control
from runtime_checks.result_tables import check_result_path
from torchferry.cli.app import run

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

F = torch.float64
RETURN_MAP = ARTIFACTS / "return_map.pt"
BULK, SHEAR, YIELD, HARDENING = 166_667.0, 76_923.0, 250.0, 2_000.0
YOUNG = 9 * BULK * SHEAR / (3 * BULK + SHEAR)
NAMES = "strain[0],stress[1],stress[2],stress[3],stress[4],stress[5],steps"
UNIAXIAL = f"{NAMES}\n0,0,0,0,0,0,\n0.001,,,,,,4\n0.02,,,,,,19\n"


@pytest.fixture
def write(tmp_path):
    def write_table(text: str, name: str = "loads.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write_table


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def follow(path, archive=RETURN_MAP, points=None, initial=None):
    material = MaterialPoints(torchferry.load(archive), load_path.read_load_path(path), points or {}, initial or {})
    return material, material.run(lambda step: None, lambda *step: None)


def test_uniaxial_tension_of_a_material_that_hardens(write):
    material, results = follow(write(UNIAXIAL))
    strain, stress, ep = results["strain"][:, 0], results["stress"][:, 0], results["ep"][:, 0]
    # Linear hardening: stress = yield + H ep, and strain = stress / E + ep.
    plastic = (YIELD + HARDENING * strain[:, 0]) / (1 + HARDENING / YOUNG)
    wanted = torch.minimum(YOUNG * strain[:, 0], plastic)
    assert torch.allclose(stress[:, 0], wanted, rtol=1e-12, atol=0)
    assert float(stress[:, 1:].abs().max()) < 1e-10
    assert torch.allclose(ep, (strain[:, 0] - stress[:, 0] / YOUNG).clamp(min=0), atol=1e-9)
    assert int(results[CONTROL_STATUS].sum()) == 0
    check_control(material.model.contract, material.path, {}, results)


def test_stress_alone_is_prescribed(write):
    text = "stress[0],stress[1],stress[2],stress[3],stress[4],stress[5],steps\n0,0,0,0,0,0,\n300,,,,,,10\n0,,,,,,5\n"
    results = follow(write(text))[1]
    ep = (300.0 - YIELD) / HARDENING
    assert torch.allclose(results["ep"][-1], torch.tensor([ep], dtype=F), rtol=1e-11)
    assert torch.allclose(results["strain"][9, 0, 0], torch.tensor(300.0 / YOUNG + ep, dtype=F), rtol=1e-11)
    assert torch.allclose(results["strain"][-1, 0, :3], torch.tensor([ep, -ep / 2, -ep / 2], dtype=F), rtol=1e-9)


@pytest.mark.thorough
def test_the_same_path_by_strains_in_both_languages(write, tmp_path, capfd):
    history, output = tmp_path / "h.pt", tmp_path / "out.npz"
    table = "strain[0],stress[1],stress[2],strain[3],stress[4],stress[5],steps,block,repeat\n"
    table += "0,0,0,0,0,0,,,\n0.01,,,0.004,,,8,cycle,2\n-0.01,20,,0,,,16,cycle,\n"
    command = ["run", str(RETURN_MAP), "--table", str(write(table)), "-o", str(output), "--save-history", str(history)]
    assert run([*command, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["steps"] == 48
    assert run(["run", str(RETURN_MAP), "--history", str(history), "-o", str(tmp_path / "again.npz")]) == 0
    code, report = verify_natively(RETURN_MAP, "--history", history)
    assert code == 0, report
    ours, again = (numpy.load(path) for path in (output, tmp_path / "again.npz"))
    assert numpy.allclose(ours["stress"], again["stress"], rtol=1e-10, atol=1e-10)
    # The second time around it starts where the first ended.
    assert numpy.allclose(ours["strain"][[23, 47], 0, 0], -0.01)
    assert ours["ep"][47, 0] > ours["ep"][23, 0] > 0


@pytest.fixture(scope="module")
def own_yield_stress(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.pt"
    source = ARTIFACTS.parent / "examples" / "return_map.py"
    model = f"{source}:make_model"
    torchferry.export(model, output=path, derivatives="stress:strain", per_element="*.yield_stress")
    return path


@pytest.mark.thorough
def test_thousands_of_points_with_parameters_of_their_own(write, own_yield_stress):
    yields = torch.linspace(100.0, 400.0, 3000, dtype=F)
    rows = "\n".join(f"{value!r}" for value in yields.tolist())
    points = load_path.read_points(write(f"residual.yield_stress\n{rows}\n", "points.csv"))
    results = follow(write(UNIAXIAL), own_yield_stress, points)[1]
    assert results["stress"].shape == (23, 3000, 6)
    last = (yields + HARDENING * 0.02) / (1 + HARDENING / YOUNG)
    assert torch.allclose(results["stress"][-1, :, 0], last, rtol=1e-12)


def test_a_state_to_start_from(write, tmp_path):
    ep = torch.tensor(0.1, dtype=F)
    torch.save({"ep~1": ep}, tmp_path / "state.pt")
    results = follow(write(UNIAXIAL), initial={"ep~1": ep})[1]
    assert torch.allclose(results["stress"][3, 0, 0], torch.tensor(YOUNG * 0.001, dtype=F), rtol=1e-9)
    assert torch.allclose(results["ep"][0], ep)
    assert run(["run", str(RETURN_MAP), "--table", str(write(UNIAXIAL)), "--initial", str(tmp_path / "state.pt")]) == 0
    with pytest.raises(UsageError, match="no state 'epp'"):
        follow(write(UNIAXIAL), initial={"epp": ep})
    with pytest.raises(UsageError, match="has another shape"):
        follow(write(UNIAXIAL), initial={"ep~1": torch.zeros(2, dtype=F)})


class Viscous(nn.Module):
    """A rate of stress that relaxes, and expands with temperature; softens until no stress above 1 can be reached."""

    signature = torchferry.Signature.of({"e": (2,), "e~1": (2,), "s~1": (2,), "t": (), "t~1": (), "T": ()}, {"s": (2,)})

    def forward(self, e, e_old, s_old, t, t_old, temperature):
        relaxed = s_old / (1 + (t - t_old).unsqueeze(-1))
        return relaxed + 2 * torch.sin(e - e_old) - 0.01 * (temperature.unsqueeze(-1) - 20.0)


@pytest.fixture(scope="module")
def viscous(tmp_path_factory):
    path = tmp_path_factory.mktemp("viscous") / "v.pt"
    torchferry.export(Viscous(), output=path, derivatives="s:e")
    return path


def test_holds_time_and_temperature(write, viscous):
    text = "e[0],s[1],T,duration,steps\n0,0,20,,\n0.1,,,0,1\n,,,3,3\n,0.1,30,0,2\n"
    results = follow(write(text), viscous)[1]
    assert results["t"][:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 3.0, 3.0]
    first = 2 * torch.sin(torch.tensor(0.1, dtype=F))
    assert torch.allclose(results["s"][:4, 0, 0], first / torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=F))
    assert results["T"][:, 0].tolist() == [20.0, 20.0, 20.0, 20.0, 25.0, 30.0]
    assert torch.allclose(results["s"][4:, 0, 1], torch.tensor([0.05, 0.1], dtype=F))


def test_a_load_that_cannot_be_reached(write, viscous, tmp_path, capfd):
    points = write("T\n20\n-160\n", "points.csv")
    table = write("e[0],s[1],duration,steps\n0,0,,\n0,1,1,2\n0,4,1,1\n")
    output = tmp_path / "out.csv"
    command = ["run", str(viscous), "--table", str(table), "--points", str(points), "-o", str(output)]
    assert run(command) == 4
    assert "1 of 2 points do not follow the path" in capfd.readouterr().err
    assert run([*command, "--json"]) == 4
    assert json.loads(capfd.readouterr().out)["exit_code"] == 4
    rows = read_rows(output)
    lost = [row for row in rows if row["point"] == "0" and row[CONTROL_STATUS] != "0"]
    assert {row["s[1]"] for row in lost} == {"nan"}
    reached = [row for row in rows if row["point"] == "1"]
    assert all(row[CONTROL_STATUS] == "0" for row in reached)
    assert float(reached[-1]["s[1]"]) == pytest.approx(4.0, rel=1e-9)


class Step(nn.Module):
    """What the last step has changed, and outputs of very different scales."""

    signature = torchferry.Signature.of(
        {"T": (), "T~1": (), "e": (), "g": (), "F": (2, 2), "F~1": (2, 2)},
        {"dT": (), "s": (), "q": (), "P": (2, 2)},
    )

    def forward(self, temperature, before, e, g, gradient, gradient_before):
        stress = torch.sinh(gradient - gradient_before) + 0.1 * gradient.transpose(-1, -2)
        return temperature - before, 2e5 * torch.sinh(e), 1e-9 * torch.sinh(g), stress


@pytest.fixture(scope="module")
def stepping(tmp_path_factory):
    path = tmp_path_factory.mktemp("step") / "s.pt"
    torchferry.export(Step(), output=path, derivatives=["s:e", "q:g", "P:F"])
    return path


MATRIX = '"F[0,0]","P[0,1]","F[1,0]","P[1,1]"'


def test_starts_and_scales(write, stepping, tmp_path):
    table = write(f"T,s,q,{MATRIX},steps\n293.15,0,0,1,0,0,0,\n293.15,200,1e-10,1.1,0.2,0,0.3,2\n")
    results = follow(table, stepping)[1]
    # A start that float32 does not hold.
    assert not results["dT"].any()
    assert torch.allclose(results["q"][:, 0], torch.tensor([5e-11, 1e-10], dtype=F), rtol=1e-9)
    assert torch.allclose(results["P"][-1, 0, 0, 1], torch.tensor(0.2, dtype=F), rtol=1e-9)
    (tmp_path / "state.json").write_text('{"T~1": 293.15, "F~1": [[1, 0], [0, 1]]}')
    command = ["run", str(stepping), "--table", str(table), "-o", str(tmp_path / "out.npz")]
    assert run([*command, "--initial", str(tmp_path / "state.json")]) == 0
    assert not numpy.load(tmp_path / "out.npz")["dT"].any()
    with pytest.raises(UsageError, match="no state 'F'"):
        follow(table, stepping, initial={"F": torch.eye(2, dtype=F).T})
    # A matrix that lies in memory by columns.
    assert torch.allclose(follow(table, stepping, initial={"F~1": torch.eye(2, dtype=F).T})[1]["P"], results["P"])


def test_points_hold_at_every_step(write, stepping):
    table = write(f"s,q,{MATRIX},steps\n0,0,1,0,0,0,\n200,1e-10,1,0.1,0,0.1,3\n")
    results = follow(table, stepping, {"T": torch.tensor([10.0, 20.0], dtype=F)})[1]
    assert results["T"].tolist() == [[10.0, 20.0]] * 3


@pytest.mark.parametrize("name", ["T", "q"])
def test_a_value_that_is_none_or_another_points_is_seen(write, stepping, name):
    table = write(f"s,q,{MATRIX},steps\n0,0,1,0,0,0,\n200,1e-10,1,0.1,0,0.1,3\n")
    points = {"T": torch.tensor([10.0, 20.0], dtype=F)}
    material, results = follow(table, stepping, points)
    check_control(material.model.contract, material.path, points, results)
    results[name][1, 1] = float("nan") if name == "q" else 10.0
    with pytest.raises(MismatchError, match=f"{name}, step 1, point 1"):
        check_control(material.model.contract, material.path, points, results)


class Single(nn.Module):
    """In float32, with an input of whole numbers."""

    signature = torchferry.Signature.of(
        {"e": torchferry.TensorSpec("e", (2,), "float32"), "mode": torchferry.TensorSpec("mode", (), "int64")},
        {"s": torchferry.TensorSpec("s", (2,), "float32")},
    )

    def forward(self, e, mode):
        return 3.1 * torch.sinh(e) + 0.7 * e.flip(-1) + mode.unsqueeze(-1)


def test_single_precision_and_whole_numbers(write, tmp_path, capfd):
    path = tmp_path / "single.pt"
    torchferry.export(Single(), output=path, derivatives="s:e")
    table = write("e[0],s[1],steps\n0,0,\n0.1,,3\n")
    points = write("mode\n0\n1\n", "points.csv")
    assert run(["run", str(path), "--table", str(table), "--points", str(points)]) == 0
    write("mode\n0.7\n", "points.csv")
    capfd.readouterr()
    assert run(["run", str(path), "--table", str(table), "--points", str(points)]) == 2
    assert "'mode' takes whole numbers" in capfd.readouterr().err


def test_files_that_have_no_material_points(write, tmp_path):
    class Whole(nn.Module):
        signature = torchferry.Signature.of({"x": ("n",)}, {"y": ("n",)})

        def forward(self, x):
            return 2 * x

    class Renamed(nn.Module):
        signature = torchferry.Signature.of({"p~1": (), "x": ()}, {"p_new": ()})

        def forward(self, p, x):
            return p + x

    for module, message in ((Whole(), "no material points"), (Renamed(), "nothing gives 'p~1' its value")):
        torchferry.export(module, output=tmp_path / "m.pt")
        with pytest.raises(UsageError, match=message):
            follow(write("x\n0\n1\n"), tmp_path / "m.pt")


@pytest.mark.parametrize("suffix", mark_thorough_after(2, [".csv", ".npz", ".parquet", ".pt"]))
def test_results_in_every_format(write, tmp_path, suffix):
    output = tmp_path / f"out{suffix}"
    assert run(["run", str(RETURN_MAP), "--table", str(write(UNIAXIAL)), "-o", str(output)]) == 0
    wanted = follow(write(UNIAXIAL))[1]["stress"][:, 0, 0]
    if suffix == ".csv":
        got = [float(row["stress[0]"]) for row in read_rows(output)]
    elif suffix == ".npz":
        got = numpy.load(output)["stress"][:, 0, 0]
    elif suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        got = parquet.read_table(output)["stress[0]"].to_numpy()
    else:
        got = torch.load(output, weights_only=True)["stress"][:, 0, 0].numpy()
    assert numpy.array_equal(numpy.asarray(got), wanted.numpy())


def test_a_format_whose_writer_is_missing(write, tmp_path, monkeypatch):
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingRuntimeError, match="pip install"):
        check_result_path(tmp_path / "out.parquet")
    assert run(["run", str(RETURN_MAP), "--table", str(write(UNIAXIAL)), "-o", str(tmp_path / "out.xlsx")]) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (UNIAXIAL.replace("strain[0]", "strian[0]"), "no variable 'strian'"),
        (UNIAXIAL.replace("strain[0]", "strain[6]"), "no such component"),
        (UNIAXIAL.replace("strain[0]", "strain"), "no such component"),
        (UNIAXIAL.replace("stress[5]", "stress[0]"), "prescribed twice"),
        (UNIAXIAL.replace("stress[5]", "ep"), "no tangent by which 'ep' could be controlled"),
        (UNIAXIAL.replace("stress[5]", "strain~1[0]"), "not prescribed in a step"),
        ("strain[0],stress[1],steps\n0,0,\n1,0,1\n", "'strain\\[2\\]' is not prescribed"),
        (UNIAXIAL.replace("0.001", "one"), "row 2, strain"),
        (UNIAXIAL.replace("0.001", "nan"), "a cell is no number"),
        (UNIAXIAL.replace(",4\n", ",0\n"), "no number of times"),
        (UNIAXIAL.replace(",4\n", ",1e9\n"), "no number of times"),
        (UNIAXIAL.replace(",4\n", ",4,4\n"), "another number of cells"),
        (UNIAXIAL.replace("0,0,0,0,0,0,", "0,,0,0,0,0,"), "no value at the start"),
        (f"{NAMES}\n0,0,0,0,0,0,\n", "no path of loads"),
        (UNIAXIAL.replace("steps", "stress[4]"), "no table"),
        ("", "no table"),
        ("F[0,1],x\n1,2\n", "in quotes if they have commas"),
        (UNIAXIAL.replace("0.001", "1" * 200_000), "cannot be read"),
        (UNIAXIAL.replace(",4\n", f",{'1' * 5000}\n"), "no number of times"),
        (UNIAXIAL.replace("strain[0]", f"strain[{'1' * 5000}]"), "no variable"),
        (UNIAXIAL.replace("0,0,0,0,0,0,", "0,0,0,0,0,0,3"), "the start has a value of 'steps'"),
        ("x,steps,block,repeat\n0,,,\n1,1,a,\n2,1,a,3\n", "as its first row says"),
        ("x,duration\n0,\n1,-1\n", "time would go back"),
        ("e[0],t,duration\n0,0,\n1,1,1\n", "time is given twice"),
        ("x,t,block,repeat\n0,0,,\n1,1,a,2\n", "time would go back"),
        ("x,steps,block,repeat\n0,,,\n1,1000000,a,1000000\n", "too many steps"),
    ],
)
def test_tables_that_do_not_fit(write, text, message):
    with pytest.raises(UsageError, match=message):
        follow(write(text))


def test_calls_that_contradict_themselves(write, tmp_path, capfd):
    table = str(write(UNIAXIAL))
    for options in ([], ["--table", table, "--history", table], ["--history", table, "--points", table]):
        assert run(["run", str(RETURN_MAP), *options]) == 2
    assert run(["run", str(RETURN_MAP), "--table", str(tmp_path / "none.csv")]) == 2
    bare = tmp_path / "bare.pt"
    torchferry.export(Viscous(), output=bare)
    assert run(["run", str(bare), "--table", str(write("e[0],s[1],t,T\n0,0,0,20\n1,1,1,20\n"))]) == 2
    assert "export it with --derivative s:INPUT" in capfd.readouterr().err


@pytest.mark.parametrize("fault", ["another component", "a tangent of zeros", "an output that is not looked at"])
def test_control_that_goes_wrong_is_seen(write, monkeypatch, fault):
    """Planted: the path is not followed, and the check that compares by names says so."""
    if fault == "another component":
        plan = mixed_control.plan_control

        def shifted(*arguments):
            original = plan(*arguments)
            places = [*original.outputs.values()]
            moved = dict(zip(original.outputs, [("stress", (0,)), *places[1:]], strict=True))
            return dataclasses.replace(original, outputs=moved)

        monkeypatch.setattr(mixed_control, "plan_control", shifted)
    elif fault == "a tangent of zeros":
        monkeypatch.setattr(MaterialPoints, "_read_entry", lambda self, *_: torch.zeros(self.count, dtype=F))
    else:
        monkeypatch.setattr(MaterialPoints, "_is_reached", lambda self, *_: torch.ones(self.count, dtype=torch.bool))
    material, results = follow(write(UNIAXIAL.replace("0.001,", "0.001,30")))
    if fault == "a tangent of zeros":
        assert results[CONTROL_STATUS].tolist()[0] == [mixed_control.SINGULAR]
    else:
        with pytest.raises(MismatchError, match="not what the path says") as caught:
            check_control(material.model.contract, material.path, {}, results)
        assert caught.value.details["check"] == "control"
