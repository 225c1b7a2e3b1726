"""Measure the house: floors, circles, loose files, names and sizes of functions, docstrings. ``make lint`` holds them.

python tools/house.py            the table
python tools/house.py --check    exit 1, and each place, where a limit is broken
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A package imports lower floors only, and itself.
FLOORS = {
    "exporter.common": 1,
    "exporter.archive": 2,
    "exporter.saved_code": 3,
    "exporter.graph": 4,
    "exporter.model": 4,
    "runtime_checks": 4,
    "exporter.backends": 5,
    "exporter.capture": 5,
    "exporter.frontends": 5,
    "exporter.hosts": 4,
    "exporter.soundness": 6,
    "torchferry": 7,
    "exporter.__main__": 8,
}
# The side that sees only the file sees what a file is, and nothing else of the exporter.
OF_FILES = ("exporter.common", "exporter.archive", "exporter.saved_code")
NEML2 = "exporter/frontends/neml2/"
# Libraries that are optional, or take long to import; resource and landlockpy are not on every system.
HEAVY = (
    "torch",
    "numpy",
    "neml2",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "onnxruntime",
    "matplotlib",
    "pyarrow",
    "nmhit",
    "rich",
    "resource",
    "landlockpy",
    "cryptography",
    "sigstore",
    "sigstore_models",
    "xarray",
    "zarr",
    "h5netcdf",
    "distributed",
    "dask",
    "mpi4py",
    "pint",
)
BRINGS_NUMPY = ("runtime_checks.kernels.ctypes_library",)
PACKAGES = ("exporter", "runtime_checks", "torchferry")
# Variables have nouns as names there too; the models of hazards are written as a user would.
OTHER_CODE, AS_USERS_WRITE = ("tests", "benchmarks", "tools", "examples", "artifacts", "exams"), "hazards"
# Names of variables that say nothing of what they hold.
VAGUE = {"found", "made", "given", "one", "at", "of", "by", "held", "said"}
LINES_OF_FILE = 600
LINES_OF_FUNCTION = 60
PARAMETERS = 8

_IRREGULAR = {
    "begun", "bound", "broken", "brought", "built", "bought", "caught", "chosen", "done", "drawn", "driven",
    "fallen", "felt", "forgotten", "found", "frozen", "given", "gone", "grown", "heard", "held", "hidden", "kept",
    "known", "laid", "led", "left", "lost", "made", "meant", "met", "paid", "proven", "risen", "said", "seen",
    "sent", "shown", "sought", "sold", "spent", "spoken", "stood", "swept", "taken", "taught", "thought", "told",
    "understood", "woven", "written",
}  # fmt: skip
# Words that end like participles and are none, or are the field's nouns and verbs.
_PLAIN = {
    "bed", "embed", "feed", "need", "proceed", "red", "seed", "shared", "speed", "succeed", "exceed", "string",
    "ring", "thing", "bring", "spring", "meaning", "listing", "binding", "finding", "setting", "warning", "padding",
    "tracing", "nothing", "heading", "encoding", "timing", "ping",
}  # fmt: skip
# Names that are not ours to choose: torch's operator, and a method whose name stands in files.
_FIXED = {"searchsorted", "stepped"}
_SMALL = {
    "a", "again", "all", "alone", "already", "anew", "apart", "as", "at", "away", "back", "by", "for", "from",
    "here", "in", "instead", "into", "it", "its", "of", "off", "often", "on", "once", "one", "or", "out", "over",
    "so", "that", "them", "there", "through", "to", "together", "under", "until", "up", "with", "without",
}  # fmt: skip
# First words of docstrings that end like a third person or a noun and are imperatives all the same.
_VERB = re.compile(r"^[`(]*[A-Z][a-z]+(?:[-/ ,]|$)")
_NO_VERBS = {
    "A", "All", "An", "And", "Any", "As", "At", "Because", "Between", "Both", "By", "Each", "Every", "For", "From",
    "How", "If", "In", "Into", "Is", "It", "Its", "Made", "No", "None", "Not", "Of", "On", "One", "Or", "Raises",
    "Returns", "So", "Some", "That", "The", "Their", "Them", "There", "These", "They", "This", "Those", "To",
    "True", "Two", "Under", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "With", "Without",
    "Yields",
}  # fmt: skip


@dataclass(frozen=True)
class Function:
    """A function or method, with its place."""

    where: str
    name: str
    lines: int
    parameters: int
    docstring: str | None
    is_public: bool
    is_signature: bool
    is_property: bool


def list_files(root: Path = ROOT) -> list[Path]:
    """List the Python files of the three packages."""
    return sorted(path for package in PACKAGES for path in root.glob(f"{package}/**/*.py"))


def find_vague_variables(root: Path = ROOT) -> list[str]:
    """List the variables whose name says nothing of what they hold."""
    others = (path for folder in OTHER_CODE for path in root.glob(f"{folder}/**/*.py"))
    return [
        f"{path.relative_to(root)}:{node.lineno} {node.id}"
        for path in (*list_files(root), *(p for p in others if AS_USERS_WRITE not in p.parts))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE
    ]


def list_imports(text: str) -> set[str]:
    """List the modules that a file imports, inside functions too; ``from a import b`` counts as a and a.b."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError("relative imports hide where a name comes from")
            module = node.module or ""
            modules |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return modules


