"""Which files a model was made from: their digests, and the revision of git that has them."""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from exporter.common.plain_text import escape_unsafe
from exporter.common.source_paths import importable_path

MAX_FILES = 1000
_INCLUDE = re.compile(r"^\s*!include\s+(\S.*?)\s*$", re.MULTILINE)
_SECONDS = 10.0
# Of files whose versions say what they are; a project may have its environment inside.
_INSTALLED = {Path(folder).resolve() for folder in sysconfig.get_paths().values()}
_INSTALLED |= {Path(__file__).resolve().parents[2] / name for name in ("exporter", "runtime_checks", "torchferry")}


def describe_files(files: Sequence[Path]) -> tuple[str, dict[str, str]]:
    """Return the revision of git that has the files, and their digests by name."""
    return find_revision(files), compute_digests(files)


def compute_digests(files: Sequence[Path]) -> dict[str, str]:
    """Return the sha256 of files by name, without folders but those of packages; a name of several is numbered."""
    digests = dict[str, str]()
    for file in files:
        name = short = escape_unsafe(importable_path(str(file)))
        for number in itertools.count(2):
            if name not in digests:
                break
            name = f"{short} ({number})"
        digests[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return digests


def list_module_files(code: ModuleType) -> list[Path]:
    """Return the file of a module, and those of the modules that it imports, in its folder or package.

    Whatever else this process has imported makes no difference. Of installed packages there are none."""
    main = _find_file(code)
    if main is None:
        return []
    root = main.parents[min(code.__name__.count("."), len(main.parents) - 1)]
    files, todo, seen = set[Path](), [code], {code.__name__}
    while todo and len(files) < MAX_FILES:
        module = todo.pop()
        file = _find_file(module)
        if file is None or root not in file.parents or not _INSTALLED.isdisjoint(file.parents):
            continue
        files.add(file)
        imports = _list_imports(file, module.__package__ or "", file.stat().st_mtime_ns)
        names = [name for name in imports if name in sys.modules and name not in seen]
        seen.update(names)
        todo += [sys.modules[name] for name in dict.fromkeys(names)]
    return sorted(files)


def _find_file(module: ModuleType) -> Path | None:
    text = getattr(module, "__file__", None)
    path = Path(text).resolve() if isinstance(text, str) else None
    return path if path is not None and path.is_file() and path.suffix == ".py" else None


@functools.lru_cache(maxsize=MAX_FILES)
def _list_imports(file: Path, package: str, time: int) -> tuple[str, ...]:
    """Return the names of what a module of a package imports by its text, packages around it included; not all are
    modules. ``time`` is that of the file's last change."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):
        # The file was changed after it was imported.
        return ()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            folders = package.split(".")
            start = folders[: len(folders) - node.level + 1] if node.level else []
            whole = ".".join(filter(None, [*start, node.module or ""]))
            names += [f"{whole}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names]
    return tuple(".".join(words[:count]) for words in parts for count in range(1, len(words) + 1))


def list_included_files(path: Path) -> list[Path]:
    """Return an input file, and the files that its lines ``!include FILE`` name, from its folder on."""
    files, todo = list[Path](), [path.resolve()]
    while todo and len(files) < MAX_FILES:
        file = todo.pop()
        if file in files or not file.is_file():
            continue
        files.append(file)
        text = file.read_text(encoding="utf-8", errors="replace")
        todo += [(file.parent / name.strip("'\"")).resolve() for name in _INCLUDE.findall(text)]
    return sorted(files)


def find_revision(files: Sequence[Path]) -> str:
    """Return the commit that the folder of the files is at, and whether it has them as they are; empty without git.

    It runs nothing that the folder's settings name: neither filters nor hooks."""
    if not files:
        return ""
    heads = _run_git(files[0].parent, "rev-parse", "HEAD", "--show-toplevel").split("\n")
    if len(heads) < 2:
        return ""
    commit, top = heads[0], Path(heads[1])
    inside = [file for file in files if top in file.parents]
    listed = _run_git(top, "ls-tree", "-z", "HEAD", "--", *(str(file.relative_to(top)) for file in inside))
    # MODE blob HASH<tab>NAME
    hashes = {
        name: entry.split()[2] for entry, _, name in (line.partition("\t") for line in listed.split("\0") if line)
    }
    is_same = all(_hash_blob(f, commit) == hashes.get(f.relative_to(top).as_posix()) for f in inside)
    return commit if is_same and len(inside) == len(files) else f"{commit}, changed"


def _run_git(folder: Path, *words: str) -> str:
    """Return what git prints, or an empty text: no git, no repository, or one of somebody else's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=_SECONDS, check=True)
        return done.stdout.decode().rstrip("\n")
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""


def _hash_blob(file: Path, commit: str) -> str:
    """Return git's hash of a file: of its length and its bytes, by the algorithm of the commit's own hash."""
    data = file.read_bytes()
    algorithm = hashlib.sha1 if len(commit) == 40 else hashlib.sha256
    return algorithm(f"blob {len(data)}\0".encode() + data).hexdigest()
