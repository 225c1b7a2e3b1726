"""The wheel as a new user installs it: alone and with each extra, every command that the extra is for."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT

SPRING = """import torch
from torch import nn


class Spring(nn.Module):
    def forward(self, stretch, stiffness):
        return {"force": stiffness * stretch}


def make_model():
    x = torch.tensor([0.1, 0.2], dtype=torch.float64)
    return Spring(), {"stretch": x, "stiffness": 100 * x}
"""
# Every environment can do these.
ALWAYS = (
    "export spring.py:make_model --derivative force:stretch -o spring.pt",
    "verify spring.pt",
    "inspect spring.pt",
    "check spring.py:make_model",
    "graph spring.pt",
    "diff spring.pt spring.pt",
    "convert spring.pt --to c -o kernel",
    "wrap torch kernel",
)
# What an extra adds; where it is missing, the message names it.
EXTRAS = {
    "neml2": "export model.i --model eq -o eq.pt",
    "onnx": "convert spring.pt --to onnx -o spring.onnx",
    "plot": "bench spring.pt --batch 1 --plot spring.svg",
    "native": "verify spring.pt --runtime libtorch",
}
# What another extra brings along: neml2 needs pyzag, and that matplotlib; CMake may be on the machine.
PRESENT = {"neml2": ("plot", "native")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Built from a copy: setuptools would leave its build folder in the checkout.
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "source")], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(folder / "source")]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_every_file_of_a_package_is_in_the_wheel():
    """What is no Python is packed only where pyproject.toml says so; a checkout has it anyway."""
    # pytest brings the latter where Python has not the former.
    tomllib = importlib.import_module("tomllib" if importlib.util.find_spec("tomllib") else "tomli")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = {ROOT / name.replace(".", "/"): globs for name, globs in settings["package-data"].items()}
    packed = {path for folder, globs in patterns.items() for pattern in globs for path in folder.glob(pattern)}
    packages = ("exporter", "runtime_checks", "torchferry")
    listed = subprocess.run(["git", "ls-files", *packages], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = {ROOT / line for line in listed.stdout.splitlines() if not line.endswith(".py")}
    assert len(paths) > 50
    assert sorted(paths - packed) == []


@pytest.mark.thorough
@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_installed_with_one_extra(wheel, extra, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    binary = tmp_path / "venv" / "bin"
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    # The newest torch brings gigabytes for GPUs.
    pip = [str(binary / "python"), "-m", "pip", "install", "-q", "-c", str(ROOT / "tools" / "constraints.txt")]
    subprocess.run([*pip, wanted], check=True, capture_output=True)
    (tmp_path / "spring.py").write_text(SPRING)
    (tmp_path / "model.i").write_text((ROOT / "examples" / "rates" / "model.i").read_text())
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{binary}{os.pathsep}{environment['PATH']}"

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(binary / "torchferry"), *command.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )

    for command in ALWAYS:
        done = run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    for name, command in EXTRAS.items():
        done = run(command)
        if name == extra:
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        elif name not in PRESENT.get(extra, ("native",)):
            assert done.returncode != 0, command
            assert f"torchferry[{name}]" in done.stderr, done.stderr
