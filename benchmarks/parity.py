"""What one model keeps in each container: the table of docs/guides/formats.md, each cell of it measured.

    python benchmarks/parity.py            # prints it, and puts it into the page

The model is the return map of examples/return_map.py with its consistent tangent; a network stands for float32.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import torchferry
from exporter.archive.formats import FORMATS
from runtime_checks.report import PASSED, Report

ROOT = Path(__file__).parents[1]
RUNTIMES = {"pt": "python,libtorch", "onnx": "onnxruntime", "pt2": "aoti,libtorch", "program": "program"}
NEEDS = {
    "pt": "libtorch",
    "onnx": "onnxruntime, no torch",
    "pt2": "libtorch, this kind of processor",
    "program": "Python, torch",
}
START, END = "<!-- parity -->\n", "<!-- end of parity -->"


def export_all(
    source: str | nn.Module, folder: Path, **arguments
) -> dict[str, tuple[torchferry.Contract, Report, float, Path]]:
    """Contract, report, seconds and file of each container."""
    start = time.perf_counter()
    (first,) = torchferry.export(source, output=folder / "model.pt", **arguments)
    result = {"pt": (first.contract, first.report, time.perf_counter() - start, first.path)}
    for kind in ("onnx", "pt2", "program"):
        start = time.perf_counter()
        item = torchferry.convert(first.path, to=kind)
        result[kind] = (item.contract, item.report, time.perf_counter() - start, item.path)
    return {
        kind: (contract, torchferry.verify(path, runtimes=RUNTIMES[kind]), seconds, path)
        for kind, (contract, _, seconds, path) in result.items()
    }


def worst(report: Report, names: set[str], info: set[str], *, absolute: bool = False) -> str:
    """The largest difference from eager mode of any number, or "no" where one is beyond its tolerance."""
    seen = [o.comparison for o in report.outputs if o.output in names and o.output not in info]
    if not seen or not all(c.passed for c in seen):
        return "no"
    return f"{max(c.max_abs if absolute else c.max_rel for c in seen):.1e}"


def passed(report: Report, check: str) -> bool:
    return any(c.check == check and c.verdict == PASSED for c in report.checks)


def column(kind: str, contract: torchferry.Contract, report: Report, seconds: float, path: Path) -> list[str]:
    outputs = {s.name for s in contract.outputs}
    info = {s.name for s in contract.info}
    blocks = {o.output for o in report.outputs} - outputs - info
    status = next((o.comparison for o in report.outputs if o.output == "status"), None)
    files = sum(p.stat().st_size for p in path.parent.glob("*") if kind in p.name and (kind == "onnx" or p == path))
    evidence = [leg.evidence for leg in report.legs]
    ranks = ", ".join(map(str, contract.batch.ranks))
    agree = "agree" if passed(report, "finite differences") else "do not agree"
    return [
        worst(report, outputs, info),
        f"{worst(report, blocks, info, absolute=True)}; finite differences {agree}",
        "every status equal" if status is not None and status.passed and status.max_abs == 0 else "no",
        f"{len(contract.parameters)}" if contract.parameters else "none",
        ", ".join(map(str, contract.batch.sizes))
        + (f"; {contract.batch.limits.partition(' (')[0]}" if contract.batch.limits else ""),
        f"{ranks} dimensions",
        ", ".join(leg.name for leg in report.legs),
        NEEDS[kind] if passed(report, "source library absent") and evidence else "not shown",
        f"{files / 1000:.0f} kB",
        f"{seconds:.0f} s",
    ]


ROWS = (
    "outputs, of eager mode's, relative",
    "derivatives (some 1e5), absolute",
    "Newton iteration",
    "settable parameters",
    "batch sizes",
    "batch",
    "checked in",
    "needs to run",
    "size",
    "made in",
)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="torchferry-") as folder:
        result = export_all(f"{ROOT}/examples/return_map.py:make_model", Path(folder), derivatives="stress:strain")
        columns = {kind: column(kind, *row) for kind, row in result.items()}
    with tempfile.TemporaryDirectory(prefix="torchferry-") as folder:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
        single = export_all(network, Path(folder), inputs={"input": torch.linspace(-1, 1, 12).reshape(4, 3)})
    heads = " | ".join(f"`{FORMATS[kind].suffix}`" for kind in columns)
    lines = [f"| | {heads} |", "| --- |" + " --- |" * len(columns)]
    lines += [f"| {name} | {' | '.join(cells[i] for cells in columns.values())} |" for i, name in enumerate(ROWS)]
    in_float32 = (
        worst(report, {s.name for s in contract.outputs}, set()) for contract, report, _, _ in single.values()
    )
    lines.append(f"| a network in float32, relative | {' | '.join(in_float32)} |")
    table = "\n".join(lines) + "\n"
    print(table)
    place = ROOT / "docs" / "guides" / "formats.md"
    text = place.read_text()
    head, _, rest = text.partition(START)
    place.write_text(head + START + table + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
