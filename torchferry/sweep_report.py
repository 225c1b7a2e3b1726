"""The Markdown page of a sweep: figures by folder, then every model that was not verified, with its reason."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version

from exporter.common.plain_text import escape_markdown, quote_markdown
from exporter.frontends.neml2 import input_file
from torchferry.sweep import VERIFIED, SweepRow


def render_coverage_page(rows: Sequence[SweepRow], versions: str) -> str:
    """Return the rows of a sweep as a Markdown page."""
    lines = [
        "# Coverage",
        "",
        f"Written by `torchferry sweep --coverage`, with {versions}.",
        "A model counts where its archive was exported and verified. *Driven* models are those that a driver of the",
        "input file names; the others are their parts.",
        "",
        "| folder | models | verified | driven models | verified |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for folder in dict.fromkeys(r.file.split("/")[0] for r in rows):
        folder_rows = [r for r in rows if r.file.split("/")[0] == folder]
        driven = [r for r in folder_rows if r.driven]
        cells = [
            escape_markdown(folder),
            len(folder_rows),
            _count_verified(folder_rows),
            len(driven),
            _count_verified(driven),
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    verified = [r for r in rows if r.verdict == VERIFIED]
    if verified:
        worst = max(verified, key=lambda r: r.max_rel)
        lines += [
            "",
            f"Largest difference from eager mode over all verified models: {worst.max_rel:.1e} relative "
            f"({escape_markdown(worst.file)}, {quote_markdown(worst.model)}).",
        ]
    failed = [r for r in rows if r.verdict != VERIFIED]
    if failed:
        lines += ["", "## Not verified", ""]
    for reason in dict.fromkeys(_group_reason(r) for r in failed):
        group = [r for r in failed if _group_reason(r) == reason]
        lines += [f"### {escape_markdown(reason)} ({len(group)})", "", "| file | models |", "| --- | --- |"]
        for file in dict.fromkeys(r.file for r in group):
            models = ", ".join(quote_markdown(r.model) for r in group if r.file == file)
            lines.append(f"| {escape_markdown(file)} | {models} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def describe_versions() -> str:
    """Return the versions that a sweep depends on, for its page."""
    built = "built for it" if input_file.check_neml2_abi() else "not built for it"
    return f"neml2 {input_file.version()} ({built}), torch {version('torch')}, Python {platform.python_version()}"


def _count_verified(rows: Sequence[SweepRow]) -> int:
    return sum(r.verdict == VERIFIED for r in rows)


def _group_reason(row: SweepRow) -> str:
    """Return the reason without the model's own name, so that equal reasons are grouped."""
    text = row.reason.replace(f"'{row.model}'", "").replace("  ", " ").strip()
    return f"{row.kind}: {text}"
