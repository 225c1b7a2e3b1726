"""CalculiX: its interface called as it calls; the program, built from Debian's source, beside its own laws."""

from __future__ import annotations

import ctypes
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gate_specimens import load
from host_environments import need_calculix
from material_hosts import DOUBLES, Wrapped, make, wrap
from project import ROOT, make_once, mark_thorough_after

import torchferry
from exporter.common.errors import UsageError
from exporter.hosts import calculix
from exporter.hosts.calculix import CalculixOptions, name_library
from exporter.hosts.registry import wrap_kernel
from exporter.hosts.umat import UmatOptions
from torchferry.cli.app import run

EXAMPLE = ROOT / "examples" / "hosts" / "calculix_cantilever.py"
NAMES = {"solid": "make_model", "anisotropic": "Anisotropic", "warm": "Warm", "limited": "Limited"}
# The model's component of each of CalculiX's, and what a stress is multiplied by.
ORDER = [0, 1, 2, 5, 4, 3]
SCALES = np.array([1.0, 1.0, 1.0, *[math.sqrt(0.5)] * 3])
PLACES = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]


@pytest.fixture(scope="module")
def materials(point_kernels, shared) -> dict[str, Wrapped]:
    def build(folder: Path) -> None:
        for name in NAMES:
            wrap("calculix", point_kernels[name], folder / name, CalculixOptions())

    folder = make_once(shared / "calculix", build)
    return {
        name: Wrapped(folder / name, model, "calculix", folder / name / f"lib{model}_calculix.so")
        for name, model in NAMES.items()
    }


@pytest.mark.parametrize("name", mark_thorough_after(2, list(NAMES)))
def test_the_self_test_passes(materials, name):
    result = materials[name].run_self_test(sanitize=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    mark_thorough_after(
        3,
        [
            ("places[6] = { 0, 1, 2, 5, 4, 3 }", "places[6] = { 0, 1, 2, 5, 3, 4 }"),
            ("ROOT, ROOT, ROOT }", "1.0, ROOT, ROOT }"),
            ("0.5 * (tangent[", "0.51 * (tangent["),
            ("(*iint - 1 + ", "(*iint - 2 + "),
            ("xstate[at + i] = states[i]", "xstate[at + i] = xstateini[at + i]"),
            ("*ttime + *time - *dtime", "*time - *dtime"),
            ("*pnewdt = 0.25;\n  }", "*pnewdt = -1.0;\n  }"),
            ("icmd && *icmd == 3", "icmd && *icmd == 4"),
            ("beta[i] != 0.0", "0"),
            ("*ithermal > 0", "*ithermal > -1"),
            ("numbers && count == PROPERTIES", "numbers && count == 99"),
        ],
    ),
)
def test_a_planted_fault_is_seen(point_kernels, tmp_path, right, wrong):
    wrapped = wrap("calculix", point_kernels["warm"], tmp_path / "w", CalculixOptions())
    wrapped.plant(right, wrong)
    assert wrapped.run_self_test().returncode == 1


def rotate(axes: np.ndarray, tensor: np.ndarray, *, is_back: bool = False) -> np.ndarray:
    matrix = np.zeros((3, 3))
    for number, (i, j) in zip(tensor, PLACES, strict=True):
        matrix[i, j] = matrix[j, i] = number
    rotated = axes.T @ matrix @ axes if is_back else axes @ matrix @ axes.T
    return np.array([rotated[i, j] for i, j in PLACES])


class Material:
    """``UPDATE`` of a library, for one point of one element."""

    def __init__(self, library: Path) -> None:
        self._function = ctypes.CDLL(str(library)).UPDATE

    def __call__(
        self,
        strain: np.ndarray,
        system: Sequence[float] = (),
        point: Sequence[float] = (0, 0, 0),
        constants: Sequence[float] = (),
        *,
        asked: int = 0,
    ) -> Any:
        arguments = (strain, np.zeros(6), np.zeros(6), np.zeros(21), point, system or [0], [-1], constants or [0])
        kept = [np.array(numbers, float) for numbers in arguments]
        strains, before, stress, stiff, place, axes, pnewdt, properties = (
            array.ctypes.data_as(DOUBLES) for array in kept
        )
        numbers = (1, 0, -100 - len(constants), bool(system), asked)
        first, none, code, orientation, icmd = (ctypes.byref(ctypes.c_int(n)) for n in numbers)
        self._function(
            b"", first, first, code, properties, strains, before, None, None, None, None, None, none, None, None, None,
            None, icmd, none, first, none, None, None, stress, stiff, orientation, place, axes, pnewdt, None, 0,
        )  # fmt: skip
        return kept[2], kept[3], float(kept[6][0])


