"""Sources of models: what the command line takes, a module, or a function of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from exporter.archive.input_files import InputValues, read_inputs
from exporter.capture.newton_capture import compile_descent
from exporter.common.errors import UsageError
from exporter.frontends import python_factory, resolve
from exporter.frontends.model_request import ModelRequest
from exporter.model.implicit.newton_solver import OnFailure, find_solvers
from exporter.model.source import Source


def resolve_sources(
    source: ModelRequest | nn.Module | Callable[..., Any], models: Sequence[str], inputs: Path | InputValues | None
) -> list[Callable[[], Source]]:
    """Return one function for each model, which loads it when called."""
    example_inputs = read_inputs(inputs) if isinstance(inputs, Path) else inputs
    if isinstance(source, nn.Module):
        name = type(getattr(source, "_orig_mod", source)).__name__
        return [lambda: python_factory.source_from_module(source, name, example_inputs, f"the {name} that was given")]
    if not isinstance(source, ModelRequest):
        return [lambda: python_factory.source_from_callable(source, example_inputs)]
    names = resolve.choose_models(source, models)
    return [functools.partial(resolve.load, source, name, example_inputs, compile_descent) for name in names]


def apply_failure_policy(source: Source, on_failure: OnFailure) -> None:
    solvers = find_solvers(source.parameter_module)
    if not solvers:
        what = f"model {source.name!r} solves nothing that could fail to converge"
        raise UsageError(what, where="--on-failure", got=on_failure, expected="a model with an implicit update")
    for loop in solvers.values():
        loop.set_failure_policy(on_failure)
