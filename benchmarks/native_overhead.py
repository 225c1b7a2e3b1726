"""Overhead of the C and C++ interfaces over a bare ``torch::jit::Module::forward``.

python benchmarks/native_overhead.py ARCHIVE
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from runtime_checks import native_build

SOURCE = Path(__file__).with_suffix(".cpp")


def main(archive: str) -> None:
    prefix, torch = native_build.build(), native_build.torch_folder()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "native_overhead")
        headers = [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include", prefix / "include"]
        libraries = [torch / "lib", prefix / "lib"]
        native_build.run_tool(
            [
                *("g++", "-std=c++20", "-O2", str(SOURCE), "-o", str(program)),
                *(f"-isystem{path}" for path in headers),
                *(flag for path in libraries for flag in (f"-L{path}", f"-Wl,-rpath,{path}")),
                *("-ltorchferry", "-ltorch", "-ltorch_cpu", "-lc10"),
            ]
        )
        result = json.loads(subprocess.run([program, archive], capture_output=True, text=True, check=True).stdout)
    table = Table("batch", "way", "ns a call", "ratio to forward", "copies", title=archive)
    for batch, ways in result.items():
        for way, figures in ways.items():
            table.add_row(batch, way, str(figures["ns"]), f"{figures['ratio']:.2f}", str(figures["copies"]))
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1])
