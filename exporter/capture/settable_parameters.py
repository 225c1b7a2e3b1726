"""Which parameters are alive in the file: setting one changes outputs and Jacobian as it does in eager mode.

``w.data``, a cache made of parameters, or a slice of one kept as an attribute are constants to a trace: sound as long
as the contract does not offer them to be set.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.jit._fuser import optimized_execution

from exporter.archive.contract import Finding
from exporter.archive.derivative_request import Pair
from exporter.archive.method_names import METHOD
from exporter.common.errors import WarmupError
from exporter.common.tensors import finite
from exporter.model.eager.derivatives import blocks
from exporter.model.eager.evaluation import evaluate
from exporter.model.eager.warmup import Warmup
from exporter.model.source import Inputs

# Far above rounding, far below what could leave the range in which the model is finite.
CHANGE = 1e-3
RTOL = {torch.float64: 1e-9, torch.float32: 1e-5}


def settable(
    warm: Warmup,
    module: torch.jit.ScriptModule,
    inputs: Inputs,
    generator: torch.Generator,
    pairs: Sequence[Pair] = (),
) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Names of the parameters that are alive in the trace, and a finding for each of the others.

    ``pairs`` are the blocks that the method ``jacobian`` returns behind the outputs.

    Parameters are changed in place, eager mode and trace compared, and the old values put back. The trace holds the
    very tensors of the model, so both see the change.
    """
    named = list(warm.source.named.named_parameters())
    parameters = [(n, p) for n, p in named if p.dtype.is_floating_point]
    if not parameters or _agree(warm, module, inputs, parameters, generator, pairs) is True:
        return tuple(name for name, _ in named), ()
    findings, dead = [], set()
    for name, parameter in parameters:
        agree = _agree(warm, module, inputs, [(name, parameter)], generator, pairs)
        if agree is None:
            findings.append(
                Finding(
                    "parameters",
                    f"parameter {name!r} was not changed for a comparison",
                    reason="eager mode fails or is not finite with another value",
                )
            )
        elif not agree:
            dead.add(name)
            findings.append(
                Finding(
                    "parameters",
                    f"parameter {name!r} is a constant in the file, which does not offer it to be set",
                    reason="the model reads it through .data, .item(), NumPy or a cache made of it",
                )
            )
    return tuple(name for name, _ in named if name not in dead), tuple(findings)


def _agree(
    warm: Warmup,
    module: torch.jit.ScriptModule,
    inputs: Inputs,
    parameters: list[tuple[str, torch.nn.Parameter]],
    generator: torch.Generator,
    pairs: Sequence[Pair],
) -> bool | None:
    before = [parameter.detach().clone() for _, parameter in parameters]
    try:
        with torch.no_grad():
            for _, parameter in parameters:
                noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.mul_((1 + CHANGE * (0.5 + noise)).to(parameter.dtype))
        try:
            outputs = evaluate(warm.source, tuple(t.clone() for t in inputs))
            wanted = tuple(outputs.values())
            floors = [0.0] * len(wanted)
            if pairs:
                wanted += tuple(blocks(warm.source, inputs, pairs).values())
                # A derivative that is zero but for rounding.
                sizes = {n: _size(p) for n, p in warm.source.named.named_parameters()}
                sizes |= {s.name: _size(t) for s, t in zip(warm.source.inputs, inputs, strict=True)}
                floors += [_size(outputs[of]) / sizes[by] if sizes[by] else 0.0 for of, by in pairs]
        except WarmupError:
            return None
        if not all(map(finite, wanted)):
            return None
        try:
            with optimized_execution(False):
                got = getattr(module, "jacobian" if pairs else METHOD)(*inputs)
        except RuntimeError:
            # A trace that does not run at all is for the soundness gate to judge.
            return None
    finally:
        with torch.no_grad():
            for (_, parameter), value in zip(parameters, before, strict=True):
                parameter.copy_(value)
    return all(_close(a, b, floor) for a, b, floor in zip(got, wanted, floors, strict=True))


def _size(value: torch.Tensor) -> float:
    return float(value.detach().abs().max()) if value.numel() else 0.0


def _close(got: torch.Tensor, wanted: torch.Tensor, floor: float) -> bool:
    if not wanted.is_floating_point() or wanted.numel() == 0:
        return True
    scale = max(float(wanted.abs().max()), floor)
    rtol = RTOL.get(wanted.dtype, 1e-2)
    return torch.allclose(got, wanted.expand(got.shape), rtol=rtol, atol=rtol * scale)
