"""Places in source files, without the folders of this machine."""

from __future__ import annotations

import functools
import re
from pathlib import Path

# What a module is called whose file has the name of another module: this, eight digits, and the file's name.
STAND_IN = "torchferry_source_"
_STAND_IN = re.compile(rf"\b{STAND_IN}[0-9a-f]{{8}}_")
_PLACE = re.compile(r"(/[^\s:()]+\.py)\b")


@functools.lru_cache(maxsize=4096)
def importable(path: str) -> str:
    """The file as its package names it: ``neml2/types/scalar.py``; a file outside of packages by its name alone."""
    file = Path(path)
    if not file.is_absolute():
        return path
    first = len(file.parts) - 1
    while first > 1 and Path(*file.parts[:first], "__init__.py").is_file():
        first -= 1
    return "/".join(file.parts[first:])


def without_folders(text: str) -> str:
    """A text in which absolute paths of Python files are as ``importable`` has them."""
    return _PLACE.sub(lambda match: importable(match[1]), text)


def without_stand_in(name: str) -> str:
    """The name as it is where the file is alone of its name: what a process has loaded before is no part of a model."""
    return _STAND_IN.sub("", name)
