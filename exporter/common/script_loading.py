"""TorchScript files, loaded if all of their code calls operators of a list: none that acts on files, processes or
threads; and walks over their nodes.

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
            if any(value.type().str().startswith(CLASSES) for value in list_outputs(node)):
                raise ValueError(f"{function.name} has an object of a C++ class, which does not only compute")
    return wrap_cpp_module(loaded)


def iterate_nodes(block: Any) -> Iterator[Any]:
    """Yield every node of a graph or block, those of inner blocks included, in order."""
    iterators = [iter(block.nodes())]
    while iterators:
        for node in iterators[-1]:
            yield node
            if inner_blocks := list_blocks(node):
                iterators += [iter(inner.nodes()) for inner in reversed(inner_blocks)]
                break
        else:
            iterators.pop()


def count_graph_nodes(module: Any) -> int:
    """Count the nodes of all methods of a module."""
    graphs = (child._c._get_method(name).graph for child in module.modules() for name in child._c._method_names())
    return sum(1 for graph in graphs for _ in iterate_nodes(graph))


# The end of each of torch's iterators is an exception of C++, which takes longer than all else that is done with a
# node: what has an index is read by it, and what has no blocks is not asked for them.


def list_inputs(node: Any) -> list[Any]:
    """List the inputs of a node."""
    return [node.inputsAt(i) for i in range(node.inputsSize())]


def list_outputs(node: Any) -> list[Any]:
    """List the outputs of a node."""
    return [node.outputsAt(i) for i in range(node.outputsSize())]


def list_blocks(node: Any) -> list[Any]:
    """List the blocks of a node: what calls an operator has none, nor does a constant."""
    kind = node.kind()
    return [] if kind.startswith("aten::") or kind == "prim::Constant" else list(node.blocks())
