"""Access to torch's autograd engine: all backward passes go through one function, under two names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import graph

ENTRY = "_engine_run_backward"
Entry = Callable[..., Any]


@contextlib.contextmanager
def patch_autograd_engine(stand_in: Callable[[Entry], Entry]) -> Iterator[None]:
    """Call ``stand_in`` of the engine's own entry in place of that entry while the context lasts."""
    originals = [(module, getattr(module, ENTRY)) for module in (graph, torch.autograd)]
    for module, original in originals:
        setattr(module, ENTRY, stand_in(original))
    try:
        yield
    finally:
        for module, original in originals:
            setattr(module, ENTRY, original)
