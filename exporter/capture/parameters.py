"""Parameters must be alive in the trace: setting one in the file must change the outputs as it does in eager mode.

``w.data``, a cache made of parameters, or a slice of one kept as an attribute are constants to a trace.
"""

from __future__ import annotations

import torch
from torch.jit._fuser import optimized_execution

from exporter.capture.boxes import METHOD
from exporter.contract import Finding
from exporter.eager import evaluate
from exporter.errors import CaptureError, WarmupError
from exporter.sources.source import Inputs
from exporter.warmup import Warmup, finite

# Far above rounding, far below what could leave the range in which the model is finite.
CHANGE = 1e-3
RTOL = {torch.float64: 1e-9, torch.float32: 1e-5}


def refuse_frozen_parameters(
    warm: Warmup, module: torch.jit.ScriptModule, inputs: Inputs, generator: torch.Generator
) -> tuple[Finding, ...]:
    """Change parameters in place, compare eager mode and trace, put them back. Call it under no_grad.

    The trace holds the very tensors of the model, so both see the change. Raises ``CaptureError`` naming the
    parameter; what cannot be compared, because eager mode fails with the changed value, comes back as a finding.
    """
    parameters = [(n, p) for n, p in warm.source.named.named_parameters() if p.dtype.is_floating_point]
    if not parameters or _agree(warm, module, inputs, parameters, generator) is True:
        return ()
    findings = []
    for name, parameter in parameters:
        agree = _agree(warm, module, inputs, [(name, parameter)], generator)
        if agree is None:
            findings.append(
                Finding(
                    "parameters",
                    f"parameter {name!r} was not changed for a comparison",
                    reason="eager mode fails or is not finite with another value",
                )
            )
        elif not agree:
            raise CaptureError(
                f"parameter {name!r} of model {warm.source.name!r} is a constant in the trace",
                got="outputs that do not change as eager mode's when it is set",
                expected="a parameter that can be set after loading",
                mend="compute with the parameter itself in forward: no .data, .item() or NumPy, no cache made of it",
            )
    return tuple(findings)


def _agree(
    warm: Warmup,
    module: torch.jit.ScriptModule,
    inputs: Inputs,
    parameters: list[tuple[str, torch.nn.Parameter]],
    generator: torch.Generator,
) -> bool | None:
    before = [parameter.detach().clone() for _, parameter in parameters]
    try:
        for _, parameter in parameters:
            noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.mul_((1 + CHANGE * (0.5 + noise)).to(parameter.dtype))
        try:
            wanted = tuple(evaluate(warm.source, tuple(t.clone() for t in inputs)).values())
        except WarmupError:
            return None
        if not all(map(finite, wanted)):
            return None
        with optimized_execution(False):
            got = getattr(module, METHOD)(*inputs)
    finally:
        for (_, parameter), value in zip(parameters, before, strict=True):
            parameter.copy_(value)
    return all(_close(a, b) for a, b in zip(got, wanted, strict=True))


def _close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    if not wanted.is_floating_point() or wanted.numel() == 0:
        return True
    scale = float(wanted.abs().max())
    rtol = RTOL.get(wanted.dtype, 1e-2)
    return torch.allclose(got, wanted.expand(got.shape), rtol=rtol, atol=rtol * scale)
