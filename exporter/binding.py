"""Variables and the arguments of ``forward``: by name where the names are the arguments', else by position."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from exporter.errors import SourceError

Kind = inspect.Parameter


def argument_names(module: nn.Module) -> list[str]:
    """Names of the arguments that ``forward`` takes by name; none for ``*args`` and for compiled modules."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except ValueError:
        return []
    return [p.name for p in parameters if p.kind in (Kind.POSITIONAL_OR_KEYWORD, Kind.KEYWORD_ONLY)]


def required_names(module: nn.Module) -> list[str]:
    """Those of ``argument_names`` that have no default."""
    names = argument_names(module)
    parameters = inspect.signature(module.forward).parameters if names else {}
    return [n for n in names if parameters[n].default is Kind.empty]


class Bound:
    """A call of ``module`` with tensors in the order of ``variables``.

    Where all variables are arguments of ``forward``, each goes to the argument of its name; where none is, the order
    counts. Raises ``SourceError`` where some are and stand in another place than their argument.
    """

    def __init__(self, module: nn.Module, variables: Sequence[str], label: str) -> None:
        self._module = module
        arguments = argument_names(module)
        known = [name for name in variables if name in arguments]
        self._by_name = tuple(variables) if variables and len(known) == len(variables) else ()
        moved = [name for name in known if arguments.index(name) != list(variables).index(name)]
        if moved and not self._by_name:
            raise SourceError(
                f"it is not clear which argument of {label!r} is which variable",
                got=f"forward({', '.join(arguments)}) for the variables {', '.join(map(repr, variables))}",
                expected="variables that are all arguments of forward, or none, or each in its argument's place",
                mend="name the arguments of forward like the variables",
            )

    def __call__(self, *tensors: torch.Tensor) -> Any:
        if self._by_name:
            return self._module(**dict(zip(self._by_name, tensors, strict=True)))
        return self._module(*tensors)
