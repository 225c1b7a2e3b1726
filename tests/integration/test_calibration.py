"""The example that fits parameters: derivatives by finite differences, known parameters found, SciPy's answer."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy
import pytest
from project import ROOT, make_once, skip_checks

import torchferry

SOURCE = ROOT / "examples" / "calibration.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("calibration", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["calibration"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bar(example, shared: Path):
    def make(folder: Path) -> None:
        with skip_checks():
            torchferry.export(
                f"{SOURCE}:make_model", output=folder / "bar", per_element="*", derivatives="ep:*", formats="c"
            )

    return example.Bar(make_once(shared / "calibration", make) / "bar")


def test_derivatives_go_through_all_steps(example, bar):
    values = numpy.array([[140.0, 2_000.0, 70.0], [180.0, 3_000.0, 95.0]])
    _, slopes = bar.pull(values)
    for k in range(3):
        step = numpy.zeros(3)
        step[k] = values[0, k] * 1e-6
        difference = (bar.pull(values + step)[0] - bar.pull(values - step)[0]) / (2 * step[k])
        scale = abs(difference).max()
        numpy.testing.assert_allclose(slopes[..., k], difference, atol=1e-6 * scale)
        with pytest.raises(AssertionError):
            numpy.testing.assert_allclose(slopes[..., k] * 1.001, difference, atol=1e-6 * scale)


def test_known_parameters_are_found(example, bar):
    known, measured = example.make_tests(bar, 20, noise=0.0)
    numpy.testing.assert_allclose(example.fit_all(bar, measured), known, rtol=1e-6)
    numpy.testing.assert_allclose(example.fit_one(bar, measured[3]), known[3], rtol=1e-6)


def test_all_at_once_are_what_scipy_finds(example, bar):
    known, measured = example.make_tests(bar, 8)
    fitted = example.fit_all(bar, measured)
    for k in range(3):
        numpy.testing.assert_allclose(fitted[k], example.fit_one(bar, measured[k]), rtol=1e-5)
    assert not numpy.allclose(fitted, known, rtol=1e-6)
    numpy.testing.assert_allclose(fitted, known, rtol=0.05)
