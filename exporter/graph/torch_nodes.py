"""Walks over torch's own graphs: nodes, methods, lines of source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from exporter.common.user_code import NOT_THE_USERS


def nodes(block: Any) -> Iterator[Any]:
    """Every node of a graph or block, those of inner blocks included, in order."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes(inner)


def graphs(module: torch.jit.ScriptModule) -> Iterator[tuple[str, str, Any]]:
    """``(submodule path, method, graph)`` of every method of every submodule."""
    for path, child in module.named_modules():
        compiled = child._c
        for method in compiled._method_names():
            yield path, method, compiled._get_method(method).graph


def location(node: Any) -> str:
    """``file:line`` of the innermost line of the user's (or the source library's) code that made a node."""
    for line in node.sourceRange().splitlines():
        match = re.match(r"(.+)\((\d+)\): ", line)
        if match and not match[1].startswith(NOT_THE_USERS):
            return f"{match[1]}:{match[2]}"
    return ""


SCALAR_TYPES = {
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "Float": torch.float32,
    "Double": torch.float64,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
    "Bool": torch.bool,
    "BFloat16": torch.bfloat16,
}
