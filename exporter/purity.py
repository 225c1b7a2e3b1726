"""What eager mode must be before it can be the reference: ready, in eval mode, repeatable, without side effects."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from exporter.eager import changes, evaluate, same_bits, state
from exporter.errors import CaptureError, WarmupError
from exporter.reads import ReadRecorder
from exporter.sources.source import Inputs, Source

RUNS = 3


def refuse_training(source: Source) -> None:
    training = [name or "the model itself" for name, m in source.named.named_modules() if m.training]
    if training:
        raise WarmupError(
            f"model {source.name!r} is in train mode although eval() was called",
            where="submodule " + ", ".join(training[:5]),
            got="training = True",
            expected="training = False everywhere: dropout and batch statistics off",
            mend="do not override train() or eval(), and do not call train() in the factory's hooks",
        )


def refuse_unready(source: Source) -> None:
    """A lazy layer without parameters yet, and layers that are compiled already, cannot be captured."""
    for name, module in source.named.named_modules():
        tensors = (*module._parameters.values(), *module._buffers.values())
        if any(t is not None and is_lazy(t) for t in tensors):
            raise WarmupError(
                f"model {source.name!r} has a lazy layer that has not run yet",
                where=f"submodule {name!r}",
                expected="parameters with shapes",
                mend="call the model once in the factory before returning it",
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"model {source.name!r} holds a module that is TorchScript already",
                where=f"submodule {name!r}",
                got=type(module).__name__,
                expected="modules in Python",
                mend="return the module before torch.jit.script or torch.jit.trace",
            )


def repeat(source: Source, inputs: Inputs, first: dict[str, torch.Tensor], before: dict[str, Any]) -> None:
    """Run again on equal inputs: outputs must agree with the ``first`` to the bit, and all must stay as it was."""
    _refuse_changes(source, changes(before, state(source.named)))
    pristine = tuple(t.clone() for t in inputs)
    for run in range(2, RUNS + 1):
        versions = [t._version for t in inputs]
        outputs = {name: value.clone() for name, value in evaluate(source, inputs).items()}
        touched = [
            f"input {spec.name!r}"
            for spec, new, old, version in zip(source.inputs, inputs, pristine, versions, strict=True)
            if new._version != version or not same_bits(new, old)
        ]
        _refuse_changes(source, touched + changes(before, state(source.named)))
        for name, value in outputs.items():
            if not same_bits(value, first[name]):
                raise WarmupError(
                    f"model {source.name!r} gives other outputs for equal inputs",
                    where=f"output {name!r}, run {run} against run 1",
                    got=_difference(value, first[name]),
                    expected="equal bits: no random numbers, no hidden state",
                    mend="remove dropout, noise, counters and caches from forward",
                )
    recorder = ReadRecorder()
    # A run of its own: torch's fused layers step aside for a recorder, and round otherwise.
    with recorder:
        evaluate(source, tuple(t.clone() for t in inputs))
    if recorder.reads:
        read = recorder.reads[0]
        raise WarmupError(
            f"model {source.name!r} reads a tensor's data into Python, and a trace would keep the value it saw",
            where=", ".join(dict.fromkeys(r.where for r in recorder.reads if r.where)),
            got=f"{read.kind} gave {read.value}" if read.value else read.kind,
            expected="a forward that computes with tensors only",
            mend="replace a branch by torch.where and a loop count by a fixed number; make a constant in __init__",
        )


def _refuse_changes(source: Source, changed: list[str]) -> None:
    if changed:
        raise WarmupError(
            f"model {source.name!r} changes what it is given",
            where=", ".join(changed),
            got="another value (or a write in place) after a run",
            expected="a forward without side effects",
            mend="work on a copy (x = x.clone(), no inplace=True on an input), and return state instead of storing it",
        )


def _difference(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.shape != b.shape:
        return f"shape {list(a.shape)} against {list(b.shape)}"
    if a.dtype != b.dtype:
        return f"{a.dtype} against {b.dtype}"
    worst = (a != b).nonzero()[0].tolist()
    at = tuple(worst)
    return f"{a[at].item()} against {b[at].item()} at {worst}"
