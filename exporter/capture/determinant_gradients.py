"""Gradients of small determinants by cofactors.

Where a gradient is differentiated again, torch has a formula for regular matrices and one, by singular values, for
singular ones. Which matrices are which it asks the numbers, or takes the second formula for all while it is traced:
that fails for values that are not finite, and is not differentiable where singular values are equal, as those of an
undeformed body's deformation gradient are. Source: linalg_det_backward in torch/csrc/autograd/FunctionsManual.cpp."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from exporter.common.torch_hooks import FunctionHook
from exporter.model.source import Source

# Rows of the largest matrix whose cofactors are written out.
LARGEST = 3
_DETERMINANTS = (torch.det, torch.linalg.det, torch.Tensor.det)


class SmallDeterminants(FunctionHook):
    """A mode in which determinants of small matrices have gradients by cofactors; their values are torch's.

    It sees the calls of Python: a part in TorchScript keeps torch's gradients."""

    def intercept(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of the call."""
        if func in _DETERMINANTS and len(args) + len(kwargs) == 1:
            matrix = next(iter((*args, *kwargs.values())))
            if isinstance(matrix, torch.Tensor) and _has_small_gradient(matrix):
                return _SmallDeterminant.apply(matrix)
        return func(*args, **kwargs)


def has_other_gradients(source: Source, operators: Collection[str]) -> bool:
    """Return whether a model takes gradients that its capture, which has these ``operators``, computes by another
    formula than eager mode."""
    return source.uses_autograd and "aten::_linalg_det" in operators


def _has_small_gradient(matrix: torch.Tensor) -> bool:
    is_square = matrix.ndim > 1 and matrix.shape[-1] == matrix.shape[-2]
    return is_square and matrix.requires_grad and not matrix.is_complex() and matrix.shape[-1] in range(1, LARGEST + 1)


class _SmallDeterminant(torch.autograd.Function):
    # For the transforms of torch.func.
    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: torch.Tensor) -> torch.Tensor:
        return torch.linalg.det(matrix)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (matrix,) = ctx.saved_tensors
        return grads[0][..., None, None] * compute_cofactors(matrix)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        (matrix,) = ctx.saved_tensors
        return (compute_cofactors(matrix) * tangents[0]).sum((-1, -2))


def compute_cofactors(matrix: torch.Tensor) -> torch.Tensor:
    """Return the cofactors of matrices ``(..., n, n)`` with ``n`` at most 3: the gradient of the determinant.

    Those of three rows are cross products of the other two, in turn."""
    if matrix.shape[-1] == 1:
        return torch.ones_like(matrix)
    if matrix.shape[-1] == 2:
        signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=matrix.dtype, device=matrix.device)
        return matrix.flip(-1, -2) * signs
    second, third = matrix.roll(-1, -2), matrix.roll(-2, -2)
    return second.roll(-1, -1) * third.roll(-2, -1) - second.roll(-2, -1) * third.roll(-1, -1)