def find_stress(kernel: Any, strain: np.ndarray) -> np.ndarray:
    mandel = np.empty((1, 6))
    mandel[0, ORDER] = strain / SCALES
    return kernel.call("forward", {"strain": mandel})["stress"][0, ORDER] * SCALES


def test_an_orientation_turns_strains_and_stresses(materials, point_kernels):
    material, kernel = Material(materials["anisotropic"].library), torchferry.load(point_kernels["anisotropic"])
    strain = np.array([1e-3, -2e-4, 3e-4, 4e-4, -5e-4, 6e-4])
    assert np.allclose(material(strain)[0], find_stress(kernel, strain), rtol=1e-12)
    angle = 0.3
    rectangular = np.array([[math.cos(angle), math.sin(angle), 0], [0, 0, 1], [math.sin(angle), -math.cos(angle), 0]])
    # The second vector lies in the plane of the first two axes.
    systems = {
        (*(2 * rectangular[0]), *(rectangular[1] + 3 * rectangular[0]), 1.0): rectangular,
        (0.0, 0.0, 1.0, 0.0, 0.0, 5.0, -1.0): np.array([[0.6, 0.8, 0], [-0.8, 0.6, 0], [0, 0, 1]]),
    }
    for system, axes in systems.items():
        expected = rotate(axes, find_stress(kernel, rotate(axes, strain)), is_back=True)
        stress, stiff, pnewdt = material(strain, system, (3.0, 4.0, 2.0))
        assert np.allclose(stress, expected, rtol=1e-12)
        assert pnewdt == -1
        # The law is linear: the stiffness makes the stress of the strain, twice whose shears it takes.
        tangent = np.zeros((6, 6))
        tangent[np.tril_indices(6)] = stiff
        tangent += np.tril(tangent, -1).T
        assert np.allclose(tangent @ (strain * [1, 1, 1, 2, 2, 2]), expected, rtol=1e-12)
    on_the_axis = material(strain, (3.0, 4.0, 0.0, 3.0, 4.0, 5.0, -1.0), (3.0, 4.0, 2.0))[0]
    axes = np.array([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]])
    assert np.allclose(on_the_axis, rotate(axes, find_stress(kernel, strain)), rtol=1e-12)
    nowhere, _, pnewdt = material(strain, (1.0, 0, 0, 2.0, 0, 0, 1.0))
    assert np.isnan(nowhere).all()
    assert pnewdt == 0.25


@pytest.mark.parametrize(
    ("name", "library"),
    [("make_model", "MAKEMODEL"), ("abaqus_law", "XABAQUSLAW"), ("_", "MODEL"), ("a" * 70, "A" * 60)],
)
def test_the_library_has_a_name_that_calculix_reads(name, library):
    assert name_library(name) == library


def test_a_wrong_count_of_constants_is_no_material(materials):
    """Its own count and one that says so are; a constant that was forgotten is a mistake."""
    material, strain = Material(materials["limited"].library), np.array([1e-3, 0, 0, 0, 0, 0])
    exported = material(strain)[0]
    assert np.allclose(material(strain, constants=[4e5])[0], 2 * exported, rtol=1e-12)
    assert np.array_equal(material(strain, constants=[0.0, 0.0])[0], exported)
    for wrong in ([1.0, 2.0, 3.0], [0.0, 2.0], [0.0] * 3):
        nothing, _, pnewdt = material(strain, constants=wrong)
        assert np.isnan(nothing).all()
        assert pnewdt > 0


def test_a_step_without_a_result(materials):
    """An explicit step asks for stresses alone, and is never cut back: it gets no number."""
    material = Material(materials["limited"].library)
    exact = material(np.zeros(6))[1]
    stress, stiff, pnewdt = material(np.array([1e-2, 0, 0, 0, 0, 0]))
    assert not stress.any()
    assert np.array_equal(stiff, exact)
    assert pnewdt == 0.25
    stress, _, _ = material(np.array([1e-2, 0, 0, 0, 0, 0]), asked=3)
    assert np.isnan(stress).all()


