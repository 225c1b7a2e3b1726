"""Walks over torch's own graphs: methods, lines of source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from exporter.common.user_code import INTERNAL_PATH_PREFIXES, TRACED_LINE


def iterate_graphs(module: torch.jit.ScriptModule) -> Iterator[tuple[str, str, Any]]:
    """Yield ``(submodule path, method, graph)`` for every method of every submodule."""
    for path, child in module.named_modules():
        compiled = child._c
        for method in compiled._method_names():
            yield path, method, compiled._get_method(method).graph


def find_location(node: Any) -> str:
    """Return ``file:line`` of the innermost line of the user's (or the source library's) code behind a node."""
    for line in node.sourceRange().splitlines():
        match = TRACED_LINE.match(line)
        if match and not match[1].startswith(INTERNAL_PATH_PREFIXES):
            return f"{match[1]}:{match[2]}"
    return ""


SCALAR_TYPES = {
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "Half": torch.float16, "Float": torch.float32, "Double": torch.float64, "BFloat16": torch.bfloat16,
    "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128, "Bool": torch.bool,
}  # fmt: skip
