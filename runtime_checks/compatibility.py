"""Archives under other versions of torch: every check that ``verify`` makes, and the hash of their graphs there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.archive import pt_archive
from exporter.common.errors import MismatchError, MissingRuntimeError, TorchferryError, UsageError
from runtime_checks.report import FAILED, Report
from runtime_checks.runners import fork_server
from runtime_checks.runners.python_runner import IsolatedPython
from runtime_checks.runners.subprocesses import environment
from runtime_checks.torch_environments import python_with
from runtime_checks.verification import examine

VERIFIED, DIFFERS, BROKEN, NOT_THERE = "verified", "numbers differ", "does not run", "not run"
SAME, OTHER, UNKNOWN = "same", "other", "not read"
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """One archive under one torch. ``detail`` says what failed, or why it did not run; ``graph`` is whether that torch
    reads the graph that was written: same, other, or not read."""

    archive: str
    torch: str
    verdict: str
    graph: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Compatibility:
    rows: tuple[Row, ...]

    @property
    def passed(self) -> bool:
        return bool(self.rows) and all(row.verdict == VERIFIED for row in self.rows)

    def raise_if_failed(self) -> None:
        """Raises ``MismatchError`` where an archive fails, ``MissingRuntimeError`` where only a torch was not there."""
        failed = [row for row in self.rows if row.verdict in (DIFFERS, BROKEN)]
        absent = list(dict.fromkeys(row.torch for row in self.rows if row.verdict == NOT_THERE))
        if failed:
            raise MismatchError(
                f"{failed[0].archive} does not hold under torch {failed[0].torch}",
                where=f"{len(failed)} of {len(self.rows)} archives and versions",
                got=f"{failed[0].verdict}: {failed[0].detail}",
                expected="what it computed when it was exported",
            )
        if absent:
            details = dict.fromkeys(row.detail for row in self.rows if row.verdict == NOT_THERE)
            raise MissingRuntimeError(
                f"torch {', '.join(absent)} could not be got: nothing was checked there",
                where="--torch",
                got="; ".join(details),
            )

    def as_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, "rows": [vars(row) for row in self.rows]}


def compatibility(
    paths: Sequence[Path],
    versions: Sequence[str],
    *,
    any_build: bool = False,
    announce: Callable[[str], None] = lambda text: None,
) -> Compatibility:
    """Every archive under every version. Raises ``ArchiveError`` for a file that is damaged, before anything runs."""
    if not versions:
        raise UsageError("no version of torch is named", where="--torch", expected="for example 2.12.0,2.13.0")
    for path in paths:
        pt_archive.read(path)
    rows: list[Row] = []
    for version in versions:
        try:
            python = python_with(version, any_build=any_build, announce=announce)
        except MissingRuntimeError as error:
            detail = f"{error.what}: {error.details.get('got', '')}"
            rows += [Row(str(path), version, NOT_THERE, detail=detail) for path in paths]
            continue
        with fork_server.shared(str(python)):
            rows += [_row(path, version, python) for path in paths]
    return Compatibility(tuple(rows))


def _row(path: Path, version: str, python: Path) -> Row:
    try:
        report = examine(path, runners=[IsolatedPython()])
    except TorchferryError as error:
        return Row(str(path), version, BROKEN, detail=f"{error.what}: {error.details.get('got', '')}")
    there = str(report.legs[0].evidence.get("torch", ""))
    # 2.13 is any 2.13.N.
    if not f"{there.partition('+')[0]}.".startswith(f"{version.partition('+')[0]}."):
        return Row(str(path), version, BROKEN, detail=f"it ran under torch {there}")
    graph = _graph(path, python)
    if report.passed:
        return Row(str(path), version, VERIFIED, graph)
    return Row(str(path), version, DIFFERS, graph, _failed(report))


def _failed(report: Report) -> str:
    return "; ".join(f"{c.check}: {c.detail}" for c in report.checks if c.verdict == FAILED)


_HASH = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from exporter.difference import side
print(side(Path(sys.argv[1])).graph)
"""


def _graph(path: Path, python: Path) -> str:
    wanted = pt_archive.read(path).contract.graph
    given = environment() | {"PYTHONPATH": str(_ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(python), "-s", "-c", _HASH, os.fspath(path.resolve())]
    done = subprocess.run(command, capture_output=True, text=True, env=given, check=False)
    if done.returncode:
        return UNKNOWN
    return SAME if done.stdout.split()[-1] == wanted else OTHER
