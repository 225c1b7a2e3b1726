"""Eager mode, the reference for all numbers: evaluation of a source, and the names of its outputs."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.backends import opt_einsum
from torch.nn.attention import SDPBackend, sdpa_kernel

from exporter.archive.tensor_spec import FLOATING
from exporter.archive.value_structure import Structure
from exporter.common.control_flow import run_control_flow
from exporter.common.errors import CaptureError, TorchferryError, WarmupError, summarize_error
from exporter.common.torch_internals import optimized_execution
from exporter.common.user_code import OWN_SOURCES, user_traceback_location
from exporter.model.argument_structures import describe_value, flatten_value
from exporter.model.compiled_model import CompiledModel
from exporter.model.source import Inputs, Source


@contextlib.contextmanager
def eager_context(source: Source) -> Iterator[None]:
    """Switch off gradients, also of parameters; use one thread and the source's default dtype.

    Parameters that require grad make neml2 call an ``autograd.Function``, which a trace cannot hold. A model that
    takes gradients itself has them on, its parameters unchanged, and attention in the form that is captured:
    torch's fused kernels differ in rounding, and belong to a device. All is restored afterwards: the module belongs to
    the user."""
    parameters = [p for p in source.parameter_module.parameters() if p.requires_grad and not source.uses_autograd]
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    for parameter in parameters:
        parameter.requires_grad_(False)
    torch.set_default_dtype(source.default_dtype)
    torch.set_num_threads(1)
    try:
        # torch's optimiser of functions in TorchScript may round in another way from the second call on.
        is_plain = optimized_execution(False)
        with torch.set_grad_enabled(source.uses_autograd), preserve_grads(source), run_control_flow(), is_plain:
            with deterministic_kernels() if source.uses_autograd else contextlib.nullcontext():
                yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        for parameter in parameters:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def deterministic_kernels() -> Iterator[None]:
    """Use forms of operations that are the same for every device and size: attention by its formula, sums of products
    from left to right."""
    was_enabled, opt_einsum.enabled = opt_einsum.enabled, False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        opt_einsum.enabled = was_enabled


@contextlib.contextmanager
def preserve_grads(source: Source) -> Iterator[None]:
    """Clear ``.grad`` of the parameters for the model and restore the user's afterwards, dropping what the model leaves
    there."""
    saved_grads = [(p, p.grad) for p in source.parameter_module.parameters() if source.uses_autograd]
    for parameter, _ in saved_grads:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in saved_grads:
            parameter.grad = gradient


def evaluate(source: Source, inputs: Inputs, *, attached: bool = False) -> dict[str, torch.Tensor]:
    """Return outputs by name. Call it under ``eager_context``.

    ``attached``: keep the autograd graph of a model that takes gradients itself. An exception of the model becomes a
    ``WarmupError`` with the line that raised it."""
    if source.uses_autograd and not attached:
        # It may take gradients with respect to its inputs, the caller's own, and return .grad, which it writes.
        outputs = evaluate(source, tuple(t.detach() for t in inputs), attached=True)
        return {name: value.detach().clone() for name, value in outputs.items()}
    try:
        result = call_model(source, inputs)
    except TorchferryError:
        raise
    except Exception as error:
        shapes = zip(source.inputs, inputs, strict=True)
        raise WarmupError(
            f"model {source.name!r} fails in eager mode",
            check="eager mode",
            where=user_traceback_location(error),
            got=summarize_error(error),
            expected="outputs for inputs " + "; ".join(f"{s.name} {list(t.shape)} {s.dtype}" for s, t in shapes),
            mend=_suggest_mend(error, source),
        ) from error
    return normalize_outputs(result, source)


def call_model(source: Source, inputs: Sequence[torch.Tensor]) -> Any:
    """Call the model; where it would end the process (``sys.exit``), raise ``RuntimeError``."""
    try:
        return source.module(*inputs)
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        ending = RuntimeError(f"the model ends its process: {summarize_error(error)}")
        raise ending.with_traceback(error.__traceback__) from None


def _suggest_mend(error: Exception, source: Source) -> str:
    if "cannot register a hook" in str(error):
        return "a file is captured without gradients: if x.requires_grad: x.register_hook(...)"
    mend = "pass inputs in the range the model is made for: --inputs FILE, or fix its signature (shapes, dtypes)"
    if source.batch_ndim:
        mend += "; a batch is implied: if shapes are whole, --batch no, or batch_ndim=0 in its signature"
    if any(spec.dtype not in FLOATING for spec in source.inputs) and not source.calls:
        mend += "; integers were drawn as 0 and 1: a TensorSpec may set sampling=Sampling('uniform', 0, 10)"
    return mend


def evaluate_on_copies(source: Source, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Return copies of the outputs by name for copies of these inputs. Call it under ``eager_context``."""
    outputs = evaluate(source, tuple(t.clone() for t in inputs))
    return {name: value.detach().clone() for name, value in outputs.items()}


