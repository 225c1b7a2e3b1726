"""Try torchferry with other versions of torch and Python: the demo, the reference archives, and a sample of the tests.

python tools/compat.py [--torch V,...] [--python PATH]

Each version gets an environment, which is kept in the cache (`environments/`): one at a time, of 2 to 6 GB where the
index has only a build for GPUs. The rows of docs/results/compatibility.md that were run are written anew."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from exporter.common.errors import TorchferryError  # noqa: E402
from runtime_checks.torch_environments import ensure_python  # noqa: E402

PAGE = ROOT / "docs" / "results" / "compatibility.md"
VERSIONS = ("2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
# What meets torch's private parts: capture, graphs, the gate, every format, every runtime.
SAMPLE = (
    "tests/exporter/common/test_torch_internals.py",
    "tests/exporter/capture",
    "tests/exporter/graph",
    "tests/exporter/saved_code",
    "tests/exporter/soundness/test_gate.py",
    "tests/exporter/backends/onnx/test_export.py",
    "tests/exporter/backends/torch_export",
    "tests/exporter/backends/c_kernel/rules",
    "tests/runtime_checks/runners",
    "tests/runtime_checks/native/test_native_library.py",
    "tests/runtime_checks/kernels/test_native_kernels.py",
)
HEADER = ("Python", "torch", "archives", "demo", "tests", "minutes")
_ROW = re.compile(r"\| \d")


@dataclass(frozen=True)
class Row:
    """What one pair of Python and torch gives, in words."""

    python: str
    torch: str
    archives: str
    demo: str
    tests: str
    minutes: str

    @property
    def is_good(self) -> bool:
        """Return whether everything passed."""
        verified, _, count = self.archives.split()[:3]
        has_passed = re.match(r"\d+ passed", self.tests) and "error" not in self.tests
        return verified == count != "0" and self.demo == "runs" and bool(has_passed)


def try_version(version: str, python: Path) -> Row:
    """Make the environment of a version and run everything in it."""
    start = time.monotonic()
    environment = ensure_python(version, any_build=True, python=python, purpose="tests-", announce=print)
    binary = environment.parent
    # Not the extra for GPUs: a torch of its own CUDA wants other versions of it.
    extras = "neml2,native,onnx,parquet,plot,sign,test"
    pip = [str(environment), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, f"torch=={version}", "--editable", f"{ROOT}[{extras}]"], check=True)
    run([str(ROOT / "tools" / "build_neml2.sh"), str(environment)])
    paths = sorted((ROOT / "artifacts").glob("*.pt"))
    verified = sum(run([str(binary / "torchferry"), "verify", str(path)]).returncode == 0 for path in paths)
    demo = run(["make", "demo", f"BIN={binary}"])
    print(f"torch {version}: tests", flush=True)
    tests = run([str(environment), "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", *SAMPLE])
    log = ROOT / "out" / f"compat-{version}.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text(f"{demo.stdout}\n{tests.stdout}", encoding="utf-8")
    counts = find_counts(tests.stdout)
    code = "import sys, torch; print(sys.version.split()[0], torch.__version__)"
    name, build = run([str(environment), "-c", code]).stdout.split()
    minutes = f"{(time.monotonic() - start) / 60:.0f}"
    done = "runs" if demo.returncode == 0 else "fails"
    return Row(name, build, f"{verified} of {len(paths)} verified", done, counts, minutes)


def find_counts(text: str) -> str:
    """Return how many tests passed and failed, from what pytest prints; other lines may follow."""
    lines = re.findall(r"^=*\s*(\d+ (?:passed|failed|skipped|error).*?) in [\d.]+s", text, re.MULTILINE)
    return lines[-1] if lines else "did not run"


def run(command: list[str], *, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout; what it prints is kept."""
    # A test that lacks what it needs fails.
    environment = {**os.environ, "TORCHFERRY_REQUIRE_ALL": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    result = subprocess.run(command, cwd=ROOT, env=environment, check=False, **pipes)
    if check and result.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}\n{result.stdout[-2000:]}")
    return result


def write_rows(rows: list[Row], page: Path) -> None:
    """Write these rows in place of those of the same versions, the others as they were."""
    lines = page.read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| Python ")) + 2
    last = next((i for i in range(first, len(lines)) if not _ROW.match(lines[i])), len(lines))
    kept = {tuple(part.strip() for part in line.split("|")[1:3]): line for line in lines[first:last]}
    kept |= {(row.python, row.torch): f"| {' | '.join(astuple(row))} |" for row in rows}
    lines[first:last] = [kept[key] for key in sorted(kept, key=order_versions)]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def order_versions(versions: tuple[str, ...]) -> list[list[int]]:
    """Order versions by their numbers."""
    return [[int(number) for number in re.findall(r"\d+", text)[:3]] for text in reversed(versions)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Try torchferry with other versions of torch and Python.")
    parser.add_argument("--torch", default=",".join(VERSIONS), help="versions, with commas between")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the interpreter that they get")
    arguments = parser.parse_args()
    rows: list[Row] = []
    missing = 0
    for version in arguments.torch.split(","):
        try:
            rows.append(try_version(version, arguments.python))
        except TorchferryError as error:
            missing += 1
            print(error, file=sys.stderr)
            continue
        write_rows(rows[-1:], PAGE)
        print(" | ".join(astuple(rows[-1])), flush=True)
    return int(missing > 0 or not all(row.is_good for row in rows))


if __name__ == "__main__":
    sys.exit(main())