def name_module(path: str) -> str:
    """Return the module's name of a path."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def find_package(module: str) -> str | None:
    """Return the package of the house that a module belongs to."""
    return next((name for name in FLOORS if f"{module}.".startswith(f"{name}.")), None)


def find_broken_rules(path: str, text: str) -> list[str]:
    """List the imports of a file that its floor does not allow."""
    modules = list_imports(text)
    own = find_package(name_module(path))
    broken = [m for m in modules if m.partition(".")[0] in ("neml2", "nmhit") and not path.startswith(NEML2)]
    if path == "exporter/archive/contract.py":
        broken += [m for m in modules if m.partition(".")[0] in ("torch", "pathlib", "zipfile", "os", "io")]
    for module in modules:
        other = find_package(module)
        if other is None or other == own:
            continue
        if own is None or FLOORS[other] >= FLOORS[own] or (own == "runtime_checks" and other not in OF_FILES):
            broken.append(module)
    return broken


def find_circle(edges: dict[str, set[str]]) -> list[str]:
    """List files that import each other, by removing again and again what nobody imports or what imports nobody."""
    remaining = {name: set(targets) for name, targets in edges.items()}
    while True:
        imported = set().union(*remaining.values()) if remaining else set()
        ends = {name for name, targets in remaining.items() if not targets & set(remaining) or name not in imported}
        if not ends:
            return sorted(remaining)
        remaining = {name: targets - ends for name, targets in remaining.items() if name not in ends}


def read_edges(root: Path = ROOT) -> dict[str, set[str]]:
    """Return each module's imports of modules of the house."""
    modules = {name_module(path.relative_to(root).as_posix()): path for path in list_files(root)}
    edges = {}
    for name, path in modules.items():
        targets = list_imports(path.read_text()) & set(modules) - {name}
        # ``from a import b`` is an import of a.b where that is a module.
        edges[name] = {m for m in targets if not any(other.startswith(f"{m}.") for other in targets)}
    return edges


def is_participle(name: str) -> bool:
    """Return whether a name is a bare participle: ``divided``, ``held``, ``called_instead``, ``standing_in``."""
    words = [word for word in name.strip("_").split("_") if word not in _SMALL]
    if name.startswith("__") or not words or name in _FIXED:
        return False
    return all(word in _IRREGULAR or (word not in _PLAIN and re.fullmatch(r"\w{2,}(ed|ing)", word)) for word in words)


def starts_with_verb(docstring: str) -> bool:
    """Return whether a docstring begins with an imperative, as PEP 257 asks."""
    first = docstring.strip().split("\n")[0]
    word = re.split(r"\W", first, maxsplit=1)[0]
    return bool(_VERB.match(first)) and word not in _NO_VERBS and not word.endswith("ing")


def read_functions(path: Path, root: Path = ROOT) -> Iterator[Function]:
    """Yield the functions and methods of a file; public ones have no underscore in their path and are not nested."""
    where = path.relative_to(root).as_posix()
    # Parameters of commands are options, and the facade's are the public signature.
    is_signature = where.startswith("torchferry/cli/") or where in (
        "torchferry/api.py",
        "torchferry/api_without_torch.py",
        "torchferry/evaluation.py",
    )

    def walk(node: ast.AST, is_public: bool, *, nested: bool) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = child.args
                count = len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])
                count -= bool(arguments.args and arguments.args[0].arg in ("self", "cls"))
                public = is_public and not nested and not child.name.startswith("_")
                lines = (child.end_lineno or child.lineno) - child.lineno + 1
                place = f"{where}:{child.lineno}"
                signature = is_signature and not nested and not child.name.startswith("_")
                is_property = any(isinstance(d, ast.Name) and "property" in d.id for d in child.decorator_list)
                docstring = ast.get_docstring(child)
                yield Function(place, child.name, lines, count, docstring, public, signature, is_property)
                yield from walk(child, False, nested=True)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, is_public and not child.name.startswith("_"), nested=nested)
            else:
                yield from walk(child, is_public, nested=nested)

    yield from walk(ast.parse(path.read_text()), True, nested=False)


