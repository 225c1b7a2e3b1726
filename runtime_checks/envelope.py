"""Inputs against the range of values that was checked: off, a warning, or an error."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch

from exporter.archive.cases import Case
from exporter.archive.contract import Contract, Envelope
from exporter.common.errors import UsageError

OFF, WARN, ERROR = "off", "warn", "error"
MODES = (ERROR, WARN, OFF)
ENVELOPE = "envelope"


class OutsideEnvelopeWarning(UserWarning):
    """An input has values outside the range that was checked."""


def outside(envelope: Envelope, name: str, value: torch.Tensor) -> str:
    """``1 to 5 is outside -1 to 2``; empty where every value is inside. NaN is outside."""
    known = envelope.values.get(name)
    if known is None or not value.numel():
        return ""
    low, high = (float(v) for v in torch.aminmax(value.detach()))
    if low >= known.low and high <= known.high:
        return ""
    return f"{low:g} to {high:g} is outside {known.low:g} to {known.high:g}"


def outside_envelope(contract: Contract, cases: Sequence[Case]) -> list[str]:
    found = []
    for case in cases:
        names = contract.methods[case.method].inputs
        for name, value in zip(names, case.inputs, strict=True):
            text = outside(contract.envelope, name, value)
            if text:
                found.append(f"case {case.name!r}, input {name!r}: {text}")
    return found


def hold(contract: Contract, inputs: Mapping[str, torch.Tensor], mode: str) -> None:
    """Raises ``UsageError``, or warns, naming the first input that is outside."""
    for name, value in inputs.items() if mode != OFF else ():
        text = outside(contract.envelope, name, value)
        if not text:
            continue
        if mode == WARN:
            warnings.warn(f"input {name!r}: {text}", OutsideEnvelopeWarning, stacklevel=4)
            continue
        raise UsageError(
            f"input {name!r} has values outside the range that was checked",
            got=text,
            expected="values inside the envelope of the contract",
            mend="check it there (torchferry export --inputs), or load it with envelope='off'",
        )


def known_mode(mode: str) -> str:
    if mode not in MODES:
        raise UsageError("the envelope's mode is unknown", got=repr(mode), expected="one of " + ", ".join(MODES))
    return mode
