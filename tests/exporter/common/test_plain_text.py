"""Text that shows as it is, in both languages."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from project import ROOT

from exporter.common.errors import ArchiveError
from exporter.common.plain_text import escape_unsafe, find_unsafe


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\x1b[2J", "U+001B"),
        ("a\u202eb", "U+202E"),
        ("\x7f", "U+007F"),
        ("\x9b1m", "U+009B"),
        ("\u200b", "U+200B"),
        ("\ud800", "U+D800"),
    ],
)
def test_what_a_terminal_obeys(text, found):
    assert find_unsafe(text, is_name=True) == find_unsafe(text, is_name=False) == found
    assert find_unsafe(escape_unsafe(text), is_name=False) == ""


def test_lines_are_text_and_no_names():
    assert (find_unsafe("a\n\tb", is_name=False), find_unsafe("a\nb", is_name=True)) == ("", "U+000A")
    assert escape_unsafe("a\n\tb") == "a\n\tb"


@given(st.text())
def test_escaped_text_is_safe_and_the_rest_stays(text):
    escaped = escape_unsafe(text)
    assert find_unsafe(escaped, is_name=False) == ""
    assert escaped == text or find_unsafe(text, is_name=False)


def test_the_native_library_has_the_same_characters():
    text = (ROOT / "runtime_checks" / "native" / "src" / "plain_text.cpp").read_text()
    table = text.partition("kUnsafe = ")[2].partition(";")[0]
    ranges = [(int(a, 16), int(b, 16)) for a, b in re.findall(r"\{(0x\w+), (0x\w+)\}", table)]
    assert len(ranges) == 19
    natively = {code for first, last in ranges for code in range(first, last + 1)}
    assert natively == {code for code in range(0x110000) if find_unsafe(chr(code), is_name=True)}


def test_an_error_quotes_files_in_plain_text():
    error = ArchiveError("what \x1b[2J", where="\u202efile", got="\x07")
    assert find_unsafe(str(error), is_name=False) == ""
    assert all(not find_unsafe(text, is_name=False) for text in (error.what, *error.details.values()))
