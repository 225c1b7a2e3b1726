"""Environments with other versions of torch, created once and kept in the cache."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from exporter.common.errors import MissingRuntimeError, UsageError
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.cache import fill_once, make_private_folder

# Packages that reading a graph needs besides torch.
_REQUIREMENTS = ("pydantic>=2.10", "jinja2>=3.1", "filelock>=3.13")


def ensure_python(
    torch: str,
    *,
    any_build: bool = False,
    python: Path = Path(sys.executable),
    purpose: str = "",
    announce: Callable[[str], None] = lambda text: None,
) -> Path:
    """Return the interpreter of an environment with this version of torch, a build for CPUs unless ``any_build``.

    The environment is one of ``python``, another one for each ``purpose``. ``announce`` is told when one is created.
    Raise ``UsageError`` if ``torch`` is no version, ``MissingRuntimeError`` if the index does not have it."""
    if not torch or not all(part.isalnum() for part in torch.replace("+", ".").split(".")):
        raise UsageError(
            "this is not a version of torch", where="--torch", got=repr(torch), expected="for example 2.13.0"
        )
    name = f"{purpose}torch-{torch}-python-{_find_version(python, torch)}"
    folder = make_private_folder("environments") / name
    interpreter = folder / "bin" / "python"

    def make_environment() -> None:
        _check_cpu_build(python, torch, any_build)
        announce(f"making an environment with torch {torch} in {folder}")
        _run_command([str(python), "-m", "venv", str(folder)], torch)
        _run_pip([str(interpreter), "-m", "pip", "install", "--quiet", f"torch=={torch}", *_REQUIREMENTS], torch)

    fill_once(folder, make_environment)
    return interpreter


def _find_version(python: Path, torch: str) -> str:
    if python == Path(sys.executable):
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    return _run_command([str(python), "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"], torch).strip()


def _check_cpu_build(python: Path, torch: str, any_build: bool) -> None:
    """Raise ``MissingRuntimeError`` if the index has no build of it for CPUs: one for GPUs takes gigabytes."""
    with temporary_folder() as folder:
        report = folder / "report.json"
        arguments = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report), f"torch=={torch}"]
        _run_pip([str(python), "-m", "pip", "install", *arguments], torch)
        packages = [row["metadata"]["name"] for row in json.loads(report.read_text())["install"]]
    for_gpus = sorted({n for n in packages if n.startswith(("nvidia-", "cuda-", "triton"))})
    if for_gpus and not any_build:
        what = f"the package index has no build of torch {torch} for CPUs"
        got = f"one that brings {len(for_gpus)} packages for GPUs: {', '.join(for_gpus[:3])}, ..."
        mend = "name an index that has one (PIP_EXTRA_INDEX_URL), or accept it with --any-build"
        raise MissingRuntimeError(what, where="--torch", got=got, mend=mend)


def _run_pip(command: list[str], torch: str) -> None:
    _run_command([*command, "--disable-pip-version-check", "--no-input"], torch)


def _run_command(command: list[str], torch: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        what, mend = f"{command[0]} cannot be started", "name an interpreter of Python"
        raise MissingRuntimeError(what, got=str(error), mend=mend) from None
    if done.returncode:
        messages = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        got = messages[-1].strip() if messages else f"{command[2]} ended with {done.returncode}"
        mend = "name a version that the package index has for this Python, or another index (PIP_EXTRA_INDEX_URL)"
        raise MissingRuntimeError(f"torch {torch} could not be installed", where="--torch", got=got, mend=mend)
    return done.stdout
