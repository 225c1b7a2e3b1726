"""A comparison as tables, and as a picture of throughput against the batch."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment
from rich.console import Group, RenderableType
from rich.table import Table

from exporter.common.atomic_files import written
from exporter.common.errors import MissingRuntimeError, UsageError
from runtime_checks.bench.benchmark import Bench

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ bench.model }}</title>
<style>body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}td:first-child{text-align:left}
</style></head><body><h1>{{ bench.model }}: {{ bench.method }}</h1>
<p>{{ said }}</p>{{ picture }}
<table><tr><th></th>{% for b in bench.batches %}<th>{{ "{:,}".format(b) }}</th>{% endfor %}</tr>
{% for label, cells in rows %}<tr><td>{{ label }}</td>{% for c in cells %}<td>{{ c }}</td>{% endfor %}</tr>
{% endfor %}</table>{% for note in bench.notes %}<p>{{ note }}</p>{% endfor %}</body></html>
"""


def time_text(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def said(bench: Bench) -> str:
    m = bench.machine
    return (
        f"{m['processor']}, {m['cores']} cores, load {m['load']}; torch {m['torch']}, Python {m['python']}; "
        f"{bench.threads} {'thread' if bench.threads == 1 else 'threads'}, {bench.device}; "
        f"a copy moves {bench.bandwidth / 1e9:.1f} GB/s"
    )


def rows(bench: Bench) -> Iterator[tuple[str, list[str]]]:
    """Median of a call with its quartiles, by candidate and batch; then the bound by memory traffic."""
    for label in bench.candidates:
        cells = []
        for batch in bench.batches:
            one = bench.of(label, batch)
            cells.append(f"{time_text(one.median)} ({time_text(one.low)} to {time_text(one.high)})" if one else "-")
        yield label, cells
    yield "memory traffic alone", [time_text(bench.bounds[b]) for b in bench.batches]


def render(bench: Bench) -> RenderableType:
    first = bench.candidates[0] if bench.candidates else ""
    steady = Table(title=f"{bench.model}: {bench.method}, a call (quartiles)", title_justify="left")
    ratio = Table(title=f"as fast as {first}: ratio; ns an element; of the memory bound", title_justify="left")
    for table in (steady, ratio):
        table.add_column("")
        for batch in bench.batches:
            table.add_column(f"{batch:,}", justify="right")
    for label, cells in rows(bench):
        steady.add_row(label, *cells)
    for label in bench.candidates:
        cells = []
        for batch in bench.batches:
            one, other = bench.of(label, batch), bench.of(first, batch)
            times = f"{other.median / one.median:.2f}; " if one and other else ""
            cells.append(f"{times}{one.median / batch:.3g}; {one.median / bench.bounds[batch]:.1f}" if one else "-")
        ratio.add_row(label, *cells)
    cold = Table(title="in a fresh process", title_justify="left")
    for name in ("", "load", "call 1", "calls 2 to 5", "memory at the largest batch"):
        cold.add_column(name, justify="right" if name else "left")
    for one in bench.colds:
        if one.error:
            cold.add_row(one.candidate, one.error, "", "", "")
            continue
        calls = ", ".join(f"{ms:.3g}" for ms in one.calls[1:])
        last = max(one.peaks, default=0)
        memory = f"{one.peaks[last]:.1f} MiB at {last:,}" if last else ""
        cold.add_row(one.candidate, f"{one.load:.3g} ms", f"{one.calls[0]:.3g} ms", f"{calls} ms", memory)
    launched = [f"{label}: {count} kernels a call" for label, count in bench.kernels.items()]
    return Group(said(bench), steady, ratio, *([cold] if bench.colds else []), *launched, *bench.notes)


def plot(bench: Bench, path: Path) -> None:
    """``.svg`` or ``.html``: elements a second against the batch, on logarithmic axes.

    Raises ``UsageError`` for another suffix, ``MissingRuntimeError`` without matplotlib.
    """
    refuse_picture(path)
    picture = _picture(bench)
    if path.suffix == ".html":
        page = Environment(autoescape=True).from_string(_PAGE)
        # The picture is ours, and is no text.
        inner = picture[picture.index("<svg") :]
        text = page.render(bench=bench, said=said(bench), rows=list(rows(bench)), picture="@picture@")
        picture = text.replace("@picture@", inner)
    written(path, picture.encode())


def refuse_picture(path: Path) -> None:
    if path.suffix not in (".svg", ".html"):
        raise UsageError("this is no kind of picture", where=f"--plot {path}", got=path.suffix, expected=".svg, .html")


def _picture(bench: Bench) -> str:
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
            known = [t for b in bench.batches if (t := bench.of(label, b))]
            axes.plot([t.batch for t in known], [1e9 * t.batch / t.median for t in known], marker="o", label=label)
        bound = [1e9 * b / bench.bounds[b] for b in bench.batches]
        axes.plot(bench.batches, bound, linestyle="--", color="grey", label="memory traffic alone")
        axes.set(xscale="log", yscale="log", xlabel="batch", ylabel="elements a second", title=bench.model)
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize="small")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
