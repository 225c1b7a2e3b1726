"""The folder of a kernel: exported, built, called from C and NumPy, and refused where it was changed."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from kernel_host import name_of
from project import ARTIFACTS

import torchferry
from exporter.archive import kernel_container
from exporter.backends.c_kernel.c_source import NEAR
from exporter.common.errors import ArchiveError, UsageError
from runtime_checks.kernels import compilation
from runtime_checks.kernels.ctypes_library import Array, Library, make_arrays
from runtime_checks.runners.kernel_runner import build_library
from torchferry.cli.app import run

F = torch.float64


@pytest.fixture
def copy(folders, tmp_path) -> Path:
    return Path(shutil.copytree(folders["robertson"], tmp_path / "robertson"))


def test_verified_like_every_other_runtime(folders):
    report = torchferry.verify(folders["return_map"])
    assert [leg.name for leg in report.legs] == ["c, cpu"]
    assert {c.check for c in report.checks if c.verdict == "passed"} >= {
        *("source library absent", "libm alone", "stored cases", "batch sizes", "permutation", "concatenation"),
        *("memory layouts", "finite differences", "settable parameters", "Newton"),
    }


def test_it_equals_the_archive(folders):
    for name, folder in folders.items():
        kernel, model = torchferry.load(folder), torchferry.load(ARTIFACTS / f"{name}.pt")
        for case in kernel_container.read(folder).cases():
            if case.name.startswith(("warmup", "batch")):
                got = kernel.call(
                    case.method,
                    dict(
                        zip(kernel.contract.methods[case.method].inputs, (v.numpy() for v in case.inputs), strict=True)
                    ),
                )
                wanted = getattr(model.module, case.method)(*case.inputs)
                for key, g, w in zip(got, got.values(), wanted, strict=True):
                    if key not in ("residual_norm", "iterations"):
                        assert torch.allclose(
                            torch.from_numpy(g), w, rtol=1e-10, atol=1e-12 * float(w.abs().max() + 1)
                        ), key


class Raw:
    """Calls with pointers of one's own."""

    def __init__(self, folder: Path) -> None:
        opened = kernel_container.read(folder)
        self.function = getattr(ctypes.CDLL(str(build_library(opened))), f"{opened.name}_forward")
        self.function.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 5]

    def __call__(self, count: int, inputs, outputs) -> int:
        return self.function(count, self._arrays(inputs), self._arrays(outputs), None, None, None)

    def _arrays(self, arguments):
        if arguments is None:
            return None
        result = (Array * len(arguments))()
        for i, (data, strides) in enumerate(arguments):
            result[i].data = data
            result[i].strides = (ctypes.c_ssize_t * len(strides))(*strides) if strides else None
        return result


def test_wrong_pointers_and_strides(folders):
    call = Raw(folders["robertson"])
    y, rate = numpy.ones((4, 3)), numpy.zeros((4, 3))
    whole = numpy.zeros(64)
    position = whole.ctypes.data
    assert call(4, [(y.ctypes.data, None)], [(rate.ctypes.data, None)]) == 0
    assert call(0, [(None, None)], [(None, None)]) == 0
    assert call(-1, [(y.ctypes.data, None)], [(rate.ctypes.data, None)]) == -1
    assert call(4, None, [(rate.ctypes.data, None)]) == -1
    assert call(4, [(None, None)], [(rate.ctypes.data, None)]) == -1
    assert call(4, [(y.ctypes.data, None)], [(None, None)]) == -1
    # Numbers of an output on top of each other.
    for strides in ((0, 1), (1, 1), (3, 0), (2, 1)):
        assert call(4, [(y.ctypes.data, None)], [(rate.ctypes.data, strides)]) == -2, strides
    for strides in ((3, 1), (1, 4), (5, 1), (-3, 1), (1, -4)):
        start = (whole[32:]).ctypes.data
        assert call(4, [(y.ctypes.data, None)], [(start, strides)]) == 0, strides
    # On top of the input, but for the very same array; side by side in one structure.
    assert call(4, [(position, (3, 1))], [(position + 8, (3, 1))]) == -3
    assert call(4, [(position, (3, 1))], [(position, (3, 1))]) == 0
    assert call(4, [(position, (6, 1))], [(position + 24, (6, 1))]) == 0
    assert call(4, [(position, (6, 1))], [(position + 16, (6, 1))]) == -3


