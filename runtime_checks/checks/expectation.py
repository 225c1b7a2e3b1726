"""Expectations, the simplest checks: calls, and the outputs that they must give."""

from __future__ import annotations

from dataclasses import dataclass

from runtime_checks.runners.base import Call, Tensors


@dataclass(frozen=True)
class Expectation:
    """A call and its expected outputs. ``label`` names the call within its check: a case, a batch size, a layout.

    ``refusal``: the call must raise, with this in its message. ``returns``: the method whose outputs these are, if
    it is not the one that is called. ``scales``: magnitudes of the outputs where these are some of the rows alone, to
    which rounding is relative as well."""

    check: str
    label: str
    call: Call
    outputs: Tensors
    refusal: str = ""
    returns: str = ""
    scales: tuple[float, ...] = ()


@dataclass(frozen=True)
class NotRun:
    """A check that could not run, and why. It does not count as passed."""

    check: str
    reason: str
