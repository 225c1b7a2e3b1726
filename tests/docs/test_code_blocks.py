"""The blocks of README and of every page, run in order in one folder, as a reader would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from native_build import SOLVERS, need_fortran
from project import RATES, ROOT, export_unverified, mark_rest_thorough, need
from warm_commands import WarmCommands

from runtime_checks import native_build

pytestmark = pytest.mark.usefixtures("neml2")


README = ROOT / "README.md"
# Pages of results are tables of figures; they show no blocks to run.
PAGES = [README, *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "results")]
# The width of what commands print.
COLUMNS = 100
# The first line of a block that is a file, in the comments of its language.
NAMED = re.compile(r"(?:#|//|/\*|!) file: (\S+)")
# A block that calls one of these programs is skipped where it is missing, and the blocks after it run.
PROGRAMS = {
    "dot": (re.compile(r"--svg\b"), "Graphviz draws SVG pictures"),
    "cc": (re.compile(r"\bcc\b"), "a C compiler"),
    "c++": (re.compile(r"\b(?:c\+\+|g\+\+)(?=\s)"), "a C++ compiler"),
    "gfortran": (re.compile(r"\bgfortran\b|ENABLE_FORTRAN|Fortran"), "a Fortran compiler"),
    "clang": (re.compile(r"\bclang\b"), "clang"),
}


def blocks(path: Path = README) -> list[tuple[str, str]]:
    tokens = MarkdownIt().parse(path.read_text())
    return [(t.info, t.content) for t in tokens if t.type == "fence"]


def is_run(info: str, text: str) -> bool:
    return info in ("bash", "python") or bool(NAMED.match(text))


def missing_program(text: str) -> str:
    """The program that a block of bash needs and this machine lacks."""
    return next((name for name, (use, _) in PROGRAMS.items() if use.search(text) and shutil.which(name) is None), "")


def run(command: list[str], folder: Path, text: str = "") -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": str(COLUMNS)}
    done = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{text or command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """The folder of the programs ``torchferry`` and ``warm-python``."""
    # The path of a socket is short.
    with tempfile.TemporaryDirectory() as folder:
        commands = WarmCommands(Path(folder) / "warm", COLUMNS)
        yield commands.bin
        commands.close()


@pytest.fixture
def folder(tmp_path: Path, programs: Path) -> Path:
    for name in ("examples", "artifacts"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "bin").mkdir()
    for program in programs.iterdir():
        (tmp_path / "bin" / program.name).symlink_to(program)
    for name, arguments in {"pytest": "-m pytest ", "python": ""}.items():
        binary = tmp_path / "bin" / name
        binary.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n')
        binary.chmod(0o755)
    return tmp_path


def run_block(info: str, text: str, folder: Path) -> None:
    if name := NAMED.match(text):
        (folder / name[1]).parent.mkdir(parents=True, exist_ok=True)
        (folder / name[1]).write_text(text)
    elif info == "bash":
        run(["bash", "-euc", f'export PATH="{folder}/bin:$PATH"\n{text}'], folder)
    elif info == "python":
        run([f"{folder}/bin/warm-python", "-W", "error", "-W", "ignore:`torch.jit", "-"], folder, text)


RUN = [p for p in PAGES if any(is_run(*b) for b in blocks(p))]
# A reader begins with the others.
GUIDES = [p for p in RUN if p.parent.name == "guides"]


@pytest.mark.parametrize(
    "page",
    mark_rest_thorough([p for p in RUN if p not in GUIDES], GUIDES),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_blocks_run_in_order(page, folder):
    """As a reader would; a block that needs a program that is not here is skipped alone, with its reason."""
    skipped = []
    for info, text in blocks(page):
        program = missing_program(text) if info == "bash" else ""
        if program:
            skipped.append(f"{program} is not installed ({PROGRAMS[program][1]})")
        else:
            run_block(info, text, folder)
    need(not skipped, "; ".join(skipped))


@pytest.mark.parametrize(
    ("info", "text", "message"),
    [
        ("bash", "torchferry inspect no-such-file.pt", "no-such-file"),
        ("bash", "torchferry verify --no-such-option", "no-such-option"),
        ("python", "assert 1 == 2, 'as planted'", "as planted"),
        ("python", "import warnings\nwarnings.warn('as planted')", "UserWarning: as planted"),
        ("python", "import os\nos.abort()", "os.abort"),
    ],
)
def test_a_block_that_fails_is_seen(info, text, message, folder):
    with pytest.raises(AssertionError, match=message):
        run_block(info, text, folder)


def test_a_block_leaves_nothing_to_the_next(folder):
    run_block("python", "import os, torch\nos.environ['LEFT'] = 'x'\ntorch.left = 1\nleft = 1", folder)
    run_block("python", "import os, torch\nassert 'LEFT' not in os.environ\nassert not hasattr(torch, 'left')", folder)
    with pytest.raises(AssertionError, match="NameError"):
        run_block("python", "left", folder)


def test_a_program_that_is_not_here_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert missing_program("torchferry graph eq.pt --svg eq.svg") == "dot"
    assert missing_program("torchferry graph eq.pt") == ""


def without_numbers(line: str) -> str:
    return re.sub(r"\d+", "0", " ".join(line.split()))


@pytest.mark.thorough
def test_the_demo_prints_what_the_readme_shows(folder):
    recipe = (ROOT / "Makefile").read_text().split("demo: .venv/installed\n")[1].split("\n\n")[0]
    commands = [line.strip().replace("$(BIN)/", "").replace("$$", "$") for line in recipe.splitlines()]
    assert commands[0].startswith("torchferry export")
    printed = "".join(run(["bash", "-euc", f'export PATH="{folder}/bin:$PATH"\n{c}'], folder) for c in commands)
    lines = [without_numbers(line) for line in printed.splitlines()]
    (shown,) = [text for info, text in blocks() if info == "text demo"]
    for line in filter(None, map(without_numbers, shown.splitlines())):
        assert any(line in other for other in lines), f"{line!r} is not among\n{printed}"
    # The demo ends with what the C solver prints: four elements, y and heat.
    last = [[float(x) for x in line.split()] for line in printed.splitlines()[-4:]]
    assert all(len(row) == 2 and row[1] > 0 for row in last)


def test_the_graphs_are_what_the_page_shows(folder):
    """The lines of each listing, and no operation that it leaves out."""
    export_unverified(str(RATES), folder / "eq.pt", "eq")
    page = ROOT / "docs" / "guides" / "compare-archives.md"
    result = [(info.removeprefix("text "), text) for info, text in blocks(page) if info.startswith("text graph")]
    assert len(result) == 2
    for command, text in result:
        printed = run([f"{folder}/bin/torchferry", *command.split()], folder)
        operations = [" ".join(line.split()) for line in printed.splitlines() if "aten::" in line]
        assert operations == [" ".join(line.split()) for line in text.splitlines()]


C_MAIN = """%s
#include <stdio.h>
int main(void) {
%s
  printf("%%.17g %%.17g\\n", rate[1], heat[1]);
  return 0;
}
"""
CPP_MAIN = """#include <cstdio>
#include <ATen/ATen.h>
#include <torchferry/model.hpp>
int main() {
  const auto y = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble), k = y * 0.5, t = y * 0;
