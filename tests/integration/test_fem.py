"""The finite-element example: its global Newton iteration converges as the tangents of the archive say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gate_specimens import load
from project import ROOT

import torchferry

LOADS = (5e-4, 7e-4, 9e-4, 1.1e-3, 9e-4, -2e-4)
# Of |r| before and after an iteration: after <= ORDER_TWO * before^2, down to rounding.
ORDER_TWO, ROUNDING = 20.0, 1e-12
plates = load(ROOT / "examples" / "fem" / "plate.py")


@pytest.fixture(scope="module", params=["torchscript", "kernel"])
def material(solid, request):
    return torchferry.load(solid, engine=request.param)


@pytest.fixture
def plate(material):
    return plates.Plate(material, plates.quarter_plate(4, 6))


def quadratic(step) -> bool:
    return all(
        after <= ORDER_TWO * before**2 + ROUNDING
        for before, after in zip(step.norms, step.norms[1:], strict=False)
        if before < 1e-3
    )


def plastic(steps):
    """Steps of several iterations."""
    return [s for s in steps if len(s.norms) > 2]


def test_convergence_is_quadratic(plate):
    steps = plate.run(LOADS[:4])
    strained = plate.state["ep"].clone()
    # Unloading is elastic at first.
    steps += plate.run(LOADS[4:5])
    torch.testing.assert_close(plate.state["ep"], strained, rtol=0, atol=1e-12)
    steps += plate.run(LOADS[5:])
    assert all(s.converged for s in steps)
    assert len(plastic(steps)) >= 3
    assert all(map(quadratic, steps)), [s.norms for s in steps]
    assert float(strained.max()) > 1e-3


def test_an_outdated_tangent_loses_the_order(plate):
    for value in LOADS[:2]:
        assert plate.load(value).converged
    step = plate.load(LOADS[2], lambda now, before: before)
    assert not (step.converged and quadratic(step)), step.norms


def test_the_elastic_tangent_does_not_converge_in_as_many_steps(material, plate):
    other = plates.Plate(material, plates.quarter_plate(4, 6))
    elastic = other.start.copy()
    for value in LOADS[:1]:
        assert other.load(value).converged
        assert plate.load(value).converged
    step, best = other.load(LOADS[1], lambda now, before: elastic), plate.load(LOADS[1])
    assert best.converged
    assert len(step.norms) > 2 * len(best.norms)


def test_the_tangent_is_symmetric_and_that_of_a_difference(plate):
    """Associative plasticity; a strain that is half in the plastic range."""
    strain = torch.zeros(2, 6, dtype=torch.float64)
    strain[0, 0], strain[1, 5] = 1e-4, 5e-3
    arguments = {"strain": strain, **{f"{n}~1": torch.zeros(2, 6, dtype=torch.float64) for n in ("strain", "stress")}}
    arguments["ep~1"] = torch.zeros(2, dtype=torch.float64)
    tangent = plate.material.call("jacobian", arguments)["d stress / d strain"]
    np.testing.assert_allclose(tangent, tangent.mT, rtol=1e-7, atol=1e-4)
    h = 1e-7
    for i in range(6):
        moved = [
            plate.material.call(
                "forward", arguments | {"strain": strain + sign * h * torch.eye(6, dtype=strain.dtype)[i]}
            )
            for sign in (1, -1)
        ]
        column = (moved[0]["stress"] - moved[1]["stress"]) / (2 * h)
        np.testing.assert_allclose(tangent[:, :, i], column, rtol=1e-6, atol=1.0)


def test_a_picture_is_drawn(plate, tmp_path):
    plate.load(LOADS[1])
    plate.picture(tmp_path / "plate.svg")
    assert "<svg" in (tmp_path / "plate.svg").read_text()


def test_points_that_do_not_converge_are_told(plate):
    with pytest.raises(RuntimeError, match="quadrature points do not converge"):
        plate.load(float("nan"))
