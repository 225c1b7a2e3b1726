"""Kernels as compilers make them: warnings, sanitizers, CMake, OpenMP, hosts that trap, and the cache of builds."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_host import name_of
from project import mark_rest_thorough, need

import torchferry
from exporter.common.errors import ArchiveError, MissingRuntimeError
from runtime_checks import native_build
from runtime_checks.kernels import compilation

pytestmark = pytest.mark.thorough

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-std=c99"]


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


@pytest.mark.parametrize("vectors", [[], ["-march=native"]], ids=["portable", "native"])
@pytest.mark.parametrize("name", mark_rest_thorough(["robertson"], ["return_map"]))
def test_sanitizers(folders, name, vectors, tmp_path):
    """Of every batch as if it were long: blocks to come are sent for, beyond the end of arrays as well."""
    folder = shutil.copytree(folders[name], tmp_path / "folder")
    main = name_of(folder)
    written = (folder / f"{main}.c").read_text()
    changed, times = re.subn(r"far = count > \d+;", "far = 1;", written)
    assert times > 0
    (folder / f"{main}.c").write_text(changed)
    program = tmp_path / "test"
    flags = ["-g", "-O1", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *vectors]
    sources = [str(folder / f"{main}.c"), str(folder / f"test_{main}.c")]
    subprocess.run(["gcc", *flags, *sources, "-o", str(program), "-lm"], check=True)
    done = subprocess.run([str(program), str(folder / "cases.txt")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.endswith("passed\n"), done.stderr) == (0, True, "")


@pytest.mark.parametrize("openmp", mark_rest_thorough(["ON"], ["OFF"]))
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
    cmake = native_build.find_tool("cmake")
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


@pytest.mark.parametrize(("setting", "flags"), [("ON", "/fp:precise"), ("OFF", "-O3 -ffp-contract=off")])
def test_cmake_has_the_flags_of_each_kind_of_compiler(folders, tmp_path, setting, flags):
    """As texts: there is no MSVC here."""
    folder = folders["robertson"]
    options = [f"-DMSVC={setting}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-G", "Unix Makefiles"]
    cmake = native_build.find_tool("cmake")
    subprocess.run([cmake, "-S", str(folder), "-B", str(tmp_path), *options], check=True, capture_output=True)
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    (command,) = (entry["command"] for entry in commands if entry["file"].endswith(f"/{name_of(folder)}.c"))
    assert flags in command
    assert ("-march=native" in command) is (setting == "OFF")
    assert ("-std=c11" in command) is (setting == "ON")


def test_the_test_program_fails_on_other_numbers(folders, tmp_path):
    folder = folders["robertson"]
    main = name_of(folder)
    lines = (folder / "cases.txt").read_text().splitlines()
    position = next(i for i, line in enumerate(lines) if line.startswith("out")) + 1
    first, *rest = lines[position].split(" ")
    lines[position] = " ".join([(float.fromhex(first) * 1.001).hex(), *rest])
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
    item, four = call("1", threads=1), call("1", threads=4)
    assert (item[1][-1], four[1][-1]) == (1, 4)
    assert item[0] == four[0]
    assert any(item[0])


class TestCompilers:
    @pytest.fixture(autouse=True)
    def _own_cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))

    def test_none(self, folders, monkeypatch):
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CC", raising=False)
        with pytest.raises(MissingRuntimeError, match="no C compiler"):
            torchferry.load(folders["robertson"], trust="native")
        monkeypatch.setenv("CC", "none-such")
        with pytest.raises(MissingRuntimeError, match="none-such"):
            torchferry.load(folders["robertson"], trust="native")

    def test_one_that_fails_is_quoted(self, folders, tmp_path, monkeypatch):
        fake = tmp_path / "cc"
        fake.write_text(
            '#!/bin/sh\nif [ "$1" = --version ]; then echo fake 1; exit 0; fi\necho "error: no room" >&2\nexit 1\n'
        )
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CC", str(fake))
        with pytest.raises(MissingRuntimeError, match="error: no room"):
            torchferry.load(folders["robertson"], trust="native")
        assert not list((tmp_path / "cache" / "kernels").glob("*/kernel.so"))

    def test_once(self, folders, monkeypatch):
        torchferry.load(folders["robertson"], trust="native")
        monkeypatch.setattr(compilation, "_run_compiler", None)
        torchferry.load(folders["robertson"], trust="native")

    def test_a_cache_that_was_changed(self, folders, tmp_path):
        torchferry.load(folders["robertson"], trust="native")
        (result,) = (tmp_path / "cache" / "kernels").glob("*/kernel.so")
        data = bytearray(result.read_bytes())
        data[len(data) // 2] ^= 1
        result.unlink()
        result.write_bytes(data)
        with pytest.raises(ArchiveError, match="in the cache was changed"):
            torchferry.load(folders["robertson"], trust="native")

    def test_a_cache_that_others_can_write_to(self, folders, tmp_path):
        torchferry.load(folders["robertson"], trust="native")
        (tmp_path / "cache" / "kernels").chmod(0o777)
        with pytest.raises(ArchiveError, match="others can write"):
            torchferry.load(folders["robertson"], trust="native")

    def test_a_cache_that_cannot_be_written(self, folders, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "file"))
        with pytest.raises(MissingRuntimeError, match="no writable folder"):
            torchferry.load(folders["robertson"], trust="native")
