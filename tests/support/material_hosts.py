"""Hosts of material points as tests call them: kernels that are wrapped, built, and called as programs would."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from project import skip_checks

import torchferry
from exporter.hosts.registry import wrap_kernel

Array = np.ndarray[Any, Any]
DOUBLES = ctypes.POINTER(ctypes.c_double)
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
# The kernel itself is tested elsewhere, and compiles faster so.
KERNEL = ["-O1", "-std=c99", "-fPIC", "-ffp-contract=off"]


@dataclass(frozen=True)
class Wrapped:
    """A host's folder with its library and the program of its self-test."""

    folder: Path
    name: str
    host: str
    library: Path

    def build_self_test(self, sanitize: bool = False) -> Path:
        """Compile the self-test with the host's code in it."""
        program = self.folder / ("sanitized" if sanitize else "self-test")
        flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if sanitize else []
        sources = [f"test_{self.name}_{self.host}.c"] + ([] if self.host == "mgis" else [f"{self.name}_{self.host}.c"])
        command = ["gcc", "-g", "-O1", "-std=c99", *WARNINGS, "-Wno-unused-result", *flags, *sources, "kernel.o"]
        subprocess.run([*command, "-o", str(program), "-lm", "-ldl"], cwd=self.folder, check=True)
        return program

    def plant(self, right: str, wrong: str) -> None:
        """Put a fault into the host's source, and build the library again."""
        plant(self.folder / f"{self.name}_{self.host}.c", right, wrong)
        build_library(self)

    def run_self_test(self, sanitize: bool = False) -> subprocess.CompletedProcess[str]:
        """Run the self-test as it is built now."""
        program = self.build_self_test(sanitize)
        return subprocess.run([str(program)], cwd=self.folder, capture_output=True, text=True, check=False)


def plant(source: Path, right: str, wrong: str) -> None:
    """Put a fault into a file."""
    text = source.read_text()
    assert right in text
    source.write_text(text.replace(right, wrong))


def make(folder: Path, *targets: str, python: str | Path = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run make in a host's folder; the kernel is compiled quickly."""
    command = ["make", f"PYTHON={python}", "CFLAGS=-O1", "CXXFLAGS=-O0 -w", *targets]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def export_function(
    folder: Path, name: str, expression: str, *, of: str = "x", to: str = "y", shape: str = "()"
) -> Path:
    """Export a kernel of one variable from a file that is written for it; return the kernel's folder."""
    source = folder / f"{name}.py"
    source.write_text(
        "from torch import nn\nfrom torchferry import Signature\n\n\n"
        f"class {name}(nn.Module):\n    signature = Signature.of({{{of!r}: {shape}}}, {{{to!r}: {shape}}})\n\n"
        f"    def forward(self, {of}):\n        return {expression}\n"
    )
    with skip_checks():
        torchferry.export(f"{source}:{name}", output=folder / "kernel", formats="c")
    return folder / "kernel"


def wrap(host: str, kernel: Path, output: Path, options: Any) -> Wrapped:
    """Wrap a kernel and build the host's library."""
    wrap_kernel(host, kernel, output, options)
    (source,) = (path for path in output.glob(f"*_{host}.c") if not path.name.startswith("test_"))
    name = source.name.removesuffix(f"_{host}.c")
    subprocess.run(["gcc", *KERNEL, "-c", f"{name}.c", "-o", "kernel.o"], cwd=output, check=True)
    wrapped = Wrapped(output, name, host, output / f"lib{name}_{host}.so")
    build_library(wrapped)
    return wrapped


def build_library(wrapped: Wrapped) -> None:
    """Build the library from the host's source as it is now."""
    source = f"{wrapped.name}_{wrapped.host}.c"
    command = ["gcc", "-g", "-O1", "-std=c99", "-fPIC", "-shared", *WARNINGS, source, "kernel.o", "-o"]
    subprocess.run([*command, wrapped.library.name, "-lm"], cwd=wrapped.folder, check=True)


@dataclass(frozen=True)
class UmatResult:
    """What a call of a UMAT returned."""

    stress: Array
    states: Array
    tangent: Array
    pnewdt: float
    energies: Array


class Umat:
    """``umat_`` of a library, with NumPy's arrays; what is None is null."""

    def __init__(self, library: Path) -> None:
        self._function = ctypes.CDLL(str(library)).umat_

    def __call__(
        self,
        stress: Sequence[float] | Array,
        states: Sequence[float] | Array,
        strain: Sequence[float] | Array,
        change: Sequence[float] | Array,
        directs: int = 3,
        *,
        time: Sequence[float] = (0.0, 0.0),
        step: float = 1.0,
        temperature: tuple[float, float] | None = (0.0, 0.0),
        fields: Sequence[tuple[float, float]] | None = (),
        properties: Sequence[float] = (),
        energies: Sequence[float] = (0.0, 0.0),
        pnewdt: float | None = 1.0,
    ) -> UmatResult:
        count = len(change)
        arrays = {
            "stress": np.array(stress, float),
            "states": np.array(states, float),
            "tangent": np.zeros((count, count), order="F"),
            "energies": np.array(energies, float),
            "pnewdt": None if pnewdt is None else np.array([pnewdt]),
        }
        kept: list[Any] = []

        def point(values: Any) -> Any:
            if values is None:
                return None
            array = np.ascontiguousarray(values, float) if not isinstance(values, np.ndarray) else values
            kept.append(array)
            return array.ctypes.data_as(DOUBLES)

        def number(value: int) -> Any:
            kept.append(ctypes.c_int(value))
            return ctypes.byref(kept[-1])

        warm = temperature or (None, None)
        starts, changes = zip(*fields, strict=True) if fields else ((0.0,), (0.0,))
        spd = ctypes.cast(arrays["energies"].ctypes.data + 8, DOUBLES)
        self._function(
            *(point(arrays[name]) for name in ("stress", "states", "tangent", "energies")), spd, None,
            None, None, None, None, point(strain), point(change), point(list(time)), point([step]),
            *(point(None if value is None else [value]) for value in warm),
            point(None if fields is None else list(starts)), point(None if fields is None else list(changes)), None,
            number(directs), number(count - directs), number(count), number(len(arrays["states"])),
            point(list(properties) or [0.0]), number(len(properties)), None, None, point(arrays["pnewdt"]),
            *(None,) * 9,
        )  # fmt: skip
        asked = 1.0 if arrays["pnewdt"] is None else float(arrays["pnewdt"][0])
        return UmatResult(arrays["stress"], arrays["states"], arrays["tangent"], asked, arrays["energies"])
