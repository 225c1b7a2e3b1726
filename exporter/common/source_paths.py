"""Source locations without the folders of this machine."""

from __future__ import annotations

import functools
import re
from pathlib import Path

# Prefix for a module whose file has the name of another module; eight hex digits and the file's name follow.
STAND_IN = "torchferry_source_"
_STAND_IN = re.compile(rf"\b{STAND_IN}[0-9a-f]{{8}}_")
# Of a path at the begin of a word, or behind what separates the parts of a word.
_FOLDERS = re.compile(r"(^|[=:,])/(?:[^/=:,]*/)*")
_SOURCE_PATH = re.compile(r"(/[^\s:()]+\.py)\b")


@functools.lru_cache(maxsize=4096)
def importable_path(path: str) -> str:
    """Return the file as its package names it: ``neml2/types/scalar.py``; outside of packages, the file name alone."""
    file = Path(path)
    if not file.is_absolute():
        return path
    first = len(file.parts) - 1
    while first > 1 and Path(*file.parts[:first], "__init__.py").is_file():
        first -= 1
    return "/".join(file.parts[first:])


def strip_local_paths(text: str) -> str:
    """Replace absolute paths of Python files in a text by those of ``importable_path``."""
    return _SOURCE_PATH.sub(lambda match: importable_path(match[1]), text)


def strip_folders(word: str) -> str:
    """Replace absolute paths in a word of a command by the names of their files."""
    return _FOLDERS.sub(r"\1", word)


def strip_stand_in(name: str) -> str:
    """Strip the stand-in prefix from a name: modules loaded earlier in the process are no part of a model."""
    return _STAND_IN.sub("", name)