def test_what_the_analysis_does_not_give(materials, capfd):
    stress, _, pnewdt = Material(materials["warm"].library)(np.zeros(6))
    assert np.isnan(stress).all()
    assert pnewdt == 0.25
    assert "*DEPVAR has fewer than 6 numbers" in capfd.readouterr().err


def test_more_properties_than_calculix_keeps_are_the_exported_ones(materials):
    """The law has 36, and CalculiX writes over its own memory where it is given as many."""
    readme = (materials["anisotropic"].folder / "README.md").read_text()
    assert "CONSTANTS=0" in readme
    assert "CONSTANTS=1" not in readme
    material, strain = Material(materials["anisotropic"].library), np.array([1e-3, 0, 0, 0, 0, 0])
    for count in (1, 36):
        assert np.isfinite(material(strain, constants=[0.0] * count)[0]).all() == (count == 1)


def test_properties_that_calculix_cannot_keep_are_refused(point_kernels, tmp_path, monkeypatch):
    """The law has one by element, so that all of them have to be given."""
    monkeypatch.setattr(calculix, "MOST_CONSTANTS", 1)
    with pytest.raises(UsageError, match="fewer constants than the model has properties"):
        wrap_kernel("calculix", point_kernels["warm"], tmp_path / "w", CalculixOptions())
    assert not (tmp_path / "w").exists()


def test_a_library_has_the_name_that_is_asked_for(point_kernels, tmp_path, capfd):
    command = ["wrap", "calculix", str(point_kernels["limited"]), "-o", str(tmp_path / "w"), "--library"]
    assert run([*command, "steel_1"]) == 2
    assert "letters and digits" in capfd.readouterr().err
    assert run([*command, "steel1"]) == 0
    assert "@STEEL1_UPDATE" in (tmp_path / "w" / "README.md").read_text()
    assert make(tmp_path / "w").returncode == 0
    assert (tmp_path / "w" / "libSTEEL1.so").exists()


def test_a_model_that_does_not_fit(point_kernels, tmp_path, capfd):
    assert run(["wrap", "calculix", str(point_kernels["rich"]), "-o", str(tmp_path / "w")]) == 2
    message = capfd.readouterr().err
    assert "does not provide" in message
    assert "--field" not in message
    assert not (tmp_path / "w").exists()


@pytest.fixture(scope="module")
def ccx() -> Path:
    return need_calculix()


@pytest.fixture(scope="module")
def libraries(point_kernels, tmp_path_factory) -> str:
    """Folders with the libraries as a user builds them."""
    folder = tmp_path_factory.mktemp("calculix")
    for name in NAMES:
        assert run(["wrap", "calculix", str(point_kernels[name]), "-o", str(folder / name)]) == 0
        assert make(folder / name).returncode == 0
    return ":".join(str(folder / name) for name in NAMES)


example = load(EXAMPLE)
BULK, SHEAR, YIELD, HARDENING = 166_667.0, 76_923.0, 250.0, 2_000.0
YOUNG = 9 * BULK * SHEAR / (3 * BULK + SHEAR)
POISSON = (3 * BULK - 2 * SHEAR) / (2 * (3 * BULK + SHEAR))
OWN = ["*MATERIAL, NAME=OWN", "*ELASTIC", f"{YOUNG!r}, {POISSON!r}", "*PLASTIC", f"{YIELD}, 0."]
OWN += [f"{YIELD + 10 * HARDENING}, 10."]


def describe(name: str, constants: int, states: int = 0) -> list[str]:
    depvar = ["*DEPVAR", str(states)] if states else []
    return [f"*MATERIAL, NAME=@{name}_UPDATE", *depvar, f"*USER MATERIAL, CONSTANTS={constants}", "0., " * constants]


