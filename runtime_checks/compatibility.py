"""Archives under other versions of torch: every check of ``verify``, and the hash of their graphs there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.archive import pt_archive
from exporter.common.errors import MismatchError, MissingRuntimeError, TorchferryError, UsageError
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.report import FAILED
from runtime_checks.runners import fork_server
from runtime_checks.runners.python_runner import PythonRunner
from runtime_checks.runners.subprocesses import MEMORY, TIME_LIMIT, build_environment
from runtime_checks.torch_environments import ensure_python
from runtime_checks.verification import collect_report

VERIFIED, DIFFERS, BROKEN, NOT_THERE = "verified", "numbers differ", "does not run", "not run"
SAME, OTHER, UNKNOWN = "same", "other", "not read"
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class CompatibilityResult:
    """The result of one archive under one torch. ``detail`` says what failed, or why it did not run; ``graph`` is
    whether that torch reads the graph that was written: same, other, or not read."""

    archive: str
    torch: str
    verdict: str
    graph: str = ""
    detail: str = ""


@dataclass(frozen=True)
class CompatibilityReport:
    """The results of all archives under all versions of torch."""

    rows: tuple[CompatibilityResult, ...]

    @property
    def passed(self) -> bool:
        """Return whether every archive is verified under every version."""
        return bool(self.rows) and all(row.verdict == VERIFIED for row in self.rows)

    def raise_if_failed(self) -> None:
        """Raise ``MismatchError`` if an archive fails, ``MissingRuntimeError`` if only a torch is missing."""
        failed = [row for row in self.rows if row.verdict in (DIFFERS, BROKEN)]
        absent = list(dict.fromkeys(row.torch for row in self.rows if row.verdict == NOT_THERE))
        if failed:
            what = f"{failed[0].archive} fails under torch {failed[0].torch}"
            where = f"{len(failed)} of {len(self.rows)} archives and versions"
            got, expected = f"{failed[0].verdict}: {failed[0].detail}", "what it computed when it was exported"
            raise MismatchError(what, where=where, got=got, expected=expected)
        if absent:
            details = dict.fromkeys(row.detail for row in self.rows if row.verdict == NOT_THERE)
            what = f"torch {', '.join(absent)} is not available: nothing was checked with it"
            raise MissingRuntimeError(what, where="--torch", got="; ".join(details))

    def as_dict(self) -> dict[str, Any]:
        """Return the results as a JSON-ready dict."""
        return {"passed": self.passed, "rows": [vars(row) for row in self.rows]}


def run_compatibility_checks(
    paths: Sequence[Path],
    versions: Sequence[str],
    *,
    any_build: bool = False,
    announce: Callable[[str], None] = lambda text: None,
) -> CompatibilityReport:
    """Verify every archive under every version. Raise ``ArchiveError`` for a damaged file, before anything runs."""
    if not versions:
        raise UsageError("no version of torch is named", where="--torch", expected="for example 2.12.0,2.13.0")
    for path in paths:
        pt_archive.read(path)
    rows: list[CompatibilityResult] = []
    for version in versions:
        try:
            python = ensure_python(version, any_build=any_build, announce=announce)
        except MissingRuntimeError as error:
            detail = f"{error.what}: {error.details.get('got', '')}"
            rows += [CompatibilityResult(str(path), version, NOT_THERE, detail=detail) for path in paths]
            continue
        with fork_server.shared_fork_server(str(python)):
            rows += [_verify_archive(path, version, python) for path in paths]
    return CompatibilityReport(tuple(rows))


def _verify_archive(path: Path, version: str, python: Path) -> CompatibilityResult:
    try:
        report = collect_report(path, runners=[PythonRunner()])
    except TorchferryError as error:
        return CompatibilityResult(str(path), version, BROKEN, detail=f"{error.what}: {error.details.get('got', '')}")
    torch_version = str(report.legs[0].evidence.get("torch", ""))
    # Version 2.13 means any 2.13.N.
    if not f"{torch_version.partition('+')[0]}.".startswith(f"{version.partition('+')[0]}."):
        return CompatibilityResult(str(path), version, BROKEN, detail=f"it ran under torch {torch_version}")
    graph = _compare_graph_hash(path, python)
    failures = "; ".join(f"{c.check}: {c.detail}" for c in report.checks if c.verdict == FAILED)
    return CompatibilityResult(str(path), version, VERIFIED if report.passed else DIFFERS, graph, failures)


# Its arguments are the file, a folder for temporary files, bytes and seconds.
_HASH = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from exporter.graph.archive_diff import load_side
from runtime_checks.runners.children.confinement import confine, set_limits
set_limits(float(sys.argv[3]), float(sys.argv[4]))
confine(sys.argv[2])
print(load_side(Path(sys.argv[1])).graph)
"""


def _compare_graph_hash(path: Path, python: Path) -> str:
    expected_hash = pt_archive.read(path).contract.graph
    env = build_environment() | {"PYTHONPATH": str(_ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    # NumPy's threads would begin before the process is confined.
    env["OPENBLAS_NUM_THREADS"] = "1"
    with temporary_folder() as folder:
        command = [str(python), "-s", "-c", _HASH, os.fspath(path.resolve()), str(folder), str(MEMORY), str(TIME_LIMIT)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TIME_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            return UNKNOWN
    if done.returncode:
        return UNKNOWN
    return SAME if done.stdout.split()[-1] == expected_hash else OTHER
