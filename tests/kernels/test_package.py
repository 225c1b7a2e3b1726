"""The folder of a kernel: exported, built, called from C and NumPy, and refused where it was changed."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from conftest import ROOT, need

import torchferry
from exporter import kernel_files
from exporter.cli.app import run
from exporter.errors import ArchiveError, MissingRuntimeError, UsageError
from runtime_checks import kernel_build, native_library
from runtime_checks.kernel_calls import Array
from runtime_checks.runners.kernel import library

ARTIFACTS = ROOT / "artifacts"
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-std=c99"]
F = torch.float64


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    made = {}
    for name in ("robertson", "return_map", "perzyna"):
        made[name] = tmp_path_factory.mktemp("kernels") / name
        assert run(["convert", str(ARTIFACTS / f"{name}.pt"), "--to", "c", "-o", str(made[name])]) == 0
    return made


@pytest.fixture
def copy(folders, tmp_path) -> Path:
    return Path(shutil.copytree(folders["robertson"], tmp_path / "robertson"))


def name_of(folder: Path) -> str:
    return kernel_files.read(folder).name


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
        for case in kernel_files.read(folder).cases():
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


def test_clang_gives_the_same_numbers(folders, monkeypatch):
    need(shutil.which("clang") is not None, "clang is not installed (apt-get install clang)")
    monkeypatch.setenv("CC", "clang")
    for folder in folders.values():
        assert torchferry.verify(folder).passed


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_warnings(folders, compiler, tmp_path):
    need(shutil.which(compiler) is not None, f"{compiler} is not installed (apt-get install {compiler})")
    for folder in folders.values():
        for file in folder.glob("*.c"):
            done = subprocess.run(
                [compiler, *WARNINGS, "-O1", "-c", str(file), "-o", str(tmp_path / "o")],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.parametrize("name", ["robertson", "return_map"])
def test_sanitizers(folders, name, tmp_path):
    folder = folders[name]
    main = name_of(folder)
    program = tmp_path / "test"
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [str(folder / f"{main}.c"), str(folder / f"test_{main}.c")]
    subprocess.run(["gcc", *flags, *sources, "-o", str(program), "-lm"], check=True)
    done = subprocess.run([str(program), str(folder / "cases.txt")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.endswith("passed\n"), done.stderr) == (0, True, "")


@pytest.mark.parametrize("openmp", ["OFF", "ON"])
def test_cmake_builds_installs_and_tests_it(folders, tmp_path, openmp):
    """And a host finds it."""
    folder = folders["return_map"]
    name = name_of(folder)
    host = tmp_path / "host"
    host.mkdir()
    (host / "main.c").write_text(
        f'#include "{name}.h"\nint main(void) {{ return {name}_forward(0, 0, 0, 0, 0, 0) == 0; }}\n'
    )
    (host / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.18)\nproject(host LANGUAGES C)\nfind_package({name} REQUIRED)\n"
        f"add_executable(host main.c)\ntarget_link_libraries(host PRIVATE {name}::{name})\n"
    )
    cmake = native_library.tool("cmake")
    build, prefix = tmp_path / "build", tmp_path / "prefix"
    for step in (
        [
            cmake,
            "-S",
            str(folder),
            "-B",
            str(build),
            f"-DCMAKE_INSTALL_PREFIX={prefix}",
            f"-D{name.upper()}_OPENMP={openmp}",
        ],
        [cmake, "--build", str(build)],
        [cmake, "--install", str(build)],
        [str(Path(cmake).with_name("ctest")), "--test-dir", str(build), "--output-on-failure"],
        [cmake, "-S", str(host), "-B", str(host / "build"), f"-DCMAKE_PREFIX_PATH={prefix}"],
        [cmake, "--build", str(host / "build")],
    ):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (prefix / "include" / f"{name}.h").is_file()
    (described,) = prefix.rglob(f"{name}.pc")
    assert f"-l{name}" in described.read_text()
    assert ("-fopenmp" in described.read_text()) is (openmp == "ON")


def test_the_test_program_fails_on_other_numbers(folders, tmp_path):
    folder = folders["robertson"]
    main = name_of(folder)
    lines = (folder / "cases.txt").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("out")) + 1
    first, *rest = lines[at].split(" ")
    lines[at] = " ".join([(float.fromhex(first) * 1.001).hex(), *rest])
    (tmp_path / "cases.txt").write_text("\n".join(lines) + "\n")
    program = tmp_path / "test"
    subprocess.run(
        ["gcc", str(folder / f"{main}.c"), str(folder / f"test_{main}.c"), "-o", str(program), "-lm"], check=True
    )
    for file, wanted in ((folder / "cases.txt", 0), (tmp_path / "cases.txt", 1), (tmp_path / "none.txt", 2)):
        assert subprocess.run([str(program), str(file)], capture_output=True, check=False).returncode == wanted


# Many elements with one strain each, in a host whose processor traps where it is asked to: the first argument is the
# largest strain, in percent. The outputs go to standard output, statuses, whether traps are on still and the number of
# threads to standard error.
HOST = """#define _GNU_SOURCE
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include "NAME.h"
enum { ROWS = 3001 };
static double strain[ROWS][6], zero[ROWS][6], ep[ROWS], stress[ROWS][6], out[ROWS];
static int32_t status[ROWS];
int main(int count, char **arguments) {
  const double largest = atof(arguments[1]) / 100;
  NAME_array in[] = {{strain, 0}, {zero, 0}, {zero, 0}, {ep, 0}}, given[] = {{stress, 0}, {out, 0}};
  for (int e = 0; e < ROWS; e++) strain[e][0] = strain[e][3] = count > 2 ? largest : largest * e / ROWS;
  feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
#ifdef _OPENMP
#pragma omp parallel
  if (fegetexcept() == 0) abort(); /* its threads trap too */
#endif
  const int code = NAME_forward(ROWS, in, given, 0, status, 0);
  const int traps = fegetexcept() != 0;
  fedisableexcept(FE_ALL_EXCEPT);
  char line[256] = "";
  FILE *const file = fopen("/proc/self/status", "r");
  int threads = 0;
  while (file && fgets(line, sizeof line, file)) sscanf(line, "Threads: %d", &threads);
  fwrite(stress, sizeof stress, 1, stdout);
  fprintf(stderr, "%d %d %d %d %d", code, (int)status[0], (int)status[ROWS - 1], traps, threads);
  return 0;
}
"""


def host(folder: Path, to: Path, *flags: str) -> Callable[..., tuple[bytes, list[int]]]:
    main = name_of(folder)
    (to / "host.c").write_text(HOST.replace("NAME", main))
    built = ["gcc", "-O2", *flags, f"-I{folder}", str(folder / f"{main}.c"), str(to / "host.c")]
    subprocess.run([*built, "-o", str(to / "host"), "-lm"], check=True)

    def called(*arguments: str, threads: int = 3) -> tuple[bytes, list[int]]:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run([str(to / "host"), *arguments], capture_output=True, check=True, env=environment)
        return done.stdout, [int(word) for word in done.stderr.split()]

    return called


@pytest.mark.parametrize("flags", [[], ["-fopenmp", *WARNINGS]])
def test_a_host_that_traps_is_not_stopped(folders, tmp_path, flags):
    """Newton's method on a singular start divides by zero, with the processor's traps on."""
    call = host(folders["return_map"], tmp_path, *(f for f in flags if f != "-std=c99"))
    _, (code, first, last, traps, threads) = call("1e302", "all")
    assert (code, first > 0, last > 0, traps) == (1, True, True, 1)
    assert threads == (3 if flags else 1)


def test_openmp_changes_no_number(folders, tmp_path):
    call = host(folders["return_map"], tmp_path, "-fopenmp")
    one, four = call("1", threads=1), call("1", threads=4)
    assert (one[1][-1], four[1][-1]) == (1, 4)
    assert one[0] == four[0]
    assert any(one[0])


class Raw:
    """Calls with pointers of one's own."""

    def __init__(self, folder: Path) -> None:
        opened = kernel_files.read(folder)
        self.function = getattr(ctypes.CDLL(str(library(opened))), f"{opened.name}_forward")
        self.function.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 5]

    def __call__(self, count: int, inputs, outputs) -> int:
        return self.function(count, self._arrays(inputs), self._arrays(outputs), None, None, None)

    def _arrays(self, given):
        if given is None:
            return None
        made = (Array * len(given))()
        for i, (data, strides) in enumerate(given):
            made[i].data = data
            made[i].strides = (ctypes.c_ssize_t * len(strides))(*strides) if strides else None
        return made


