"""TorchScript files, loaded if all of their code calls operators of a list: none that acts on files, processes or
threads.

It needs the standard library and torch: fresh processes, which import nothing of torchferry, load it by its path.
``tools/list_operators.py`` makes the list."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

# Of types that are written in C++ and registered with torch.
CLASSES = "__torch__.torch.classes."
OPERATORS = frozenset(Path(__file__).with_name("operators.txt").read_text().split())


def load_script(path: str, device: Any = "cpu") -> Any:
    """Load a TorchScript file, as ``torch.jit.load`` does. Raises ``ValueError`` for an operator that is not listed."""
    # A torch without TorchScript reads the list above too.
    from torch.jit._recursive import wrap_cpp_module

    functions: Any = torch._C.CompilationUnit()
    import_module: Any = torch._C.import_ir_module
    loaded = import_module(functions, path, torch.device(device), {}, False)
    # All of its code, whatever calls it: functions, and methods of all classes.
    for function in functions.get_functions():
        for node in iterate_nodes(function.graph):
            if node.kind() not in OPERATORS:
                raise ValueError(f"{function.name} calls {node.kind()}, which is no operator that only computes")
            if any(value.type().str().startswith(CLASSES) for value in node.outputs()):
                raise ValueError(f"{function.name} has an object of a C++ class, which does not only compute")
    return wrap_cpp_module(loaded)


def iterate_nodes(graph: Any) -> Iterator[Any]:
    """Yield each operation of a graph, those of inner blocks included."""
    todo = [graph]
    while todo:
        for node in todo.pop().nodes():
            yield node
            todo += node.blocks()
