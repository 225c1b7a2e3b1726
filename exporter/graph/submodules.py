"""Modules of a TorchScript file, and which of their attributes its methods set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from exporter.common.torch_internals import ModuleDict


def find_mutated_attributes(module: torch.jit.ScriptModule) -> frozenset[str]:
    """Return the paths of attributes that some method sets: their value depends on the time of the read."""
    paths = set()
    for path, child in iterate_submodules(module._c, ""):
        for method in child._method_names():
            graph = child._get_method(method).graph
            for node in graph.findAllNodes("prim::SetAttr"):
                owner_path = _build_path(node.inputsAt(0), path)
                paths.add(f"{owner_path}.{node.s('name')}".lstrip("."))
    return frozenset(paths)


def iterate_submodules(module: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the module and all modules below it, each with its path."""
    yield path, module
    for name, child in ModuleDict(module).items():
        yield from iterate_submodules(child, f"{path}.{name}".lstrip("."))


def _build_path(value: Any, path: str) -> str:
    parts: list[str] = []
    while value.node().kind() == "prim::GetAttr":
        parts.insert(0, value.node().s("name"))
        value = value.node().inputsAt(0)
    return ".".join(filter(None, (path, *parts)))
