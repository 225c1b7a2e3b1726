"""The choice between a batch and whole shapes, for a model that has no signature to say it.

Its example inputs have a batch if they share a leading size; whether its outputs have one, runs at two sizes show."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

from exporter.archive.contract import Finding
from exporter.archive.tensor_spec import infer_spec
from exporter.common.errors import CaptureError, TorchferryError, UsageError
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.warmup import infer_output_specs, run_first
from exporter.model.source import Source

CHECK = "batch"
BatchChoice = Literal["auto", "yes", "no"]
BATCH_CHOICES: tuple[BatchChoice, ...] = ("auto", "yes", "no")
SizeChoice = Literal["auto", "open", "fixed"]
SIZE_CHOICES: tuple[SizeChoice, ...] = ("auto", "open", "fixed")
# Seconds of the runs.
LIMIT = 3600.0


@dataclass(frozen=True)
class ShapeChoice:
    """What a user says of a model without a signature: whether it has a ``batch``, and whether the ``sizes`` of whole
    shapes are ``open``, where that is possible, or ``fixed``. With ``auto`` the model decides, if it ``may_open``: what
    a kernel computes, and a block of a Jacobian, are of fixed shape.

    Raises ``UsageError`` for other words, and for open sizes of a batch."""

    batch: BatchChoice = "auto"
    sizes: SizeChoice = "auto"
    may_open: bool = True

    def __post_init__(self) -> None:
        if self.batch not in BATCH_CHOICES:
            raise UsageError("unknown choice", where="--batch", got=self.batch, expected=", ".join(BATCH_CHOICES))
        if self.sizes not in SIZE_CHOICES:
            raise UsageError("unknown choice", where="--sizes", got=self.sizes, expected=", ".join(SIZE_CHOICES))
        if self.batch == "yes" and self.sizes == "open":
            what, expected = "only whole shapes have open sizes, and a batch is asked for", "one of the two"
            raise UsageError(what, where="--batch yes --sizes open", expected=expected, mend="leave --batch out")

    @property
    def has_trials(self) -> bool:
        """Return whether other sizes of whole shapes are tried."""
        return self.sizes == "open" or (self.sizes == "auto" and self.may_open)


def make_whole_shapes_finding(reason: str) -> Finding:
    """Return the finding that a model has whole shapes, and why."""
    return Finding(CHECK, "shapes are whole, without a batch", reason=reason)


def has_undeclared_shapes(source: Source) -> bool:
    """Return whether the shapes of a source are whole, and those of its examples: nobody has said so."""
    return any(finding.check == CHECK for finding in source.findings)


def choose_batch(source: Source, choices: ShapeChoice, seed: int) -> Source:
    """Return the source with or without a batch, as was asked for, or as a model without a signature turns out.

    Raises ``UsageError`` if that is not what a signature, an input file or the example inputs say."""
    whole, choice = [finding for finding in source.findings if finding.check == CHECK], choices.batch
    if choices.sizes == "open" and source.whole_call:
        return _take_whole_shapes(source, "open sizes were asked for")
    if choice == "auto":
        reason = _explain_missing_batch(source, seed) if source.whole_call else ""
        return _take_whole_shapes(source, reason) if reason else source
    has_batch = bool(source.batch_ndim)
    if has_batch == (choice == "yes"):
        return source
    if source.whole_call:
        return _take_whole_shapes(source, "it was asked for")
    where = f"--batch {choice}"
    if whole:
        expected = "a leading dimension of one size for all inputs (or 1)"
        raise UsageError("the example inputs have no batch", where=where, got=whole[0].reason, expected=expected)
    what = f"model {source.name!r} says itself that it has {'a batch' if has_batch else 'whole shapes'}"
    expected = f"--batch auto, or --batch {'yes' if has_batch else 'no'}"
    is_neml2 = source.origin.kind == "neml2"
    mend = "leave it out: models of input files have a batch" if is_neml2 else "change the batch_ndim of its signature"
    raise UsageError(what, where=where, expected=expected, mend=mend)


def _explain_missing_batch(source: Source, seed: int) -> str:
    """Return why the outputs carry no batch; empty if they do, and where the model fails, which later stages report."""
    with contextlib.suppress(ForkFailedError, TorchferryError):
        return run_in_fork(_compare_sizes, source, seed, seconds=LIMIT)
    return ""


def _compare_sizes(source: Source, seed: int) -> str:
    first = run_first(source, seed)
    try:
        with eager_context(source):
            infer_output_specs(first, torch.Generator().manual_seed(seed))
    except CaptureError as error:
        return f"{error.what}: {error.details['got']}" if error.details["check"] == CHECK else ""
    return ""


def _take_whole_shapes(source: Source, reason: str) -> Source:
    specs = tuple(infer_spec(s.name, t) for s, t in zip(source.inputs, source.whole_call, strict=True))
    findings = (*source.findings, make_whole_shapes_finding(reason))
    calls = (source.whole_call,)
    return dataclasses.replace(source, inputs=specs, batch_ndim=0, calls=calls, whole_call=(), findings=findings)
