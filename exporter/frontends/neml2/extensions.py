"""Python files of the user's that register types of NEML2, as ``--load`` of NEML2's own commands takes them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from exporter.common.errors import SourceError
from exporter.frontends.python_factory import import_code


def import_extensions(extensions: Sequence[str]) -> list[ModuleType]:
    """Import files, folders of packages, or modules in their order, each once in a process; return them.

    Raises ``SourceError`` if one does not exist, fails, or registers a type of a name that is there, which then stays
    what it was."""
    return [_import_extension(text) for text in extensions]


def _import_extension(text: str) -> ModuleType:
    from neml2 import factory

    before, where, place = dict(factory._registry), f"--load {text}", text
    if Path(text).is_dir():
        # By its name, so that its modules find each other.
        folder = Path(text).resolve()
        if not (folder / "__init__.py").is_file():
            raise SourceError("this folder is no package", where=where, expected="a folder with __init__.py")
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))
        place = folder.name
    try:
        module = import_code(place, where)
    except SourceError:
        factory._registry.update(before)
        raise
    # A file that was edited registers its own types again.
    changed = {name: value for name, value in before.items() if factory._registry.get(name) is not value}
    taken = [name for name, value in changed.items() if value.__module__.split(".")[0] != module.__name__.split(".")[0]]
    if taken:
        factory._registry.update(before)
        what, mend = f"{text} registers types that are there", "register them under other names"
        raise SourceError(what, where=where, got=", ".join(taken), mend=mend)
    return module
