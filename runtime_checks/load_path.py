"""The path of a material point: a table whose rows are points in the space of loads, and the steps between them.

The first row is the start; each further row ends a ramp from the row before, in ``steps`` equal steps. An empty cell
keeps the value of the row before. ``duration`` is the time that a ramp takes, for the input ``t``. Rows next to each
other with the same text in ``block`` are gone through ``repeat`` times, which the first of them says."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from exporter.common.errors import UsageError

STEPS, DURATION, BLOCK, REPEAT, TIME = "steps", "duration", "block", "repeat", "t"
OPTIONS = (STEPS, DURATION, BLOCK, REPEAT)
MAX_STEPS = 1_000_000
Row = Mapping[str, str]


@dataclass(frozen=True)
class LoadPath:
    """``start`` and ``values``, of shape ``(steps,)``, by column; ``where`` is the table."""

    start: Mapping[str, float]
    values: Mapping[str, torch.Tensor]
    where: str

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return len(next(iter(self.values.values())))


def read_load_path(path: Path) -> LoadPath:
    """Read a table. Raises ``UsageError`` for what is no table of numbers, and says the row."""
    rows = read_table(path)
    columns = [name for name in rows[0] if name not in OPTIONS]
    if len(rows) < 2 or not columns:
        what, expected = "this is no path of loads", "a row for the start, a row for each end of a ramp, and columns"
        raise UsageError(what, where=str(path), got=f"{len(rows)} rows of {', '.join(columns)}", expected=expected)
    if DURATION in rows[0] and TIME in columns:
        mend = f"leave out one of {DURATION}, {TIME}"
        raise UsageError("the time is given twice", where=str(path), got=f"{DURATION}, {TIME}", mend=mend)
    numbers = [{name: _read_number(row, name, i, path) for name in columns} for i, row in enumerate(rows)]
    if empty := [name for name, value in numbers[0].items() if value is None]:
        what, expected = f"column {empty[0]!r} has no value at the start", "a number in every column of the first row"
        raise UsageError(what, where=f"{path}, row 1", expected=expected)
    start = {name: value for name, value in numbers[0].items() if value is not None}
    if unused := [name for name in OPTIONS if rows[0].get(name)]:
        what, expected = f"the start has a value of {unused[0]!r}", "an empty cell: no ramp ends there"
        raise UsageError(what, where=f"{path}, row 1", got=rows[0][unused[0]], expected=expected)
    order = _order_rows(rows, path)
    counts = [_read_count(rows[i], STEPS, i, path) for i in order]
    if sum(counts) > MAX_STEPS:
        what, expected = "the path has too many steps", f"at most {MAX_STEPS}"
        raise UsageError(what, where=str(path), got=str(sum(counts)), expected=expected)
    ends = [dict(start)]
    for i in order:
        ends.append({name: ends[-1][name] if (value := numbers[i][name]) is None else value for name in start})
    repeats = torch.tensor(counts)
    place = torch.arange(int(repeats.sum())) - (repeats.cumsum(0) - repeats).repeat_interleave(repeats)
    fraction = (place + 1).double() / repeats.repeat_interleave(repeats)
    result: dict[str, torch.Tensor] = {}
    for name in start:
        column = torch.tensor([row[name] for row in ends], dtype=torch.float64)
        before, after = (column[k : len(counts) + k].repeat_interleave(repeats) for k in (0, 1))
        # The end is what the table says, to the last bit.
        result[name] = torch.where(fraction == 1, after, before + fraction * (after - before))
    if DURATION in rows[0]:
        seconds = [_read_number(rows[i], DURATION, i, path) or 0.0 for i in order]
        if (backwards := min(seconds)) < 0:
            expected = "seconds from 0 on"
            raise UsageError("time would go back", where=f"{path}, {DURATION}", got=f"{backwards:g}", expected=expected)
        parts = torch.tensor(seconds, dtype=torch.float64) / repeats
        result[TIME], start = parts.repeat_interleave(repeats).cumsum(0), {**start, TIME: 0.0}
    return LoadPath(start, result, str(path))


def read_table(path: Path) -> list[Row]:
    """Read rows of a CSV file, in which lines with ``#`` in front are comments."""
    try:
        lines = [line for line in path.read_text("utf-8-sig").splitlines() if line.strip() and line.lstrip()[0] != "#"]
        names, *rows = [[cell.strip() for cell in row] for row in csv.reader(lines)] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError("the table cannot be read", where=str(path), got=str(error), expected="a CSV file") from None
    if not rows or len(set(names)) != len(names) or "" in names:
        what, expected = (
            "this is no table",
            'names, each once, in quotes if they have commas ("F[0,1]"), and numbers below',
        )
        raise UsageError(what, where=str(path), got=", ".join(names), expected=expected)
    for i, row in enumerate(rows, 1):
        if len(row) != len(names):
            what, got = f"row {i} has another number of cells than there are names", f"{len(row)} cells"
            expected = f"{len(names)}: {', '.join(names)}; names are in quotes if they have commas"
            raise UsageError(what, where=str(path), got=got, expected=expected)
    return [dict(zip(names, row, strict=True)) for row in rows]


def read_points(path: Path) -> dict[str, torch.Tensor]:
    """Read a table of material points, each a row, with a value of each column."""
    rows = read_table(path)
    values: dict[str, torch.Tensor] = {}
    for name in rows[0]:
        numbers = [_read_number(row, name, i, path) for i, row in enumerate(rows)]
        if None in numbers:
            what, where = f"point {numbers.index(None) + 1} has no {name!r}", str(path)
            raise UsageError(what, where=where, expected="a number for each point")
        values[name] = torch.tensor(numbers, dtype=torch.float64)
    return values


def _read_number(row: Row, name: str, i: int, path: Path) -> float | None:
    if not row[name]:
        return None
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(
            "a cell is no number", where=f"{path}, row {i + 1}, {name}", got=row[name], expected="a number"
        )
    return value


def _read_count(row: Row, name: str, i: int, path: Path) -> int:
    text = row.get(name) or "1"
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 0 < int(text) <= MAX_STEPS:
        where, expected = f"{path}, row {i + 1}, {name}", f"a whole number from 1 to {MAX_STEPS}"
        raise UsageError("a cell is no number of times", where=where, got=text, expected=expected)
    return int(text)


def _order_rows(rows: Sequence[Row], path: Path) -> list[int]:
    """Return the rows that end ramps, in order, those of blocks as often as they are gone through."""
    order: list[int] = []
    groups = groupby(range(1, len(rows)), lambda i: rows[i].get(BLOCK) or f"\0{i}")
    for _, group in groups:
        members = list(group)
        if late := [i for i in members[1:] if rows[i].get(REPEAT)]:
            what, mend = "a block is repeated as its first row says", f"leave {REPEAT} empty here"
            raise UsageError(what, where=f"{path}, row {late[0] + 1}", got=rows[late[0]][REPEAT], mend=mend)
        count = _read_count(rows[members[0]], REPEAT, members[0], path)
        if count > 1 and TIME in rows[0]:
            what, mend = "time would go back in a repeated block", f"give {DURATION} in place of {TIME}"
            raise UsageError(what, where=f"{path}, row {members[0] + 1}", got=f"{REPEAT} {count}", mend=mend)
        if len(order) + count * len(members) > MAX_STEPS:
            what, expected = "the path has too many steps", f"at most {MAX_STEPS}"
            raise UsageError(what, where=str(path), got=f"{REPEAT} {count}", expected=expected)
        order += members * count
    return order
