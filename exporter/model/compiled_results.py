"""Results of compiled code that are None in part: a trace takes tensors alone, so a function selects them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from exporter.archive.value_structure import StructureNode, build_value
from exporter.common.torch_hooks import ignore_deprecations
from exporter.common.torch_internals import create_function, inline_calls
from exporter.model.argument_structures import describe_value


def select_tensors(function: Any, result: Any) -> Callable[..., Any] | None:
    """Return a function like a compiled one, of which a trace sees no result that is None.

    Args:
        function: The compiled function.
        result: What it returns, from a call of it.

    Returns:
        A Python function that returns the same structure, with None where the given result has it; None where that has
        no None, or is of a class that is not known here.
    """
    numbers = itertools.count()
    structure = describe_value(
        result, lambda _, leaf: str(next(numbers)) if torch.is_tensor(leaf) else "", torch.is_tensor
    )
    fixed = {node.value for node in structure if node.kind == "fixed"}
    paths = dict(_iterate_paths(iter(structure))) if structure else {}
    if fixed != {"null"} or not paths:
        return None
    selected = _compile(function, list(paths.values()))
    if selected is None:
        return None

    def call(*values: Any) -> Any:
        return build_value(structure, dict(zip(paths, selected(*values), strict=True)))

    return call


def _iterate_paths(nodes: Iterator[StructureNode], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name of each variable, and where it stands in the result, as TorchScript writes it."""
    node = next(nodes)
    if node.kind == "variable":
        yield node.name, path
    for place, key in enumerate(node.keys):
        step = repr(place) if node.kind != "dict" else _spell_text(key) if isinstance(key, str) else repr(int(key))
        yield from _iterate_paths(nodes, f"{path}[{step}]")


def _spell_text(text: str) -> str:
    """Return a stranger's text as a literal of TorchScript, with all but letters and digits by their bytes."""
    spelled = (c if c.isascii() and c.isalnum() else "".join(f"\\{byte:03o}" for byte in c.encode()) for c in text)
    return f'"{"".join(spelled)}"'


def _compile(compiled: Any, paths: Sequence[str]) -> Any:
    """Return a function of the same arguments that returns what stands at the paths, as a tuple."""
    arguments = [(f"argument_{i}", a.type.annotation_str) for i, a in enumerate(compiled.schema.arguments)]
    values = ", ".join(f"torch.jit._unwrap_optional(result{path})" for path in paths)
    source = (
        f"def forward({', '.join(': '.join(argument) for argument in arguments)}):\n"
        f"    result = compiled({', '.join(name for name, _ in arguments)})\n"
        f"    return ({values},)\n"
    )
    try:
        with ignore_deprecations():
            # Names in the source are those that this function sees.
            graph = torch.jit.CompilationUnit(source).forward.graph.copy()
    except RuntimeError:
        # An argument of a class of the file's own.
        return None
    inline_calls(graph)
    return create_function("forward", graph)
