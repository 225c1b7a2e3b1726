"""Eager mode, the reference for every number: one way to run a source and to name what it returns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from exporter.errors import CaptureError
from exporter.sources.source import Inputs, Source


@contextlib.contextmanager
def inference_conditions(source: Source) -> Iterator[None]:
    """No gradients, no parameter that asks for one, one thread, and the default dtype the source is meant for.

    Parameters that require grad make neml2 call an ``autograd.Function``, which a trace cannot hold. All is put
    back afterwards: the module belongs to the user.
    """
    asked = [p for p in source.named.parameters() if p.requires_grad]
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    for parameter in asked:
        parameter.requires_grad_(False)
    torch.set_default_dtype(source.default_dtype)
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        for parameter in asked:
            parameter.requires_grad_(True)


def evaluate(source: Source, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Outputs by name. Call it under ``inference_conditions``."""
    return flatten(source.module(*inputs), source)


def flatten(result: Any, source: Source) -> dict[str, torch.Tensor]:
    """A tensor, a tuple, a named tuple or a dict of tensors as a dict; raises ``CaptureError`` for the rest."""
    declared = [spec.name for spec in source.outputs]
    if isinstance(result, torch.Tensor):
        named: dict[Any, Any] = {(declared or ["output"])[0]: result}
    elif isinstance(result, Mapping):
        named = dict(result)
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        named = result._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(result, (tuple, list)):
        names = declared or [f"output_{i}" for i in range(len(result))]
        if len(names) != len(result):
            raise CaptureError(
                f"model {source.name!r} does not return the outputs that it declares",
                got=f"{len(result)} outputs",
                expected=f"{len(names)}: {', '.join(names)}",
                mend="declare every output in the signature, in order",
            )
        named = dict(zip(names, result, strict=True))
    else:
        named = {(declared or ["output"])[0]: result}
    for name, value in named.items():
        if not isinstance(value, torch.Tensor) or not isinstance(name, str):
            raise CaptureError(
                f"model {source.name!r} returns something that is not a tensor",
                where=f"output {name!r}",
                got=type(value).__name__ if isinstance(name, str) else f"the key {name!r}",
                expected="a tensor, or a tuple or dict (by name) of tensors",
                mend="return tensors only; wrap the module in one whose forward picks them out",
            )
    if not named:
        raise CaptureError(f"model {source.name!r} returns nothing", expected="at least one tensor")
    if declared and list(named) != declared:
        if set(named) != set(declared):
            raise CaptureError(
                f"model {source.name!r} does not return the outputs that it declares",
                got=", ".join(named),
                expected=", ".join(declared),
            )
        named = {name: named[name] for name in declared}
    return named


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and bytes: NaN equals NaN, 0.0 is not -0.0."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.numel() == 0 or a.device.type == "meta":
        return True
    left, right = (t.detach().contiguous().reshape(-1).resolve_conj().resolve_neg().view(torch.uint8) for t in (a, b))
    return torch.equal(left, right)


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters and buffers, buffers that ``state_dict`` leaves out included."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: value.detach().clone() for name, value in named}