def expand_constants(
    outputs: Mapping[str, torch.Tensor], constant: Sequence[bool], inputs: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the outputs, with those that are ``constant`` expanded to the batch of the ``inputs``."""
    if not any(constant):
        return dict(outputs)
    size, rows = inputs[0].shape[0], zip(outputs.items(), constant, strict=True)
    return {name: value.expand((size, *value.shape)) if expands else value for (name, value), expands in rows}


def normalize_outputs(result: Any, source: Source) -> dict[str, torch.Tensor]:
    """Return a tensor, a tuple, a named tuple or a dict of tensors as a dict; raise ``CaptureError`` for the rest."""
    declared = [spec.name for spec in source.outputs]
    values = result if isinstance(result, (tuple, list)) else [result]
    # Names that an earlier run gave are those of the tensors in the result.
    is_named = source.declares_outputs or all(isinstance(value, torch.Tensor) for value in values)
    given_names = declared if is_named else []
    if isinstance(result, Mapping):
        # Nobody can change what a file of others returns.
        leaves_out_none = isinstance(source.parameter_module, CompiledModel)
        outputs: dict[Any, Any] = {n: v for n, v in result.items() if v is not None or not leaves_out_none}
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        outputs = result._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(result, (tuple, list)):
        names = given_names or [f"output_{i}" for i in range(len(result))]
        if len(names) != len(result):
            what = f"model {source.name!r} does not return the outputs that it declares"
            expected, mend = f"{len(names)}: {', '.join(names)}", "declare every output in the signature, in order"
            raise CaptureError(what, check="outputs", got=f"{len(result)} outputs", expected=expected, mend=mend)
        pairs = zip(names, result, strict=True)
        outputs = {name: value for name, value in pairs if value is not None or source.declares_outputs}
    else:
        outputs = {(given_names or ["output"])[0]: result}
    outputs = _flatten_outputs(outputs)
    for name, value in outputs.items():
        is_tensor = isinstance(value, torch.Tensor) and isinstance(name, str)
        if is_tensor and value.layout == torch.strided:
            continue
        line = find_forward_line(source)
        where = f"output {name!r}" + (f", of forward at {line}" if line else "")
        if is_tensor:
            what, got = f"model {source.name!r} returns a sparse tensor", str(value.layout)
            mend = "return value.to_dense()"
            raise CaptureError(what, check="outputs", where=where, got=got, expected="a dense tensor", mend=mend)
        raise CaptureError(
            f"model {source.name!r} returns something that is not a tensor",
            check="outputs",
            where=where,
            got=type(value).__name__ if isinstance(name, str) else f"the key {name!r}",
            expected="a tensor, or a tuple or dict (by name) of tensors",
            mend="return tensors only; wrap the module in one whose forward selects them",
        )
    if not outputs:
        raise CaptureError(f"model {source.name!r} returns nothing", check="outputs", expected="at least one tensor")
    if declared and list(outputs) != declared:
        if set(outputs) != set(declared):
            what = f"model {source.name!r} does not return the outputs that it declares"
            raise CaptureError(what, check="outputs", got=", ".join(outputs), expected=", ".join(declared))
        outputs = {name: outputs[name] for name in declared}
    return outputs


def _flatten_outputs(outputs: dict[Any, Any]) -> dict[Any, Any]:
    """Return outputs with those that hold several values taken apart; what is None in them is left out."""
    if all(isinstance(value, torch.Tensor) for value in outputs.values()):
        return outputs
    flat: dict[Any, Any] = {}
    for name, value in outputs.items():
        for place, leaf in flatten_value(name, value)[0]:
            if place in flat:
                what, mend = f"two outputs have the name {place!r}", "give them other keys, without dots"
                raise CaptureError(what, check="outputs", expected="a name for each output", mend=mend)
            if leaf is not None or place == name:
                flat[place] = leaf
    return flat


def describe_results(source: Source, inputs: Inputs) -> Structure:
    """Return the structure of what the model returns; empty for one tensor, and for the tuple of the outputs.

    Call it under ``eager_context``."""
    result = source.module(*(t.detach().clone() for t in inputs))
    outputs = normalize_outputs(result, source)
    # One tensor may be returned under several names.
    names: dict[int, list[str]] = {}
    for name, value in outputs.items():
        names.setdefault(id(value), []).append(name)
    nodes = describe_value(
        result, lambda _, leaf: names[id(leaf)].pop(0) if names.get(id(leaf)) else "", torch.is_tensor
    )
    is_plain = isinstance(result, torch.Tensor) or (
        type(result) is tuple and len(result) > 1 and [node.name for node in nodes[1:]] == list(outputs)
    )
    return () if is_plain else nodes


def find_forward_line(source: Source) -> str:
    """Return where the model's ``forward`` begins, the fallback location for a finding about the whole model.

    Of a forward that is torchferry's own, as that of a composition, it is the file that the model is from."""
    code = get_forward_code(source.parameter_module)
    if code is not None and code.co_filename.startswith(OWN_SOURCES):
        return next(iter(source.origin.files), "")
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def get_forward_code(module: nn.Module) -> CodeType | None:
    """Return the code of ``forward``; for a module made from a function, the function's."""
    own = vars(module).get("forward")
    forward = inspect.unwrap(own) if own is not None else getattr(type(module), "forward", None)
    return getattr(forward, "__code__", None)
