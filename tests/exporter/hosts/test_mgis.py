"""MFront's generic interface: symbols, codes of K, hypotheses, parameters, energies."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest
from material_hosts import DOUBLES, Wrapped, wrap
from project import make_once, mark_thorough_after

import torchferry
from exporter.hosts.small_strain import PointOptions


class _End(ctypes.Structure):
    _fields_ = [
        (name, DOUBLES)
        for name in ("gradients", "forces", "density", "material", "states", "stored", "dissipated", "external")
    ]


class _Data(ctypes.Structure):
    _fields_ = [
        ("message", ctypes.c_char_p),
        ("dt", ctypes.c_double),
        ("K", DOUBLES),
        ("rdt", DOUBLES),
        ("sound", DOUBLES),
        ("s0", _End),
        ("s1", _End),
    ]


RICH = PointOptions(energy="energy")
SCALES = np.array([1.0, 1.0, 1.0, *[math.sqrt(0.5)] * 3])


@pytest.fixture(scope="module")
def behaviours(point_kernels, shared) -> dict[str, Wrapped]:
    def make(folder: Path) -> None:
        for name, path in point_kernels.items():
            wrap("mgis", path, folder / name, RICH if name == "rich" else PointOptions())

    folder = make_once(shared / "behaviours", make)
    wrapped = {}
    for name in point_kernels:
        (library,) = (folder / name).glob("lib*.so")
        own = library.name.removeprefix("lib").removesuffix("_mgis.so")
        wrapped[name] = Wrapped(folder / name, own, "mgis", library)
    return wrapped


@pytest.mark.parametrize("name", mark_thorough_after(3, ["solid", "anisotropic", "rich", "limited"]))
def test_the_self_test_passes(behaviours, name):
    result = behaviours[name].run_self_test()
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    mark_thorough_after(
        2,
        [
            ("{ 0, 1, 2, 5, 4, 3 }", "{ 0, 1, 2, 5, 3, 4 }"),
            ("NUMBER(api_version, 1)", "NUMBER(api_version, 2)"),
            ("d->K[0] > 50.0", "d->K[0] > 500.0"),
            ("asked < -0.5", "asked < -50.0"),
            ("if (d->rdt && *d->rdt > 0.25) *d->rdt = 0.25;", ""),
            ("of[6 * has[i] + has[j]]", "of[6 * has[i] + j]"),
            ("d->s1.internal_state_variables[i] = states[i]", "d->s1.internal_state_variables[i] = 0.0 * states[i]"),
        ],
    ),
)
def test_a_planted_fault_is_seen(point_kernels, tmp_path, right, wrong):
    wrapped = wrap("mgis", point_kernels["rich"], tmp_path / "w", RICH)
    wrapped.plant(right, wrong)
    assert wrapped.run_self_test().returncode == 1


def text_of(library: ctypes.CDLL, symbol: str) -> list[str]:
    count = ctypes.c_ushort.in_dll(library, symbol.replace("_", "_n", 1)).value
    return [t.decode() for t in (ctypes.c_char_p * count).in_dll(library, symbol)]


def test_names_types_and_bounds(behaviours):
    library = ctypes.CDLL(str(behaviours["rich"].library))
    assert text_of(library, "Rich_InternalStateVariables") == [f"flow_{i}" for i in range(6)]
    # The temperature is the first in every case, and is left out of the list.
    assert text_of(library, "Rich_ExternalStateVariables") == ["wear", "t"]
    assert text_of(library, "Rich_MaterialProperties") == ["modulus"]
    assert text_of(library, "Rich_Parameters") == ["expansion"]
    assert ctypes.c_double.in_dll(library, "Rich_expansion_ParameterDefaultValue").value == 1e-5
    assert ctypes.c_ushort.in_dll(library, "Rich_ComputesInternalEnergy").value == 1
    low, high = (ctypes.c_longdouble.in_dll(library, f"Rich_wear_{end}Bound").value for end in ("Lower", "Upper"))
    known = torchferry.load(behaviours["rich"].folder.parents[1] / "host kernels" / "rich").contract.envelope
    assert (low, high) == (known.values["wear"].low, known.values["wear"].high)


def call(function, asked: float, start: dict, end: dict, dt: float = 0.25) -> tuple[int, np.ndarray, dict]:
    count = len(end["gradients"])
    arrays = {
        (side, name): np.array(values.get(name, default), float)
        for side, values in (("s0", start), ("s1", end))
        for name, default in {
            "gradients": np.zeros(count),
            "forces": np.zeros(count),
            "density": [2.0],
            "material": [1.5e3],
            "states": np.zeros(6),
            "stored": [0.0],
            "dissipated": [0.0],
            "external": [300.0, 0.1, 1.0],
        }.items()
    }
    K, rdt, sound = np.zeros(36), np.array([1.0]), np.zeros(1)
    K[0] = asked
    message = ctypes.create_string_buffer(512)
    data = _Data(ctypes.cast(message, ctypes.c_char_p), dt, *(a.ctypes.data_as(DOUBLES) for a in (K, rdt, sound)))
    for (side, name), array in arrays.items():
        setattr(getattr(data, side), name, array.ctypes.data_as(DOUBLES))
    code = function(ctypes.byref(data))
    end_state = {name: array for (side, name), array in arrays.items() if side == "s1"}
    return (
        code,
        K[: count * count].reshape(count, count),
        end_state | {"rdt": rdt[0], "sound": sound[0], "why": message.value},
    )


@pytest.mark.parametrize("hypothesis", ["Tridimensional", "PlaneStrain", "GeneralisedPlaneStrain", "Axisymmetrical"])
def test_every_hypothesis(behaviours, point_kernels, hypothesis):
    library = ctypes.CDLL(str(behaviours["anisotropic"].library))
    count = 6 if hypothesis == "Tridimensional" else 4
    places = [0, 1, 2, 5, 4, 3][:count]
    model = torchferry.load(point_kernels["anisotropic"])
    stiffness = np.stack([model(np.eye(6)[j : j + 1])[0][0] for j in range(6)], 1)
    strain = np.array([1e-3, -2e-4, 3e-4, 5e-4, 1e-4, -1e-4])[:count]
    code, K, end = call(library[f"Anisotropic_{hypothesis}"], 4.0, {}, {"gradients": strain})
    full = np.zeros(6)
    full[places] = strain
    assert code == 1
    assert np.allclose(K, stiffness[np.ix_(places, places)], rtol=1e-12)
    assert np.allclose(end["forces"], (stiffness @ full)[places], rtol=1e-12)


def test_energies_parameters_and_external_variables(behaviours, point_kernels):
    library = ctypes.CDLL(str(behaviours["rich"].library))
    model = torchferry.load(point_kernels["rich"])
    strain = np.array([1e-3, 0.0, 0.0, 2e-4, 0.0, 0.0])
    start = {"states": np.full(6, 1e-5), "external": [300.0, 0.1, 1.0], "stored": [2.0], "dissipated": [5.0]}
    end = {"gradients": strain, "external": [320.0, 0.15, 1.25]}

    def expect(expansion: float) -> tuple[np.ndarray, np.ndarray]:
        full = np.zeros((1, 6))
        full[0, [0, 1, 2, 5, 4, 3]] = strain
        inputs = {"strain": full, "flow~1": np.full((1, 6), 1e-5), "T": 320.0, "T~1": 300.0, "wear": 0.15}
        inputs |= {"wear~1": 0.1, "t": 1.25, "t~1": 1.0, "modulus": 1.5e3}
        model.set_parameter("expansion", expansion)
        stress, _, energy = model(*(np.atleast_1d(inputs[s.name]) for s in model.contract.inputs))
        return stress[0, [0, 1, 2, 5, 4, 3]], energy

    for expansion in (1e-5, 4e-5):
        encoded = ctypes.c_char_p(b"expansion")
        assert library.Rich_setParameter(encoded, ctypes.c_double(expansion)) == 1
        code, _, state = call(library.Rich_Tridimensional, 4.0, start, end)
        stress, energy = expect(expansion)
        assert code == 1
        assert np.allclose(state["forces"], stress, rtol=1e-12)
        assert np.allclose(state["stored"], energy, rtol=1e-12)
        work = 0.5 * stress @ strain
        assert np.allclose(state["dissipated"], 5.0 + work - (energy[0] - 2.0), rtol=1e-12)
    assert library.Rich_setParameter(ctypes.c_char_p(b"none"), ctypes.c_double(1.0)) == 0


@pytest.mark.parametrize(("dt", "code"), [(0.25, 1), (0.2, -1), (0.0, -1), (-0.25, -1), (math.nan, -1)])
def test_a_time_that_does_not_grow_by_the_step(behaviours, dt, code):
    library = ctypes.CDLL(str(behaviours["rich"].library))
    end = {"gradients": np.full(6, 1e-4), "external": [320.0, 0.15, 1.25]}
    got, _, state = call(library.Rich_Tridimensional, 4.0, {}, end, dt=dt)
    assert got == code
    assert (b"does not grow by dt" in state["why"]) == (code < 0)
    # A prediction knows nothing of the end.
    assert call(library.Rich_Tridimensional, -1.0, {}, end, dt=dt)[0] == 1


def test_codes_of_operators(behaviours):
    """At yield the consistent tangent is softer than the operator at the start, which the speed of sound is of."""
    library = ctypes.CDLL(str(behaviours["solid"].library))
    strain = np.array([4e-3, -1e-3, 0.0, 1e-3, 0.0, 0.0])
    function = library.make_model_Tridimensional
    _, consistent, _ = call(function, 4.0, {"states": [0.0]}, {"gradients": strain})
    _, elastic, _ = call(function, 1.0, {"states": [0.0]}, {"gradients": strain})
    code, prediction, untouched = call(function, -1.0, {"states": [0.0]}, {"gradients": strain})
    assert code == 1
    assert np.array_equal(elastic, prediction)
    assert not untouched["forces"].any()
    assert consistent[3, 3] < 0.5 * prediction[3, 3]
    bulk, shear = 166_667.0, 76_923.0
    assert math.isclose(prediction[0, 0], bulk + 4 / 3 * shear, rel_tol=1e-9)
    _, _, state = call(function, 100.0, {"states": [0.0]}, {"gradients": strain})
    assert math.isclose(state["sound"], math.sqrt((bulk + 4 / 3 * shear) / 2.0), rel_tol=1e-9)


def test_a_step_that_is_too_large(behaviours):
    library = ctypes.CDLL(str(behaviours["limited"].library))
    code, _, state = call(library.Limited_Tridimensional, 4.0, {}, {"gradients": [4e-3, 0, 0, 0, 0, 0]})
    assert (code, state["rdt"]) == (-1, 0.25)
    assert b"does not converge" in state["why"]
    assert not state["forces"].any()