def test_layouts_give_the_same_numbers(folders):
    kernel = torchferry.load(folders["return_map"])
    generator = numpy.random.default_rng(0)
    wide = generator.normal(size=(11, 6)) * 4e-3
    arguments = [wide, numpy.zeros((11, 6)), numpy.zeros((11, 6)), numpy.zeros(11)]
    plain = kernel(*arguments)
    apart = kernel(*(numpy.asfortranarray(v) for v in arguments))
    backwards = kernel(*(v[::-1] for v in arguments))
    spread = numpy.zeros((22, 12))
    spread[::2, ::2] = wide
    strided = kernel(spread[::2, ::2], *arguments[1:])
    two = kernel(*(v.reshape(11, 1, *v.shape[1:]) for v in arguments))
    for item, a, b, c, d in zip(plain, apart, backwards, strided, two, strict=True):
        assert numpy.array_equal(item, a)
        assert numpy.array_equal(item, b[::-1])
        assert numpy.array_equal(item, c)
        assert numpy.array_equal(item, d[:, 0])


def test_long_batches_give_the_same_numbers(folders):
    """Beyond the caches of a processor, where blocks to come are sent for."""
    kernel = torchferry.load(folders["robertson"])
    count = NEAR // (2 * 3 * 8) + 21
    y = numpy.random.default_rng(0).random((count, 3))
    (whole,) = kernel(y)
    pieces = [kernel(y[position : position + 1_000])[0] for position in range(0, count, 1_000)]
    assert numpy.array_equal(whole, numpy.concatenate(pieces))


