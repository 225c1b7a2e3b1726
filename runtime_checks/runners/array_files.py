"""Calls and their outputs as NumPy's files, for processes without torch; and the packages that those may import."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from exporter.common.errors import MissingRuntimeError
from runtime_checks.runners.base import Call, Result
from runtime_checks.runners.subprocesses import ended_early, start


def folders(packages: Sequence[str], needed: Sequence[str], where: str, mend: str) -> dict[str, str]:
    """Of each package. Raises ``MissingRuntimeError`` where one that is needed is not there."""
    found = {}
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None and name in needed:
            raise MissingRuntimeError(f"{name} is not installed", where=where, mend=mend)
        if spec is not None:
            places = list(spec.submodule_search_locations or [])
            found[name] = str(Path(places[0] if places else spec.origin or "").parent)
    return found


def run_child(
    child: Path,
    path: Path,
    seconds: float,
    job: Mapping[str, Any],
    names: Mapping[str, Sequence[str]],
    calls: Sequence[Call],
) -> tuple[tuple[Result, ...], dict[str, Any]]:
    """The results of ``calls`` in a fresh process that runs the file ``child``, and its evidence; no results where the
    evidence has a ``load_error``. Raises ``RunError`` where the process ends early."""
    with tempfile.TemporaryDirectory(prefix="torchferry-") as folder:
        files = {name: Path(folder, name) for name in ("job.json", "calls.npz", "results.npz", "evidence.json")}
        whole = {
            **job,
            "index": write_arrays(names, calls, files["calls.npz"]),
            **{name.partition(".")[0]: str(files[name]) for name in ("calls.npz", "results.npz", "evidence.json")},
        }
        files["job.json"].write_text(json.dumps(whole))
        done = start([sys.executable, "-I", "-S", str(child), str(files["job.json"])], str(path), seconds)
        if done.returncode != 0 or not files["evidence.json"].exists():
            raise ended_early(path, done.returncode, done.stderr, seconds, float("inf"))
        evidence = json.loads(files["evidence.json"].read_text())
        if evidence.get("load_error"):
            return (), evidence
        return read_arrays(files["results.npz"], evidence.pop("errors")), evidence


def write_arrays(names: Mapping[str, Sequence[str]], calls: Sequence[Call], path: Path) -> list[dict[str, Any]]:
    """The inputs and parameters of each call; gives what else is said of it. ``names`` are those of the inputs."""
    import numpy

    arrays: dict[str, Any] = {}
    index = []
    for number, call in enumerate(calls):
        arrays.update(
            {f"{number}/{i}": value.detach().cpu().contiguous().numpy() for i, value in enumerate(call.inputs)}
        )
        held = list(call.parameters.items())
        arrays.update({f"{number}/parameter/{i}": v.detach().cpu().numpy() for i, (_, v) in enumerate(held)})
        index.append(
            {
                "method": call.method,
                "names": list(names[call.method]),
                "strides": [list(value.stride()) for value in call.inputs],
                "parameters": [name for name, _ in held],
            }
        )
    numpy.savez(path, **arrays)
    return index


def read_arrays(path: Path, errors: Sequence[str]) -> tuple[Result, ...]:
    import numpy

    with numpy.load(path, allow_pickle=False) as arrays:
        by: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for key in arrays.files:
            number, _, place = key.partition("/")
            by.setdefault(int(number), []).append((int(place), torch.from_numpy(arrays[key])))
    ordered = {number: tuple(v for _, v in sorted(found, key=lambda one: one[0])) for number, found in by.items()}
    return tuple(Result(ordered.get(i, ()), error) for i, error in enumerate(errors))
