"""The other floating dtype: the file moves to it by ``.to(dtype)``, and must then compute what the model does there."""

from __future__ import annotations

import torch

from exporter.archive.contract import Finding
from exporter.common.forking import isolated
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.source import Inputs
from exporter.soundness.check_context import Subject, captured, eager
from exporter.soundness.execution_paths import where_paths_part

CHECK = "dtype"
_OTHER = {
    torch.float64: (torch.float32, torch.complex128),
    torch.float32: (torch.float64, torch.complex64),
}


def check(subject: Subject) -> list[Finding]:
    kinds = {t.dtype for t in subject.draws[0][1] if t.is_floating_point()}
    if len(kinds) != 1 or not kinds <= set(_OTHER):
        return []
    return [found for other in _OTHER[kinds.pop()] for found in isolated(_check, subject, other)]


def _check(subject: Subject, other: torch.dtype) -> list[Finding]:
    """The process ends with the module in the other dtype."""
    source = subject.source
    first = subject.draws[0][1]
    with inference_conditions(source):
        moved = _cast(first, other)

        def in_other() -> None:
            _move(source.named, other)
            eager(source, moved)

        where = where_paths_part(lambda: eager(source, first), in_other)
        if not where:
            # The code takes the same way.
            return []
        _move(subject.module, other)
        for label, inputs in subject.draws[:12]:
            given = _cast(inputs, other)
            wanted, got = eager(source, given), captured(subject, given)
            if isinstance(wanted, str) or isinstance(got, str):
                continue
            for name, value in wanted.items():
                a, b = got[name].to(torch.complex128), value.to(torch.complex128)
                scale = float(torch.nan_to_num(b.abs()).max()) if b.numel() else 0.0
                if a.shape == b.shape and not torch.allclose(a, b, rtol=1e-5, atol=1e-5 * scale, equal_nan=True):
                    return [
                        Finding(
                            CHECK,
                            f"the model computes something else in {str(other).removeprefix('torch.')}",
                            where,
                            severity="unsound",
                            evidence=f"inputs: {label}: output {name!r} of the capture, moved there, differs by "
                            f"{float(torch.nan_to_num((a - b).abs()).max()):.3g}",
                            mend="compute the same for every dtype, with torch.finfo(x.dtype) kept in __init__",
                        )
                    ]
    return []


def _move(module: torch.nn.Module, dtype: torch.dtype) -> None:
    # Parameters stay real where inputs become complex: that is how such a model is called.
    if not dtype.is_complex:
        module.to(dtype)


def _cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)
