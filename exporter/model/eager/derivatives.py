"""Derivatives of eager mode by reverse mode (``torch.autograd.grad``): what is held against the file.

Row by row of the Jacobian, as in Griewank and Walther, Evaluating Derivatives (2008), section 3.2: a gradient for each
component of an output, summed over a batch whose elements do not see each other.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from exporter.archive.derivative_request import Pair
from exporter.archive.tensor_spec import FLOATING
from exporter.common.errors import CaptureError, first_line
from exporter.model.eager.evaluation import evaluate
from exporter.model.source import Inputs, Source


def _real(tensor: torch.Tensor) -> bool:
    return str(tensor.dtype).removeprefix("torch.") in FLOATING


@contextlib.contextmanager
def asking(parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """While this lasts, gradients are recorded and these parameters ask for them."""
    before = {name: p.requires_grad for name, p in parameters.items()}
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(before[name])


def parameters_of(source: Source) -> dict[str, nn.Parameter]:
    """Those of floating dtype, by name; one that is called like an input is left to be the input."""
    inputs = {s.name for s in source.inputs}
    return {n: p for n, p in source.named.named_parameters() if _real(p) and n not in inputs}


def _recorded(source: Source, inputs: Inputs) -> tuple[Inputs, dict[str, torch.Tensor]]:
    given = tuple(t.detach().clone().requires_grad_(_real(t)) for t in inputs)
    return given, evaluate(source, given, attached=True)


def _gradient(
    output: torch.Tensor, by: Sequence[torch.Tensor], seed: torch.Tensor, name: str
) -> tuple[torch.Tensor | None, ...]:
    if not output.requires_grad:
        return (None,) * len(by)
    try:
        return torch.autograd.grad(output, by, seed, retain_graph=True, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        raise CaptureError(
            f"output {name!r} cannot be differentiated",
            check="derivatives",
            got=first_line(error),
            expected="operations that torch can differentiate",
            mend="leave this output out: --derivative OUT:IN, or write the operation with ones that have derivatives",
        ) from error


def reached(source: Source, inputs: Inputs) -> frozenset[Pair]:
    """Pairs of an output and an input or parameter that a gradient connects. Call it under ``inference_conditions``."""
    parameters = parameters_of(source)
    found: set[Pair] = set()
    with asking(parameters):
        given, outputs = _recorded(source, inputs)
        names = [s.name for s, t in zip(source.inputs, given, strict=True) if t.requires_grad]
        leaves = [t for t in given if t.requires_grad]
        for name, value in outputs.items():
            if not _real(value):
                continue
            gradients = _gradient(value, [*leaves, *parameters.values()], torch.ones_like(value), name)
            found |= {(name, by) for by, g in zip([*names, *parameters], gradients, strict=True) if g is not None}
    return frozenset(found)


def blocks(source: Source, inputs: Inputs, pairs: Sequence[Pair]) -> dict[Pair, torch.Tensor]:
    """``(*batch, *out, *by)`` of each pair. Blocks by a parameter take a gradient for each row of the batch."""
    parameters = {n: p for n, p in parameters_of(source).items() if any(by == n for _, by in pairs)}
    batch = inputs[0].shape[:1] if source.batch_ndim and inputs else torch.Size()
    found: dict[Pair, torch.Tensor] = {}
    with asking(parameters):
        given, outputs = _recorded(source, inputs)
        leaves = dict(zip((s.name for s in source.inputs), given, strict=True)) | parameters
        for name in dict.fromkeys(of for of, _ in pairs):
            value = outputs[name]
            if value.shape[: len(batch)] != batch:
                value = value.expand(*batch, *value.shape)
            own = value.shape[len(batch) :]
            bys = [by for of, by in pairs if of == name]
            for kind in ([b for b in bys if b not in parameters], [b for b in bys if b in parameters]):
                rows = _rows(value, len(batch) if kind and kind[0] in parameters else 0, len(batch))
                made = {by: [] for by in kind}
                for seed in rows if kind else ():
                    gradients = _gradient(value, [leaves[by] for by in kind], seed, name)
                    for by, g in zip(kind, gradients, strict=True):
                        made[by].append(torch.zeros_like(leaves[by]) if g is None else g)
                for by, rows_of in made.items():
                    found[name, by] = _assembled(rows_of, batch, own, leaves[by], by in parameters)
    return {pair: found[pair].detach() for pair in pairs}


def _rows(value: torch.Tensor, alone: int, lead: int) -> Iterator[torch.Tensor]:
    """A seed for each component of the output: for all elements of the batch at once, or (``alone``) for each."""
    count = value[0].numel() if lead and value.shape[0] else 0 if lead else value.numel()
    elements = range(value.shape[0]) if alone else (slice(None),) if lead else (None,)
    for element in elements:
        for k in range(count):
            seed = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
            flat = seed.view(value.shape[0], -1) if lead else seed.view(1, -1)
            flat[element if element is not None else 0, k] = 1.0
            yield seed


def _assembled(
    rows: list[torch.Tensor], batch: torch.Size, own: torch.Size, leaf: torch.Tensor, parameter: bool
) -> torch.Tensor:
    own_by = leaf.shape if parameter or not batch else leaf.shape[1:]
    if not rows:
        return leaf.new_zeros((*batch, *own, *own_by))
    if parameter or not batch:
        return torch.stack(rows).reshape((*batch, *own, *own_by))
    return torch.stack(rows, 1).reshape((*batch, *own, *own_by))


def pushed(
    source: Source, inputs: Inputs, tangents: Mapping[str, torch.Tensor], outputs: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Tangents of the outputs: the blocks times the tangents of inputs, which have the batch, and of parameters."""
    found = blocks(source, inputs, [(of, by) for of in outputs for by in tangents])
    names = [s.name for s in source.inputs]
    result: dict[str, torch.Tensor] = {}
    for (of, by), block in found.items():
        lead = 1 if source.batch_ndim and by in names else 0
        own = tangents[by].shape[lead:]
        out = block.shape[: block.ndim - len(own)]
        size = math.prod(own)
        tangent = tangents[by].reshape(*tangents[by].shape[:lead], *[1] * (len(out) - lead), size)
        term = (block.reshape((*out, size)) * tangent).sum(-1)
        result[of] = result[of] + term if of in result else term
    return result


def pulled(source: Source, inputs: Inputs, cotangents: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cotangents of the floating inputs: one gradient."""
    with asking({}):
        given, outputs = _recorded(source, inputs)
        leaves = {s.name: t for s, t in zip(source.inputs, given, strict=True) if t.requires_grad}
        result = {name: torch.zeros_like(t) for name, t in leaves.items()}
        for name, seed in cotangents.items():
            value = outputs[name].expand(seed.shape)
            for by, g in zip(leaves, _gradient(value, list(leaves.values()), seed, name), strict=True):
                result[by] = result[by] + (0.0 if g is None else g)
    return {name: value.detach() for name, value in result.items()}
