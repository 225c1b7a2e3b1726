"""Parameters of a module, put in place of others for as long as a call lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn


@contextlib.contextmanager
def moved(module: nn.Module, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """While this lasts, the parameters of these names are ``values``, wherever the module holds them.

    Every place is changed once: ``torch.func.functional_call`` does it twice to a submodule that is registered under
    two names, and then puts back what it had put there itself.
    """
    named = dict(module.named_parameters())
    own = {id(named[name]): value for name, value in values.items()}
    places = [(m, name, held) for m in module.modules() for name, held in m._parameters.items() if id(held) in own]
    for holder, name, held in places:
        holder._parameters[name] = own[id(held)]  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        for holder, name, held in places:
            holder._parameters[name] = held
