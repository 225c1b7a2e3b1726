"""Files and folders that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from project import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("exporter", "runtime_checks", "tests", "docs", "examples", "benchmarks", "artifacts", "tools")
# A command writes it.
WRITTEN = ["artifacts/cuda.json"]
# ``torchferry/`` is also the folder of headers, and of records in a file: there, modules only. Globs name no file.
PATH = re.compile(rf"(?<![\w./*-])(?:(?:{'|'.join(FOLDERS)})/[\w./-]*[\w/]|torchferry/[\w/]+\.py)(?![\w{{*<]|\.[{{*<])")
NAME = re.compile(r"(?<![\w./*-])\w+\.py\b")
LINK = re.compile(r"\]\(([\w./-]+)(?:#[\w-]*)?\)")


def list_paths(text: str) -> list[str]:
    """Return the paths of the project between backticks. A bare name stands in the folder of the path before it."""
    paths = []
    for line in re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines():
        folder = None
        for words in re.findall(r"`([^`\n]+)`", line):
            if whole := PATH.findall(words):
                paths += whole
                folder = Path(whole[-1]).parent if Path(whole[-1]).suffix else Path(whole[-1])
            elif folder is not None:
                paths += [str(folder / name) for name in NAME.findall(words)]
    return paths


def list_missing(page: Path) -> list[str]:
    """Return the paths of a page that do not exist, and its links where mkdocs does not check them."""
    text = page.read_text()
    links = LINK.findall(text) if ROOT / "docs" not in page.parents else []
    missing = [path for path in list_paths(text) if path not in WRITTEN and not (ROOT / path).exists()]
    return missing + [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_is_there(page):
    assert list_missing(page) == []


def test_what_is_gone_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`exporter/kernels/ssa.py`, `exporter/*.py`, `exporter/foo.*`, `python tools/house.py --check`\n"
        "`exporter/graph/passes.py`, `reader.py`, `gone.py`; `torchferry/cli/gone.py`\n"
        "`net.py` is the user's, `torchferry/contract.json` a record; [page](gone.md#part)\n"
    )
    gone = ["exporter/kernels/ssa.py", "exporter/graph/gone.py", "torchferry/cli/gone.py", "gone.md"]
    assert list_missing(page) == gone
