"""FMUs: the functions of FMI by the self-test; validated and simulated by FMPy."""

from __future__ import annotations

import ctypes
import json
import math
import re
import subprocess
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.integrate
from host_environments import need_environment, run_in
from material_hosts import Wrapped, wrap
from project import ARTIFACTS, make_once, mark_thorough_after, skip_checks

import torchferry
from exporter.hosts.fmu import FmuOptions
from torchferry.cli.app import run

FMPY = "0.3.32"
RATES = {"robertson": (("y", "rate"),), "driven": (("x", "x_rate"), ("v", "v_rate"))}
DRIVEN = '''
import torch
import torchferry
from torch import nn


class Driven(nn.Module):
    """An oscillator with a force, and its energy: two states, an input, the time, and an output."""

    signature = torchferry.Signature.of(
        {"x": torchferry.TensorSpec("x", unit="m"), "v": torchferry.TensorSpec("v", unit="m/s"), "force": (), "t": ()},
        {"x_rate": (), "v_rate": (), "energy": ()},
    )

    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor(4.0, dtype=torch.float64))
        values = torch.linspace(0.1, 1.0, 8, dtype=torch.float64)
        self.__dict__["example_inputs"] = {"x": values, "v": -values, "force": 0.5 * values, "t": 2 * values}

    def forward(self, x, v, force, t):
        return v, force * torch.sin(t) - self.stiffness * x, 0.5 * (v * v + self.stiffness * x * x)
'''


@pytest.fixture(scope="module")
def kernels(shared: Path, solid: Path) -> dict[str, Path]:
    def make(folder: Path) -> None:
        (folder / "driven.py").write_text(DRIVEN)
        with skip_checks():
            torchferry.export(
                f"{folder / 'driven.py'}:Driven",
                output=folder / "driven",
                formats="c",
                derivatives="*_rate:*",
                units=["energy=J", "x_rate=m/s", "stiffness=s^-2", 'force=N "<&>"'],
            )
        for name in ("robertson", "rates"):
            assert run(["convert", str(ARTIFACTS / f"{name}.pt"), "--to", "c", "-o", str(folder / name)]) == 0

    folder = make_once(shared / "fmu kernels", make)
    return {name: folder / name for name in ("robertson", "rates", "driven")} | {"solid": solid.with_suffix("")}


@pytest.fixture(scope="module")
def wrap_fmu(kernels, shared) -> Callable[[str, str], Wrapped]:
    def make(name: str, version: str) -> Wrapped:
        options = FmuOptions(version, RATES.get(name, ()))
        folder = make_once(shared / f"fmu {name} {version}", lambda f: wrap("fmu", kernels[name], f / "w", options))
        (library,) = (folder / "w").glob("lib*.so")
        return Wrapped(folder / "w", library.name.removeprefix("lib").removesuffix("_fmu.so"), "fmu", library)

    return make


@pytest.mark.parametrize("version", ["3.0", "2.0"])
@pytest.mark.parametrize("name", mark_thorough_after(2, ["robertson", "rates", "driven", "solid"]))
def test_the_self_test_passes(wrap_fmu, name, version):
    result = wrap_fmu(name, version).run_self_test(sanitize=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert not result.stdout.startswith("0 rows")


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    mark_thorough_after(
        2,
        [
            ("solid", "memcpy(m->memory + 0, m->values", "memcpy(m->memory + 1, m->values"),
            ("solid", "!(step > 0.0)", "0"),
            ("rates", "&m->last_time", "&time"),
            ("driven", "|| !settable[references[i]] ||", "||"),
            (
                "driven",
                "m->values[references[i]] = values[i];\n  m->is_stale = 1;",
                "m->values[references[i]] = values[i];",
            ),
            ("driven", "strcmp(token, TOKEN) != 0", "0"),
        ],
    ),
)
def test_a_planted_fault_is_seen(kernels, tmp_path, name, right, wrong):
    wrapped = wrap("fmu", kernels[name], tmp_path / "w", FmuOptions(rates=RATES.get(name, ())))
    wrapped.plant(right, wrong)
    assert wrapped.run_self_test().returncode == 1


