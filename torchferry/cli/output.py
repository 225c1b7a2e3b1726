"""Printing for the commands: listings, contracts, timings, errors."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from exporter.archive.contract import Contract, Finding
from exporter.archive.metadata import TEXT_FIELDS
from exporter.archive.tensor_spec import TensorSpec, list_dynamic_sizes
from exporter.archive.value_structure import format_structure, is_plain_dict
from exporter.common.errors import MismatchError, TorchferryError, UnsoundError
from exporter.common.plain_text import escape_unsafe

if TYPE_CHECKING:
    from exporter.graph.archive_diff import Difference
    from exporter.graph.listing import ListingRow
    from exporter.graph.passes import PassResult
    from exporter.graph.provenance import Step
    from exporter.model.source import Listing
    from runtime_checks.compatibility import CompatibilityReport


class PlainConsole(Console):
    """A console that shows what it is given: no markup, and no characters that a terminal obeys."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of a renderable, with their texts made plain."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_unsafe(segment.text))


out, err = PlainConsole(), PlainConsole(stderr=True)


def print_json(value: Any) -> None:
    """Print JSON on standard output, for machines: no colours, no wrapping."""
    out.file.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def print_error(error: TorchferryError, *, as_json: bool) -> None:
    """Print an error on standard error, and as JSON on standard output if ``as_json``."""
    if as_json:
        report = error.report if isinstance(error, MismatchError) else None
        findings = [dataclasses.asdict(f) for f in error.findings] if isinstance(error, UnsoundError) else []
        further = {"report": report.as_dict() if report else None, "findings": findings}
        print_json(error.as_dict() | {key: value for key, value in further.items() if value})
    err.print(Text("error: ", style="bold red") + Text(str(error)), soft_wrap=True)


def format_shape(spec: TensorSpec, batch: str) -> str:
    """Return a variable's shape as text, behind the batch."""
    return "[" + ", ".join([*([batch] if batch else []), *map(str, spec.shape)]) + "]"


def make_variable_table(title: str, specs: Sequence[TensorSpec], batch: str) -> Table:
    """Return a table of variables."""
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    fields = [name for name in TEXT_FIELDS if any(getattr(spec, name) for spec in specs)]
    for column in ("name", "shape", "type", "dtype", *fields):
        table.add_column(column)
    for spec in specs:
        texts = [Text(getattr(spec, name)) for name in fields]
        table.add_row(Text(spec.name), Text(format_shape(spec, batch)), spec.type, spec.dtype, *texts)
    return table


def print_listing(listing: Listing) -> None:
    """Print name, inputs, outputs and parameters of a model."""
    batch = "*batch" if listing.batch_ndim else ""
    out.print(Text("Name: ", style="bold") + Text(f"{listing.name} ({listing.kind})"))
    out.print(make_variable_table("Inputs", listing.inputs, batch))
    out.print(make_variable_table("Outputs", listing.outputs, batch))
    if listing.parameters:
        shapes = ", ".join(f"{n} {list(s)}" for n, s in listing.parameters.items())
        out.print(Text(f"Parameters: {shapes}"))
    out.print()


