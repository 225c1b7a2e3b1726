"""Implicit scenarios of a folder of NEML2 input files: exported, verified, and held over whole load histories.

python benchmarks/scenarios.py FOLDER [-o ROWS.jsonl] [--only PART] [--limit SECONDS] [--tangents]
python benchmarks/scenarios.py --table ROWS.jsonl

Each scenario is the model that the file's driver drives. Its archive is held against eager mode over the driver's whole
history, states fed back, as recorded (its first element alone) and as 20 elements whose values vary, in Python and by
``torchferry_verify`` in C++; at export it is held against NEML2's own Newton solver. With ``--tangents`` it is exported
with all derivatives instead, which are held against differences of the file. A process for each scenario; rows are
appended as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import torchferry
from exporter.archive.contract import Contract
from exporter.archive.load_history import LoadHistory
from exporter.common.errors import TorchferryError
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.frontends.neml2 import input_file
from exporter.model.eager.recorded_history import record_load_history
from exporter.model.source import Source
from runtime_checks import load_history as histories
from runtime_checks import native_build
from runtime_checks.checks import finite_differences

BATCHES = (1, 20)


def scenario(path: Path, send: Any, tangents: bool) -> None:
    torch.set_num_threads(1)
    row: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure = _differentiated if tangents else _held
            row |= measure(path, Path(folder) / "model.pt", start)
    except TorchferryError as error:
        row["reason"] = f"{type(error).__name__}: " + str(error).replace("\n", ";")[:400]
    send.send(row)


def _differentiated(path: Path, file: Path, start: float) -> dict[str, Any]:
    (name,) = input_file.list_driver_models(ModelRequest(str(path)))[:1]
    (exported,) = torchferry.export(str(path), models=[name], output=file, derivatives="all")
    checks = [c for leg in exported.report.legs for c in leg.checks if c.check == finite_differences.CHECK]
    judged = [re.search(r"(\d+) of (\d+) entries", c.detail) for c in checks]
    known, count = (sum(int(result[i]) for result in judged if result) for i in (1, 2))
    kinks = sum(c.check == finite_differences.SIDES for leg in exported.report.legs for c in leg.checks)
    return {"seconds": time.perf_counter() - start, "entries": count, "resolved": known, "kinks": kinks}


def _held(path: Path, file: Path, start: float) -> dict[str, Any]:
    (name,) = input_file.list_driver_models(ModelRequest(str(path)))[:1]
    (exported,) = torchferry.export(str(path), models=[name], output=file, runtimes=["python", "libtorch"])
    row: dict[str, Any] = {"seconds": time.perf_counter() - start}
    row["solver"] = next((f.reason for f in exported.contract.findings if f.check == "solver"), "")
    source = resolve.load(ModelRequest(str(path)), name, None)
    for rows in BATCHES:
        history = record_load_history(_alone(source) if rows == 1 else source, 0 if rows == 1 else rows)
        row["steps"] = history.steps
        row[f"batch {rows}"] = _python(file, exported.contract, history) | {"native": _natively(file, history)}
    return row


def _alone(source: Source) -> Source:
    return dataclasses.replace(source, calls=tuple(tuple(t[:1] for t in call) for call in source.calls))


def _python(file: Path, contract: Contract, history: LoadHistory) -> dict[str, Any]:
    result = histories.run(torchferry.load(file), history)
    try:
        histories.check_history(contract, history, result)
    except TorchferryError as error:
        message = str(error).replace("\n", ";")[:300]
    else:
        message = ""
    lost = sum(int(v.isnan().sum()) for v in history.expected.values())
    return {"worst": _worst(contract, history, result), "mismatch": message, "nan": lost}


def _worst(contract: Contract, history: LoadHistory, result: Mapping[str, torch.Tensor]) -> float:
    """In units of what step ``n`` is allowed: ``n`` times the tolerance of one call."""
    worst = 0.0
    for name, wanted in history.expected.items():
        bounds = contract.tolerance.bounds(name, str(wanted.dtype).removeprefix("torch."))
        for step, value in enumerate(wanted):
            finite = torch.isfinite(value)
            if not bool(finite.any()):
                continue
            scale = float(value[finite].abs().max()) or 1.0
            allowed = (bounds.atol * scale + bounds.rtol * value.abs() + bounds.floor) * (step + 1)
            worst = max(worst, float(((result[name][step] - value).abs() / allowed)[finite].max()))
    return worst


def _natively(file: Path, history: LoadHistory) -> bool:
    beside = file.with_name("history.pt")
    torch.save(history.to_file_tensors(), beside)
    harness = native_build.build() / "bin" / "torchferry_verify"
    command = [str(harness), str(file), "--history", str(beside), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0 and bool(json.loads(done.stdout)["history"]["passed"])


def run(path: Path, limit: float, tangents: bool) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=scenario, args=(path, theirs, tangents))
    process.start()
    theirs.close()
    try:
        row = ours.recv() if ours.poll(limit) else {"reason": f"no end within {limit:.0f} s"}
    except EOFError:
        row = {"reason": "its process ended"}
    process.kill()
    process.join()
    return row


def implicit(folder: Path) -> list[Path]:
    """Input files with an implicit update, the slow crystals last."""
    result = [p for p in sorted(folder.rglob("*.i")) if "ImplicitUpdate" in p.read_text()]
    return sorted(result, key=lambda p: "crystal" in str(p))


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| scenario | seconds | steps | of NEML2's tolerance | batch 1 | batch 20 | in C++ |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in sorted(rows, key=lambda r: r["scenario"]):
        if "reason" in row:
            lines.append(f"| {row['scenario']} | | | | {row['reason']} | | |")
            continue
        rows = [row[f"batch {n}"] for n in BATCHES]
        shown = [h["mismatch"] or f"{h['worst']:.1e}" + (f" ({h['nan']} NaN)" if h["nan"] else "") for h in rows]
        native = "agrees" if all(h["native"] for h in rows) else "DIFFERS"
        solver = row["solver"].removeprefix("apart by ").removesuffix(" of what its tolerances allow, at most")
        cells = [row["scenario"], f"{row['seconds']:.0f}", str(row["steps"]), solver, *shown, native]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("scenarios.jsonl"))
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=900.0)
    parser.add_argument("--tangents", action="store_true", help="all derivatives, against differences of the file")
    parser.add_argument("--table", action="store_true", help="FOLDER is a file of rows: print the table")
    arguments = parser.parse_args()
    if arguments.table:
        print(table([json.loads(line) for line in arguments.folder.read_text().splitlines()]))
        return
    for path in implicit(arguments.folder):
        name = str(path.parent.relative_to(arguments.folder))
        if arguments.only in name:
            row = {"scenario": name, **run(path, arguments.limit, arguments.tangents)}
            print(json.dumps(row), flush=True)
            with arguments.output.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
