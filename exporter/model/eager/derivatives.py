"""Derivatives of eager mode by reverse mode (``torch.autograd.grad``), the reference for the file.

Row by row of the Jacobian, as in Griewank and Walther, Evaluating Derivatives (2008), section 3.2: one gradient for
each component of an output, summed over a batch of independent elements."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from exporter.archive.derivative_request import Pair
from exporter.archive.tensor_spec import FLOATING, name_dtype
from exporter.common.errors import CaptureError, summarize_error
from exporter.common.user_code import user_traceback_location
from exporter.model.eager.evaluation import evaluate
from exporter.model.source import Inputs, Source


def _is_real(tensor: torch.Tensor) -> bool:
    return name_dtype(tensor) in FLOATING


@contextlib.contextmanager
def requires_grad(parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Record gradients, and set ``requires_grad`` of these parameters, inside the context."""
    old_flags = {name: p.requires_grad for name, p in parameters.items()}
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(old_flags[name])


def list_differentiable_parameters(source: Source) -> dict[str, nn.Parameter]:
    """Return the floating parameters by name; a name that is also an input means the input."""
    inputs = {s.name for s in source.inputs}
    return {n: p for n, p in source.parameter_module.named_parameters() if _is_real(p) and n not in inputs}


def _evaluate_with_grad(source: Source, inputs: Inputs) -> tuple[Inputs, dict[str, torch.Tensor]]:
    leaves = tuple(t.detach().clone().requires_grad_(_is_real(t)) for t in inputs)
    return leaves, evaluate(source, leaves, attached=True)


def _compute_gradient(
    output: torch.Tensor, wrt: Sequence[torch.Tensor], seed: torch.Tensor, name: str
) -> tuple[torch.Tensor | None, ...]:
    if not output.requires_grad:
        return (None,) * len(wrt)
    try:
        return torch.autograd.grad(output, wrt, seed, retain_graph=True, allow_unused=True)
    except Exception as error:
        # A hook of the user's may raise anything.
        where = user_traceback_location(error)
        what, got = f"output {name!r} cannot be differentiated", summarize_error(error)
        expected = "operations that torch can differentiate"
        mend = "omit this output: --derivative OUT:IN, or use operations that have derivatives"
        raise CaptureError(what, check="derivatives", where=where, got=got, expected=expected, mend=mend) from error


def find_nonzero_blocks(source: Source, inputs: Inputs) -> frozenset[Pair]:
    """Find pairs of an output and an input or parameter that a gradient connects. Call it under ``eager_context``."""
    parameters = list_differentiable_parameters(source)
    pairs: set[Pair] = set()
    with requires_grad(parameters):
        recorded_inputs, outputs = _evaluate_with_grad(source, inputs)
        names = [s.name for s, t in zip(source.inputs, recorded_inputs, strict=True) if t.requires_grad]
        leaves = [t for t in recorded_inputs if t.requires_grad]
        for name, value in outputs.items():
            if not _is_real(value):
                continue
            gradients = _compute_gradient(value, [*leaves, *parameters.values()], torch.ones_like(value), name)
            pairs |= {(name, wrt) for wrt, g in zip([*names, *parameters], gradients, strict=True) if g is not None}
    return frozenset(pairs)


