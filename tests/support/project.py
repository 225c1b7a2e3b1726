"""Places of this project, and what many tests do with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from exporter.archive import pt_archive
from exporter.archive.pt_archive import Archive
from exporter.common.stopwatch import Stopwatch
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.soundness import gate
from runtime_checks.file_verifier import FileVerifier
from torchferry.options import ExportOptions
from torchferry.pipeline import write_archive

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts"
RATES = ROOT / "examples" / "rates" / "model.i"
PLANTED = Path(__file__).with_name("planted_models.py")
MODELS = Path(__file__).with_name("native_models.py")


def need(present: bool, reason: str) -> None:
    """Skip with the reason, or fail where every test has to run."""
    if present:
        return
    if os.environ.get("TORCHFERRY_REQUIRE_ALL") == "1":
        pytest.fail(f"TORCHFERRY_REQUIRE_ALL=1, and {reason}")
    pytest.skip(reason)


@contextlib.contextmanager
def skip_gate() -> Iterator[None]:
    """Export without the gate, for tests of other stages: it is tested by itself, and takes a second for each model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "_BEFORE", {})
        patch.setattr(gate, "_AFTER", {})
        yield


@contextlib.contextmanager
def skip_checks() -> Iterator[None]:
    """Export without the gate and without verification, for tests that compare the files themselves."""
    with skip_gate(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileVerifier, "verify", lambda *_, **__: None)
        yield


def mark_rest_thorough(first: Sequence[Any], rest: Sequence[Any]) -> list[Any]:
    """Return values of a parameter, of which ``make test`` takes the first ones, and ``make test-all`` the rest.

    Tuples are values of several parameters."""
    tuples = (value if isinstance(value, tuple) else (value,) for value in rest)
    return [*first, *(pytest.param(*values, marks=pytest.mark.thorough) for values in tuples)]


def mark_thorough_after(count: int, values: Sequence[Any]) -> list[Any]:
    """Return values of a parameter, of which ``make test`` takes the first ``count``."""
    return mark_rest_thorough(values[:count], values[count:])


def make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return the folder that ``make`` has filled, in the first test process of this run that asked for it."""
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "done").touch()
    return folder


def export_unverified(source: str, path: Path, model: str = "", **arguments: object) -> Archive:
    """All stages up to the file, without the fresh process: for tests of those stages."""
    request = ModelRequest(source)
    name = resolve.choose_models(request, [model] if model else [])[0]
    loaded = resolve.load(request, name, arguments or None)
    write_archive(loaded, path, ExportOptions(), Stopwatch())
    return pt_archive.read(path)


def load_module(path: Path) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(str(path)).eval()