def test_numpy_alone(folders, tmp_path):
    """In a process that cannot import torch."""
    code = f"""
import sys, importlib.abc
class No(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, No())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
import numpy, torchferry
kernel = torchferry.load({str(folders["robertson"])!r})
print(kernel.forward(y=numpy.array([[1.0, 0.0, 0.0]]))["rate"].tolist())
print("torch" in sys.modules)
try:
    torchferry.load("some.pt")
except torchferry.MissingRuntimeError as error:
    print(error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[1:3] == ["False", "6"]


def test_calls_that_do_not_fit(folders):
    kernel = torchferry.load(folders["robertson"])
    with pytest.raises(UsageError, match="no method 'none'"):
        kernel.call("none", {})
    with pytest.raises(UsageError, match="does not take these inputs"):
        kernel.forward(z=numpy.zeros(3))
    with pytest.raises(UsageError, match="of shape"):
        kernel.forward(y=numpy.zeros((2, 4)))
    with pytest.raises(UsageError, match="float32 instead of float64"):
        kernel.forward(y=numpy.zeros((2, 3), dtype=numpy.float32))
    with pytest.raises(UsageError, match="there is no parameter"):
        kernel.set_parameter("q", 1.0)
    with pytest.raises(UsageError, match="another shape"):
        kernel.set_parameter("k", 1.0)
    with pytest.raises(UsageError, match="one value for the whole batch"):
        kernel.set_parameter("k", numpy.ones((7, 3)))
    before = kernel.forward(y=numpy.ones((1, 3)))["rate"]
    kernel.set_parameter("k", [1.0, 2.0, 3.0])
    assert not numpy.array_equal(before, kernel.forward(y=numpy.ones((1, 3)))["rate"])


@pytest.mark.parametrize("name", ["manifest.json", "contract.json", "cases.txt", ".c", "_lanes.h"])
def test_changed_and_missing_files(copy, name):
    file = copy / (name if "." in name[1:] else f"{name_of(copy)}{name}")
    if name == "_lanes.h":
        file = copy / f"{name_of(copy)}_lanes.h"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for use in (torchferry.load, torchferry.verify):
        with pytest.raises(ArchiveError, match=r"changed|damaged"):
            use(copy)
    file.unlink()
    with pytest.raises(ArchiveError):
        torchferry.verify(copy)


def test_what_else_is_in_the_folder_stays(copy):
    (copy / "mine.txt").write_text("kept")
    (copy / "old.c").write_text("int x;")
    assert run(["convert", str(ARTIFACTS / "robertson.pt"), "--to", "c", "-o", str(copy)]) == 0
    assert (copy / "mine.txt").read_text() == "kept"
    assert not list(copy.parent.glob(".*tmp"))


def test_files_of_somebody_else_are_not_overwritten(tmp_path, capfd):
    (tmp_path / "CMakeLists.txt").write_text("mine")
    # The folder is not empty, and no kernel's: the kernel would be a folder in it.
    assert run(["convert", str(ARTIFACTS / "robertson.pt"), "--to", "c", "-o", str(tmp_path)]) == 2
    assert "in the way" in capfd.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["CMakeLists.txt"]
    assert (tmp_path / "CMakeLists.txt").read_text() == "mine"


def test_members_of_packed_structures(folders):
    kernel = torchferry.load(folders["robertson"])
    packed = numpy.zeros(5, dtype=[("tag", "i4"), ("y", "f8", (3,))])
    packed["y"] = numpy.random.default_rng(0).normal(size=(5, 3))
    assert numpy.array_equal(kernel(packed["y"])[0], kernel(packed["y"].copy())[0])


def test_the_same_bytes_again(folders, tmp_path):
    again = tmp_path / "again"
    assert run(["convert", str(ARTIFACTS / "return_map.pt"), "--to", "c", "-o", str(again)]) == 0
    item, other = ({f.name: f.read_bytes() for f in folder.iterdir()} for folder in (folders["return_map"], again))
    assert item == other


def test_no_place_for_a_folder(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    assert run(["convert", str(ARTIFACTS / "robertson.pt"), "--to", "c", "-o", str(tmp_path / "file")]) == 2
    assert "a kernel is a folder" in capfd.readouterr().err
    assert run(["convert", str(ARTIFACTS / "robertson.pt"), "--to", "c", "-o", str(tmp_path / "m.pt")]) == 2
    assert run(["verify", str(tmp_path)]) == 4


def test_finite_math_is_asked_for(folders, tmp_path):
    """Fewer operations; the numbers are the same where they are finite."""
    result = tmp_path / "finite"
    assert run(["convert", str(ARTIFACTS / "perzyna.pt"), "--to", "c", "--finite-math", "-o", str(result)]) == 0
    text = {p: next(p.glob("*_lanes.h")).read_text() for p in (folders["perzyna"], result)}
    counts = [int(re.findall(r"jacobian: (\d+) operations", t)[0]) for t in text.values()]
    assert counts[1] < counts[0]


@pytest.mark.parametrize("stride", [2**62, -(2**62), 2**60, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("side", ["in", "out"])
@pytest.mark.parametrize("count", [1, 3])
def test_strides_that_reach_further_than_memory(stride, side, count, folders):
    """They are refused before an address is computed, which would overflow."""
    files = kernel_container.read(folders["robertson"])
    library = Library(str(compilation.compile_kernel(files.sources())), files.manifest)
    values = numpy.zeros((count, 3)), numpy.zeros((count, 3))
    arrays = {"in": make_arrays([values[0]], True), "out": make_arrays([values[1]], True)}
    numbers = (ctypes.c_void_p * 1)(None)
    status = numpy.zeros(count, dtype=numpy.int32)

    def call() -> int:
        forward = library.functions["forward"]
        return forward(count, arrays["in"], arrays["out"], numbers, status.ctypes.data, None)

    assert call() == 0
    for strides in ((stride, 1), (3, stride)):
        arrays[side][0].strides = (ctypes.c_ssize_t * 2)(*strides)
        assert call() == -2


def test_a_block_is_by_the_input_where_a_parameter_has_its_name(tmp_path):
    """Verification holds the kernel's Jacobian against eager mode's."""
    source = tmp_path / "shared.py"
    source.write_text(
        "import torch\nfrom torch import nn\nfrom torchferry import Signature\n\n\nclass Shared(nn.Module):\n"
        "    signature = Signature.of({'k': ()}, {'y': ()})\n\n    def __init__(self):\n        super().__init__()\n"
        "        self.k = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))\n\n"
        "    def forward(self, k):\n        return self.k * k\n"
    )
    torchferry.export(f"{source}:Shared", output=tmp_path / "kernel", formats="c", derivatives="y:k", jvp=True)
    kernel = torchferry.load(tmp_path / "kernel")
    assert kernel.call("jacobian", {"k": numpy.array([0.5, 7.0])})["d y / d k"].tolist() == [3.0, 3.0]
