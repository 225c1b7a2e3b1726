"""README's blocks, run in order in one folder, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from markdown_it import MarkdownIt

pytestmark = pytest.mark.usefixtures("neml2")


def blocks() -> list[tuple[str, str]]:
    tokens = MarkdownIt().parse((ROOT / "README.md").read_text())
    return [(t.info, t.content) for t in tokens if t.type == "fence"]


def run(command: list[str], folder: Path, text: str = "") -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    done = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{text or command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    binary = tmp_path / "torchferry"
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m exporter "$@"\n')
    binary.chmod(0o755)
    return tmp_path


def test_bash_and_python_blocks_run_in_order(folder):
    ran = 0
    for info, text in blocks():
        if info == "bash":
            run(["bash", "-euc", f'export PATH="{folder}:$PATH"\n{text}'], folder)
        elif info == "python" and (name := re.match(r"# file: (\S+)", text)):
            (folder / name[1]).write_text(text)
        elif info == "python":
            run([sys.executable, "-W", "error", "-W", "ignore:`torch.jit", "-"], folder, text)
        else:
            continue
        ran += 1
    assert ran >= 7


def without_numbers(line: str) -> str:
    return re.sub(r"\d+", "0", " ".join(line.split()))


def test_the_demo_prints_what_the_readme_shows(folder):
    recipe = (ROOT / "Makefile").read_text().split("demo: .venv/installed\n")[1].split("\n\n")[0]
    commands = [line.strip().removeprefix("$(BIN)/") for line in recipe.splitlines()]
    assert commands[0].startswith("torchferry export")
    printed = "".join(run(["bash", "-euc", f'export PATH="{folder}:$PATH"\n{c}'], folder) for c in commands)
    lines = [without_numbers(line) for line in printed.splitlines()]
    (shown,) = [text for info, text in blocks() if info == "text demo"]
    for line in filter(None, map(without_numbers, shown.splitlines())):
        assert any(line in other for other in lines), f"{line!r} is not among\n{printed}"


def test_every_exit_code_is_in_the_readme():
    from exporter import errors

    text = (ROOT / "README.md").read_text()
    codes = {
        e.exit_code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.TorchferryError)
    }
    assert codes == {1, 2, 3, 4, 5, 6}
    for code in {0, *codes, errors.INTERRUPTED}:
        assert re.search(rf"^\| {code} \|", text, re.MULTILINE)
