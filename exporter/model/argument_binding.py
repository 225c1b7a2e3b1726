"""Variables and the arguments of ``forward``: by name where the names are the arguments', else by position."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from exporter.common.errors import SourceError

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
    counts. Arguments that can be positional are, so that hooks find them. Raises ``SourceError`` where some variables
    are arguments and stand in another place than their argument.
    """

    def __init__(self, module: nn.Module, variables: Sequence[str], label: str) -> None:
        self._module = module
        arguments = argument_names(module)
        known = [name for name in variables if name in arguments]
        by_name = len(known) == len(variables) or _takes_any_keyword(module)
        moved = [name for name in known if arguments.index(name) != list(variables).index(name)]
        if moved and not by_name:
            raise SourceError(
                f"it is not clear which argument of {label!r} is which variable",
                got=f"forward({', '.join(arguments)}) for the variables {', '.join(map(repr, variables))}",
                expected="variables that are all arguments of forward, or none, or each in its argument's place",
                mend="name the arguments of forward like the variables",
            )
        order = list(range(len(variables)))
        positional: list[int] = order
        if by_name:
            leading = itertools.takewhile(lambda name: name in variables, _positional_names(module))
            positional = [list(variables).index(name) for name in leading]
        self._positional = tuple(positional)
        self._keywords = {variables[i]: i for i in order if i not in positional}

    def __call__(self, *tensors: torch.Tensor) -> Any:
        keywords = {name: tensors[i] for name, i in self._keywords.items()}
        return self._module(*(tensors[i] for i in self._positional), **keywords)


def _positional_names(module: nn.Module) -> list[str]:
    names = argument_names(module)
    parameters = inspect.signature(module.forward).parameters if names else {}
    return [n for n in names if parameters[n].kind is Kind.POSITIONAL_OR_KEYWORD]


def _takes_any_keyword(module: nn.Module) -> bool:
    try:
        kinds = {p.kind for p in inspect.signature(module.forward).parameters.values()}
    except ValueError:
        return False
    return Kind.VAR_KEYWORD in kinds and Kind.VAR_POSITIONAL not in kinds
