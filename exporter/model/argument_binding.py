"""Binding of variables to the arguments of ``forward``: by name if the names match, else by position."""

from __future__ import annotations

import inspect
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from exporter.common.errors import SourceError

Parameter = inspect.Parameter


NAMED_KINDS = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def _read_parameters(module: nn.Module) -> list[Parameter]:
    """Return the parameters of ``forward``; none for compiled modules."""
    try:
        return list(inspect.signature(module.forward).parameters.values())
    except ValueError:
        return []


def list_argument_names(module: nn.Module) -> list[str]:
    """Return the names that ``forward`` accepts as keywords; none for ``*args`` and for compiled modules."""
    return [p.name for p in _read_parameters(module) if p.kind in NAMED_KINDS]


def list_required_names(module: nn.Module) -> list[str]:
    """Return the names of ``list_argument_names`` that have no default."""
    return [p.name for p in _read_parameters(module) if p.kind in NAMED_KINDS and p.default is Parameter.empty]


def list_variadic_names(module: nn.Module) -> list[str]:
    """Return the names of ``*args`` and ``**kwargs`` of ``forward``."""
    return [p.name for p in _read_parameters(module) if p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]


def list_positional_names(module: nn.Module) -> list[str]:
    """Return the names of the arguments of ``forward`` that may be given by position, in order."""
    positional = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.POSITIONAL_ONLY)
    return [p.name for p in itertools.takewhile(lambda p: p.kind in positional, _read_parameters(module))]


def call_by_names(module: nn.Module, names: Sequence[str], values: Sequence[Any]) -> Any:
    """Call a module with values of arguments by name; those of ``*args`` and ``**kwargs`` are a tuple and a dict.

    Arguments are passed by position if possible, so that hooks see them."""
    bound = inspect.BoundArguments(inspect.signature(module.forward), OrderedDict(zip(names, values, strict=True)))
    # What is behind an argument that is left out is not reached without its default.
    bound.apply_defaults()
    return module(*bound.args, **bound.kwargs)


class BoundForward:
    """A call of ``module`` with tensors in the order of ``variables``.

    If all variables are arguments of ``forward``, each goes to the argument of its name; if none is, the order
    counts. Arguments are passed by position if possible, so that hooks see them. Raises ``SourceError`` if only some
    variables are arguments and are not in the place of their argument."""

    def __init__(self, module: nn.Module, variables: Sequence[str], label: str) -> None:
        self._module = module
        arguments = list_argument_names(module)
        kinds = {p.name: p.kind for p in _read_parameters(module)}
        takes_any = Parameter.VAR_KEYWORD in kinds.values() and Parameter.VAR_POSITIONAL not in kinds.values()
        matching = [name for name in variables if name in arguments]
        by_name = len(matching) == len(variables) or takes_any
        misplaced = [name for name in matching if arguments.index(name) != list(variables).index(name)]
        if misplaced and not by_name:
            what = f"it is not clear which argument of {label!r} is which variable"
            got = f"forward({', '.join(arguments)}) for the variables {', '.join(map(repr, variables))}"
            expected = "variables that are all arguments of forward, or none, or each in its argument's place"
            raise SourceError(what, got=got, expected=expected, mend="name the arguments of forward like the variables")
        positional = list(range(len(variables)))
        if by_name:
            accepted = [name for name, kind in kinds.items() if kind is Parameter.POSITIONAL_OR_KEYWORD]
            leading = itertools.takewhile(lambda name: name in variables, accepted)
            positional = [list(variables).index(name) for name in leading]
        self._positional = tuple(positional)
        self._keywords = {name: i for i, name in enumerate(variables) if i not in positional}

    def __call__(self, *tensors: torch.Tensor) -> Any:
        keywords = {name: tensors[i] for name, i in self._keywords.items()}
        return self._module(*(tensors[i] for i in self._positional), **keywords)
