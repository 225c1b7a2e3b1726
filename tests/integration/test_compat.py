"""The table of versions: rows of what was run take the place of their older ones, and a failure ends with 1."""

from __future__ import annotations

import dataclasses
import sys

import compat
import pytest

from exporter.common.errors import MissingRuntimeError

PAGE = """# Versions

| Python | torch | archives | demo | tests | minutes |
| --- | --- | --- | --- | --- | ---: |
| 3.11.7 | 2.9.1 | 9 of 9 verified | runs | 10 passed | 5 |
| 3.11.7 | 2.13.0+cpu | 9 of 9 verified | runs | 10 passed | 5 |

Below.
"""
ROW = compat.Row("3.11.7", "2.13.0+cpu", "9 of 9 verified", "runs", "12 passed", "6")


def test_a_row_takes_the_place_of_the_older_one(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    compat.write_rows([ROW], page)
    assert page.read_text() == PAGE.replace(
        "2.13.0+cpu | 9 of 9 verified | runs | 10 passed | 5", "2.13.0+cpu | 9 of 9 verified | runs | 12 passed | 6"
    )


def test_rows_are_ordered_by_numbers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    compat.write_rows([dataclasses.replace(ROW, torch="2.10.0+cpu"), dataclasses.replace(ROW, python="3.13.0")], page)
    lines = [line.split("|")[1:3] for line in page.read_text().splitlines() if line.startswith("| 3")]
    assert [(a.strip(), b.strip()) for a, b in lines] == [
        ("3.11.7", "2.9.1"),
        ("3.11.7", "2.10.0+cpu"),
        ("3.11.7", "2.13.0+cpu"),
        ("3.13.0", "2.13.0+cpu"),
    ]
    assert page.read_text().endswith("|\n\nBelow.\n")


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (
            "...\n7 failed, 836 passed, 3 skipped in 637.98s (0:10:37)\nnanobind: leaked 3 types!\n",
            "7 failed, 836 passed, 3 skipped",
        ),
        ("==== 12 passed in 1.00s ====\n", "12 passed"),
        ("ImportError: no module\n", "did not run"),
    ],
)
def test_counts_are_found_where_other_lines_follow(text, counts):
    assert compat.find_counts(text) == counts


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 0),
        ({"demo": "fails"}, 1),
        ({"tests": "1 failed, 11 passed"}, 1),
        ({"tests": "did not run"}, 1),
        ({"tests": "9 passed, 2 errors"}, 1),
        ({"archives": "8 of 9 verified"}, 1),
        ({"archives": "0 of 0 verified"}, 1),
    ],
)
def test_what_fails_ends_with_one(change, code, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr(compat, "PAGE", page)
    monkeypatch.setattr(compat, "try_version", lambda version, python: dataclasses.replace(ROW, **change))
    monkeypatch.setattr(sys, "argv", ["compat.py", "--torch", "2.13.0"])
    assert compat.main() == code


def test_a_version_that_cannot_be_got_is_no_success(tmp_path, monkeypatch, capsys):
    def refuse(version, python):
        raise MissingRuntimeError("torch 2.99.0 could not be installed")

    monkeypatch.setattr(compat, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(compat, "try_version", refuse)
    monkeypatch.setattr(sys, "argv", ["compat.py", "--torch", "2.99.0"])
    assert compat.main() == 1
    assert "could not be installed" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()
