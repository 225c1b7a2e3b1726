"""Kratos GeoMechanics from pip: UMATs in a released program, beside its own law."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_environments import need_environment, run_in
from material_hosts import Wrapped, wrap
from project import ROOT

import torchferry
from exporter.hosts.small_strain import PointOptions
from exporter.hosts.umat import UmatOptions

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent
KRATOS = "10.4.4"
BULK, SHEAR, YIELD, HARDENING = 166_667.0, 76_923.0, 250.0, 2_000.0
YOUNG = 9 * BULK * SHEAR / (3 * BULK + SHEAR)
POISSON = (3 * BULK - 2 * SHEAR) / (2 * (3 * BULK + SHEAR))
# Kratos' own law of the same material.
OWN = {
    "YOUNG_MODULUS": YOUNG,
    "POISSON_RATIO": POISSON,
    "YIELD_STRESS": YIELD,
    "ISOTROPIC_HARDENING_MODULUS": HARDENING,
    "REFERENCE_HARDENING_MODULUS": 1.0,
    "EXPONENTIAL_SATURATION_YIELD_STRESS": YIELD,
    "HARDENING_EXPONENT": 1.0,
}
SCALES = np.array([1.0, 1.0, 1.0, *[math.sqrt(0.5)] * 3])
# The model's component of each of Kratos': xx, yy, zz, xy, yz, xz.
ORDER = [0, 1, 2, 5, 3, 4]


def stretch(size: float) -> list[list[float]]:
    return [[0.3 * size, 0.0, size], [0.0, -0.2 * size, 0.4 * size], [0.1 * size, 0.0, size]]


@pytest.fixture(scope="module")
def python() -> Path:
    names = ("GeoMechanics", "ConstitutiveLaws")
    return need_environment("kratos", *(f"Kratos{name}Application=={KRATOS}" for name in names))


@pytest.fixture
def run_job(python, tmp_path) -> Callable[..., list[dict[str, Any]]]:
    def run_job(law: str, variables: dict, gradients: list, **changes: Any) -> list[dict[str, Any]]:
        job = {"law": law, "variables": variables, "gradients": gradients, "cells": 2, "patch": False}
        (tmp_path / "job.json").write_text(json.dumps(job | changes))
        arguments = [str(HERE / "kratos_cases.py"), str(ROOT / "examples" / "hosts"), "job.json"]
        (result,) = run_in(python, *arguments, folder=tmp_path)
        return result

    return run_job


def describe_umat(wrapped: Wrapped, states: int) -> dict[str, Any]:
    # The values that were exported: one number, or two where the model has one.
    parameters = [0.0] * (2 if wrapped.name == "Limited" else 1)
    umat = {"UDSM_NAME": str(wrapped.library), "IS_FORTRAN_UDSM": True, "UMAT_PARAMETERS": parameters}
    return {**umat, "STATE_VARIABLES": [0.0] * states, "YOUNG_MODULUS": 1.0, "POISSON_RATIO": 0.3}


@pytest.fixture(scope="module")
def umats(point_kernels, tmp_path_factory) -> dict[str, Wrapped]:
    folder = tmp_path_factory.mktemp("kratos")
    names = ("solid", "anisotropic", "limited")
    return {name: wrap("kratos", point_kernels[name], folder / name, PointOptions()) for name in names}


def test_the_self_test_passes(umats):
    for wrapped in umats.values():
        result = wrapped.run_self_test(sanitize=True)
        assert result.returncode == 0, result.stdout


def is_quadratic(residuals: list[float]) -> bool:
    """Whether each residual of the tail is a multiple of the square of the one before, down to rounding."""
    tail = [r for r in residuals if r < 0.3]
    return len(tail) >= 2 and all(after <= 20 * before**2 + 1e-9 for before, after in pairwise(tail))


STEPS = [stretch(size) for size in (1e-3, 2e-3, 3e-3, 3.5e-3)]


def test_a_block_is_that_of_kratos_own_law(umats, run_job):
    own = run_job("SmallStrainJ2Plasticity3DLaw", OWN, STEPS, cells=4)
    ours = run_job("SmallStrainUMAT3DLaw", describe_umat(umats["solid"], 1), STEPS, cells=4)
    for mine, theirs in zip(ours, own, strict=True):
        assert mine["solved"]
        stresses = np.array(theirs["stresses"])
        assert np.allclose(mine["stresses"], stresses, rtol=0, atol=1e-7 * np.abs(stresses).max())
        assert np.allclose(mine["displacements"], theirs["displacements"], rtol=0, atol=1e-11)
        assert len(mine["residuals"]) <= len(theirs["residuals"])
        assert is_quadratic(mine["residuals"]), mine["residuals"]


def test_a_wrong_tangent_loses_the_order(point_kernels, tmp_path, run_job):
    wrapped = wrap("kratos", point_kernels["solid"], tmp_path / "w", PointOptions())
    right = "= scale(has[i]) * scale(has[j]) * tangent"
    wrapped.plant(right, right.replace("= ", "= 1.02 * "))
    results = run_job("SmallStrainUMAT3DLaw", describe_umat(wrapped, 1), STEPS)
    assert not all(is_quadratic(r["residuals"]) for r in results)


def run_stage(python: Path, folder: Path, law: str, variables: dict, **changes: Any) -> list[dict[str, Any]]:
    job = {"law": law, "variables": variables, "dimension": 3, "stretch": 1e-2, "step": 1.0}
    (folder / "stage.json").write_text(json.dumps(job | changes))
    return run_in(python, str(HERE / "kratos_stage.py"), "stage.json", folder=folder)


def test_plane_strain(umats, python, tmp_path):
    """Isotropic elasticity of E = 8/3 G and nu = 1/3: Lame's constants are 2 G and G."""
    plane = {"dimension": 2, "step": 0.25, "stretch": 5e-3}
    elastic = {"YOUNG_MODULUS": 8 / 3 * 1e5, "POISSON_RATIO": 1 / 3}
    own = run_stage(python, tmp_path, "GeoLinearElasticPlaneStrain2DLaw", elastic, **plane)
    ours = run_stage(python, tmp_path, "SmallStrainUMAT2DPlaneStrainLaw", describe_umat(umats["limited"], 0), **plane)
    assert len(ours) == len(own) == 4
    for mine, theirs in zip(ours, own, strict=True):
        stresses = np.array(theirs["stresses"])
        assert np.abs(stresses[:, 3]).max() > 1.0
        assert np.allclose(mine["stresses"], stresses, rtol=0, atol=1e-6 * np.abs(stresses).max())


