"""Second derivatives of a model: a gradient becomes one more output, and its blocks and products are second ones.

Everything that holds for outputs then holds for the gradient, and for its derivatives what holds for first ones: the
same checks, in every format."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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

# Seconds of the run that shows the outputs.
LIMIT = 3600.0


@dataclass(frozen=True)
class _FirstRun:
    """Outputs of a first run: the numbers that each has for an element, their dtypes, and by what it has a gradient."""

    counts: Mapping[str, int]
    dtypes: Mapping[str, str]
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
    if not any("," in text for text in request.blocks):
        return source, request
    first = run_in_fork(_observe, source, seed, seconds=LIMIT)
    inputs, parameters = {spec.name: spec for spec in source.inputs}, list_own_parameters(source.parameter_module)
    wanted = find_second_derivatives(request, list(inputs), list(first.counts), list(parameters))
    if not wanted:
        return source, request
    _require_autograd(source, wanted[0].text)
    chosen = [second for second in wanted if _has_gradient(second, source, first)]
    pairs = tuple(dict.fromkeys((second.output, second.wrt) for second in chosen))
    _require_new_names(pairs, {*inputs, *first.counts, *parameters})
    specs = tuple(TensorSpec(name_gradient(o, wrt), inputs[wrt].shape, inputs[wrt].dtype) for o, wrt in pairs)
    own = source.own_module
    extended = dataclasses.replace(
        source,
        module=GradientCall(source.module, source, pairs),
        own_module=GradientCall(own, source, pairs) if own is not None else None,
        outputs=(*source.outputs, *specs) if source.outputs else (),
        uses_autograd=True,
    )
    _require_dependence(chosen, run_in_fork(_observe, extended, seed, seconds=LIMIT), {*inputs, *parameters})
    return extended, _replace_blocks(request, wanted, chosen)


def _observe(source: Source, seed: int) -> _FirstRun:
    first = run_first(source, seed)
    with eager_context(source):
        pairs = find_nonzero_blocks(source, first.inputs)
    count = first.inputs[0].shape[0] if source.batch_ndim else 1
    counts = {name: value.numel() // max(count, 1) for name, value in first.outputs.items()}
    return _FirstRun(counts, {name: name_dtype(value) for name, value in first.outputs.items()}, pairs)


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
    dtypes = {spec.name: spec.dtype for spec in source.inputs}
    why = expected = mend = ""
    if first.counts[output] != 1:
        per_element = " for each element" if source.batch_ndim else ""
        why, expected = f"{output!r} has {first.counts[output]} numbers{per_element}", f"one number{per_element}"
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


def _require_dependence(chosen: Sequence[SecondDerivative], extended: _FirstRun, names: set[str]) -> None:
    """Raise ``UsageError`` for a second derivative that was asked for by name, and is zero wherever it is taken."""
    for second in chosen:
        gradient, other = name_gradient(second.output, second.wrt), second.other
        if second.is_exact and other in names and (gradient, other) not in extended.pairs:
            what = f"{second.output!r} has no second derivative by {second.wrt!r} and {other!r}"
            got, expected = f"its gradient does not depend on {other!r}", "a gradient that depends on the second one"
            where, mend = f"--derivative {second.text!r}", "leave it out: it is zero"
            raise UsageError(what, where=where, got=got, expected=expected, mend=mend)


def _require_new_names(pairs: Sequence[Pair], names: set[str]) -> None:
    for output, wrt in pairs:
        if (name := name_gradient(output, wrt)) in names:
            what, expected = f"the model has a variable {name!r} already", "a name for the gradient that nothing has"
            where = f"the gradient of {output!r} by {wrt!r}"
            raise UsageError(what, where=where, expected=expected, mend="give the variable another name in the model")


def _replace_blocks(
    request: DerivativeRequest, wanted: Sequence[SecondDerivative], chosen: Sequence[SecondDerivative]
) -> DerivativeRequest:
    """Return the request with blocks of gradients in place of second derivatives."""
    texts = dict.fromkeys(second.text for second in wanted)
    blocks: list[str] = [text for text in request.blocks if text not in texts]
    symmetric = list(request.symmetric)
    for text in texts:
        if not any(second.text == text for second in chosen):
            what, expected = "no second derivative is left", "an output of one number that depends on the inputs"
            raise UsageError(what, where=f"--derivative {text!r}", expected=expected)
    for second in chosen:
        gradient = name_gradient(second.output, second.wrt)
        blocks.append(f"{gradient}:{second.other}")
        if second.other == second.wrt:
            symmetric.append(f"{gradient}:{second.wrt}")
    return dataclasses.replace(request, blocks=tuple(dict.fromkeys(blocks)), symmetric=tuple(dict.fromkeys(symmetric)))
