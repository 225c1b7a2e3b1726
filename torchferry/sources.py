"""Sources of models: what the command line takes, a module, or a function of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from exporter.archive.input_files import InputValues, read_inputs
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.capture.newton_capture import compile_descent
from exporter.capture.open_sizes import choose_sizes, fix_sizes
from exporter.common.errors import TorchferryError, UsageError, suggest_names
from exporter.frontends import adopted_file, python_factory, resolve
from exporter.frontends.model_request import AdoptedFile, ModelRequest
from exporter.frontends.resolve import check_no_file_options
from exporter.model.eager.batch_choice import ShapeChoice, choose_batch, has_undeclared_shapes
from exporter.model.eager.per_element import make_per_element, select_parameters
from exporter.model.implicit.newton_solver import OnFailure, find_solvers
from exporter.model.source import Source

Result = TypeVar("Result")
# What a user may give.
AnySource = ModelRequest | AdoptedFile | nn.Module | Callable[..., Any]


def make_request(
    source: str | nn.Module | Callable[..., Any],
    overrides: Sequence[str],
    extensions: Sequence[str],
    drivers: Sequence[str],
    dtype: str,
) -> ModelRequest | nn.Module | Callable[..., Any]:
    """Return what is asked for. Raises ``UsageError`` for what only input files have, of what is none."""
    text = source if isinstance(source, str) else type(source).__name__
    request = ModelRequest(text, tuple(overrides), tuple(extensions), tuple(drivers), dtype)
    if isinstance(source, str):
        return request
    check_no_file_options(request)
    return source


def resolve_sources(
    source: AnySource,
    models: Sequence[str],
    inputs: Path | InputValues | None,
    per_element: Sequence[str],
    shapes: ShapeChoice,
    seed: int,
) -> list[Callable[[], Source]]:
    """Return one function for each model, which loads it when called.

    ``per_element`` are patterns of parameters that become inputs; ``inputs`` may hold values of those it names.
    ``shapes`` says whether a model without a signature has a batch, and open sizes."""
    values = (read_inputs(inputs) if isinstance(inputs, Path) else inputs) or None
    own_values = {name: value for name, value in (values or {}).items() if name in per_element}
    # A file may hold values of parameters alone.
    example_inputs = {name: value for name, value in (values or {}).items() if name not in own_values} or None
    loads = [functools.partial(load_model, load, shapes, seed) for load in _list_loads(source, models, example_inputs)]
    return [functools.partial(_load_per_element, load, per_element, own_values, seed) for load in loads]


def _list_loads(
    source: AnySource,
    models: Sequence[str],
    inputs: InputValues | None,
) -> list[Callable[[], Source]]:
    if isinstance(source, nn.Module):
        name = type(getattr(source, "_orig_mod", source)).__name__
        return [lambda: python_factory.source_from_module(source, name, inputs, f"the {name} that was given")]
    if not isinstance(source, (ModelRequest, AdoptedFile)):
        return [lambda: python_factory.source_from_callable(source, inputs)]
    if isinstance(source, AdoptedFile):
        return [functools.partial(adopted_file.load, source, inputs)]
    names = resolve.choose_models(source, models)
    return [functools.partial(resolve.load, source, name, inputs, compile_descent) for name in names]


def load_model(load: Callable[[], Source], shapes: ShapeChoice, seed: int) -> Source:
    """Load a model, and choose whether it has a batch, and its open sizes."""
    source = load()
    is_tried = shapes.has_trials and (source.whole_call or has_undeclared_shapes(source))
    if is_tried or (source.whole_call and shapes.batch == "auto"):
        # Gradients that a model takes itself need a run with autograd.
        source = detect_inner_autograd(source, seed)
    return choose_sizes(choose_batch(source, shapes, seed), shapes, seed)


def run_with_sizes(source: Source, run: Callable[[Source], Result]) -> Result:
    """Return ``run(source)``; with the sizes of the examples where those that were found open turn out not to be."""
    try:
        return run(source)
    except TorchferryError as error:
        fixed_source = fix_sizes(source, error)
        if fixed_source is None:
            raise
    return run(fixed_source)


def _load_per_element(
    load: Callable[[], Source], patterns: Sequence[str], own_values: InputValues, seed: int
) -> Source:
    source = load()
    if not patterns:
        return source
    source = detect_inner_autograd(source, seed)
    names = select_parameters(source, patterns)
    if unused := [name for name in own_values if name not in names]:
        what, expected = f"the inputs give values of {unused[0]!r}", suggest_names(unused[0], names)
        raise UsageError(what, where="--per-element " + " ".join(patterns), got="no such parameter", expected=expected)
    return make_per_element(source, names, own_values, "it was asked for", seed)


def apply_failure_policy(source: Source, on_failure: OnFailure) -> None:
    solvers = find_solvers(source.parameter_module)
    if not solvers:
        what = f"model {source.name!r} solves nothing that could fail to converge"
        raise UsageError(what, where="--on-failure", got=on_failure, expected="a model with an implicit update")
    for loop in solvers.values():
        loop.set_failure_policy(on_failure)
