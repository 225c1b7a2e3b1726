"""VUMAT: blocks of points, their energies and their strain, which is carried as a state."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest
from material_hosts import DOUBLES, Wrapped, wrap
from project import make_once, mark_thorough_after

import torchferry
from exporter.hosts.small_strain import PointOptions
from torchferry.cli.app import run

RICH = PointOptions(energy="energy", fields=("wear",))


@pytest.fixture(scope="module", params=["solid", "anisotropic", "rich", "limited"])
def vumat(request, point_kernels, shared) -> Wrapped:
    options = RICH if request.param == "rich" else PointOptions()
    folder = make_once(
        shared / f"vumat {request.param}", lambda f: wrap("vumat", point_kernels[request.param], f / "w", options)
    )
    (library,) = (folder / "w").glob("lib*.so")
    return Wrapped(folder / "w", library.name.removeprefix("lib").removesuffix("_vumat.so"), "vumat", library)


def test_the_self_test_passes(vumat):
    result = vumat.run_self_test(sanitize=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    mark_thorough_after(
        2,
        [
            ("stateOld[(STATES + i) * n + start + e]", "0.0 * stateOld[(STATES + i) * n + start + e]"),
            ("start += BLOCK", "start += BLOCK + 1"),
            ("places[6] = { 0, 1, 2, 5, 3, 4 }", "places[6] = { 0, 1, 2, 5, 4, 3 }"),
            ("scales[i] * strainInc", "strainInc"),
            ("stateNew[i * n + at] = is_solved[e] ? states", "stateNew[i * n + at] = !is_solved[e] ? states"),
            ("/ scales[i] : NAN", "/ scales[i] : 0.0"),
        ],
    ),
)
def test_a_planted_fault_is_seen(point_kernels, tmp_path, right, wrong):
    # The strain before the step is an input of one, and a tensor is a state of the other.
    name, options = ("limited", PointOptions()) if "stateOld[(" in right else ("rich", RICH)
    wrapped = wrap("vumat", point_kernels[name], tmp_path / "w", options)
    wrapped.plant(right, wrong)
    assert wrapped.run_self_test().returncode == 1


def call(
    library: Any, increments: np.ndarray, states: np.ndarray, stress: np.ndarray, **changes: Any
) -> dict[str, Any]:
    count = len(increments)
    shears = increments.shape[1] - 3
    arrays = {
        "increment": np.asfortranarray(increments),
        "stress_old": np.asfortranarray(stress),
        "states_old": np.asfortranarray(states),
        "stress": np.zeros_like(increments, order="F"),
        "states": np.zeros_like(states, order="F"),
        "density": np.full(count, 2.0),
        "intern_old": np.full(count, 3.0),
        "inelastic_old": np.zeros(count),
        "intern": np.zeros(count),
        "inelastic": np.zeros(count),
        "properties": np.zeros(0),
        **changes,
    }
    point = {n: None if a is None else a.ctypes.data_as(DOUBLES) for n, a in arrays.items()}
    numbers = [count, 3, shears, states.shape[1], 0, len(arrays["properties"]), 0]
    integers = [ctypes.c_int(v) for v in numbers]
    times = [ctypes.c_double(v) for v in (0.0, 1.0, 0.5)]
    library.vumat_(
        *map(ctypes.byref, integers), *map(ctypes.byref, times), None, None, None, point["properties"],
        point["density"], point["increment"], None, None, None, None, None, point["stress_old"], point["states_old"],
        point["intern_old"], point["inelastic_old"], None, None, None, None, point["stress"], point["states"],
        point["intern"], point["inelastic"],
    )  # fmt: skip
    return arrays


@pytest.mark.parametrize("shears", [1, 3])
@pytest.mark.parametrize("count", [1, 64, 65, 300])
def test_blocks_of_points(point_kernels, shared, solid, count, shears):
    """Two steps of many points; the strain of the first is a state in the second."""
    folder = make_once(shared / "vumat solid", lambda f: wrap("vumat", point_kernels["solid"], f / "w", PointOptions()))
    (path,) = (folder / "w").glob("lib*.so")
    library = ctypes.CDLL(str(path))
    model = torchferry.load(solid.with_suffix(""))
    generator = np.random.default_rng(1)
    places, states = [0, 1, 2, 5, 3, 4], np.zeros((count, 7))
    stress, strain = np.zeros((count, 3 + shears)), np.zeros((count, 6))
    wanted, ep = np.zeros((count, 6)), np.zeros(count)
    scales = np.array([1.0, 1.0, 1.0, *[math.sqrt(2)] * 3])
    for _ in range(2):
        increments = generator.uniform(-1e-3, 1e-3, (count, 3 + shears))
        result = call(library, increments, states, stress)
        full = np.zeros((count, 6))
        full[:, : 3 + shears] = increments
        old, strain = strain, strain.copy()
        strain[:, places] += full * scales
        old_stress = stress
        if shears == 1:
            wanted[:, [3, 4]] = 0.0
        wanted, ep = model(strain, old, wanted, ep)
        here = places[: 3 + shears]
        assert np.allclose(result["stress"], wanted[:, here] / scales[: 3 + shears], rtol=1e-9, atol=1e-9)
        assert np.allclose(result["states"][:, 0], ep, rtol=1e-9, atol=1e-12)
        assert np.allclose(result["states"][:, 1:], strain, rtol=1e-12, atol=1e-18)
        weights = np.array([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])[: 3 + shears]
        work = 0.5 * ((old_stress + result["stress"]) * increments * weights).sum(1)
        assert np.allclose(result["intern"], 3.0 + work / 2.0, rtol=1e-12)
        states, stress = result["states"], result["stress"]
    assert (ep > 1e-5).any()


def test_one_bad_point_leaves_the_others(point_kernels, tmp_path):
    wrapped = wrap("vumat", point_kernels["limited"], tmp_path / "w", PointOptions())
    library = ctypes.CDLL(str(wrapped.library))
    increments = np.full((70, 6), 1e-4)
    increments[66, 0] = 1.0
    states = np.full((70, 6), 1e-5)
    result = call(library, increments, states, np.zeros((70, 6)))
    good = np.arange(70) != 66
    assert np.isfinite(result["stress"][good]).all()
    assert np.isnan(result["stress"][66]).all()
    assert np.array_equal(result["states"][66], states[66])
    three = call(library, increments, states, np.zeros((70, 6)), properties=np.array([1.0, 2.0, 3.0]))
    assert np.isnan(three["stress"]).all()
    missing = call(library, increments, states, np.zeros((70, 6)), states_old=None)
    assert np.isnan(missing["stress"]).all()


def test_no_tangent_is_needed(tmp_path, capfd):
    source = tmp_path / "no_tangent.py"
    source.write_text("from host_models import Anisotropic\n")
    model = tmp_path / "kernel"
    torchferry.export(f"{source}:Anisotropic", output=model, formats="c")
    assert run(["wrap", "umat", str(model)]) == 2
    assert "no tangent" in capfd.readouterr().err
    assert run(["wrap", "vumat", str(model)]) == 0
    assert (model / "vumat" / "Anisotropic_vumat.c").exists()
