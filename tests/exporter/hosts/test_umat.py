"""UMAT: as hosts call it, in Fortran, from C with null arguments, for every NTENS; what does not fit a host."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from material_hosts import Umat, UmatResult, Wrapped, wrap
from project import ROOT, make_once, mark_thorough_after, need

import torchferry
from exporter.hosts.small_strain import PointOptions
from exporter.hosts.umat import UmatOptions
from torchferry.cli.app import run

SOLVERS = ROOT / "examples" / "solvers"
F = torch.float64
FORTRAN = ["gfortran", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fcheck=all"]
# Stops where a host would.
TRAPS = ["-ffpe-trap=zero,invalid,overflow"]
RICH = PointOptions(energy="energy", fields=("wear",))


@pytest.fixture(scope="module")
def wrap_umat(point_kernels, shared) -> Callable[..., Wrapped]:
    def make(name: str, options: UmatOptions | None = None, title: str = "") -> Wrapped:
        folder = shared / f"umat {name} {title}"
        wrapped: list[Wrapped] = []
        chosen = options or UmatOptions(RICH if name == "rich" else PointOptions())
        make_once(folder, lambda f: wrapped.append(wrap("umat", point_kernels[name], f / "umat", chosen)))
        (library,) = (folder / "umat").glob("lib*.so")
        return Wrapped(folder / "umat", library.name.removeprefix("lib").removesuffix("_umat.so"), "umat", library)

    return make


@pytest.fixture(scope="module")
def solid_umat(wrap_umat) -> Wrapped:
    return wrap_umat("solid")


def program(wrapped: Wrapped, main: Path, output: Path) -> Path:
    need(shutil.which("gfortran") is not None, "gfortran is not installed")
    command = [*FORTRAN, *TRAPS, str(main), str(wrapped.library), f"-Wl,-rpath,{wrapped.folder}"]
    subprocess.run([*command, "-o", str(output), "-J", str(output.parent)], check=True)
    return output


def test_an_element_under_a_history_of_strain(solid_umat, solid, tmp_path):
    result = program(solid_umat, SOLVERS / "umat_element.f90", tmp_path / "element")
    message = subprocess.run([str(result)], capture_output=True, text=True, check=True).stdout
    rows = np.array([[float(v) for v in line.split()] for line in message.splitlines()])
    model = torchferry.load(solid, engine="torchscript")
    strain, stress, ep = torch.zeros(1, 6, dtype=F), torch.zeros(1, 6, dtype=F), torch.zeros(1, dtype=F)
    plastic = 0
    for step, row in enumerate(rows):
        old, strain = strain, strain.clone()
        strain[0, 0] += 2.5e-4 if step < 20 else -2.5e-4
        # Abaqus' fourth is the engineering shear strain xy, the sixth in Mandel notation.
        strain[0, 5] += 1e-4 / math.sqrt(2)
        before = float(ep)
        stress, ep = model(strain, old, stress, ep)
        plastic += float(ep) > before + 1e-9
        s = stress[0].numpy()
        wanted = [float(strain[0, 0]), *s[:3], s[5] / math.sqrt(2), s[4] / math.sqrt(2), s[3] / math.sqrt(2), float(ep)]
        assert np.allclose(row, wanted, rtol=1e-9, atol=1e-9), step
    assert 5 < plastic < 35


def test_the_tangent_is_the_derivative(solid_umat, tmp_path):
    result = program(solid_umat, SOLVERS / "umat_element.f90", tmp_path / "element")
    assert subprocess.run([str(result), "check"], check=False, capture_output=True).returncode == 0


def copy(wrapped: Wrapped, folder: Path) -> Wrapped:
    shutil.copytree(wrapped.folder, folder)
    return Wrapped(folder, wrapped.name, "umat", folder / wrapped.library.name)


@pytest.fixture
def copied(solid_umat, tmp_path) -> Wrapped:
    return copy(solid_umat, tmp_path / "copied")


@pytest.mark.parametrize("name", ["solid", "anisotropic", "rich", "limited"])
def test_the_self_test_passes(wrap_umat, name):
    result = wrap_umat(name).run_self_test(sanitize=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "12 rows of cases" in result.stdout


@pytest.mark.parametrize(
    ("right", "wrong"),
    mark_thorough_after(
        3,
        [
            ("scale(has[i]) * scale(has[j]) * tangent", "tangent"),
            ("tangent[6 * has[i] + has[j]];\n  }", "tangent[6 * has[j] + i];\n  }"),
            ("strain[has[i]] = scale(has[i]) * (stran[i] + dstran[i])", "strain[has[i]] = scale(has[i]) * dstran[i]"),
            ("stress_old[has[i]] = stress[i] / scale(has[i])", "stress_old[has[i]] = stress[i]"),
            ("statev[i] = states[i]", "statev[i] = 0.0 * states[i]"),
            ("*pnewdt = part < *pnewdt ? part : *pnewdt;", "*pnewdt = part < 0.0 ? part : *pnewdt;"),
            ("for (int i = 0; i < ntens; i++) stress[i] = NAN;", "for (int i = 0; i < ntens; i++) stress[i] = 0.0;"),
        ],
    ),
)
def test_a_planted_fault_is_seen(copied, right, wrong):
    copied.plant(right, wrong)
    assert copied.run_self_test().returncode == 1


def test_another_order_of_shears_is_seen(wrap_umat, tmp_path):
    """By a law without symmetry: no other tells them apart."""
    wrapped = copy(wrap_umat("anisotropic"), tmp_path / "copied")
    wrapped.plant("shears[3] = { 5, 4, 3 }", "shears[3] = { 5, 3, 4 }")
    assert wrapped.run_self_test().returncode == 1


def test_the_makefile_builds_and_tests(copied):
    command = ["make", "CFLAGS=-O0", "test"]
    (copied.folder / "kernel.o").unlink()
    copied.library.unlink()
    result = subprocess.run(command, cwd=copied.folder, capture_output=True, text=True, check=True)
    assert "passed" in result.stdout
    subprocess.run(["make", "clean"], cwd=copied.folder, capture_output=True, check=True)
    assert not copied.library.exists()


PATHS = {
    # NDI and the increments of one step, NTENS of them.
    "solid": (3, [4e-4, -1e-4, 2e-5, 3e-4, 1e-4, -5e-5]),
    "plane strain": (3, [4e-4, -1e-4, 0.0, 3e-4]),
    "plane stress": (2, [4e-4, -1e-4, 3e-4]),
    "beam": (1, [4e-4, 2e-4]),
    "truss": (1, [4e-4]),
}


@pytest.mark.parametrize("name", ["solid", "anisotropic"])
@pytest.mark.parametrize("path", PATHS)
def test_every_ntens(wrap_umat, name, path):
    """The stresses that an element lacks are zero, and the tangent is that of those it has."""
    umat = Umat(wrap_umat(name).library)
    directs, change = PATHS[path]
    count, states = len(change), 1 if name == "solid" else 0
    missing = 6 - count if directs < 3 else 0
    increments = np.array(change)
    stress, statev, strain = np.zeros(count), np.zeros(states + missing), np.zeros(count)
    full = UmatResult(np.zeros(6), np.zeros(states), np.zeros((6, 6)), 1.0, np.zeros(2))
    full_strain = np.zeros(6)
    here = [*range(directs), *range(3, 3 + count - directs)]
    for _ in range(6):
        result = umat(stress, statev, strain, increments, directs)
        assert result.pnewdt == 1.0
        numeric = np.empty((count, count))
        for j in range(count):
            moved = np.eye(count)[j] * 1e-8
            ahead, behind = (umat(stress, statev, strain, increments + s * moved, directs).stress for s in (1, -1))
            numeric[:, j] = (ahead - behind) / 2e-8
        largest = np.abs(numeric).max()
        assert np.allclose(result.tangent, numeric, rtol=0, atol=1e-7 * largest)
        strain = strain + increments
        # The same step with all components: the strains that were found are those of a stress of zero.
        now = np.zeros(6)
        now[here] = strain
        if missing:
            others = [c for c in range(6) if c not in here]
            # The model's order of the shears is the host's from behind.
            model = [0, 1, 2, 5, 4, 3]
            zero_strains = dict(zip(sorted(model[c] for c in others), result.states[states:], strict=True))
            now[others] = [zero_strains[model[c]] * (1 if c < 3 else math.sqrt(2)) for c in others]
        full = umat(full.stress, full.states, full_strain, now - full_strain)
        full_strain = now
        assert np.allclose(full.stress[here], result.stress, rtol=1e-9, atol=1e-9)
        if missing:
            assert np.abs(np.delete(full.stress, here)).max() < 1e-8
        stress, statev = result.stress, result.states
    if name == "solid":
        assert statev[0] > 1e-4


def test_an_element_in_plane_stress_of_the_textbook(solid_umat):
    """Uniaxial stress: the slope after yield is E H / (E + H)."""
    umat = Umat(solid_umat.library)
    bulk, shear, hardening = 166_667.0, 76_923.0, 2_000.0
    young = 9 * bulk * shear / (3 * bulk + shear)
    result = umat([0.0], np.zeros(6), [0.0], [4e-3], directs=1)
    after = umat(result.stress, result.states, [4e-3], [1e-3], directs=1)
    slope = young * hardening / (young + hardening)
    assert math.isclose(after.stress[0] - result.stress[0], 1e-3 * slope, rel_tol=1e-6)
    assert math.isclose(after.tangent[0, 0], slope, rel_tol=1e-6)


@pytest.mark.parametrize("order", [("xy", "xz", "yz"), ("xy", "yz", "xz"), ("yz", "xz", "xy")])
def test_the_order_of_shears(wrap_umat, point_kernels, order):
    umat = Umat(wrap_umat("anisotropic", UmatOptions(shear_order=order), "".join(order)).library)
    model = torchferry.load(point_kernels["anisotropic"])
    places = [0, 1, 2, *({"yz": 3, "xz": 4, "xy": 5}[s] for s in order)]
    scales = np.array([1.0, 1.0, 1.0, *[math.sqrt(0.5)] * 3])
    for j in range(6):
        strain = np.eye(6)[j] * 1e-3
        full = np.zeros((1, 6))
        full[0, places] = strain * scales
        (wanted,) = model(full)
        result = umat(np.zeros(6), [], np.zeros(6), strain)
        assert np.allclose(result.stress, wanted[0, places] * scales, rtol=1e-12, atol=1e-12)


def call_rich(umat: Umat, **changes: Any) -> UmatResult:
    known: dict[str, Any] = {
        "time": (7.0, 1.0),
        "step": 0.25,
        "temperature": (300.0, 20.0),
        "fields": [(0.1, 0.05)],
        "properties": [1e-5, 1.5e3],
        "energies": (2.0, 5.0),
    }
    return umat(np.full(6, 0.5), np.full(6, 1e-5), np.zeros(6), [1e-3, 0, 0, 2e-4, 0, 0], **(known | changes))


def test_temperature_fields_time_and_energies(wrap_umat, point_kernels):
    umat = Umat(wrap_umat("rich").library)
    result = call_rich(umat)
    model = torchferry.load(point_kernels["rich"])
    strain, flow = np.zeros((1, 6)), np.full((1, 6), 1e-5)
    strain[0, 0], strain[0, 5] = 1e-3, 2e-4 * math.sqrt(0.5)
    inputs = {"strain": strain, "flow~1": flow, "T": 320.0, "T~1": 300.0, "wear": 0.15, "wear~1": 0.1}
    inputs |= {"t": 1.25, "t~1": 1.0, "modulus": 1.5e3}
    arguments = [np.atleast_1d(inputs[s.name]) for s in model.contract.inputs]
    stress, flow, energy = model(*arguments)
    scales = np.array([1.0, 1.0, 1.0, *[math.sqrt(0.5)] * 3])
    wanted = stress[0, [0, 1, 2, 5, 4, 3]] * scales
    assert np.allclose(result.stress, wanted, rtol=1e-12)
    assert np.allclose(result.states, flow[0], rtol=1e-12)
    work = 0.5 * (0.5 + wanted) @ np.array([1e-3, 0, 0, 2e-4, 0, 0])
    assert np.allclose(result.energies, [energy[0], 5.0 + work - (energy[0] - 2.0)], rtol=1e-12)


@pytest.mark.parametrize("changes", [{"temperature": None}, {"fields": None}, {"properties": []}])
def test_what_the_host_does_not_give_is_refused(wrap_umat, changes, tmp_path, capfd):
    # A library of its own, for what is said is said once.
    umat = Umat(Path(shutil.copy(wrap_umat("rich").library, tmp_path)))
    asked, without = call_rich(umat, **changes), call_rich(umat, **changes, pnewdt=None)
    assert asked.pnewdt == 0.0
    assert np.array_equal(asked.stress, np.full(6, 0.5))
    assert np.isnan(without.stress).all()
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_wrong_count_of_properties_is_no_material(wrap_umat, tmp_path, capfd):
    """The model has one: none and two mean what was exported, and a number that is too many is a mistake."""
    umat = Umat(Path(shutil.copy(wrap_umat("limited").library, tmp_path)))
    strain = [1e-3, 0, 0, 0, 0, 0]
    exported = umat(np.zeros(6), [], np.zeros(6), strain).stress
    assert np.array_equal(umat(np.zeros(6), [], np.zeros(6), strain, properties=[0.0, 0.0]).stress, exported)
    assert np.allclose(umat(np.zeros(6), [], np.zeros(6), strain, properties=[4e5]).stress, 2 * exported, rtol=1e-12)
    assert umat(np.ones(6), [], np.zeros(6), strain, properties=[0.0, 2e5]).pnewdt == 0.0
    capfd.readouterr()
    other = Umat(Path(shutil.copy(wrap_umat("limited").library, tmp_path / "other.so")))
    wrong = other(np.ones(6), [], np.zeros(6), strain, properties=[1.0, 2.0, 3.0])
    assert wrong.pnewdt == 0.0
    assert np.array_equal(wrong.stress, np.ones(6))
    assert "NPROPS is 3, expected 1" in capfd.readouterr().err


def test_a_step_that_is_too_large(wrap_umat):
    umat = Umat(wrap_umat("limited").library)
    small, large = ([size, 0, 0, 0, 0, 0] for size in (2e-3, 4e-3))
    assert umat(np.zeros(6), [], np.zeros(6), small).pnewdt == 1.0
    refused = umat(np.ones(6), [], np.zeros(6), large)
    assert refused.pnewdt == 0.25
    assert np.array_equal(refused.stress, np.ones(6))
    assert umat(np.ones(6), [], np.zeros(6), large, pnewdt=0.1).pnewdt == 0.1
    assert np.isnan(umat(np.ones(6), [], np.zeros(6), large, pnewdt=None).stress).all()
    assert umat(np.ones(2), np.zeros(4), np.zeros(2), large[:2], directs=1).pnewdt == 0.25


def test_a_parameter_by_element_is_a_property(point_kernels, tmp_path):
    source = wrap("umat", point_kernels["rich"], tmp_path / "umat", UmatOptions(RICH)).folder / "Rich_umat.c"
    head = source.read_text().split("*/")[0]
    assert "PROPS, 2 numbers:\n     1 to 1: expansion\n     2 to 2: modulus\n" in head


def test_the_settings_of_a_solver_are_no_properties(solid_umat):
    head = (solid_umat.folder / "make_model_umat.c").read_text().split("*/")[0]
    assert "PROPS, 4 numbers" in head
    assert "newton" not in head


def test_models_that_are_no_umat(tmp_path, capfd, point_kernels, solid):
    robertson = tmp_path / "robertson"
    assert run(["convert", str(ROOT / "artifacts" / "robertson.pt"), "--to", "c", "-o", str(robertson)]) == 0
    assert run(["umat", str(robertson)]) == 2
    assert "the model has no output 'stress'" in capfd.readouterr().err
    assert run(["wrap", "umat", str(tmp_path)]) == 4
    capfd.readouterr()
    assert run(["wrap", "umat", str(ROOT / "artifacts" / "robertson.pt")]) == 4
    assert "for an archive: torchferry convert" in " ".join(capfd.readouterr().err.split())
    perzyna = tmp_path / "perzyna"
    assert run(["convert", str(ROOT / "artifacts" / "perzyna.pt"), "--to", "c", "-o", str(perzyna)]) == 0
    assert run(["wrap", "umat", str(perzyna), "--stress", "stress_residual", "--strain", "stress"]) == 2
    assert "does not provide" in capfd.readouterr().err
    assert not (perzyna / "umat").exists()
    for options, message in {
        ("--strain", "stain"): "no input 'stain'",
        ("--strain", "strain~1"): "the strain at the beginning of a step is no strain at its end",
        ("--stress", "sigma"): "no output 'sigma'",
        ("--field", "ep~1"): "'ep~1' is the strain, the stress, a state variable or a property",
        ("--field", "ep"): "'ep' is the strain, the stress, a state variable or a property",
        ("--shear-order", "xy,xz"): "--shear-order",
        ("--times", "3"): "TIME has one or two numbers",
        ("--field", "wear"): "no input 'wear'",
        ("--energy", "ep~1"): "an energy is one number",
    }.items():
        assert run(["wrap", "umat", str(solid.with_suffix("")), *options, "-o", str(tmp_path / "not")]) == 2
        assert message in capfd.readouterr().err
    rich = str(point_kernels["rich"])
    assert run(["wrap", "kratos", rich, "-o", str(tmp_path / "not")]) == 2
    error = capfd.readouterr().err
    assert "Kratos GeoMechanics does not provide" in error
    assert "--field" not in error
    assert not (tmp_path / "not").exists()


def test_the_old_name_writes_the_same(tmp_path, point_kernels):
    for name in (["umat"], ["wrap", "umat"]):
        assert run([*name, str(point_kernels["anisotropic"]), "-o", str(tmp_path / name[0])]) == 0
    contents = [{p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("umat", "wrap")]
    assert contents[0] == contents[1]
    assert {"Makefile", "README.md", "Anisotropic_umat.c", "test_Anisotropic_umat.c", "Anisotropic.c"} <= set(
        contents[0]
    )