def test_wrong_pointers_and_strides(folders):
    call = Raw(folders["robertson"])
    y, rate = numpy.ones((4, 3)), numpy.zeros((4, 3))
    whole = numpy.zeros(64)
    at = whole.ctypes.data
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
    assert call(4, [(at, (3, 1))], [(at + 8, (3, 1))]) == -3
    assert call(4, [(at, (3, 1))], [(at, (3, 1))]) == 0
    assert call(4, [(at, (6, 1))], [(at + 24, (6, 1))]) == 0
    assert call(4, [(at, (6, 1))], [(at + 16, (6, 1))]) == -3


def test_layouts_give_the_same_numbers(folders):
    kernel = torchferry.load(folders["return_map"])
    generator = numpy.random.default_rng(0)
    wide = generator.normal(size=(11, 6)) * 4e-3
    given = [wide, numpy.zeros((11, 6)), numpy.zeros((11, 6)), numpy.zeros(11)]
    plain = kernel(*given)
    apart = kernel(*(numpy.asfortranarray(v) for v in given))
    backwards = kernel(*(v[::-1] for v in given))
    spread = numpy.zeros((22, 12))
    spread[::2, ::2] = wide
    strided = kernel(spread[::2, ::2], *given[1:])
    two = kernel(*(v.reshape(11, 1, *v.shape[1:]) for v in given))
    for one, a, b, c, d in zip(plain, apart, backwards, strided, two, strict=True):
        assert numpy.array_equal(one, a)
        assert numpy.array_equal(one, b[::-1])
        assert numpy.array_equal(one, c)
        assert numpy.array_equal(one, d[:, 0])


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