@pytest.mark.thorough
def test_a_cantilever_is_that_of_calculix_own_law(ccx, libraries, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    results, iterations = [], []
    for material in (OWN, describe("MAKEMODEL", 1, 1)):
        steps, _ = example.run(ccx, tmp_path, example.write_job(material, [0.15, 0.1]), libraries)
        results.append(steps)
        iterations.append(example.count_iterations(tmp_path))
    assert iterations[0] == iterations[1]
    assert max(iterations[0]) > 2
    for own, ours in zip(*results, strict=True):
        assert set(ours) == {"displacements", "forces", "stresses"}
        for kind, numbers in own.items():
            # What is printed has seven digits.
            assert np.allclose(ours[kind], numbers, rtol=2e-7, atol=2e-7 * np.abs(numbers).max()), kind
    assert np.abs(results[0][0]["stresses"]).max() > YIELD


@pytest.mark.thorough
def test_a_umat_runs_by_the_other_interface(ccx, libraries, point_kernels, tmp_path):
    wrapped = wrap("umat", point_kernels["solid"], tmp_path / "umat", UmatOptions())
    shutil.copy(wrapped.library, tmp_path / "libABAQUSLAW.so")
    results = []
    for material in (describe("MAKEMODEL", 1, 1), describe("MAKEMODEL", 1, 1)):
        material[0] = material[0] if not results else "*MATERIAL, NAME=@ABAQUS_ABAQUSLAW"
        steps, _ = example.run(ccx, tmp_path, example.write_job(material, [0.15]), f"{libraries}:{tmp_path}")
        results.append(steps[0])
    assert np.allclose(results[1]["stresses"], results[0]["stresses"], rtol=2e-7, atol=1e-5)


@pytest.mark.thorough
def test_an_anisotropic_law_is_calculix_own_in_any_axes(ccx, libraries, point_kernels, tmp_path):
    kernel = torchferry.load(point_kernels["anisotropic"])
    tangent = kernel.call("jacobian", {"strain": np.zeros((1, 6))})["d stress / d strain"][0]
    constants = [tangent[ORDER[i], ORDER[j]] * SCALES[i] * SCALES[j] for j in range(6) for i in range(j + 1)]
    rows = [", ".join(f"{c:.17g}" for c in constants[i : i + 8]) for i in (0, 8, 16)]
    for system in ("RECTANGULAR\n 1., .5, .2, -.3, 1., .4", "CYLINDRICAL\n 4., -3., 0., 4., -3., 1."):
        results = []
        for material in (["*MATERIAL, NAME=OWN", "*ELASTIC, TYPE=ANISO", *rows], describe("ANISOTROPIC", 0)):
            job = example.write_job(material, [0.1])
            turned = f"*ORIENTATION, NAME=TURNED, SYSTEM={system}\n*SOLID SECTION, ORIENTATION=TURNED,"
            (step,), _ = example.run(ccx, tmp_path, job.replace("*SOLID SECTION,", turned), libraries)
            results.append(step)
            # The law is linear: a stiffness in wrong axes needs more.
            assert max(example.count_iterations(tmp_path)) <= 2
        own, ours = results
        for kind, numbers in own.items():
            assert np.allclose(ours[kind], numbers, rtol=2e-6, atol=2e-6 * np.abs(numbers).max()), kind
        # A beam of an isotropic law bends without such stresses.
        assert np.abs(np.reshape(own["stresses"], (-1, 6))[:, 5]).max() > 1.0


@pytest.mark.thorough
def test_calculix_cuts_a_step_back(ccx, libraries, tmp_path):
    material = describe("LIMITED", 0)
    cut, text = example.run(ccx, tmp_path, example.write_job(material, [0.3], "1., 1."), libraries)
    assert "requested by a material user routine" in text
    small, text = example.run(ccx, tmp_path, example.write_job(material, [0.3], "0.02, 1., , 0.02"), libraries)
    assert "divergence" not in text
    assert np.allclose(cut[0]["stresses"], small[0]["stresses"], rtol=1e-5, atol=1e-3)


@pytest.mark.thorough
def test_an_explicit_step_without_a_result_leaves_no_number(ccx, libraries, tmp_path):
    material = describe("LIMITED", 0)
    job = example.write_job([*material, "*DENSITY", "1e-9"], [2.0]).replace(
        "*STATIC\n0.2, 1.", "*DYNAMIC, EXPLICIT\n1e-6, 1e-5"
    )
    assert "EXPLICIT" in job
    try:
        steps, _ = example.run(ccx, tmp_path, job, libraries)
    except RuntimeError:
        return
    assert not steps or np.isnan(steps[0]["stresses"]).any()


@pytest.mark.thorough
def test_what_cannot_be_solved_ends_the_program_with_a_reason(ccx, libraries, tmp_path):
    job = example.write_job(describe("MAKEMODEL", 1), [0.1])
    with pytest.raises(RuntimeError, match="DEPVAR has fewer than 1"):
        example.run(ccx, tmp_path, job, libraries)
    with pytest.raises(RuntimeError, match=r"libMAKEMODEL\.so"):
        example.run(ccx, tmp_path, job, "/nowhere")