def compute_jacobian_blocks(source: Source, inputs: Inputs, pairs: Sequence[Pair]) -> dict[Pair, torch.Tensor]:
    """Compute the block ``(*batch, *output, *wrt)`` of each pair.

    Blocks with respect to a parameter take a gradient for each row of the batch."""
    parameters = {n: p for n, p in list_differentiable_parameters(source).items() if any(wrt == n for _, wrt in pairs)}
    batch = inputs[0].shape[:1] if source.batch_ndim and inputs else torch.Size()
    blocks_by_pair: dict[Pair, torch.Tensor] = {}
    with requires_grad(parameters):
        recorded_inputs, outputs = _evaluate_with_grad(source, inputs)
        leaves = dict(zip((s.name for s in source.inputs), recorded_inputs, strict=True)) | parameters
        for name in dict.fromkeys(output for output, _ in pairs):
            value = outputs[name]
            if value.shape[: len(batch)] != batch:
                value = value.expand(*batch, *value.shape)
            event_shape = value.shape[len(batch) :]
            wrt_names = [wrt for output, wrt in pairs if output == name]
            for group in ([b for b in wrt_names if b not in parameters], [b for b in wrt_names if b in parameters]):
                seeds = _iterate_seeds(value, len(batch) if group and group[0] in parameters else 0, len(batch))
                rows_by_name = {wrt: [] for wrt in group}
                for seed in seeds if group else ():
                    gradients = _compute_gradient(value, [leaves[wrt] for wrt in group], seed, name)
                    for wrt, g in zip(group, gradients, strict=True):
                        rows_by_name[wrt].append(torch.zeros_like(leaves[wrt]) if g is None else g)
                for wrt, rows in rows_by_name.items():
                    block = _assemble_block(rows, batch, event_shape, leaves[wrt], wrt in parameters)
                    blocks_by_pair[name, wrt] = block
    return {pair: blocks_by_pair[pair].detach() for pair in pairs}


def _iterate_seeds(value: torch.Tensor, separate: int, batch_dims: int) -> Iterator[torch.Tensor]:
    """Yield a seed for each component of the output: for the whole batch at once, or (``separate``) by element."""
    count = value[0].numel() if batch_dims and value.shape[0] else 0 if batch_dims else value.numel()
    elements = range(value.shape[0]) if separate else (slice(None),) if batch_dims else (None,)
    for element in elements:
        for k in range(count):
            seed = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
            flat = seed.view(value.shape[0], -1) if batch_dims else seed.view(1, -1)
            flat[element if element is not None else 0, k] = 1.0
            yield seed


def _assemble_block(
    rows: list[torch.Tensor], batch: torch.Size, event_shape: torch.Size, leaf: torch.Tensor, parameter: bool
) -> torch.Tensor:
    # Of a batched leaf every row holds the whole batch.
    axis = 0 if parameter or not batch else 1
    shape = (*batch, *event_shape, *leaf.shape[axis:])
    return torch.stack(rows, axis).reshape(shape) if rows else leaf.new_zeros(shape)


def compute_jvp(
    source: Source, inputs: Inputs, tangents: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Compute tangents of outputs from the blocks and tangents of inputs, which have the batch, and parameters.

    A tangent has its output's dtype; of a float64 output, what comes from a float32 input has float32's digits."""
    blocks_by_pair = compute_jacobian_blocks(source, inputs, [(output, wrt) for output in outputs for wrt in tangents])
    names = [s.name for s in source.inputs]
    result: dict[str, torch.Tensor] = {}
    for (output, wrt), block in blocks_by_pair.items():
        batch_dims = 1 if source.batch_ndim and wrt in names else 0
        tangent = tangents[wrt]
        wrt_shape = tangent.shape[batch_dims:]
        output_shape = block.shape[: block.ndim - len(wrt_shape)]
        size = math.prod(wrt_shape)
        tangent = tangent.reshape(*tangent.shape[:batch_dims], *[1] * (len(output_shape) - batch_dims), size)
        term = (block.reshape((*output_shape, size)) * tangent).sum(-1).to(outputs[output].dtype)
        result[output] = result[output] + term if output in result else term
    return result


def compute_vjp(source: Source, inputs: Inputs, cotangents: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Compute the cotangents of the floating inputs by one gradient for each output."""
    with requires_grad({}):
        recorded_inputs, outputs = _evaluate_with_grad(source, inputs)
        leaves = {s.name: t for s, t in zip(source.inputs, recorded_inputs, strict=True) if t.requires_grad}
        result = {name: torch.zeros_like(t) for name, t in leaves.items()}
        for name, seed in cotangents.items():
            value = outputs[name].expand(seed.shape)
            for wrt, g in zip(leaves, _compute_gradient(value, list(leaves.values()), seed, name), strict=True):
                result[wrt] = result[wrt] + (0.0 if g is None else g)
    return {name: value.detach() for name, value in result.items()}
