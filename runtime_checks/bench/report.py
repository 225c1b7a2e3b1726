"""Benchmark results as tables, and as a picture of throughput against the batch."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.table import Table

from exporter.common.atomic_files import write_atomically
from exporter.common.errors import MissingRuntimeError, UsageError
from exporter.common.plain_text import escape_formula
from runtime_checks.bench.benchmark import BenchmarkResult

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ bench.model }}</title>
<style>body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}td:first-child{text-align:left}
</style></head><body><h1>{{ bench.model }}: {{ bench.method }}</h1>
<p>{{ said }}</p>{{ picture }}
<table><tr><th></th>{% for b in bench.batches %}<th>{{ "{:,}".format(b) }}</th>{% endfor %}</tr>
{% for label, cells in rows %}<tr><td>{{ label }}</td>{% for c in cells %}<td>{{ c }}</td>{% endfor %}</tr>
{% endfor %}</table>{% for note in bench.notes %}<p>{{ note }}</p>{% endfor %}</body></html>
"""


def format_time(nanoseconds: float) -> str:
    """Format a time with a unit, to three digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def describe_setup(bench: BenchmarkResult) -> str:
    """Describe machine, versions, threads and bandwidth in one line."""
    m = bench.machine
    return (
        f"{m['processor']}, {m['cores']} cores, load {m['load']}; torch {m['torch']}, Python {m['python']}; "
        f"{bench.threads} {'thread' if bench.threads == 1 else 'threads'}, {bench.device}; "
        f"a copy moves {bench.bandwidth / 1e9:.1f} GB/s"
    )


def iterate_rows(bench: BenchmarkResult) -> Iterator[tuple[str, list[str]]]:
    """Yield the median of a call with its quartiles, by candidate and batch; then the bound by memory traffic."""
    for label in bench.candidates:
        cells = []
        for batch in bench.batches:
            timing = bench.find_timing(label, batch)
            times = [format_time(t) for t in (timing.median, timing.low, timing.high)] if timing else []
            cells.append("{} ({} to {})".format(*times) if times else "-")
        yield label, cells
    yield "memory traffic alone", [format_time(bench.bounds[b]) for b in bench.batches]


def render(bench: BenchmarkResult) -> RenderableType:
    """Render the tables of a benchmark: times, ratios, fresh processes."""
    first = bench.candidates[0] if bench.candidates else ""
    steady = Table(title=f"{bench.model}: {bench.method}, a call (quartiles)", title_justify="left")
    ratio = Table(title=f"as fast as {first}: ratio; ns an element; of the memory bound", title_justify="left")
    for table in (steady, ratio):
        table.add_column("")
        for batch in bench.batches:
            table.add_column(f"{batch:,}", justify="right")
    for label, cells in iterate_rows(bench):
        steady.add_row(label, *cells)
    for label in bench.candidates:
        cells = []
        for batch in bench.batches:
            entry, reference = bench.find_timing(label, batch), bench.find_timing(first, batch)
            times = f"{reference.median / entry.median:.2f}; " if entry and reference else ""
            bound = f"{entry.median / batch:.3g}; {entry.median / bench.bounds[batch]:.1f}" if entry else "-"
            cells.append(times + bound)
        ratio.add_row(label, *cells)
    cold = Table(title="in a fresh process", title_justify="left")
    for name in ("", "load", "call 1", "calls 2 to 5", "memory at the largest batch"):
        cold.add_column(name, justify="right" if name else "left")
    for entry in bench.colds:
        if entry.error:
            cold.add_row(entry.candidate, entry.error, "", "", "")
            continue
        calls = ", ".join(f"{ms:.3g}" for ms in entry.calls[1:])
        last = max(entry.peaks, default=0)
        memory = f"{entry.peaks[last]:.1f} MiB at {last:,}" if last else ""
        cold.add_row(entry.candidate, f"{entry.load:.3g} ms", f"{entry.calls[0]:.3g} ms", f"{calls} ms", memory)
    launched = [f"{label}: {count} kernels a call" for label, count in bench.kernels.items()]
    return Group(describe_setup(bench), steady, ratio, *([cold] if bench.colds else []), *launched, *bench.notes)


def plot(bench: BenchmarkResult, path: Path) -> None:
    """Write a ``.svg`` or ``.html``: elements a second against the batch, on logarithmic axes.

    Raise ``UsageError`` for another suffix, ``MissingRuntimeError`` without matplotlib."""
    check_picture_path(path)
    picture = _draw_picture(bench)
    if path.suffix == ".html":
        page = Environment(autoescape=True).from_string(_PAGE)
        # The picture is ours, and what it quotes is escaped in it.
        inner = Markup(picture[picture.index("<svg") :])
        picture = page.render(bench=bench, said=describe_setup(bench), rows=list(iterate_rows(bench)), picture=inner)
    write_atomically(path, picture.encode())


def check_picture_path(path: Path) -> None:
    """Raise ``UsageError`` if the path is not one of a picture."""
    if path.suffix not in (".svg", ".html"):
        raise UsageError("this is no picture format", where=f"--plot {path}", got=path.suffix, expected=".svg, .html")


def _draw_picture(bench: BenchmarkResult) -> str:
    try:
        import matplotlib as mpl
    except ImportError as error:
        mend = 'pip install "torchferry[plot]"'
        raise MissingRuntimeError("matplotlib is needed to draw", where="--plot", got=str(error), mend=mend) from None
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "torchferry", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for label in bench.candidates:
            timings = [t for b in bench.batches if (t := bench.find_timing(label, b))]
            speeds = [1e9 * t.batch / t.median for t in timings]
            axes.plot([t.batch for t in timings], speeds, marker="o", label=escape_formula(label))
        bound = [1e9 * b / bench.bounds[b] for b in bench.batches]
        axes.plot(bench.batches, bound, linestyle="--", color="grey", label="memory traffic alone")
        axes.set(
            xscale="log", yscale="log", xlabel="batch", ylabel="elements a second", title=escape_formula(bench.model)
        )
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize="small")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