def test_a_step_without_a_result_is_discarded(point_kernels, tmp_path):
    wrapped = wrap("fmu", point_kernels["limited"], tmp_path / "w", FmuOptions("2.0"))
    library = ctypes.CDLL(str(wrapped.library))
    library.fmi2Instantiate.restype = ctypes.c_void_p
    token = re.search(r'#define TOKEN "(\w+)"', (wrapped.folder / "Limited_fmu.c").read_text())
    assert token is not None
    instance = ctypes.c_void_p(library.fmi2Instantiate(b"test", 1, token[1].encode(), b"", None, 0, 0))
    assert instance.value
    description = (wrapped.folder / "modelDescription.xml").read_text()
    reference = {
        name: int(re.search(rf'name="{re.escape(name)}" valueReference="(\d+)"', description)[1])  # pyright: ignore
        for name in ("strain[1]", "stress[1]")
    }

    def move(name: str, value: float) -> int:
        return library.fmi2SetReal(
            instance, ctypes.byref(ctypes.c_uint(reference[name])), 1, ctypes.byref(ctypes.c_double(value))
        )

    def read(name: str) -> float:
        value = ctypes.c_double()
        assert library.fmi2GetReal(instance, ctypes.byref(ctypes.c_uint(reference[name])), 1, ctypes.byref(value)) == 0
        return value.value

    def step(start: float) -> int:
        return library.fmi2DoStep(instance, ctypes.c_double(start), ctypes.c_double(0.5), 0)

    assert library.fmi2SetupExperiment(instance, 0, ctypes.c_double(0), ctypes.c_double(0), 0, ctypes.c_double(0)) == 0
    for i in range(1, 7):
        reference[f"strain[{i}]"] = reference["strain[1]"] + i - 1
        assert move(f"strain[{i}]", 0.0) == 0
    assert library.fmi2ExitInitializationMode(instance) == 0
    assert move("strain[1]", 1e-3) == 0
    assert step(0.0) == 0
    stress = read("stress[1]")
    assert stress > 100
    assert move("strain[1]", 1.0) == 0
    assert step(0.5) == 2
    assert read("stress[1]") == stress
    assert move("strain[1]", 2e-3) == 0
    assert step(0.5) == 0
    assert math.isclose(read("stress[1]"), 2 * stress, rel_tol=1e-9)
    library.fmi2FreeInstance(instance)


@pytest.mark.parametrize("version", ["3.0", "2.0"])
def test_the_description_has_units(wrap_fmu, version):
    root = ElementTree.parse(wrap_fmu("driven", version).folder / "modelDescription.xml").getroot()
    declared = [unit.attrib["name"] for unit in root.iterfind("UnitDefinitions/Unit")]
    assert sorted(declared) == ["J", 'N "<&>"', "m", "m/s", "s^-2"]
    numbers = {v.attrib["name"]: v if version == "3.0" else v[0] for v in root.iterfind("ModelVariables/*")}
    units = {name: number.attrib.get("unit", "") for name, number in numbers.items()}
    expected = {
        "x": "m",
        "v": "m/s",
        "energy": "J",
        "stiffness": "s^-2",
        "force": 'N "<&>"',
        "time": "",
        "x_rate": "m/s",
    }
    assert units.items() >= expected.items()
    without = wrap_fmu("robertson", version).folder / "modelDescription.xml"
    assert not re.search("unit=|UnitDefinitions", without.read_text())


def test_what_does_not_fit(kernels, tmp_path, capfd):
    for name, options, message in (
        ("robertson", ["--rate", "x:rate"], "no input 'x'"),
        ("robertson", ["--rate", "y:speed"], "no output 'speed'"),
        ("robertson", ["--rate", "y"], "STATE:RATE"),
        ("robertson", ["--fmi", "1.0"], "3.0 or 2.0"),
        ("solid", ["--rate", "strain:stress"], "the step before"),
        ("driven", ["--rate", "x:energy", "--fmi", "2.5"], "3.0 or 2.0"),
    ):
        assert run(["wrap", "fmu", str(kernels[name]), "-o", str(tmp_path / "not"), *options]) == 2, message
        assert message in capfd.readouterr().err
    assert not (tmp_path / "not").exists()


