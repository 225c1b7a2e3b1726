"""The modules of a TorchScript file, and which of their attributes its methods set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def set_attributes(module: torch.jit.ScriptModule) -> frozenset[str]:
    """Paths of the attributes that some method sets: they have a value only in time."""
    found = set()
    for path, child in submodules(module._c, ""):
        for method in child._method_names():
            graph = child._get_method(method).graph
            for node in graph.findAllNodes("prim::SetAttr"):
                at = _path_of(next(node.inputs()), path)
                found.add(f"{at}.{node.s('name')}".lstrip("."))
    return frozenset(found)


def submodules(module: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, module
    for name, child in torch._C.ModuleDict(module).items():
        yield from submodules(child, f"{path}.{name}".lstrip("."))


def _path_of(value: Any, path: str) -> str:
    parts: list[str] = []
    while value.node().kind() == "prim::GetAttr":
        parts.insert(0, value.node().s("name"))
        value = next(value.node().inputs())
    return ".".join(filter(None, (path, *parts)))
