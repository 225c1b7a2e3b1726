"""Second derivatives of a model: a gradient becomes one more output, and its blocks and products are second ones.

Everything that holds for outputs then holds for the gradient, and for its derivatives what holds for first ones: the
same checks, in every format."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.archive.derivative_request import (
    DerivativeRequest,
    Pair,
    SecondDerivative,
    find_second_derivatives,
    name_gradient,
)
from exporter.archive.tensor_spec import FLOATING, TensorSpec, name_dtype
from exporter.common.errors import UnsupportedError, UsageError
from exporter.common.forking import run_in_fork
from exporter.model.eager.derivatives import find_nonzero_blocks
from exporter.model.eager.evaluation import eager_context, normalize_outputs
from exporter.model.eager.warmup import run_first
from exporter.model.implicit.newton_solver import find_solvers, list_own_parameters
from exporter.model.source import Source

# Seconds of a run that shows the outputs.
LIMIT = 3600.0


@dataclass(frozen=True)
class _FirstRun:
    """Shapes and dtypes of the outputs of a first run, the size of its batch, and which gradients there are."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    batch: tuple[int, ...]
    pairs: frozenset[Pair]


class GradientCall:
    """A call of a model that returns gradients of some outputs, each by an input, behind the outputs.

    Elements of a batch do not depend on each other, so that the gradient of the sum is that of each element."""

    def __init__(self, function: Callable[..., Any], source: Source, pairs: Sequence[Pair]) -> None:
        self.function, self.source, self.pairs = function, source, tuple(pairs)
        names = [spec.name for spec in source.inputs]
        self.places = {wrt: names.index(wrt) for _, wrt in pairs}

    def __call__(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.enable_grad():
            inputs = list(tensors)
            for place in self.places.values():
                if not inputs[place].requires_grad:
                    inputs[place] = inputs[place].detach().requires_grad_()
            outputs = normalize_outputs(self.function(*inputs), self.source)
            gradients = {}
            for output in dict.fromkeys(output for output, _ in self.pairs):
                wrt_names = [wrt for o, wrt in self.pairs if o == output]
                leaves = [inputs[self.places[wrt]] for wrt in wrt_names]
                values = torch.autograd.grad(outputs[output].sum(), leaves, create_graph=True)
                gradients |= {name_gradient(output, wrt): v for wrt, v in zip(wrt_names, values, strict=True)}
        return {**outputs, **gradients}


def add_gradients(source: Source, request: DerivativeRequest, seed: int) -> tuple[Source, DerivativeRequest]:
    """Return the model with the gradients that requested second derivatives are of, and the request for their blocks.

    A block by the input that the gradient is by is symmetric. Raises ``UsageError`` for an output that is not a number
    and for names that are not there, ``UnsupportedError`` for a model whose gradients torch does not give."""
    first = run_in_fork(_observe, source, seed, seconds=LIMIT)
    inputs, parameters = [spec.name for spec in source.inputs], list_own_parameters(source.parameter_module)
    wanted = find_second_derivatives(request, inputs, list(first.shapes), list(parameters))
    if not wanted:
        return source, request
    _require_autograd(source, wanted[0].text)
    candidates = [second for second in wanted if _has_gradient(second, source, first)]
    names = {*inputs, *first.shapes, *parameters}
    extended = _extend(source, [(second.output, second.wrt) for second in candidates], names)
    pairs = run_in_fork(_observe, extended, seed, seconds=LIMIT).pairs if candidates else frozenset[Pair]()
    dtypes = {spec.name: spec.dtype for spec in source.inputs}
    dtypes = {name: name_dtype(p) for name, p in parameters.items()} | dtypes
    chosen = [block for second in candidates for block in _select_blocks(second, dtypes, pairs)]
    for text in dict.fromkeys(second.text for second in wanted):
        if not any(second.text == text for second in chosen):
            what, expected = "no second derivative is left", "an output of one number that is not linear in the inputs"
            mend = "ask for first derivatives: OUT:IN"
            raise UsageError(what, where=f"--derivative {text!r}", expected=expected, mend=mend)
    final = _extend(source, [(second.output, second.wrt) for second in chosen], names)
    return final, _replace_blocks(request, wanted, chosen)


def _observe(source: Source, seed: int) -> _FirstRun:
    first = run_first(source, seed)
    with eager_context(source):
        pairs = find_nonzero_blocks(source, first.inputs)
    shapes = {name: tuple(value.shape) for name, value in first.outputs.items()}
    batch = tuple(first.inputs[0].shape[:1]) if source.batch_ndim else ()
    return _FirstRun(shapes, {name: name_dtype(value) for name, value in first.outputs.items()}, batch, pairs)


def _extend(source: Source, pairs: Sequence[Pair], names: Collection[str]) -> Source:
    """Return the model with these gradients behind its outputs. Raises ``UsageError`` for one of the ``names``."""
    pairs = tuple(dict.fromkeys(pairs))
    specs = {spec.name: spec for spec in source.inputs}
    gradients: list[TensorSpec] = []
    for output, wrt in pairs:
        name = name_gradient(output, wrt)
        if name in names or any(name == spec.name for spec in gradients):
            what, expected = f"there is a variable {name!r} already", "a name for the gradient that nothing has"
            where = f"the gradient of {output!r} by {wrt!r}"
            raise UsageError(what, where=where, expected=expected, mend="give the variable another name in the model")
        gradients.append(TensorSpec(name, specs[wrt].shape, specs[wrt].dtype))
    own = source.own_module
    return dataclasses.replace(
        source,
        module=GradientCall(source.module, source, pairs),
        own_module=GradientCall(own, source, pairs) if own is not None else None,
        outputs=(*source.outputs, *gradients) if source.outputs else (),
        uses_autograd=True,
    )


def _require_autograd(source: Source, text: str) -> None:
    """Raise ``UnsupportedError`` for a model whose own derivatives torch's autograd does not take."""
    where, expected = f"--derivative {text!r}", "a torch module or a function without an implicit update"
    if source.origin.kind == "neml2":
        what, mend = "second derivatives of a NEML2 model are not exported", "ask for first derivatives: OUT:IN"
        raise UnsupportedError(what, where=where, got="its own chain rule", expected=expected, mend=mend)
    if solvers := find_solvers(source.parameter_module):
        what, mend = "second derivatives of an implicit model are not exported", "ask for first derivatives: OUT:IN"
        raise UnsupportedError(what, where=where, got=", ".join(solvers), expected=expected, mend=mend)


def _has_gradient(second: SecondDerivative, source: Source, first: _FirstRun) -> bool:
    """Return whether an output has a gradient by an input; one that was asked for by name must have it.

    Raises ``UsageError``."""
    output, wrt = second.output, second.wrt
    shape, dtypes = first.shapes[output], {spec.name: spec.dtype for spec in source.inputs}
    own_shape = shape[len(first.batch) :]
    why = expected = mend = ""
    if shape[: len(first.batch)] != first.batch:
        why, expected = f"{output!r} has shape {list(shape)} at batch {first.batch[0]}", "[batch]"
        mend = "without a batch: --batch no, or batch_ndim=0 in its signature"
    elif any(size != 1 for size in own_shape):
        each = " for each element" if source.batch_ndim else ""
        why, expected = f"{output!r} has shape {list(own_shape)}{each}", f"one number{each}"
        mend = "add up its numbers in the model, or ask for first derivatives: OUT:IN"
    elif first.dtypes[output] not in FLOATING or dtypes[wrt] != first.dtypes[output]:
        why, expected = f"{output!r} is {first.dtypes[output]} and {wrt!r} {dtypes[wrt]}", "one floating dtype"
        mend = "compute the output in the dtype of the input"
    elif (output, wrt) not in first.pairs:
        why, expected = f"{output!r} does not depend on {wrt!r}", "an output that depends on the input"
        mend = "ask for an input that it depends on"
    if why and second.is_exact:
        what = f"{output!r} has no second derivative by {wrt!r}"
        raise UsageError(what, where=f"--derivative {second.text!r}", got=why, expected=expected, mend=mend)
    return not why


def _select_blocks(
    second: SecondDerivative, dtypes: Mapping[str, str], pairs: frozenset[Pair]
) -> list[SecondDerivative]:
    """Return the blocks of a gradient, by one name each; ``pairs`` are those of an output and what it depends on.

    Raises ``UsageError`` for one that was asked for by its names and is not there."""
    gradient = name_gradient(second.output, second.wrt)
    names = [second.other] if second.other in dtypes else fnmatch.filter(dtypes, second.other)
    there = [n for n in names if (gradient, n) in pairs and dtypes[n] == dtypes[second.wrt]]
    if second.is_exact and second.other in dtypes and not there:
        what = f"{second.output!r} has no second derivative by {second.wrt!r} and {second.other!r}"
        got, expected = f"its gradient does not depend on {second.other!r}", "one that does, in the same dtype"
        mend = "leave it out: it is zero, or hidden by an operation of the model (detach, once_differentiable)"
        raise UsageError(what, where=f"--derivative {second.text!r}", got=got, expected=expected, mend=mend)
    return [dataclasses.replace(second, other=name) for name in there]


def _replace_blocks(
    request: DerivativeRequest, wanted: Sequence[SecondDerivative], chosen: Sequence[SecondDerivative]
) -> DerivativeRequest:
    """Return the request with blocks of gradients in place of second derivatives."""
    texts = {second.text for second in wanted}
    blocks = {second: f"{name_gradient(second.output, second.wrt)}:{second.other}" for second in chosen}
    symmetric = [block for second, block in blocks.items() if second.other == second.wrt]
    kept = [text for text in request.blocks if text not in texts]
    return dataclasses.replace(
        request,
        blocks=tuple(dict.fromkeys([*kept, *blocks.values()])),
        symmetric=tuple(dict.fromkeys([*request.symmetric, *symmetric])),
    )
