"""Pages that list the functions of the C API name each of them, and no other."""

from __future__ import annotations

import re

import pytest
from project import ROOT

HEADER = ROOT / "runtime_checks" / "native" / "include" / "torchferry" / "torchferry.h"
PAGES = {
    "docs/reference/c-api.md": ("## Functions\n", "\n## "),
    "docs/concepts/security.md": ("## What each function of C does\n", "\n## "),
}


def list_declared_functions() -> set[str]:
    return set(re.findall(r"^TF_API [\w* ]+?\b(tf_\w+)\(", HEADER.read_text(), re.MULTILINE))


def list_named_functions(text: str) -> set[str]:
    """List what the first column of a page's table names."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(tf_\w+)`", cell)}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_every_function(page):
    begin, end = PAGES[page]
    section = (ROOT / page).read_text().partition(begin)[2].partition(end)[0]
    declared = list_declared_functions()
    assert {"tf_load", "tf_run_cases", "tf_last_error"} <= declared
    assert list_named_functions(section) == declared
    # The control.
    assert list_named_functions(section.replace("`tf_to`", "")) != declared
