"""Temporary replacement of a module's parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn


@contextlib.contextmanager
def swap_parameters(module: nn.Module, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Replace the parameters of these names by ``values`` while the context lasts, wherever the module holds them.

    Every place is changed once: ``torch.func.functional_call`` does it twice to a submodule that is registered under
    two names, and then restores the value that it had set there itself."""
    parameters = dict(module.named_parameters())
    replacements = {id(parameters[name]): value for name, value in values.items()}
    places = [
        (submodule, name, parameter)
        for submodule in module.modules()
        for name, parameter in submodule._parameters.items()
        if id(parameter) in replacements
    ]
    for holder, name, parameter in places:
        holder._parameters[name] = replacements[id(parameter)]  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        for holder, name, parameter in places:
            holder._parameters[name] = parameter
