"""Environments with other versions of torch, made once and kept in the cache."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from exporter.common.errors import MissingRuntimeError, UsageError
from runtime_checks.native_build import cache

# What reading a graph needs beside torch.
_ALSO = ("pydantic>=2.10", "jinja2>=3.1", "filelock>=3.13")
_READY = "ready.txt"


def python_with(torch: str, *, any_build: bool = False, announce: Callable[[str], None] = lambda text: None) -> Path:
    """The interpreter of an environment with this version of torch, a build for CPUs unless ``any_build``.

    ``announce`` is told that one is made. Raises ``UsageError`` for what is no version, ``MissingRuntimeError`` where
    the index does not have it.
    """
    if not torch or not all(part.isalnum() for part in torch.replace("+", ".").split(".")):
        raise UsageError("this is no version of torch", where="--torch", got=repr(torch), expected="for example 2.13.0")
    name = f"torch-{torch}-python-{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache() / "environments" / name
    python = folder / "bin" / "python"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingRuntimeError(
            "an environment has no place to be made",
            where=str(folder.parent),
            got=error.strerror or str(error),
            mend="set TORCHFERRY_CACHE to a folder that can be written",
        ) from None
    with FileLock(f"{folder}.lock"):
        if not (folder / _READY).exists():
            _refuse_other_builds(torch, any_build)
            announce(f"making an environment with torch {torch} in {folder}")
            _run([sys.executable, "-m", "venv", "--clear", str(folder)], torch)
            _pip([str(python), "-m", "pip", "install", "--quiet", f"torch=={torch}", *_ALSO], torch)
            (folder / _READY).write_text(torch)
    return python


def _refuse_other_builds(torch: str, any_build: bool) -> None:
    """Raises ``MissingRuntimeError`` where the index has no build of it for CPUs: that of a GPU is gigabytes."""
    with tempfile.TemporaryDirectory(prefix="torchferry-") as folder:
        report = Path(folder, "report.json")
        asked = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report), f"torch=={torch}"]
        _pip([sys.executable, "-m", "pip", "install", *asked], torch)
        found = [row["metadata"]["name"] for row in json.loads(report.read_text())["install"]]
    for_gpus = sorted({n for n in found if n.startswith(("nvidia-", "cuda-", "triton"))})
    if for_gpus and not any_build:
        raise MissingRuntimeError(
            f"the package index has no build of torch {torch} for CPUs",
            where="--torch",
            got=f"one that brings {len(for_gpus)} packages for GPUs: {', '.join(for_gpus[:3])}, ...",
            mend="name an index that has one (PIP_EXTRA_INDEX_URL), or take it all the same: --any-build",
        )


def _pip(command: list[str], torch: str) -> None:
    _run([*command, "--disable-pip-version-check", "--no-input"], torch)


def _run(command: list[str], torch: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise MissingRuntimeError(
            f"torch {torch} could not be got",
            where="--torch",
            got=said[-1].strip() if said else f"{command[2]} ended with {done.returncode}",
            mend="name a version that the package index has for this Python, or another index (PIP_EXTRA_INDEX_URL)",
        )
