"""Eager mode, the reference for every number: one way to run a source and to name what it returns."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.backends import opt_einsum
from torch.nn.attention import SDPBackend, sdpa_kernel

from exporter.archive.tensor_spec import FLOATING
from exporter.common.errors import CaptureError, TorchferryError, WarmupError, first_line
from exporter.common.user_code import NOT_THE_USERS
from exporter.model.source import Inputs, Source


@contextlib.contextmanager
def inference_conditions(source: Source) -> Iterator[None]:
    """No gradients, no parameter that asks for one, one thread, and the default dtype the source is meant for.

    Parameters that require grad make neml2 call an ``autograd.Function``, which a trace cannot hold. A model that
    takes gradients itself has them on, its parameters as they are, and attention in the form that it is captured in:
    torch's fused kernels differ in rounding, and belong to a device. All is put back afterwards: the module belongs to
    the user.
    """
    asked = [p for p in source.named.parameters() if p.requires_grad and not source.differentiates]
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    for parameter in asked:
        parameter.requires_grad_(False)
    torch.set_default_dtype(source.default_dtype)
    torch.set_num_threads(1)
    try:
        with torch.set_grad_enabled(source.differentiates), gradients_kept(source):
            with as_captured() if source.differentiates else contextlib.nullcontext():
                yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        for parameter in asked:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def as_captured() -> Iterator[None]:
    """Forms of operations that are the same for every device and size: attention by its formula, sums of products from
    left to right."""
    ordered, opt_einsum.enabled = opt_einsum.enabled, False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        opt_einsum.enabled = ordered


@contextlib.contextmanager
def gradients_kept(source: Source) -> Iterator[None]:
    """What a model leaves in ``.grad`` of its parameters is gone afterwards; it finds none, and what the user has there
    is not touched."""
    before = [(p, p.grad) for p in source.named.parameters() if source.differentiates]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def evaluate(source: Source, inputs: Inputs, *, attached: bool = False) -> dict[str, torch.Tensor]:
    """Outputs by name. Call it under ``inference_conditions``.

    ``attached``: with what autograd keeps of a model that takes gradients itself. What the model raises comes out as
    ``WarmupError`` with the line that raised it.
    """
    if source.differentiates and not attached:
        # It may ask for gradients by its inputs, which belong to the caller, and return .grad, which it writes to.
        outputs = evaluate(source, tuple(t.detach() for t in inputs), attached=True)
        return {name: value.detach().clone() for name, value in outputs.items()}
    try:
        result = source.module(*inputs)
    except TorchferryError:
        raise
    except Exception as error:
        shapes = zip(source.inputs, inputs, strict=True)
        integers = any(spec.dtype not in FLOATING for spec in source.inputs) and not source.calls
        raise WarmupError(
            f"model {source.name!r} fails in eager mode",
            check="eager mode",
            where=raised_at(error),
            got=first_line(error),
            expected="outputs for inputs " + "; ".join(f"{s.name} {list(t.shape)} {s.dtype}" for s, t in shapes),
            mend="give inputs that the model is meant for: --inputs FILE, or mend its signature (shapes, dtypes)"
            + "; a leading batch is implied: batch_ndim=0 where the shapes are whole" * bool(source.batch_ndim)
            + ("; integers were drawn as 0 and 1: a TensorSpec may say sampling=Sampling('uniform', 0, 10)" * integers),
        ) from error
    return flatten(result, source)


def raised_at(error: BaseException) -> str:
    """``file:line`` of the innermost frame of an exception that is neither torch's nor torchferry's."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(NOT_THE_USERS):
            where = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where


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
                check="outputs",
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
                check="outputs",
                where=f"output {name!r}" + _forward_of(source),
                got=type(value).__name__ if isinstance(name, str) else f"the key {name!r}",
                expected="a tensor, or a tuple or dict (by name) of tensors",
                mend="return tensors only; wrap the module in one whose forward picks them out",
            )
        if value.layout != torch.strided:
            raise CaptureError(
                f"model {source.name!r} returns a sparse tensor",
                check="outputs",
                where=f"output {name!r}" + _forward_of(source),
                got=str(value.layout),
                expected="a dense tensor",
                mend="return value.to_dense()",
            )
    if not named:
        raise CaptureError(f"model {source.name!r} returns nothing", check="outputs", expected="at least one tensor")
    if declared and list(named) != declared:
        if set(named) != set(declared):
            raise CaptureError(
                f"model {source.name!r} does not return the outputs that it declares",
                check="outputs",
                got=", ".join(named),
                expected=", ".join(declared),
            )
        named = {name: named[name] for name in declared}
    return named


def forward_line(source: Source) -> str:
    """Where the model's ``forward`` begins: the place of last resort for a finding about the whole."""
    code = forward_code(source.named)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def forward_code(module: nn.Module) -> CodeType | None:
    """Of a function that was made a module, the function's."""
    own = vars(module).get("forward")
    return getattr(inspect.unwrap(own) if own is not None else getattr(type(module), "forward", None), "__code__", None)


def _forward_of(source: Source) -> str:
    line = forward_line(source)
    return f", of forward at {line}" if line else ""
