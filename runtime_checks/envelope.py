"""Checks of inputs against the range of values that was checked: off, a warning, or an error."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch

from exporter.archive.cases import Cases
from exporter.archive.contract import Contract, Envelope
from exporter.common.errors import UsageError

OFF, WARN, ERROR = "off", "warn", "error"
MODES = (ERROR, WARN, OFF)
ENVELOPE = "envelope"


class OutsideEnvelopeWarning(UserWarning):
    """An input has values outside the range that was checked."""


def describe_excess(envelope: Envelope, name: str, value: torch.Tensor) -> str:
    """Return a text such as ``1 to 5 is outside -1 to 2``; empty if every value is inside. NaN is outside."""
    bounds = envelope.values.get(name)
    if bounds is None or not value.numel():
        return ""
    low, high = (float(v) for v in torch.aminmax(value.detach()))
    if low >= bounds.low and high <= bounds.high:
        return ""
    return f"{low:g} to {high:g} is outside {bounds.low:g} to {bounds.high:g}"


def list_excesses(contract: Contract, cases: Cases) -> list[str]:
    """Return a message for each input of each case that has values outside the envelope."""
    messages = []
    for case in cases:
        names = contract.methods[case.method].inputs
        for name, value in zip(names, case.inputs, strict=True):
            text = describe_excess(contract.envelope, name, value)
            if text:
                messages.append(f"case {case.name!r}, input {name!r}: {text}")
    return messages


def check_envelope(contract: Contract, inputs: Mapping[str, torch.Tensor], mode: str) -> None:
    """Raise ``UsageError`` for the first input that is outside the envelope, or warn of each, as ``mode`` says."""
    for name, value in inputs.items() if mode != OFF else ():
        text = describe_excess(contract.envelope, name, value)
        if not text:
            continue
        if mode == WARN:
            warnings.warn(f"input {name!r}: {text}", OutsideEnvelopeWarning, stacklevel=4)
            continue
        what = f"input {name!r} has values outside the range that was checked"
        expected = "values inside the envelope of the contract"
        mend = "check it there (torchferry export --inputs), or load it with envelope='off'"
        raise UsageError(what, got=text, expected=expected, mend=mend)


def check_envelope_mode(mode: str) -> str:
    """Return ``mode``. Raise ``UsageError`` if it is unknown."""
    if mode not in MODES:
        raise UsageError("the envelope's mode is unknown", got=repr(mode), expected="one of " + ", ".join(MODES))
    return mode
