"""Python files of the user's that register types of NEML2, as ``--load`` of NEML2's own commands takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from exporter.common.errors import SourceError
from exporter.frontends.python_factory import import_code


def import_extensions(extensions: Sequence[str]) -> list[ModuleType]:
    """Import files or modules in their order, each once in a process; return them.

    A folder stands for the package in it. Raises ``SourceError`` if one does not exist, fails, or registers a type of
    a name that is there."""
    from neml2 import factory

    modules = []
    for text in extensions:
        before = dict(factory._registry)
        is_folder = Path(text).is_dir()
        module = import_code(str(Path(text, "__init__.py")) if is_folder else text, f"--load {text}")
        taken = [name for name, value in before.items() if factory._registry.get(name) is not value]
        if taken:
            factory._registry.update({name: before[name] for name in taken})
            what, mend = f"{text} registers types that are there", "register them under other names"
            raise SourceError(what, where=f"--load {text}", got=", ".join(taken), mend=mend)
        modules.append(module)
    return modules
