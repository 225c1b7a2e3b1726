"""A torch without TorchScript, for every Python process that has this folder on its path.

For all code but torch's own, ``import torch.jit`` fails and ``torch.jit`` raises. Torch's compiler and loader of
TorchScript are gone for all. Torch's own code asks ``torch.jit`` at any time whether it is scripting; it goes on."""

import builtins
import importlib
import importlib.abc
import importlib.util
import sys

JIT = "torch.jit"
GONE = ("import_ir_module", "CompilationUnit", "_create_function_from_graph", "_create_graph_by_tracing", "ModuleDict")


def is_of_torch(frame):
    """Return whether torch's own code runs in a frame."""
    return frame.f_globals.get("__name__", "").partition(".")[0] == "torch"


class WithoutScript:
    """``torch.jit`` as all but torch see it."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        if is_of_torch(sys._getframe(1)):
            return getattr(self._module, name)
        raise ImportError(f"{JIT}.{name} is gone")


def guard(real):
    """Return a function that imports, without ``torch.jit``."""

    def import_all_else(name, *args, **kwargs):
        names = [name, *(f"{name}.{part}" for part in (args[2] if len(args) > 2 and args[2] else ()))]
        if any(f"{n}.".startswith(f"{JIT}.") for n in names) and not is_of_torch(sys._getframe(1)):
            raise ImportError(f"{JIT} is gone")
        return real(name, *args, **kwargs)

    return import_all_else


class Finder(importlib.abc.MetaPathFinder):
    """Takes TorchScript away when torch has been imported."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_cut(module):
            load(module)
            module.jit = WithoutScript(module.jit)
            builtins.__import__ = guard(builtins.__import__)
            importlib.import_module = guard(importlib.import_module)
            for gone in [*GONE, *(n for n in dir(module._C) if n.startswith("_jit_pass_"))]:
                delattr(module._C, gone)

        spec.loader.exec_module = load_and_cut
        return spec


sys.meta_path.insert(0, Finder())
