"""Settable parameters: setting one in the file changes outputs and Jacobian as it does in eager mode.

``w.data``, a cache made of parameters, or a slice of one kept as an attribute are constants to a trace: this is sound
as long as the contract does not offer them as settable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from exporter.archive.contract import Finding
from exporter.archive.derivative_request import Pair
from exporter.archive.method_names import METHOD
from exporter.common.errors import WarmupError
from exporter.common.tensors import is_finite
from exporter.common.torch_internals import optimized_execution
from exporter.model.eager.derivatives import compute_jacobian_blocks
from exporter.model.eager.evaluation import evaluate
from exporter.model.eager.warmup import Warmup
from exporter.model.source import Inputs

# Far above rounding, far below changes that could make the model's outputs non-finite.
CHANGE = 1e-3
RTOL = {torch.float64: 1e-9, torch.float32: 1e-5}


# A parameter and its name.
Named = tuple[str, torch.nn.Parameter]


def find_settable_parameters(
    warm: Warmup,
    module: torch.jit.ScriptModule,
    inputs: Inputs,
    generator: torch.Generator,
    pairs: Sequence[Pair],
    read_tensors: Mapping[str, str],
) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Return the names of the parameters that are alive in the trace, and a finding for each other one.

    ``pairs`` are the blocks that the method ``jacobian`` returns after the outputs; ``read_tensors`` are the names of
    those whose numbers Python reads, and the lines.

    Parameters are changed in place, eager mode and trace are compared, and the old values restored. The trace holds the
    model's own tensors, so both see the change."""
    named = list(warm.source.parameter_module.named_parameters())
    dead = {name for name, _ in named if name in read_tensors}
    findings = [
        _make_constant_finding(n, f"Python reads its numbers at {read_tensors[n]}") for n, _ in named if n in dead
    ]
    agree = functools.partial(_agree, warm, module, inputs, generator=generator, pairs=pairs)
    for change, is_changed in ((_scale, _is_scaled), (_shift, _is_unscaled)):
        parameters = [(n, p) for n, p in named if n not in dead and is_changed(p)]
        if not parameters or agree(parameters, change) is True:
            continue
        for name, parameter in parameters:
            is_alive = agree([(name, parameter)], change)
            if is_alive is None:
                what = f"parameter {name!r} was not checked with another value"
                reason = "eager mode fails or is not finite with another value"
                findings.append(Finding("parameters", what, reason=reason))
            elif not is_alive:
                dead.add(name)
                reason = "the model reads it through .data, .item(), NumPy or a cached value"
                findings.append(_make_constant_finding(name, reason))
    return tuple(name for name, _ in named if name not in dead), tuple(dict.fromkeys(findings))


def _make_constant_finding(name: str, reason: str) -> Finding:
    what = f"parameter {name!r} is a constant in the file, which does not offer it as settable"
    return Finding("parameters", what, reason=reason)


def _is_scaled(parameter: torch.Tensor) -> bool:
    """Return whether a factor changes a parameter."""
    return bool(parameter.dtype.is_floating_point or parameter.dtype.is_complex) and bool(parameter.detach().any())


def _is_unscaled(parameter: torch.Tensor) -> bool:
    """Return whether a factor leaves some of a parameter as it is: zeros, and what has no fractions."""
    return parameter.numel() > 0 and (not _is_scaled(parameter) or not bool(parameter.detach().all()))


def _scale(parameter: torch.Tensor, generator: torch.Generator) -> None:
    noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
    parameter.mul_((1 + CHANGE * (0.5 + noise)).to(parameter.dtype))


def _shift(parameter: torch.Tensor, generator: torch.Generator) -> None:
    if parameter.dtype == torch.bool:
        parameter.logical_not_()
    elif parameter.dtype.is_floating_point or parameter.dtype.is_complex:
        parameter.add_((CHANGE * (0.5 + torch.rand(parameter.shape, generator=generator))).to(parameter.dtype))
    else:
        parameter.add_(1)


def _agree(
    warm: Warmup,
    module: torch.jit.ScriptModule,
    inputs: Inputs,
    parameters: list[Named],
    change: Callable[[torch.Tensor, torch.Generator], None],
    *,
    generator: torch.Generator,
    pairs: Sequence[Pair],
) -> bool | None:
    old_values = [parameter.detach().clone() for _, parameter in parameters]
    try:
        with torch.no_grad():
            for _, parameter in parameters:
                change(parameter, generator)
        try:
            outputs = evaluate(warm.source, tuple(t.clone() for t in inputs))
            expected = tuple(outputs.values())
            floors = [0.0] * len(expected)
            if pairs:
                expected += tuple(compute_jacobian_blocks(warm.source, inputs, pairs).values())
                # Scales for derivatives that are zero except for rounding.
                sizes = {n: _max_abs(p) for n, p in warm.source.parameter_module.named_parameters()}
                sizes |= {s.name: _max_abs(t) for s, t in zip(warm.source.inputs, inputs, strict=True)}
                floors += [_max_abs(outputs[output]) / sizes[wrt] if sizes[wrt] else 0.0 for output, wrt in pairs]
        except WarmupError:
            return None
        if not all(map(is_finite, expected)):
            return None
        try:
            with optimized_execution(False):
                actual = getattr(module, "jacobian" if pairs else METHOD)(*inputs)
        except RuntimeError:
            # The soundness gate judges a trace that does not run at all.
            return None
    finally:
        with torch.no_grad():
            for (_, parameter), value in zip(parameters, old_values, strict=True):
                parameter.copy_(value)
    return all(_is_close(a, b, floor) for a, b, floor in zip(actual, expected, floors, strict=True))


def _max_abs(value: torch.Tensor) -> float:
    return float(value.detach().abs().max()) if value.numel() else 0.0


def _is_close(actual: torch.Tensor, expected: torch.Tensor, floor: float) -> bool:
    if not expected.is_floating_point() or expected.numel() == 0:
        return True
    scale = max(float(expected.abs().max()), floor)
    rtol = RTOL.get(expected.dtype, 1e-2)
    return torch.allclose(actual, expected.expand(actual.shape), rtol=rtol, atol=rtol * scale)
