"""Text for C: identifiers, comments, strings."""

from __future__ import annotations

import re
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.common.c_text import escape_comment, escape_string, to_c_identifiers


@given(st.lists(st.text(max_size=8), max_size=6))
def test_identifiers_are_identifiers_and_differ(names):
    identifiers = to_c_identifiers(names)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in identifiers)
    assert len(set(identifiers)) == len(names)


@given(st.text())
def test_a_comment_stays_one(text):
    escaped = escape_comment(text)
    assert "*/" not in escaped
    assert "/*" not in escaped
    assert "??" not in escaped
    assert "\n" not in escaped


def test_letters_lose_their_accents_and_nothing_else_becomes_an_end_of_a_comment():
    assert escape_comment("Jürgen Šólyom, Müller") == "Jurgen Solyom, Muller"
    # Wide forms of the two characters, and a mark between them, which is taken away.
    assert escape_comment("\uff0a\uff0f *\u0301/ \uff1f\uff1f/") == "* / * / ? ?/"


@settings(max_examples=5)
@given(st.lists(st.text(min_size=1, max_size=40), min_size=20, max_size=20))
def test_a_string_is_what_the_compiler_reads(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("strings")
    lines = "".join(f'  puts("{escape_string(text)}");\n' for text in [*texts, '"\\', "??/", "???="])
    (folder / "a.c").write_text(f"#include <stdio.h>\nint main(void) {{\n{lines}  return 0;\n}}\n")
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", "-Wno-format", "a.c", "-o", "a"], cwd=folder, check=True)
    printed = subprocess.run(["./a"], cwd=folder, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert printed == [re.sub(r"[^\x20-\x7e]", "?", text) for text in [*texts, '"\\', "??/", "???="]]
