"""Programs of ``tests/runtime_checks/native`` and ``examples/solvers``, built once for all test processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from project import ROOT, make_once, need

from runtime_checks import native_build

CLIENTS = ROOT / "tests" / "runtime_checks" / "native"
SOLVERS = ROOT / "examples" / "solvers"


def has_fortran() -> bool:
    return shutil.which("gfortran") is not None


def need_fortran() -> None:
    need(has_fortran(), "gfortran is not installed (apt-get install gfortran)")


def programs(source: Path, shared: Path, *, sanitize: str = "") -> Path:
    """The folder of ``source``'s programs. ``shared`` is one folder for all test processes."""

    def make(folder: Path) -> None:
        prefix = native_build.build(sanitize=sanitize)
        cmake, ninja = native_build.find_tool("cmake"), native_build.find_tool("ninja", needed=False)
        options = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
        options += ["-DSANITIZED=ON"] if sanitize else []
        where = f"-Dtorchferry_DIR={prefix / 'lib' / 'cmake' / 'torchferry'}"
        native_build.run_tool([cmake, "-S", str(source), "-B", str(folder), where, *options])
        native_build.run_tool([cmake, "--build", str(folder)])

    return make_once(shared / f"{source.name}{f'-{sanitize}' if sanitize else ''}", make)


def fill_cache(folder: Path) -> None:
    """Put the native library that is built into a new cache: the same sources would give it again, after a minute."""
    built = native_build.build()
    (folder / native_build.NATIVE).mkdir(mode=0o700, parents=True)
    shutil.copytree(built, folder / native_build.NATIVE / built.name)


def run(
    program: Path, *arguments: str | Path, stdin: bytes = b"", environment: dict[str, str] | None = None
) -> tuple[int, bytes, str]:
    """Exit code, standard output as bytes, and both outputs as text for messages."""
    done = subprocess.run(
        [str(program), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env={**os.environ, **(environment or {})},
        timeout=300,
        check=False,
    )
    text = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    return done.returncode, done.stdout, text


def verify_natively(path: Path, *arguments: str | Path, **environment: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of ``torchferry_verify``."""
    program = native_build.build() / "bin" / "torchferry_verify"
    code, out, text = run(program, path, "--json", *arguments, environment=environment)
    assert out, text
    return code, json.loads(out)