def print_contract(contract: Contract, sizes: Mapping[str, int]) -> None:
    """Print a contract, and the bytes of the records or files that it is of."""
    batch = "*batch" if contract.batch.ndim else ""
    origin = contract.source
    out.print(Text("Name: ", style="bold") + Text(contract.name))
    for i, line in enumerate(contract.metadata.format_lines()):
        # Its words are the author's, and must not pass for lines of ours.
        out.print(Text(("Author's words: " if i == 0 else "              | ") + line), soft_wrap=True)
    out.print(Text(f"Source: {origin.kind} {origin.model!r}, {origin.library} {origin.version}"))
    versions = contract.created_with
    out.print(Text(f"Made with: torchferry {versions.torchferry}, torch {versions.torch}, python {versions.python}"))
    if versions.command:
        out.print(Text(f"By: {versions.command}"), soft_wrap=True)
    if origin.files:
        out.print(Text(f"Of: {', '.join(origin.files)}" + (f", git {origin.revision}" if origin.revision else "")))
    out.print(make_variable_table("Inputs", contract.inputs, batch))
    out.print(make_variable_table("Outputs", contract.outputs, batch))
    for name, method in contract.methods.items():
        takes, gives = ", ".join(method.inputs), ", ".join(map(str, method.outputs))
        how = f", by {method.how}" if method.how else ""
        out.print(Text(f"Method {name}({takes}) -> {gives}{how}"))
        if method.zeros:
            zeros = ", ".join(f"d {output} / d {wrt}" for output, wrt in method.zeros)
            out.print(Text(f"  zero by structure, and left out: {zeros}"))
    for label, structure in (("Arguments", contract.arguments), ("Returns", contract.results)):
        if structure:
            text = "a dict by name" if is_plain_dict(structure) else format_structure(structure)
            out.print(Text(f"{label}: {text}"))
    parameters = ", ".join(p.describe() for p in contract.parameters)
    out.print(Text(f"Parameters: {parameters or 'none'}"))
    if contract.per_element:
        out.print(Text(f"Parameters by element, which are inputs: {', '.join(contract.per_element)}"))
    batch_sizes = ", ".join(map(str, contract.batch.sizes)) or "whole, fixed shapes"
    open_sizes = list_dynamic_sizes(contract.inputs)
    label = f"Open sizes: verified at {open_sizes[0]} =" if open_sizes else "Batch: verified at"
    out.print(Text(f"{label} {batch_sizes}"))
    if contract.batch.limits:
        out.print(Text(f"Limits: {contract.batch.limits}"))
    bounds = ", ".join(f"{d}: rtol {b.rtol:g}, atol {b.atol:g}" for d, b in contract.tolerance.dtypes.items())
    out.print(Text(f"Tolerance: {bounds}"))
    out.print(Text(f"Devices: {', '.join(contract.devices)}"))
    out.print(Text(f"Operators: {', '.join(contract.operators)}"))
    out.print(Text(f"Graph: sha256 {contract.graph or 'not in the contract'}"))
    print_findings(contract.name, contract.findings)
    table = Table(title="Records", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("record")
    table.add_column("bytes", justify="right")
    for name, size in sizes.items():
        table.add_row(Text(name), str(size))
    out.print(table)


def print_autograd(methods: Mapping[str, Sequence[Step]]) -> None:
    """Print each captured graph that contains a backward pass."""
    count = len(methods)
    note = "" if count else "; none of this file comes from torch's autograd"
    out.print(f"graphs with a backward pass: {count}{note}")
    for name, steps in methods.items():
        parts = Counter(step.origin.part or "forward" for step in steps)
        summary = ", ".join(f"{n} {part}" for part, n in parts.items())
        out.print(f"{name}: {len(steps)} operations: {summary}", soft_wrap=True)
        rows = [("", "operation", "part", "of", "submodule", "line")]
        origins = [(s.operator, s.origin) for s in steps]
        rows += [(str(i), op, o.part, o.of, o.module, o.where) for i, (op, o) in enumerate(origins)]
        _print_columns(rows)


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print texts in columns, as wide as they are."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, wide, strict=True))
        out.print(f"  {line}".rstrip(), soft_wrap=True)


def print_rows(rows: Sequence[ListingRow]) -> None:
    """Print the lines of a graph, its inputs first and inner blocks indented."""
    out.print(f"  {rows[0].text}", soft_wrap=True)
    rows = rows[1:]
    texts = ["  " * row.depth + row.text for row in rows]
    # A very long line must not widen the columns of all other lines.
    texts = [text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 3]}..." for text in texts]
    has_origin = any(row.origin for row in rows)
    columns = [(row.module, row.where, *((row.origin,) if has_origin else ())) for row in rows]
    _print_columns([(text, *cells) for text, cells in zip(texts, columns, strict=True)])


_MAX_WIDTH = 100


def print_passes(results: Sequence[PassResult]) -> None:
    """Print the operations before and after each pass, and what it removed and added."""
    table = Table(title="Passes", title_justify="left", show_edge=False, pad_edge=False)
    for column in ("pass", "before", "after"):
        table.add_column(column, justify="left" if column == "pass" else "right", no_wrap=True)
    table.add_column("removed (-) and added (+)", overflow="fold")
    for result in results:
        changes = [*_format_largest("-", result.removed), *_format_largest("+", result.added)]
        what = f"not run: {result.not_run}" if result.not_run else ", ".join(changes) or "nothing"
        table.add_row(result.name, str(result.before), str(result.after), Text(what))
    out.print(table)


