"""The guard of the processes that run a file: they import the standard library and the packages that they are given.

It needs the standard library alone: scripts in this folder run it by its path."""

import importlib
import importlib.machinery
import sys


def is_standard(name):
    """Return whether a top-level module belongs to the standard library."""
    # The module with sysconfig's data is named after the machine.
    return name in sys.stdlib_module_names or name.startswith("_sysconfigdata_")


class PackageFinder:
    """A meta path finder: the standard library, and some packages from their folders. No other name is found, and of a
    package that has ``parts`` no others."""

    def __init__(self, packages, parts):
        self.packages, self.parts = packages, parts

    def find_spec(self, name, path=None, target=None):
        """Return the spec of an allowed module, else None."""
        top, _, rest = name.partition(".")
        if rest and top in self.parts and rest.partition(".")[0] not in self.parts[top]:
            return None
        if is_standard(top):
            return importlib.machinery.PathFinder.find_spec(name, path, target)
        if top in self.packages:
            places = path if path is not None else [self.packages[top]]
            return importlib.machinery.PathFinder.find_spec(name, places, target)
        return None


def guard_imports(packages, parts=None):
    """Let this process import the standard library and these packages, a dict of folders by name, and no others.

    Of a package in ``parts`` only the modules that are listed there can be imported. Both may be added to later."""
    # Replaces the finder that searches the whole path.
    sys.meta_path.remove(importlib.machinery.PathFinder)
    sys.meta_path.append(PackageFinder(packages, parts if parts is not None else {}))


def try_imports(names):
    """Try to import each name; return ``imported`` or the error by name."""
    outcome = {}
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            outcome[name] = f"{type(error).__name__}: {error}"
        else:
            outcome[name] = "imported"
    return outcome


def find_foreign_modules(packages, script):
    """Return the loaded modules that are neither standard, nor of an allowed package, nor the file ``script``."""
    allowed = {*packages, "__main__"}
    tops = {name: name.partition(".")[0] for name in sys.modules}
    foreign = [name for name, top in tops.items() if top not in allowed and not is_standard(top)]
    return sorted(name for name in foreign if getattr(sys.modules[name], "__file__", None) not in (None, script))
