"""Files and folders that the pages name exist."""

from __future__ import annotations

import re

import pytest
from project import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("exporter", "runtime_checks", "tests", "docs", "examples", "benchmarks", "artifacts", "tools")
# A command writes it.
WRITTEN = ["artifacts/cuda.json"]
# ``exporter/{common,archive}``, globs and placeholders name no single file.
PATH = re.compile(rf"(?<![\w./*-])(?:(?:{'|'.join(FOLDERS)})/[\w./-]*[\w/]|torchferry/[\w/]+\.py)(?![\w{{*<])")


def list_paths(text: str) -> list[str]:
    """Return the paths of the project that stand between backticks, but for what a command writes."""
    quoted = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [path for words in quoted for path in PATH.findall(words)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_is_there(page):
    paths = [path for path in list_paths(page.read_text()) if path not in WRITTEN]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_path_that_is_gone_is_seen():
    assert list_paths("see `exporter/kernels/ssa.py`, `exporter/*.py` and `python tools/house.py --check`") == [
        "exporter/kernels/ssa.py",
        "tools/house.py",
    ]