def test_a_law_without_symmetry_shows_the_order_of_shears(umats, point_kernels, run_job, tmp_path):
    model = torchferry.load(point_kernels["anisotropic"])
    gradient = np.array([[1e-3, 2e-4, -3e-4], [4e-4, -5e-4, 6e-4], [7e-4, -1e-4, 2e-4]])
    symmetric = 0.5 * (gradient + gradient.T)
    mandel = np.array([[*np.diag(symmetric), *(math.sqrt(2) * symmetric[i, j] for i, j in ((1, 2), (0, 2), (0, 1)))]])
    wanted = model(mandel)[0][0, ORDER] * SCALES
    patch = {"patch": True, "gradients": [gradient.tolist()]}
    (result,) = run_job("SmallStrainUMAT3DLaw", describe_umat(umats["anisotropic"], 0), **patch)
    for point in result["stresses"]:
        assert np.allclose(point, wanted, rtol=1e-9, atol=1e-9)
    abaqus = wrap("umat", point_kernels["anisotropic"], tmp_path / "abaqus", UmatOptions(times=1))
    (other,) = run_job("SmallStrainUMAT3DLaw", describe_umat(abaqus, 0), **patch)
    assert not np.allclose(other["stresses"][0], wanted, rtol=1e-3)


@pytest.mark.parametrize("size", [4e-2, math.nan])
def test_a_step_without_a_result_ends_no_program(umats, run_job, size):
    results = run_job("SmallStrainUMAT3DLaw", describe_umat(umats["limited"], 0), [stretch(1e-3), stretch(size)])
    assert [r["solved"] for r in results] == [True, False]


def test_the_host_cuts_steps_back(umats, python, tmp_path):
    umat = describe_umat(umats["limited"], 0)
    cut, small = (run_stage(python, tmp_path, "SmallStrainUMAT3DLaw", umat, step=step) for step in (1.0, 0.1))
    assert cut[0]["tries"] > 1
    assert all(step["tries"] == 1 for step in small)
    assert cut[-1]["time"] == small[-1]["time"] == 1.0
    assert np.allclose(cut[-1]["stresses"], small[-1]["stresses"], rtol=1e-9)
