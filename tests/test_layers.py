"""The import rules: who may see whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import ROOT

FILES = sorted(
    [
        *ROOT.glob("exporter/**/*.py"),
        *ROOT.glob("runtime_checks/**/*.py"),
        *ROOT.glob("torchferry/*.py"),
        ROOT / "torchferry_golden.py",
    ]
)
SHARED = (
    "exporter.contract",
    "exporter.variables",
    "exporter.errors",
    "exporter.archive",
    "exporter.history",
    "exporter.onnx_files",
    "exporter.kernel_files",
    "exporter.files",
    "exporter.machine",
    "exporter.kinds",
    "exporter.stored",
)
# The command line, and the facade that users import, put both sides together.
BOTH = ("exporter/cli/", "torchferry/", "torchferry_golden.py")


def imports(text: str) -> set[str]:
    """Every module that a file imports, inside functions too; ``from a import b`` counts as a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name comes from"
            module = node.module or ""
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def broken_rules(path: str, text: str) -> list[str]:
    modules = imports(text)

    def sees(package: str) -> list[str]:
        return [m for m in modules if m == package or m.startswith(f"{package}.")]

    rules = []
    if path.startswith("runtime_checks/"):
        # `from exporter import archive` sees the package itself and one of the shared modules
        rules += [m for m in sees("exporter") if not m.startswith(SHARED) and m != "exporter"]
        rules += sees("torchferry") + sees("neml2")
    if path.startswith("exporter/") and not path.startswith(BOTH):
        rules += sees("runtime_checks") + sees("torchferry")
    if not path.startswith(("exporter/cli/", "exporter/__main__.py")):
        rules += sees("exporter.cli")
    if path not in ("exporter/sources/neml2.py", "exporter/sources/neml2_implicit.py"):
        rules += sees("neml2") + sees("nmhit")
    if path == "exporter/contract.py":
        rules += sees("torch") + [m for m in modules if m in ("pathlib", "zipfile", "os", "io")]
    return rules


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_rules_hold(path: Path):
    assert broken_rules(path.relative_to(ROOT).as_posix(), path.read_text()) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("runtime_checks/verify.py", "from exporter.warmup import warm_up"),
        ("runtime_checks/verify.py", "from exporter import pipeline"),
        ("runtime_checks/load.py", "def f():\n    import neml2"),
        ("exporter/pipeline.py", "import runtime_checks.verify"),
        ("exporter/pipeline.py", "from exporter.cli import app"),
        ("exporter/warmup.py", "import neml2.types"),
        ("exporter/contract.py", "import torch"),
        ("exporter/sweep.py", "import torchferry"),
    ],
)
def test_a_planted_import_is_seen(path, line):
    assert broken_rules(path, line)


def test_allowed_imports_are_allowed():
    assert broken_rules("runtime_checks/verify.py", "from exporter import archive") == []
    assert broken_rules("exporter/cli/verify.py", "import runtime_checks.verify, torchferry") == []


def test_the_isolated_process_imports_nothing_of_ours():
    text = (ROOT / "runtime_checks/runners/isolated_child.py").read_text()
    tops = {name.partition(".")[0] for name in imports(text)}
    usual = {"functools", "importlib", "io", "json", "os", "re", "resource", "select", "signal", "sys", "traceback"}
    assert tops == {*usual, "warnings", "zipfile", "torch"}


def test_files_stay_small():
    long = {p.name: n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}
