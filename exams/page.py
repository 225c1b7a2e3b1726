"""docs/results/exams.md, from the tables of expected cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from exams.cells import REFUSED, VERIFIED, WRONG, classify_cell
from exams.tables import Row, list_columns, read_table

PAGE = Path(__file__).parents[1] / "docs" / "results" / "exams.md"
MARKS = {VERIFIED: "✓", REFUSED: "–", WRONG: "✗"}
PARTLY = "✓ in part"
TITLES = {
    "operators": "Operators of torch",
    "modules": "Modules of torch",
    "torch_examples": "torch's own export examples",
    "onnx_nodes": "ONNX's tests of its operators",
    "odes": "Stiff problems with published solutions",
    "networks": "Networks with random weights",
}
# Its cases are seeds, of which the page shows no list.
RANDOM = "programs"
LONGEST_LIST = 25

HEAD = f"""# Exams

Public suites that nobody here wrote, through every format. A case is verified if a file is made of each of its samples,
and gives what eager mode gives for inputs that the export has not seen, by a comparison of the exams' own.
`python -m exams` runs them, and holds each cell against `exams/expected/`; a change either way fails.

{MARKS[VERIFIED]}: all samples are verified; {PARTLY}: the others are refused; {MARKS[REFUSED]}: all are refused, with a
reason; {MARKS[WRONG]}: wrong numbers, or a check of the export that found them. An empty cell was not run: what the
archive itself does not carry goes no further, and large samples have no Jacobian here.

How to run them, and what each column is, says [Exams](../contributing/exams.md).
"""


def format_page() -> str:
    """Return the page."""
    suites = (suite for suite in TITLES if read_table(suite))
    lines = [line for suite in suites for line in _format_suite(suite)]
    return "\n".join([HEAD, *lines, *_format_programs(list(read_table(RANDOM).values()))]) + "\n"


def _format_suite(suite: str) -> Iterable[str]:
    rows = list(read_table(suite).values())
    pipelines = list_columns(rows)
    yield f"## {TITLES[suite]}\n"
    yield f"{len(rows)} cases, {sum(row.samples for row in rows):,} samples.\n"
    yield from _format_counts(rows, pipelines)
    yield from _format_reasons(rows)
    yield f"| case | samples | {' | '.join(pipelines)} |"
    yield f"| --- | ---: |{' :---: |' * len(pipelines)}"
    for row in sorted(rows, key=lambda row: row.case):
        cells = (_mark(row.cells.get(name, "")) for name in pipelines)
        yield f"| `{row.case}` | {row.samples} | {' | '.join(cells)} |"
    yield ""


def _format_programs(rows: Sequence[Row]) -> Iterable[str]:
    if not rows:
        return
    yield "## Random programs\n"
    yield (
        f"{sum(row.samples for row in rows):,} programs by {len(rows):,} seeds of hypothesis, which are recorded in "
        "`exams/expected/programs.csv`; a seed counts where nothing is wrong. Cells of seeds:\n"
    )
    yield from _format_counts(rows, list_columns(rows))
    yield from _format_reasons(rows)


def _format_counts(rows: Sequence[Row], pipelines: Sequence[str]) -> Iterable[str]:
    yield "| | " + " | ".join(pipelines) + " |"
    yield f"| --- |{' ---: |' * len(pipelines)}"
    for mark in (MARKS[VERIFIED], PARTLY, MARKS[REFUSED], MARKS[WRONG]):
        counts = (sum(_mark(row.cells.get(name, "")) == mark for row in rows) for name in pipelines)
        yield f"| {mark} | {' | '.join(map(str, counts))} |"
    yield ""


def _format_reasons(rows: Sequence[Row]) -> Iterable[str]:
    """Yield the most frequent reasons, with the number of cells that name them."""
    texts = (text.partition(": ")[2] for row in rows for text in row.cells.values() if classify_cell(text) != VERIFIED)
    yield "What is missing most often:\n"
    for reason, count in Counter(texts).most_common(LONGEST_LIST):
        yield f"- {count} times: {_escape(reason)}"
    yield ""


def _mark(text: str) -> str:
    if not text:
        return ""
    state = classify_cell(text)
    return PARTLY if state == REFUSED and text.startswith(VERIFIED) else MARKS[state]


def _escape(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text)
