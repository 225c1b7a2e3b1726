"""SUNDIALS CVODE and SciPy's Radau with right-hand side and Jacobian from one archive, against functions by hand."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from native_build import SOLVERS, programs, run
from project import need, skip_checks
from tampering import change_cases

import torchferry
from exporter.archive.derivative_request import DerivativeRequest
from exporter.capture import derivative_methods, jacobian_source
from exporter.common.stopwatch import Stopwatch
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.soundness.checked_capture import CaptureOptions
from runtime_checks import native_build
from torchferry.options import ExportOptions
from torchferry.pipeline import write_archive

pytestmark = pytest.mark.thorough

SOURCE = f"{SOLVERS / 'robertson.py'}:make_model"
RADAU = SOLVERS / "robertson_scipy.py"
COUNTS = re.compile(r"steps (\d+), rates (\d+), jacobians (\d+), iterations (\d+)")


@pytest.fixture(scope="module")
def cvode(tmp_path_factory) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = programs(SOLVERS, base.parent if base.name.startswith("popen-") else base)
    need((folder / "robertson").exists(), "SUNDIALS is not installed (apt-get install libsundials-dev)")
    return folder / "robertson"


@pytest.fixture(scope="module")
def robertson(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("robertson") / "robertson.pt"
    with skip_checks():
        torchferry.export(SOURCE, output=path, derivatives="rate:y")
    return path


@pytest.fixture
def transposed(tmp_path, monkeypatch) -> Path:
    """A file whose Jacobian is transposed, and whose cases say the same: nothing but the solver can tell."""
    written = jacobian_source.emit_jacobian_source

    def turn(*args, **kwargs):
        text = written(*args, **kwargs)
        return re.sub(r"(reshape\(\[tf_rows, 3, 3\]\)),\)\n$", r"\1.transpose(1, 2),)\n", text)

    monkeypatch.setattr(derivative_methods, "emit_jacobian_source", turn)
    path = tmp_path / "transposed.pt"
    source = resolve.load(ModelRequest(SOURCE), "make_model", None)
    options = ExportOptions(capture=CaptureOptions(derivative_request=DerivativeRequest(("rate:y",))))
    write_archive(source, path, options, Stopwatch())

    def turn_cases(cases):
        for name, value in cases.items():
            if "/jacobian/out/1" in name:
                cases[name] = value.transpose(1, 2).contiguous()

    change_cases(path, turn_cases)
    return path


def by_cvode(program: Path, archive: Path | str) -> tuple[int, list[str], tuple[int, ...], str]:
    code, out, text = run(program, archive)
    *lines, last = out.decode().splitlines()
    result = COUNTS.fullmatch(last)
    assert result is not None, text
    return code, lines, tuple(map(int, result.groups())), text


def test_cvode_takes_the_steps_that_it_takes_with_functions_by_hand(cvode, robertson):
    code, lines, counts, text = by_cvode(cvode, robertson)
    assert code == 0, text
    _, by_hand, expected, _ = by_cvode(cvode, "--by-hand")
    assert counts == expected
    assert counts[2] > 0
    assert len(lines) == 12
    numbers, wanted = ([[float(x) for x in line.split()] for line in side] for side in (lines, by_hand))
    torch.testing.assert_close(torch.tensor(numbers), torch.tensor(wanted), rtol=1e-10, atol=0)


def test_cvode_with_a_transposed_jacobian(cvode, transposed):
    code, _, counts, _ = by_cvode(cvode, transposed)
    _, _, expected, _ = by_cvode(cvode, "--by-hand")
    assert code != 0 or counts != expected


def by_radau(archive: Path) -> dict:
    library = native_build.build() / "lib" / "libtorchferry.so"
    command = [sys.executable, str(RADAU), str(archive), str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return json.loads(done.stdout) if done.returncode == 0 else {"success": False, "error": done.stderr}


def rate(_, y):
    first, second = 0.04 * y[0] - 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return [-first, first - second, second]


def jacobian(_, y):
    return [
        [-0.04, 1e4 * y[2], 1e4 * y[1]],
        [0.04, -1e4 * y[2] - 6e7 * y[1], -1e4 * y[1]],
        [0.0, 6e7 * y[1], 0.0],
    ]


@pytest.fixture(scope="module")
def by_hand() -> dict:
    need(importlib.util.find_spec("scipy") is not None, "scipy is not installed")
    from scipy.integrate import solve_ivp

    tolerances = {"rtol": 1e-6, "atol": [1e-10, 1e-16, 1e-8]}
    result = solve_ivp(rate, (0.0, 4e10), [1.0, 0.0, 0.0], method="Radau", jac=jacobian, **tolerances)
    counts = {"steps": len(result.t) - 1, "nfev": result.nfev, "njev": result.njev, "nlu": result.nlu}
    return {**counts, "y": result.y[:, -1].tolist()}


def test_radau_without_torch(robertson, by_hand):
    result = by_radau(robertson)
    assert result["success"], result
    assert result["torch"] is False
    # The Jacobian really was called.
    assert result["calls"]["jacobian"] == result["njev"] > 0
    assert {k: result[k] for k in ("steps", "nfev", "njev", "nlu")} == {k: v for k, v in by_hand.items() if k != "y"}
    torch.testing.assert_close(torch.tensor(result["y"]), torch.tensor(by_hand["y"]), rtol=1e-6, atol=0)


def test_radau_with_a_transposed_jacobian(transposed, by_hand):
    result = by_radau(transposed)
    assert not result["success"] or result["steps"] != by_hand["steps"]