def _format_largest(sign: str, counts: Mapping[str, int]) -> list[str]:
    """Return the largest counts first; further operators are summed up, not named."""
    largest = sorted(counts.items(), key=lambda pair: -pair[1])
    remaining = sum(n for _, n in largest[6:])
    others = [f"{sign}{remaining} others"] if remaining else []
    return [f"{sign}{n} {operator}" for operator, n in largest[:6]] + others


def print_difference(difference: Difference) -> None:
    """Print contract, graphs, constants, numbers, in this order, and the verdict."""
    for note in difference.notes:
        out.print(f"note: {note}", soft_wrap=True)
    for text in difference.lines():
        out.print(text, soft_wrap=True)
    out.print(difference.verdict)


def print_compatibility(report: CompatibilityReport) -> None:
    """Print a table of archives under versions of torch."""
    table = Table(title="Archives under torch", title_justify="left", show_edge=False, pad_edge=False)
    for column in ("archive", "torch", "verdict", "graph", "detail"):
        table.add_column(column, overflow="fold")
    absent = {row.torch: row.detail for row in report.rows if row.verdict == "not run"}
    for version, detail in absent.items():
        table.add_row("all", version, Text("not run", style="yellow"), "", Text(detail))
    for row in (row for row in report.rows if row.torch not in absent):
        style = {"verified": "green"}.get(row.verdict, "bold red")
        name = row.archive.rpartition("/")[2]
        table.add_row(Text(name), row.torch, Text(row.verdict, style=style), row.graph, Text(row.detail))
    out.print(table)


def print_findings(name: str, findings: Sequence[Finding]) -> None:
    """Print a table of findings, if there are any."""
    if not findings:
        return
    table = Table(title=f"{name}: findings", title_justify="left", show_edge=False, pad_edge=False)
    for column in ("check", "severity", "what", "where", "reason"):
        table.add_column(column, overflow="fold")
    for f in findings:
        style = {"allowed": "yellow", "not run": "yellow", "unsound": "bold red"}.get(f.severity, "")
        table.add_row(f.check, Text(f.severity, style=style), Text(f.what), Text(f.where), Text(f.reason))
    out.print(table)


# What shortens a stage, for the user who waits for it.
_SHORTER = {
    "imports": "several models in one command import once",
    "load": "what the source does when it is built",
    "warmup": "--budget: fewer large batches",
    "soundness": "--budget: fewer large batches; --jobs: more checks side by side",
    "capture": "fewer operations, derivatives or settable parameters",
    "cases": "a solver that takes fewer iterations, cheaper calls in eager mode",
    "write": "fewer operations",
    "verify": "--budget: fewer large batches; one --runtime and one --device",
    "c": "fewer operations",
    "cuda": "fewer operations",
    "onnx": "fewer operations",
    "pt2": "fewer operations",
}
SLOWEST = 3


def print_slowest(seconds: Mapping[str, float], parts: Mapping[tuple[str, str], float]) -> None:
    """Print the slowest stages, the slowest part of each, and what would shorten them."""
    for label in sorted(seconds, key=lambda name: -seconds[name])[:SLOWEST]:
        stage = label.partition(":")[0]
        own_parts = {part: value for (owner, part), value in parts.items() if owner == stage}
        slowest = max(own_parts, key=lambda part: own_parts[part], default="")
        part_text = f", of which {slowest!r} {own_parts[slowest]:.1f} s" if slowest else ""
        hint = f" (shorter by: {_SHORTER[stage]})" if stage in _SHORTER else ""
        out.print(f"slow: {label} {seconds[label]:.1f} s{part_text}{hint}", soft_wrap=True)


def print_timings(seconds: Mapping[str, float]) -> None:
    """Print a table of the seconds of each stage."""
    total = sum(seconds.values())
    table = Table(title="Timings", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for stage, value in seconds.items():
        table.add_row(stage, f"{value:.3f}", f"{value / total:.1%}" if total else "")
    table.add_row("total", f"{total:.3f}", "")
    out.print(table)
