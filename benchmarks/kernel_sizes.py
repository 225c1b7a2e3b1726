"""How big kernels are, and how long a compiler takes over each: of folders that ``torchferry sweep --format c`` wrote.

python benchmarks/kernel_sizes.py FOLDER... [--only NAME]

Operations are those that are written down in the largest method; the compiler runs alone, with the flags of an engine.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time
from pathlib import Path

from exporter.archive import kernel_container
from runtime_checks.kernels import compilation


def operations(folder: Path, name: str) -> int:
    message = re.findall(r"^/\* \w+: (\d+) operations\. \*/$", (folder / f"{name}_lanes.h").read_text(), re.M)
    return max(map(int, message))


def compiled(folder: Path, name: str) -> float:
    """Seconds. Raises ``CalledProcessError`` where the compiler fails."""
    with tempfile.TemporaryDirectory() as place:
        result = ["cc", *compilation.FLAGS, compilation.NATIVE, str(folder / f"{name}.c"), "-o", f"{place}/k.so", "-lm"]
        start = time.perf_counter()
        subprocess.run(result, check=True)
        return time.perf_counter() - start


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("folders", type=Path, nargs="+")
    asked.add_argument("--only", default="")
    arguments = asked.parse_args()
    print("| kernel | operations | C, kB | compiler, s |\n| --- | ---: | ---: | ---: |", flush=True)
    for root in arguments.folders:
        for manifest in sorted(root.rglob(kernel_container.MANIFEST)):
            folder = manifest.parent
            label = str(folder.relative_to(root)).removesuffix(".c")
            if arguments.only not in label:
                continue
            name = kernel_container.read(folder).name
            text = sum((folder / f"{name}{end}").stat().st_size for end in (".c", "_lanes.h"))
            cells = operations(folder, name), round(text / 1000), f"{compiled(folder, name):.1f}"
            print(f"| {label} | {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
