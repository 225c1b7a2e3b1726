"""Prepared calls: the numbers of calls to the bit, for any batch and strides; what is checked, and what is kept."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_host import name_of
from project import ARTIFACTS, make_once
from torch import nn

import torchferry
from exporter.archive import kernel_container
from runtime_checks.kernels import compilation
from runtime_checks.kernels.ctypes_library import make_arrays

F = torch.float64
ERROR_ARGUMENT, ERROR_STRIDES, ERROR_OVERLAP = -1, -2, -3


class Table(nn.Module):
    """A table of parameters that is read where it lies; its sum, which is computed once a call, in a workspace."""

    signature = torchferry.Signature.of({"x": ()}, {"y": ()})

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.linspace(0.0, 1.0, 40_000, dtype=F))
        self.__dict__["example_inputs"] = {"x": torch.linspace(0.0, 0.9, 16, dtype=F)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = self.values * 2.0
        return doubled[(x * 39_999).long().clamp(0, 39_999)] + x


@pytest.fixture(scope="module")
def folders(shared: Path, solid: Path) -> dict[str, Path]:
    def make(folder: Path) -> None:
        torchferry.convert(ARTIFACTS / "robertson.pt", folder / "robertson", to="c")

    return {"robertson": make_once(shared / "prepared", make) / "robertson", "return_map": solid.with_suffix("")}


class Prepared:
    """A method of a kernel, called and prepared."""

    def __init__(self, folder: Path, method: str) -> None:
        kernel = kernel_container.read(folder)
        library = ctypes.CDLL(str(compilation.compile_kernel(kernel.sources())))
        name = f"{kernel.name}_{method}"
        self.call, self.prepare, self.run = (getattr(library, name + end) for end in ("", "_prepare", "_run"))
        self.spec = kernel_container.read_manifest(folder)["methods"][method]
        size = getattr(library, f"{name}_call_size")
        size.restype = ctypes.c_size_t
        self.memory = ctypes.create_string_buffer(size())
        # The call of Python has no width of its own.
        self.call.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 5]
        self.prepare.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, *[ctypes.c_void_p] * 3]
        self.run.argtypes = [ctypes.c_void_p] * 5

    def draw(self, count: int, order: Any, seed: int = 0) -> tuple[list[Any], list[Any]]:
        """Return inputs with small numbers, and outputs that nobody has written."""
        random = np.random.default_rng(seed)
        inputs = [np.asarray(random.uniform(0, 3e-3, (count, *v["shape"])), order=order) for v in self.spec["inputs"]]
        return inputs, [np.full((count, *v["shape"]), 7.0, order=order) for v in self.spec["outputs"]]


def list_places(arrays: list[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("count", [0, 1, 5, 16, 33])
@pytest.mark.parametrize(
    ("name", "method"), [("robertson", "forward"), ("robertson", "jacobian"), ("return_map", "jacobian")]
)
def test_the_numbers_are_those_of_a_call(folders, name, method, count, order):
    """Prepared with some arrays, run with others."""
    kernel = Prepared(folders[name], method)
    planned = kernel.draw(count, order)
    assert kernel.prepare(kernel.memory, count, *(make_arrays(a, True) for a in planned), None) == 0
    for seed in (1, 2):
        inputs, outputs = kernel.draw(count, order, seed)
        _, wanted = kernel.draw(count, order)
        status, other = np.full(count, 9, np.int32), np.full(count, 9, np.int32)
        code = kernel.call(count, *(make_arrays(a, True) for a in (inputs, wanted)), None, status.ctypes.data, None)
        assert code == 0
        places = list_places(inputs), list_places(outputs)
        assert kernel.run(kernel.memory, *places, other.ctypes.data, None) == code
        assert all(np.array_equal(a, b) for a, b in zip(outputs, wanted, strict=True))
        assert np.array_equal(status, other)
        assert not count or not (outputs[0] == 7.0).any()
    assert all((output == 7.0).all() for output in planned[1])


def test_what_cannot_be_prepared_does_not_run(folders):
    kernel = Prepared(folders["robertson"], "forward")
    inputs, outputs = kernel.draw(3, "C")
    places = list_places(inputs), list_places(outputs)
    arrays = make_arrays(inputs, True), make_arrays(outputs, True)
    overlapping = make_arrays([np.lib.stride_tricks.as_strided(np.zeros(9), (3, 3), (0, 8))], True)
    for wrong, code in (
        ((3, arrays[0], overlapping), ERROR_STRIDES),
        ((3, arrays[0], arrays[0]), 0),
        ((-1, *arrays), ERROR_ARGUMENT),
        ((3, None, arrays[1]), ERROR_ARGUMENT),
    ):
        assert kernel.prepare(kernel.memory, *wrong, None) == code
        if code < 0:
            assert kernel.run(kernel.memory, *places, None, None) == ERROR_ARGUMENT
            assert (outputs[0] == 7.0).all()
    shifted = inputs[0].ravel()[1:7].reshape(2, 3)
    assert kernel.prepare(kernel.memory, 2, arrays[0], make_arrays([shifted], True), None) == ERROR_OVERLAP
    assert kernel.prepare(None, 3, *arrays, None) == ERROR_ARGUMENT
    assert kernel.run(None, *places, None, None) == ERROR_ARGUMENT


def test_parameters_are_those_of_the_preparation(folders):
    kernel = Prepared(folders["robertson"], "forward")
    inputs, outputs = kernel.draw(4, "C")
    rates = np.array([1.0, 2.0, 3.0])
    parameters = (ctypes.c_void_p * 1)(rates.ctypes.data)
    assert kernel.prepare(kernel.memory, 4, make_arrays(inputs, True), make_arrays(outputs, True), parameters) == 0
    rates[:] = np.nan
    assert kernel.run(kernel.memory, list_places(inputs), list_places(outputs), None, None) == 0
    a, b, c = inputs[0].T
    first, second = 1.0 * a - 2.0 * b * c, 3.0 * b * b
    assert np.allclose(outputs[0], np.stack([-first, first - second, second], -1), rtol=1e-14)


def test_elements_that_do_not_converge_have_their_status(folders):
    kernel = Prepared(folders["return_map"], "jacobian")
    inputs, outputs = kernel.draw(3, "C")
    inputs[0][1] = np.nan
    status = np.zeros(3, np.int32)
    assert kernel.prepare(kernel.memory, 3, make_arrays(inputs, True), make_arrays(outputs, True), None) == 0
    assert kernel.run(kernel.memory, list_places(inputs), list_places(outputs), status.ctypes.data, None) == 1
    assert status.tolist() == [0, 3, 0]
    assert np.isnan(outputs[0][1]).all()
    assert np.isfinite(outputs[0][[0, 2]]).all()


def test_a_workspace_is_the_callers(tmp_path):
    torchferry.export(Table(), output=tmp_path / "table", formats="c")
    kernel = Prepared(tmp_path / "table", "forward")
    size = kernel_container.read_manifest(tmp_path / "table")["workspace"]["forward"]
    assert size > 0
    inputs, outputs = kernel.draw(5, "C")
    arrays, places = (
        (make_arrays(inputs, True), make_arrays(outputs, True)),
        (list_places(inputs), list_places(outputs)),
    )
    workspace = np.zeros(size // 8 + 9)
    assert kernel.prepare(kernel.memory, 5, *arrays, None) == 0
    assert kernel.run(kernel.memory, *places, None, None) == ERROR_ARGUMENT
    assert kernel.run(kernel.memory, *places, None, workspace.ctypes.data) == 0
    wanted = outputs[0].copy()
    outputs[0][:] = 0.0
    assert kernel.call(5, *arrays, None, None, workspace.ctypes.data) == 0
    assert np.array_equal(outputs[0], wanted)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"const ptrdiff_t row = c->rows\[0\]", "const ptrdiff_t row = c->rows[0] + 1"),
        (r"out\[i\] = outputs\[i\]\.data", "out[i] = outputs[0].data"),
        (r"c->rows\[1\] = tf_stride", "c->rows[1] = 0 * tf_stride"),
        (r"code = forward_compute\(&p->call", "code = 0; (void)(&p->call"),
    ],
)
def test_a_planted_fault_is_found_by_the_test_program(folders, tmp_path, right, wrong):
    folder = Path(shutil.copytree(folders["robertson"], tmp_path / "k"))
    name = name_of(folder)
    changed, times = re.subn(right, wrong, (folder / f"{name}.c").read_text())
    assert times > 0
    (folder / f"{name}.c").write_text(changed)
    command = ["gcc", "-O1", "-w", f"{name}.c", f"test_{name}.c", "-o", "test", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    # A fault may end the program, too.
    assert subprocess.run(["./test"], cwd=folder, capture_output=True, check=False).returncode != 0
