"""Calls and outputs as NumPy files, for processes without torch; and the packages that those may import."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from exporter.common.errors import MissingRuntimeError
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.runners.base import Call, CallResult
from runtime_checks.runners.subprocesses import find_package_folder, make_early_end_error, run_process


def require_packages(names: Sequence[str], where: str, mend: str) -> None:
    """Raise ``MissingRuntimeError`` if a package is not installed."""
    missing = next((name for name in names if not find_package_folder(name)), None)
    if missing:
        raise MissingRuntimeError(f"{missing} is not installed", where=where, mend=mend)


def run_child(
    child: Path,
    path: Path,
    seconds: float,
    job: Mapping[str, Any],
    names: Mapping[str, Sequence[str]],
    calls: Sequence[Call],
) -> tuple[tuple[CallResult, ...], dict[str, Any]]:
    """Run ``calls`` in a fresh process that executes the file ``child``; return the results and its evidence, no
    results if the evidence has a ``load_error``. Raise ``RunError`` if the process ends early."""
    with temporary_folder() as folder:
        files = {name: folder / name for name in ("job.json", "calls.npz", "results.npz", "evidence.json")}
        paths = {name.partition(".")[0]: str(path) for name, path in files.items() if name != "job.json"}
        full_job = {
            **job,
            "folder": str(folder),
            "seconds": seconds,
            "index": write_arrays(names, calls, files["calls.npz"]),
            **paths,
        }
        files["job.json"].write_text(json.dumps(full_job))
        done = run_process([sys.executable, "-I", "-S", str(child), str(files["job.json"])], str(path), seconds)
        if done.returncode != 0 or not files["evidence.json"].exists():
            raise make_early_end_error(path, done.returncode, done.stderr, seconds, job["memory"])
        evidence = json.loads(files["evidence.json"].read_text())
        if evidence.get("load_error"):
            return (), evidence
        return read_arrays(files["results.npz"], evidence.pop("errors")), evidence


def write_arrays(names: Mapping[str, Sequence[str]], calls: Sequence[Call], path: Path) -> list[dict[str, Any]]:
    """Write the inputs and parameters of each call; return the rest of each call. ``names`` are those of the inputs."""
    import numpy

    arrays: dict[str, Any] = {}
    index = []
    for number, call in enumerate(calls):
        for i, value in enumerate(call.inputs):
            arrays[f"{number}/{i}"] = value.detach().cpu().contiguous().numpy()
        for i, value in enumerate(call.parameters.values()):
            arrays[f"{number}/parameter/{i}"] = value.detach().cpu().numpy()
        strides, entry = [list(value.stride()) for value in call.inputs], {"method": call.method}
        index.append({**entry, "names": [*names[call.method]], "strides": strides, "parameters": [*call.parameters]})
    numpy.savez(path, **arrays)
    return index


def read_arrays(path: Path, errors: Sequence[str]) -> tuple[CallResult, ...]:
    """Read the results of the calls; ``errors`` has one text for each call."""
    import numpy

    with numpy.load(path, allow_pickle=False) as arrays:
        values_by_call: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for key in arrays.files:
            number, _, position = key.partition("/")
            values_by_call.setdefault(int(number), []).append((int(position), torch.from_numpy(arrays[key])))
    ordered = {n: tuple(v for _, v in sorted(items, key=lambda item: item[0])) for n, items in values_by_call.items()}
    return tuple(CallResult(ordered.get(i, ()), error) for i, error in enumerate(errors))
