"""Other inputs of a sample: of slightly other numbers, and with rows of theirs as a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch.utils import _pytree as pytree

from exams.samples import ArrangedCall, Sample, Tensors

# Rows of the batches that a file of an operator or a module is judged with.
ROWS_OF_DATABASE = (1, 7)


def redraw(call: ArrangedCall, other: ArrangedCall | None) -> Tensors:
    """Return the inputs of another call that takes the same, else slightly other ones of this call."""
    if other is not None and call.takes_same(other):
        return other.example
    return tuple(_perturb(tensor) for tensor in call.example)


def spread(samples: Sequence[Sample], most: int) -> list[Sample]:
    """Return at most so many samples, spread over those that there are."""
    return list(samples[:: -(-len(samples) // most)]) if samples else []


def _perturb(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with slightly other numbers; integers stay."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return tensor * (1 + 1e-3 * torch.rand(tensor.shape, dtype=torch.float64).to(tensor.real.dtype))


def make_batched(sample: Sample) -> Sample | None:
    """Return the sample with rows as a batch, if its inputs share a leading size and each row has its own result."""
    sizes = {tensor.shape[0] if tensor.ndim else 0 for tensor in sample.inputs}
    if len(sizes) != 1 or (size := sizes.pop()) < 2:
        return None
    try:
        whole = _evaluate(sample, sample.inputs)
        order = torch.arange(size - 1, -1, -1)
        rows = [(_take_rows(sample.inputs, index), index) for index in (order, order[:1], order[:1].repeat(size + 1))]
        if not all(_are_close(_evaluate(sample, tensors), _take_rows(whole, index)) for tensors, index in rows):
            return None
    except Exception:
        return None
    (fresh,) = sample.fresh
    batches = (_take_rows(fresh, torch.arange(count) % size) for count in ROWS_OF_DATABASE)
    return dataclasses.replace(sample, fresh=tuple(batches), rows=size)


def _evaluate(sample: Sample, tensors: Tensors) -> Tensors:
    leaves = pytree.tree_leaves(sample.function(*(t.clone() for t in tensors)))
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise TypeError("not tensors")
    return tuple(leaves)


def _take_rows(tensors: Tensors, index: torch.Tensor) -> Tensors:
    return tuple(tensor[index] for tensor in tensors)


def _are_close(a: Tensors, b: Tensors) -> bool:
    return all(
        x.shape == y.shape and torch.allclose(x, y, rtol=1e-9, equal_nan=True) for x, y in zip(a, b, strict=True)
    )
