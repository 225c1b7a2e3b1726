"""Numbers that are copied: one by one, or in a loop, the same numbers end in the same rows."""

from __future__ import annotations

import re

import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_host import Direct

from exporter.backends.c_kernel.register_loops import MANY, emit_copies, emit_repeated

F = torch.float64


def done(text: str, array: str) -> dict[int, str]:
    """What is in each row after the statements: a literal, or a row of before."""
    result = {int(row): value for row, value in re.findall(rf"^    f->{array}\[(\d+)\]\[l\] = (.*);$", text, re.M)}
    for block in re.findall(r"^  \{\n(.*?)^  \}\n", text, re.M | re.S):
        first = int(re.findall(rf"\(\*const to\)\[TF_LANES\] = &f->{array}\[(\d+)\];", block)[0])
        count, value = re.findall(r"k < (\d+);.*to\[k\]\[l\] = (.*);", block, re.S)[0]
        source = re.findall(r"\(\*const from\)\[TF_LANES\] = &(f->\w)\[(\d+)\];", block)
        for k in range(int(count)):
            assert first + k not in result
            result[first + k] = f"{source[0][0]}[{int(source[0][1]) + k}][l]" if source else value
    return result


RUNS = st.tuples(
    st.integers(1, 3 * MANY), st.sampled_from(["0.0", "1.0", "g->d[3]", "rows", "the same rows"]), st.integers(0, 3)
)


@given(st.lists(RUNS, max_size=8), st.integers(0, 5))
def test_every_number_gets_to_its_row(runs, first):
    values: list[str] = []
    for count, what, shift in runs:
        position = first + len(values)
        start = {"rows": 1000 * (shift + 1), "the same rows": position}.get(what)
        values += [what] * count if start is None else [f"f->d[{start + k}][l]" for k in range(count)]
    rows = range(first, first + len(values))
    wanted = {row: value for row, value in zip(rows, values, strict=True) if value != f"f->d[{row}][l]"}
    assert done(emit_copies("d", rows, values), "d") == wanted


def test_long_runs_are_loops():
    zeros = emit_copies("d", range(10_000), ["0.0"] * 10_000)
    assert len(zeros.splitlines()) < 10
    assert len(emit_copies("d", range(MANY - 1), ["0.0"] * (MANY - 1)).splitlines()) > MANY
    assert emit_copies("d", range(3, 90), [f"f->d[{row}][l]" for row in range(3, 90)]) == ""


def test_rows_of_all_kinds():
    """Constants and what stands one behind the other, as outputs of every dtype."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        zeros = torch.zeros(x.shape[0], 20, dtype=F)
        wide = torch.cat([x, zeros, x.flip(-1), x, zeros + 2.5], -1)
        return wide, wide.float(), wide.to(torch.int64), wide.to(torch.int32), wide > 0

    x = 9 * torch.randn(21, 12, generator=torch.Generator().manual_seed(0), dtype=F)
    kernel = Direct(function, {"x": x})
    assert b"to[k][l] = from[k][l]" in kernel.files["direct_lanes.h"]
    for rows in (1, 5, 21):
        for got, wanted in zip(kernel(x[:rows]), function(x[:rows]), strict=True):
            assert torch.equal(got, wanted)


CALLS = st.tuples(st.integers(1, 3 * MANY), st.sampled_from(["sin", "exp"]), st.sampled_from([0, 1, 2]), st.booleans())


def unroll(lines: list[str]) -> list[str]:
    """The statements that are executed, in their order."""
    statements: list[str] = []
    for line in lines:
        loop = re.fullmatch(r"    for \(int k = 0; k < (\d+); k\+\+\) \{\n      (.*)\n    \}", line)
        for k in range(int(loop[1]) if loop else 1):
            text = re.sub(r"\[(\d+) \+ k\]", lambda m, k=k: f"[{int(m[1]) + k}]", loop[2]) if loop else line
            statements.append("    " + text.strip())
    return statements


@given(st.lists(CALLS, max_size=6), st.integers(0, 5))
def test_repeated_calls_are_the_same_calls_in_the_same_order(runs, first):
    statements, register = ["    /* a line of the model */"], first
    for count, function, step, is_uniform in runs:
        for k in range(count):
            second = "g->d[3]" if is_uniform else f"f->d[{100 + step * k}][l]"
            statements.append(f"    f->d[{register}][l] = {function}(f->i[{7 + k}][l], {second});")
            register += 1
    lines = emit_repeated(statements)
    assert unroll(lines) == statements
    longest = max((count for count, _, step, is_uniform in runs if step < 2 or is_uniform), default=0)
    assert len(lines) < len(statements) or longest < MANY