def test_files_of_somebody_else_are_not_overwritten(tmp_path, capsys):
    (tmp_path / "CMakeLists.txt").write_text("mine")
    # The folder is not empty, and no kernel's: the kernel would be a folder in it.
    assert run(["convert", str(ARTIFACTS / "robertson.pt"), "--to", "c", "-o", str(tmp_path)]) == 2
    assert "in the way" in capsys.readouterr().err
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
    one, other = ({f.name: f.read_bytes() for f in folder.iterdir()} for folder in (folders["return_map"], again))
    assert one == other


def test_no_place_for_a_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run(["convert", str(ARTIFACTS / "robertson.pt"), "--to", "c", "-o", str(tmp_path / "file")]) == 2
    assert "a kernel is a folder" in capsys.readouterr().err
    assert run(["convert", str(ARTIFACTS / "robertson.pt"), "--to", "c", "-o", str(tmp_path / "m.pt")]) == 2
    assert run(["verify", str(tmp_path)]) == 4


class TestCompilers:
    @pytest.fixture(autouse=True)
    def _own_cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))

    def test_none(self, folders, monkeypatch):
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CC", raising=False)
        with pytest.raises(MissingRuntimeError, match="no C compiler"):
            torchferry.load(folders["robertson"])
        monkeypatch.setenv("CC", "none-such")
        with pytest.raises(MissingRuntimeError, match="none-such"):
            torchferry.load(folders["robertson"])

    def test_one_that_fails_is_quoted(self, folders, tmp_path, monkeypatch):
        fake = tmp_path / "cc"
        fake.write_text(
            '#!/bin/sh\nif [ "$1" = --version ]; then echo fake 1; exit 0; fi\necho "error: no room" >&2\nexit 1\n'
        )
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CC", str(fake))
        with pytest.raises(MissingRuntimeError, match="error: no room"):
            torchferry.load(folders["robertson"])
        assert not list((tmp_path / "cache" / "kernels").glob("*/kernel.so"))

    def test_once(self, folders, monkeypatch):
        torchferry.load(folders["robertson"])
        monkeypatch.setattr(kernel_build, "_compiled", None)
        torchferry.load(folders["robertson"])

    def test_a_cache_that_was_changed(self, folders, tmp_path):
        torchferry.load(folders["robertson"])
        (made,) = (tmp_path / "cache" / "kernels").glob("*/kernel.so")
        data = bytearray(made.read_bytes())
        data[len(data) // 2] ^= 1
        made.unlink()
        made.write_bytes(data)
        with pytest.raises(ArchiveError, match="in the cache was changed"):
            torchferry.load(folders["robertson"])

    def test_a_cache_that_others_can_write_to(self, folders, tmp_path):
        torchferry.load(folders["robertson"])
        (tmp_path / "cache" / "kernels").chmod(0o777)
        with pytest.raises(ArchiveError, match="others can write"):
            torchferry.load(folders["robertson"])

    def test_a_cache_that_cannot_be_written(self, folders, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "file"))
        with pytest.raises(MissingRuntimeError, match="no place to be built"):
            torchferry.load(folders["robertson"])


def test_finite_math_is_asked_for(folders, tmp_path):
    """Fewer operations; the numbers are the same where they are finite."""
    made = tmp_path / "finite"
    assert run(["convert", str(ARTIFACTS / "perzyna.pt"), "--to", "c", "--finite-math", "-o", str(made)]) == 0
    text = {p: next(p.glob("*_lanes.h")).read_text() for p in (folders["perzyna"], made)}
    counts = [int(re.findall(r"jacobian: (\d+) operations", t)[0]) for t in text.values()]
    assert counts[1] < counts[0]