def find_inner_imports(path: Path, root: Path = ROOT) -> list[str]:
    """List imports inside functions that are for no heavy library; in ``torchferry`` our own modules bring torch."""
    where = path.relative_to(root).as_posix()
    inner = []
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in ast.walk(function):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                is_heavy = module.partition(".")[0] in HEAVY or module in BRINGS_NUMPY
                is_lazy = where.startswith("torchferry/") and module.partition(".")[0] in PACKAGES
                if not is_heavy and not is_lazy:
                    inner.append(f"{where}:{node.lineno} {module}")
    return inner


def measure(root: Path = ROOT) -> dict[str, tuple[str, list[str]]]:
    """Return per measure its figure, and the places that break it."""
    files = list_files(root)
    functions = [function for path in files for function in read_functions(path, root)]
    own = [f for f in functions if not f.is_signature]
    loose = sorted(p.name for p in root.glob("exporter/*.py") if p.name not in ("__init__.py", "__main__.py"))
    back = [
        f"{p.relative_to(root)}: {m}"
        for p in files
        for m in find_broken_rules(p.relative_to(root).as_posix(), p.read_text())
    ]
    circle = find_circle(read_edges(root))
    # A property is a value: its name is a noun or a state.
    participles = [f"{f.where} {f.name}" for f in functions if is_participle(f.name) and not f.is_property]
    vague = find_vague_variables(root)
    longest, most = max(own, key=lambda f: f.lines), max(own, key=lambda f: f.parameters)
    too_long = [f"{f.where} {f.name}: {f.lines} lines" for f in own if f.lines > LINES_OF_FUNCTION]
    inner = sorted({place for path in files for place in find_inner_imports(path, root)})
    too_many = [f"{f.where} {f.name}: {f.parameters} parameters" for f in own if f.parameters > PARAMETERS]
    documented = [f for f in functions if f.is_public and f.docstring]
    no_verb = [
        f"{f.where} {f.name}: {(f.docstring or '').splitlines()[0]}"
        for f in documented
        if not starts_with_verb(f.docstring or "")
    ]
    sizes = {p: len(p.read_text().splitlines()) for p in files}
    large = [f"{p.relative_to(root)}: {n} lines" for p, n in sizes.items() if n > LINES_OF_FILE]
    verbs = f"{len(documented) - len(no_verb)} of {len(documented)}"
    tests = sorted(root.glob("tests/**/test_*.py"))
    empty = [p.relative_to(root).as_posix() for p in tests if "def test_" not in p.read_text()]
    return {
        "floors": (str(max(FLOORS.values())), []),
        "loose files in exporter/": (str(len(loose)), loose),
        "files in a circle": (str(len(circle)), circle),
        "imports of a floor that is not lower": (str(len(back)), back),
        "imports inside functions of light modules": (str(len(inner)), inner),
        "functions named by a bare participle": (str(len(participles)), participles),
        "variables whose name says nothing": (str(len(vague)), vague),
        "lines of the longest function": (f"{longest.lines} ({longest.name})", too_long),
        "parameters of the function with most": (f"{most.parameters} ({most.name})", too_many),
        "public docstrings that start with a verb": (verbs, no_verb),
        "lines of the longest file": (str(max(sizes.values())), large),
        "files of tests": (str(len(tests)), empty),
        "lines of Python": (str(sum(sizes.values())), []),
    }


def main() -> int:
    """Print the table; with ``--check`` also the places that break a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a limit is broken")
    parser.add_argument("--places", action="store_true", help="print each place that breaks a limit")
    arguments = parser.parse_args()
    failed = False
    for name, (figure, places) in measure().items():
        failed |= bool(places)
        if not arguments.check or places:
            sys.stdout.write(f"{name:44} {figure}" + (f"   ({len(places)} over the limit)" if places else "") + "\n")
        if arguments.places or arguments.check:
            sys.stdout.writelines(f"    {place}\n" for place in places)
    return int(failed and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
