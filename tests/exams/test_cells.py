"""Cells of the tables: what is written is read again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exams.cells import PASS, REFUSED, STATES, VERIFIED, WRONG, Verdict, classify_cell, read_unverified, write_cell
from exams.judgement import CLOSE, explain_difference
from exams.tables import Row, format_table, list_changes, merge_rows

VERDICTS = st.sampled_from([PASS, Verdict(REFUSED, "no operator; none"), Verdict(WRONG, "off by 1")])


@given(st.dictionaries(st.integers(0, 30), VERDICTS, min_size=1))
def test_the_samples_that_are_not_verified_are_read_from_a_cell(verdicts):
    ordered = dict(enumerate(verdicts.values()))
    text = write_cell(ordered)
    assert read_unverified(text, len(ordered)) == {n for n, v in ordered.items() if v.state != VERIFIED}
    worst = next(s for s in reversed(STATES) if any(v.state == s for v in ordered.values()))
    assert classify_cell(text) == worst


def test_a_cell_reads_as_a_sentence():
    verdicts = {n: Verdict(REFUSED, "no such operator") if n in (1, 4, 5, 6) else PASS for n in range(8)}
    assert write_cell(verdicts) == "verified 4 of 8; refused 1 4-6: no such operator"
    assert write_cell({0: PASS}) == "verified"


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ([1.0, 2.0], ""),
        ([1.0, 2.0 + 1e-9], "off by"),
        ([1.0, float("nan")], "NaN or infinity in other places"),
        ([1.0], "instead of"),
    ],
)
def test_the_comparison_of_exams(got, words):
    text = explain_difference(
        torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor(got, dtype=torch.float64), CLOSE
    )
    assert words in text
    assert bool(text) == bool(words)


def test_nan_passes_for_nan_only():
    nan = torch.tensor([float("nan"), 1.0], dtype=torch.float64)
    assert explain_difference(nan, nan.clone(), CLOSE) == ""
    for number in (1.0, 2.0, 3.0):
        assert explain_difference(nan, torch.tensor([number, 1.0], dtype=torch.float64), CLOSE)
    assert explain_difference(torch.tensor([float("inf")]), torch.tensor([float("-inf")]), CLOSE)


def test_a_change_either_way_is_listed():
    before = {"sin": Row("sin", 2, {"pt": "verified", "c": "refused: no sines"})}
    after = [Row("sin", 2, {"pt": "refused: no", "c": "verified"}), Row("cos", 1, {"pt": "verified"})]
    changes = list_changes(before, after)
    assert [line.split(":")[0] for line in changes] == ["sin, pt", "sin, c", "cos"]
    assert list_changes(before, before.values()) == []
    # A run of one pipeline says nothing of the others, and leaves them in the table.
    assert list_changes(before, [Row("sin", 2, {"pt": "verified"})]) == []
    (row,) = merge_rows(before, [Row("sin", 2, {"pt": "refused: no"})])
    assert row.cells == {"pt": "refused: no", "c": "refused: no sines"}
    assert format_table([row]) == "case,samples,pt,c\nsin,2,refused: no,refused: no sines\n"