%s
  std::printf("%%.17g %%.17g\\n", out.at("rate")[1].item<double>(), out.at("heat")[1].item<double>());
}
"""
FORTRAN_MAIN = """program readme
  use torchferry
  implicit none
  type(tf_model) :: model
  integer :: status
  real(8), target :: y(4) = [1, 2, 3, 4], k(4) = [0.5d0, 1d0, 1.5d0, 2d0], t(4) = 0, rate(4), heat(4)
%s
  print *, rate(2), heat(2)
end program
"""
PROJECT = """cmake_minimum_required(VERSION 3.18)
project(readme LANGUAGES %s)
add_executable(solver %s)
%s
"""


@pytest.mark.parametrize(
    ("language", "main", "target"),
    mark_rest_thorough(
        [("c", C_MAIN, "torchferry::c"), ("fortran", FORTRAN_MAIN, "torchferry::fortran")],
        # The page about C++ builds such a program, too.
        [("cpp", CPP_MAIN, "torchferry::torchferry")],
    ),
)
def test_the_native_blocks_build_and_give_the_numbers(language, main, target, tmp_path):
    if language == "fortran":
        need_fortran()
    result = dict(blocks())
    block = result[language]
    if language == "c":
        include, block = block.split("\n", 1)
        text = main % (include, block)
    else:
        text = main % block
    source = {"c": "main.c", "cpp": "main.cpp", "fortran": "main.f90"}[language]
    enabled = {"c": "C", "cpp": "CXX", "fortran": "C Fortran"}[language]
    (tmp_path / source).write_text(text)
    assert target in result["cmake"]
    linked = result["cmake"].replace("torchferry::c)", f"{target})")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT % (enabled, source, linked))
    package = native_build.build() / "lib" / "cmake" / "torchferry"
    cmake = native_build.find_tool("cmake")
    native_build.run_tool([cmake, "-S", str(tmp_path), "-B", str(tmp_path / "b"), f"-Dtorchferry_DIR={package}"])
    native_build.run_tool([cmake, "--build", str(tmp_path / "b")])
    export_unverified(f"{SOLVERS / 'decay.py'}:make_model", tmp_path / "decay.pt")
    rate, heat = map(float, run([str(tmp_path / "b" / "solver")], tmp_path).split())
    assert (rate, heat) == pytest.approx((-2.0, 3.5 * 2.0), rel=1e-15)


def test_every_exit_code_is_documented():
    from exporter.common import errors

    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    codes = {
        e.exit_code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.TorchferryError)
    }
    assert codes == {1, 2, 3, 4, 5, 6}
    for code in {0, *codes, errors.INTERRUPTED}:
        assert re.search(rf"^\| {code} \|", text, re.MULTILINE)
