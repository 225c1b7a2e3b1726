"""A system that cannot fork: files load and run there; commands that run a file in a forked process say so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from project import ARTIFACTS, ROOT, mark_thorough_after

import torchferry
from exporter.archive import pt_archive

WITHOUT = ROOT / "tests" / "support" / "no_fork"
COMMAND = "from torchferry.cli.app import main; main()"
WORK = ("inspect rates.pt", "inspect kernel", "wrap torch kernel")
REFUSED = (
    "export model.py:make_model -o new.pt",
    "convert rates.pt --to c -o new",
    "verify rates.pt",
    "evaluate rates.pt data.parquet -o new.parquet",
    "check model.py:make_model",
    "convert rates.pt --to onnx -o new.onnx",
    "adopt rates.pt -o new.pt",
    "show model.py:make_model",
    "diff rates.pt rates.pt",
    "graph rates.pt --html new.html",
)


def run_without(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, in a process that cannot fork."""
    paths = os.pathsep.join([str(WITHOUT), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an archive, its kernel, data, and a model."""
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path_factory.mktemp("work")
    shutil.copy(ARTIFACTS / "rates.pt", folder)
    shutil.copy(ROOT / "examples" / "solvers" / "decay.py", folder / "model.py")
    torchferry.convert(folder / "rates.pt", to="c", output=folder / "kernel")
    names = torchferry.load(folder / "rates.pt").contract.methods["forward"].inputs
    columns = {name: [0.25 * i + 0.5 * n for i in range(7)] for n, name in enumerate(names)}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "data.parquet")
    return folder


def test_there_is_no_fork(tmp_path):
    """The control of the others."""
    done = run_without(tmp_path, "-c", "import os; os.fork()")
    assert "AttributeError" in done.stderr


@pytest.mark.parametrize("command", WORK)
def test_what_runs_no_foreign_code_works(folder, command):
    done = run_without(folder, "-c", COMMAND, *command.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", mark_thorough_after(4, REFUSED))
def test_what_needs_forks_says_so_and_writes_nothing(folder, command):
    before = sorted(folder.iterdir())
    done = run_without(folder, "-c", COMMAND, *command.split())
    assert done.returncode == 6, done.stderr
    assert "cannot fork" in done.stderr
    assert "expected: Linux or macOS" in done.stderr
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("name", ["rates.pt", "kernel"])
def test_a_file_gives_its_numbers(folder, name):
    code = """
import sys, torch, torchferry
model = torchferry.load(sys.argv[1])
inputs = torch.load("inputs.bin")
outputs = model.call("forward", inputs)
torch.save({name: torch.as_tensor(output) for name, output in outputs.items()}, "outputs.bin")
"""
    archive = pt_archive.read(folder / "rates.pt")
    case = next(case for case in archive.cases() if case.method == "forward")
    torch.save(dict(zip(archive.contract.methods["forward"].inputs, case.inputs, strict=True)), folder / "inputs.bin")
    done = run_without(folder, "-c", code, name)
    assert done.returncode == 0, done.stderr
    outputs = torch.load(folder / "outputs.bin")
    for output, expected in zip(outputs.values(), case.outputs, strict=True):
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=0)
