"""How a submodule is to be captured: ``jit="script"`` compiles it from its source, ``"trace"`` records what it does."""

from __future__ import annotations

from typing import Literal

from torch import nn

from exporter.common.errors import UsageError

_MARK = "torchferry_jit"
# Compiled where TorchScript can read the source, traced where it cannot.
EITHER = "either"


def mark(module: nn.Module, *, jit: Literal["script", "trace"]) -> nn.Module:
    """Say how a submodule is to be captured, and return it: ``self.law = torchferry.mark(Law(), jit="script")``.

    Raises ``UsageError`` for another word.
    """
    if jit not in ("script", "trace"):
        raise UsageError(
            "a submodule is marked with an unknown word", got=f"jit={jit!r}", expected="'script' or 'trace'"
        )
    setattr(module, _MARK, jit)
    return module


def mark_either(module: nn.Module) -> None:
    setattr(module, _MARK, EITHER)


def mark_of(module: nn.Module) -> str:
    return getattr(module, _MARK, "trace")