def build_fmu(wrapped: Wrapped) -> str:
    subprocess.run(["make", "CFLAGS=-O1"], cwd=wrapped.folder, check=True, capture_output=True)
    return str(wrapped.folder / f"{wrapped.name}.fmu")


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["3.0", "2.0"])
def test_fmpy_validates_and_simulates(wrap_fmu, solid, version, tmp_path):
    python = need_environment("fmpy", f"fmpy=={FMPY}")
    times = np.linspace(0.0, 1.0, 21)
    ramps = {"time": times, **{f"strain[{i + 1}]": 4e-3 * times * (1.0 if i == 0 else 0.1) for i in range(6)}}
    jobs: list[dict[str, Any]] = [
        *({"fmu": "robertson", "kind": kind, "stop": 40.0, "interval": 4.0, "input": None,
           "starts": {"y[1]": 1.0, "y[2]": 0.0, "y[3]": 0.0}, "outputs": ["y[1]", "y[2]", "y[3]"]}
          for kind in ("ModelExchange", "CoSimulation")),
        *({"fmu": "driven", "kind": kind, "stop": 2.0, "interval": 0.25, "input": None,
           "starts": {"x": 1.0, "v": 0.0, "force": 0.5, "stiffness": 9.0}, "outputs": ["x", "v", "energy"]}
          for kind in ("ModelExchange", "CoSimulation")),
        {"fmu": "solid", "kind": "CoSimulation", "stop": 1.0, "interval": 0.05,
         "input": {n: list(map(float, v)) for n, v in ramps.items()}, "starts": {},
         "outputs": [*(f"stress[{i}]" for i in range(1, 7)), "ep"]},
    ]  # fmt: skip
    for job in jobs:
        job["fmu"] = build_fmu(wrap_fmu(job["fmu"], version))
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    (results,) = run_in(python, str(Path(__file__).with_name("fmu_cases.py")), "jobs.json", folder=tmp_path)
    assert [r["problems"] for r in results] == [[]] * len(jobs)
    # Hairer and Wanner's values at 40 (Solving Ordinary Differential Equations II).
    for result, error in zip(results[:2], (1e-5, 1e-6), strict=True):
        end = result["rows"][-1]
        assert end[0] == 40.0
        assert np.allclose(end[1:], [0.7158270688, 9.185534764e-06, 0.2841637457], rtol=0, atol=error)
    exact = scipy.integrate.solve_ivp(
        lambda t, y: [y[1], 0.5 * math.sin(t) - 9.0 * y[0]], (0.0, 2.0), [1.0, 0.0], rtol=1e-11, atol=1e-12
    ).y[:, -1]
    energy = 0.5 * (exact[1] ** 2 + 9.0 * exact[0] ** 2)
    for result in results[2:4]:
        assert np.allclose(result["rows"][-1][1:], [*exact, energy], rtol=0, atol=1e-4)
    check_history(results[4]["rows"], solid)


def check_history(rows: list[list[float]], solid: Path) -> None:
    """Inputs of co-simulation are those that were set before a step: the row of a step is of the row before."""
    model = torchferry.load(solid.with_suffix(""))
    old, stress, ep = np.zeros((1, 6)), np.zeros((1, 6)), np.zeros(1)
    for before, row in pairwise(rows):
        strain = np.array([[4e-3 * before[0] * (1.0 if i == 0 else 0.1) for i in range(6)]])
        stress, ep = model(strain, old, stress, ep)
        old = strain
        assert np.allclose(row[1:], [*stress[0], ep[0]], rtol=1e-9, atol=1e-9)
    assert ep[0] > 1e-4


def test_the_sources_are_in_the_fmu(wrap_fmu):

    with zipfile.ZipFile(build_fmu(wrap_fmu("driven", "3.0"))) as archive:
        names = set(archive.namelist())
    assert {"modelDescription.xml", "sources/Driven_fmu.c", "sources/Driven.c"} <= names
    assert any(name.startswith("binaries/") and name.endswith("/Driven.so") for name in names)
    # Nothing of the folders in which it was made.
    assert {name.partition("/")[0] for name in names} == {"modelDescription.xml", "sources", "binaries"}
