"""The house: seven floors, who may see whom, and that tests stand where the code stands."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from project import ROOT

# A package imports lower floors only, and itself.
FLOORS = {
    "exporter.common": 1,
    "exporter.archive": 2,
    "exporter.graph": 3,
    "exporter.model": 3,
    "runtime_checks": 3,
    "exporter.backends": 4,
    "exporter.capture": 4,
    "exporter.frontends": 4,
    "exporter.soundness": 5,
    "torchferry": 6,
    "exporter.__main__": 7,
}
# The side that sees only the file sees what a file is, and nothing else of the exporter.
OF_FILES = ("exporter.common", "exporter.archive")
NEML2 = "exporter/frontends/neml2/"
FILES = sorted(
    path for package in ("exporter", "runtime_checks", "torchferry") for path in ROOT.glob(f"{package}/**/*.py")
)


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


def package_of(module: str) -> str | None:
    return next((name for name in FLOORS if f"{module}.".startswith(f"{name}.")), None)


def broken_rules(path: str, text: str) -> list[str]:
    modules = imports(text)
    own = package_of(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    rules = [m for m in modules if m.partition(".")[0] in ("neml2", "nmhit") and not path.startswith(NEML2)]
    if path == "exporter/archive/contract.py":
        rules += [m for m in modules if m.partition(".")[0] in ("torch", "pathlib", "zipfile", "os", "io")]
    for module in modules:
        other = package_of(module)
        if other is None or other == own:
            continue
        if own is None or FLOORS[other] >= FLOORS[own] or (own == "runtime_checks" and other not in OF_FILES):
            rules.append(module)
    return rules


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_rules_hold(path: Path):
    assert broken_rules(path.relative_to(ROOT).as_posix(), path.read_text()) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("runtime_checks/verification.py", "from exporter.model.eager.warmup import warm_up"),
        ("runtime_checks/verification.py", "from exporter.graph import reader"),
        ("runtime_checks/model.py", "def f():\n    import neml2"),
        ("runtime_checks/model.py", "import torchferry"),
        ("exporter/soundness/gate.py", "import runtime_checks.verification, torchferry.pipeline"),
        ("exporter/backends/convert.py", "from exporter.capture import tracing"),
        ("exporter/archive/pt_archive.py", "from exporter.model import source"),
        ("exporter/common/errors.py", "from exporter.archive import contract"),
        ("exporter/graph/reader.py", "from exporter.model.source import Source"),
        ("exporter/model/source.py", "import neml2.types"),
        ("exporter/archive/contract.py", "import torch"),
        ("torchferry/sweep.py", "from exporter.__main__ import main"),
    ],
)
def test_a_planted_import_is_seen(path, line):
    assert broken_rules(path, line)


def test_allowed_imports_are_allowed():
    assert broken_rules("runtime_checks/verification.py", "from exporter.archive import pt_archive") == []
    assert broken_rules("torchferry/cli/verify.py", "import runtime_checks.verification, exporter.capture") == []
    assert broken_rules("exporter/frontends/neml2/input_file.py", "import neml2") == []


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Files that import each other, by taking away again and again what nobody imports or what imports nobody."""
    left = {name: set(targets) for name, targets in edges.items()}
    while True:
        imported = set().union(*left.values()) if left else set()
        ends = {name for name, targets in left.items() if not targets & set(left) or name not in imported}
        if not ends:
            return [sorted(left)] if left else []
        left = {name: targets - ends for name, targets in left.items() if name not in ends}


def test_no_circle():
    modules = {
        p.relative_to(ROOT).as_posix().removesuffix(".py").removesuffix("/__init__").replace("/", "."): p for p in FILES
    }
    edges = {}
    for name, path in modules.items():
        seen = imports(path.read_text()) & set(modules) - {name}
        # ``from a import b`` is an import of a.b where that is a module.
        edges[name] = {m for m in seen if not any(other.startswith(f"{m}.") for other in seen)}
    assert circles(edges) == []


def test_a_planted_circle_is_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"]]


def test_no_file_lies_loose():
    assert {p.name for p in ROOT.glob("exporter/*.py")} == {"__init__.py", "__main__.py"}


def test_the_isolated_process_imports_nothing_of_ours():
    text = (ROOT / "runtime_checks/runners/children/torch_child.py").read_text()
    tops = {name.partition(".")[0] for name in imports(text)}
    usual = {"functools", "importlib", "io", "json", "os", "re", "resource", "select", "signal", "sys", "traceback"}
    assert tops == {*usual, "warnings", "zipfile", "torch"}


def test_files_stay_small():
    long = {p.name: n for p in FILES if (n := len(p.read_text().splitlines())) > 600}
    assert long == {}


def test_tests_stand_where_the_code_stands():
    """A folder of tests has the name of a package; what tests several packages is in ``integration``."""
    packages = {p.parent.relative_to(ROOT).as_posix() for p in FILES}
    folders = {p.parent.relative_to(ROOT / "tests").as_posix() for p in ROOT.glob("tests/**/test_*.py")}
    others = {".", "integration", "docs", "runtime_checks/native", "exporter/capture/derivatives"}
    assert {f for f in folders if f not in others and "hazards" not in f} <= packages
