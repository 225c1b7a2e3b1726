"""Marks for how to capture a submodule: ``jit="script"`` compiles its source, ``"trace"`` records what it does."""

from __future__ import annotations

from typing import Literal

from torch import nn

from exporter.common.errors import UsageError

_MARK = "torchferry_jit"
# Compiled if TorchScript can read the source, traced otherwise.
EITHER = "either"


def mark(module: nn.Module, *, jit: Literal["script", "trace"]) -> nn.Module:
    """Set how a submodule is captured, and return it.

    Args:
        module: The submodule.
        jit: ``"script"`` compiles it from its source, ``"trace"`` records one run of it.

    Returns:
        The same module.

    Raises:
        UsageError: ``jit`` is another word.

    Example:
        ```python
        self.law = torchferry.mark(Law(), jit="script")
        ```
    """
    if jit not in ("script", "trace"):
        raise UsageError("a submodule has an unknown mark", got=f"jit={jit!r}", expected="'script' or 'trace'")
    setattr(module, _MARK, jit)
    return module


def mark_either(module: nn.Module) -> None:
    """Mark a submodule to be compiled if TorchScript can read its source, and traced otherwise."""
    setattr(module, _MARK, EITHER)


def get_mark(module: nn.Module) -> str:
    """Return how a submodule is captured."""
    return getattr(module, _MARK, "trace")
