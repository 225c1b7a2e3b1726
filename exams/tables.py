"""The tables of expected cells, one CSV file a suite, and how a run differs from them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from exams.pipelines import PIPELINES

EXPECTED = Path(__file__).with_name("expected")
CASE, SAMPLES = "case", "samples"


@dataclass(frozen=True)
class Row:
    """A case: how many samples it has, and its cells by pipeline."""

    case: str
    samples: int
    cells: Mapping[str, str]


def read_table(suite: str) -> dict[str, Row]:
    """Read the expected rows of a suite by case; none if it was never run."""
    path = EXPECTED / f"{suite}.csv"
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    rows = [Row(line.pop(CASE), int(line.pop(SAMPLES)), {k: v for k, v in line.items() if v}) for line in lines]
    return {row.case: row for row in rows}


def list_columns(rows: Iterable[Row]) -> list[str]:
    """List the pipelines that some of the rows have cells of."""
    names = {name for row in rows for name in row.cells}
    return [name for name in PIPELINES if name in names]


def format_table(rows: Iterable[Row]) -> str:
    """Return rows as CSV, sorted by case, with a column for each pipeline."""
    ordered = sorted(rows, key=lambda row: row.case)
    pipelines = list_columns(ordered)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([CASE, SAMPLES, *pipelines])
    writer.writerows([row.case, row.samples, *(row.cells.get(p, "") for p in pipelines)] for row in ordered)
    return text.getvalue()


def write_table(suite: str, rows: Iterable[Row]) -> None:
    """Write what a suite is expected to give from now on."""
    EXPECTED.mkdir(exist_ok=True)
    (EXPECTED / f"{suite}.csv").write_text(format_table(rows), encoding="utf-8")


def merge_rows(expected: Mapping[str, Row], rows: Iterable[Row]) -> list[Row]:
    """Return the expected rows with the cells that were run in place of the old ones."""
    merged = dict(expected)
    for row in rows:
        old = merged.get(row.case)
        cells = {**(old.cells if old else {}), **row.cells}
        merged[row.case] = Row(row.case, row.samples, {name: text for name, text in cells.items() if text})
    return list(merged.values())


def list_changes(expected: Mapping[str, Row], rows: Iterable[Row]) -> list[str]:
    """List each cell that is not as expected, either way, and each case that nobody expects."""
    changes = []
    for row in rows:
        before = expected.get(row.case)
        if before is None:
            changes.append(f"{row.case}: a new case")
            continue
        cells = {name: text for name, text in row.cells.items() if text}
        if row.samples != before.samples:
            changes.append(f"{row.case}: {row.samples} samples\n    expected {before.samples}")
        for pipeline in row.cells:
            was, now = before.cells.get(pipeline, "nothing"), cells.get(pipeline, "nothing")
            if was != now:
                changes.append(f"{row.case}, {pipeline}: {now}\n    expected {was}")
    return changes
