"""The C client of an ONNX container, on the library of onnxruntime's wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch
from native_build import CLIENTS, SOLVERS, run
from project import export_unverified

import torchferry


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """A folder that has it under the name by which programs look for it."""
    (library,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    folder = tmp_path_factory.mktemp("onnxruntime")
    (folder / "libonnxruntime.so.1").symlink_to(library)
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory, library) -> Path:
    result = tmp_path_factory.mktemp("decay") / "decay_onnx"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", f"-I{CLIENTS / 'onnxruntime'}"]
    place = [str(library / "libonnxruntime.so.1"), f"-Wl,-rpath,{library}"]
    subprocess.run(["gcc", *flags, str(SOLVERS / "decay_onnx.c"), "-o", str(result), *place], check=True)
    return result


@pytest.fixture(scope="module")
def decay(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("decay") / "decay.pt"
    export_unverified(f"{SOLVERS / 'decay.py'}:make_model", path)
    return torchferry.convert(path).path


def test_it_reproduces_eager_mode(program, decay, monkeypatch):
    monkeypatch.syspath_prepend(str(SOLVERS))
    from decay import integrate  # pyright: ignore[reportMissingImports]

    code, out, text = run(program, decay)
    assert code == 0, text
    result = torch.tensor([[float(x) for x in line.split()] for line in out.decode().splitlines()], dtype=torch.float64)
    torch.testing.assert_close(result, torch.tensor(integrate(), dtype=torch.float64).T, rtol=1e-12, atol=0)


def test_it_needs_neither_torch_nor_python(program):
    message = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    assert "onnxruntime" in message
    assert "torch" not in message
    assert "python" not in message.replace(sys.prefix, "")


def test_its_errors_are_onnxruntimes(program, decay, tmp_path):
    code, _, text = run(program, tmp_path / "none.onnx")
    assert (code, "File doesn't exist" in text) == (1, True)
    other = tmp_path / "jacobian.onnx"
    shutil.copy(decay, other)
    other.write_bytes(decay.read_bytes().replace(b"heat", b"cold"))
    code, _, text = run(program, other)
    assert (code, "heat" in text) == (1, True)
    assert run(program)[0] == 2
