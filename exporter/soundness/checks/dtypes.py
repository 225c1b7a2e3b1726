"""Check of the other floating dtypes: the file moves to one by ``.to(dtype)``, and must then agree with the model.

Its process ends with the model in another dtype."""

from __future__ import annotations

import torch

from exporter.archive.contract import Finding
from exporter.model.eager.evaluation import eager_context
from exporter.model.source import Inputs
from exporter.soundness.check_context import CaptureContext, make_refusal, run_captured, run_eager
from exporter.soundness.execution_paths import locate_path_divergence

CHECK = "dtype"
_MEND = "compute the same for every dtype, with torch.finfo(x.dtype) kept in __init__"
# The complex one first: parameters stay as they are.
_OTHER_DTYPES = {torch.float64: (torch.complex128, torch.float32), torch.float32: (torch.complex64, torch.float64)}


def check(context: CaptureContext) -> list[Finding]:
    """Check that the capture agrees with the model in the other floating dtypes."""
    dtypes = {t.dtype for t in context.draws[0][1] if t.is_floating_point()}
    if len(dtypes) != 1 or not dtypes <= set(_OTHER_DTYPES):
        return []
    return [finding for dtype in _OTHER_DTYPES[dtypes.pop()] for finding in _check(context, dtype)]


def _check(context: CaptureContext, other_dtype: torch.dtype) -> list[Finding]:
    """Check one dtype. Where it is real, both modules stay in it."""
    source = context.source
    first = context.draws[0][1]
    with eager_context(source):
        first_cast = _cast(first, other_dtype)

        def run_in_other_dtype() -> None:
            _move_to_dtype(source.parameter_module, other_dtype)
            run_eager(source, first_cast)

        where = locate_path_divergence(lambda: run_eager(source, first), run_in_other_dtype)
        if not where:
            # The code takes the same path.
            return []
        _move_to_dtype(context.module, other_dtype)
        for label, inputs in context.draws[:12]:
            cast_inputs = _cast(inputs, other_dtype)
            expected, got = run_eager(source, cast_inputs), run_captured(context, cast_inputs)
            if isinstance(expected, str) or isinstance(got, str):
                continue
            for name, value in expected.items():
                a, b = got[name].to(torch.complex128), value.to(torch.complex128)
                scale = float(torch.nan_to_num(b.abs()).max()) if b.numel() else 0.0
                if a.shape == b.shape and not torch.allclose(a, b, rtol=1e-5, atol=1e-5 * scale, equal_nan=True):
                    what = f"the model computes something else in {str(other_dtype).removeprefix('torch.')}"
                    gap = float(torch.nan_to_num((a - b).abs()).max())
                    evidence = f"inputs: {label}: output {name!r} of the capture, moved there, differs by {gap:.3g}"
                    return [make_refusal(CHECK, what, where, evidence, _MEND)]
    return []


def _move_to_dtype(module: torch.nn.Module, dtype: torch.dtype) -> None:
    # Parameters stay real where inputs become complex: that is how such a model is called.
    if not dtype.is_complex:
        module.to(dtype)


def _cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)
