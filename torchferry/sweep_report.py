"""The Markdown page of a sweep: figures by folder, every model by format, why some were not verified."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Sequence
from importlib.metadata import version

from exporter.common.plain_text import escape_markdown, quote_markdown
from exporter.frontends.neml2 import input_file
from torchferry.sweep import VERIFIED, SweepCell, SweepRow


def render_coverage_page(rows: Sequence[SweepRow], versions: str) -> str:
    """Return the rows of a sweep as a Markdown page."""
    formats = list(dict.fromkeys(cell.format for row in rows for cell in row.cells))
    by_folder: dict[str, list[SweepRow]] = {}
    for row in rows:
        by_folder.setdefault(row.file.split("/")[0], []).append(row)
    lines = [
        "# Coverage",
        "",
        f"Written by `torchferry sweep --coverage`, with {versions}.",
        "A model counts where its archive, or the file of another format, was written and verified. *Driven* models",
        "are those that a driver of the input file names; the others are their parts.",
        "",
        *_open_table("folder", "models", *formats, "driven models", *(f"driven, {name}" for name in formats)),
    ]
    for folder, own in by_folder.items():
        driven = [row for row in own if row.driven]
        counts = [(len(part), *(_count_verified(part, name) for name in formats)) for part in (own, driven)]
        lines.append(_format_row(escape_markdown(folder), *itertools.chain(*counts)))
    lines += [*_describe_worst(rows), "", "## Models", ""]
    lines += ["Seconds to make and verify a file, and its kB; \\* a driven model.", ""]
    lines += _open_table("file", "model", *formats)
    for row in rows:
        cells = {cell.format: _describe_cell(cell) for cell in row.cells}
        model = quote_markdown(row.model) + (" \\*" if row.driven else "")
        lines.append(_format_row(escape_markdown(row.file), model, *(cells.get(name, "") for name in formats)))
    return "\n".join([*lines, *_list_reasons(rows)]).rstrip() + "\n"


def _open_table(*titles: str) -> list[str]:
    return [_format_row(*titles), _format_row(*["---"] * 2, *["---:"] * (len(titles) - 2))]


def _format_row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _describe_cell(cell: SweepCell) -> str:
    return f"{cell.seconds:.1f} s, {cell.bytes / 1000:.0f}" if cell.verdict == VERIFIED else cell.verdict


def _describe_worst(rows: Sequence[SweepRow]) -> list[str]:
    verified = [(cell, row) for row in rows for cell in row.cells if cell.verdict == VERIFIED]
    if not verified:
        return []
    worst, row = max(verified, key=lambda pair: pair[0].max_rel)
    what = "Largest difference from eager mode over all verified files"
    place = f"{escape_markdown(row.file)}, {quote_markdown(row.model)}, {worst.format}"
    return ["", f"{what}: {worst.max_rel:.1e} relative ({place})."]


def _list_reasons(rows: Sequence[SweepRow]) -> list[str]:
    """Return every reason for which a file was not verified, with the files and models that have it."""
    groups: dict[str, dict[str, list[str]]] = {}
    for row, cell in ((r, cell) for r in rows for cell in r.cells if cell.verdict != VERIFIED):
        models = groups.setdefault(_group_reason(row, cell), {}).setdefault(row.file, [])
        models.append(quote_markdown(row.model))
    lines = ["", "## Not verified", ""] if groups else []
    for reason, files in groups.items():
        count = sum(map(len, files.values()))
        lines += [f"### {escape_markdown(reason)} ({count})", "", *_open_table("file", "models")]
        lines += [_format_row(escape_markdown(file), ", ".join(models)) for file, models in files.items()]
        lines.append("")
    return lines


def describe_versions() -> str:
    """Return the versions that a sweep depends on, for its page."""
    built = "built for it" if input_file.check_neml2_abi() else "not built for it"
    return f"neml2 {input_file.version()} ({built}), torch {version('torch')}, Python {platform.python_version()}"


def _count_verified(rows: Sequence[SweepRow], format_name: str) -> int:
    return sum(cell.format == format_name and cell.verdict == VERIFIED for row in rows for cell in row.cells)


def _group_reason(row: SweepRow, cell: SweepCell) -> str:
    """Return the reason without the model's own name, so that equal reasons are grouped."""
    text = cell.reason.replace(f"'{row.model}'", "").replace("  ", " ").strip()
    return f"{cell.format}: {cell.kind}: {text}"
