"""A model through warmup, capture and the soundness gate: what a file is made of."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from exporter.archive import derivative_request
from exporter.archive.contract import Finding
from exporter.archive.derivative_request import Asked, Wanted
from exporter.archive.tensor_spec import TensorSpec
from exporter.capture import newton_capture
from exporter.capture.autograd_detection import as_it_runs
from exporter.capture.tracing import Captured, capture
from exporter.common.errors import UnsupportedError, UsageError
from exporter.common.forking import isolated
from exporter.common.torch_hooks import quiet_deprecations
from exporter.model.eager.derivatives import reached
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.eager.warmup import Warmup, first_run, warm_up
from exporter.model.implicit.newton_solver import Newton, loops
from exporter.model.implicit.solve_recording import calls
from exporter.model.source import Inputs, Listing, Source
from exporter.soundness import gate
from exporter.soundness.clean_room import CleanRoom
from exporter.soundness.gate import Allowance

# Is told of each model once its inputs and outputs are known, before it is captured.
Announce = Callable[[Listing], Any]


def sound_capture(
    source: Source,
    seed: int,
    allowed: Sequence[Allowance] = (),
    announce: Announce = lambda listing: None,
    clock: Clock | None = None,
    *,
    opinion: bool = False,
    asked: Asked | None = None,
) -> tuple[Warmup, Captured, tuple[Finding, ...]]:
    """Warmup, capture and the gate: what the file is made of. Raises ``UnsoundError`` and its kin.

    The residual of an implicit update is judged first, as a model of its own; a solve is one operation from there on.
    """
    clock = clock or Clock()
    solves, of_solves = _solves(source, seed, allowed, clock)
    with newton_capture.standing_in(solves), CleanRoom(source) as room:
        with clock("warmup"):
            first = first_run(source, derived_seed(seed, "warmup"))
        if asked is not None:
            # A name that is misspelt is said before the seconds of the gate.
            derivative_request.named(asked, [s.name for s in source.inputs], list(first.outputs), list(_own(source)))
        with clock("soundness"):
            room.import_alike()
            found, drawn = gate.before_capture(first, room, derived_seed(seed, "gate"), allowed, opinion=opinion)
        with clock("warmup"):
            warm = warm_up(first, derived_seed(seed, "more warmup"))
        announce(listing_of(warm))
        wanted, said = derivatives_of(warm, asked)
        with clock("capture"):
            captured = capture(warm, drawn[0][1], derived_seed(seed, "capture"), wanted, solves)
        with clock("soundness"):
            found = gate.after_capture(warm, captured, drawn, found, allowed)
    return warm, captured, (*of_solves, *found, *said)


def _solves(
    source: Source, seed: int, allowed: Sequence[Allowance], clock: Clock
) -> tuple[Mapping[str, newton_capture.Captured], tuple[Finding, ...]]:
    """By path, the solves of the model as they are captured, and findings of their residuals."""
    found: dict[str, newton_capture.Captured] = {}
    said: list[Finding] = []
    within = loops(source.named)
    if not within:
        return found, ()
    if source.differentiates:
        raise UnsupportedError(
            "a model that takes gradients itself holds an implicit update",
            where=", ".join(within),
            expected="gradients inside the residual, or --derivative for those of the update",
        )
    if not source.batch_ndim:
        raise UnsupportedError(
            "an implicit update in a model with whole shapes",
            where=", ".join(within),
            expected="a batch of independent elements: a signature of one element's shapes, batch_ndim=1",
        )
    for path, loop in within.items():
        if loops(loop.owner):
            raise UnsupportedError(
                "an implicit update is part of the residual of another",
                where=path,
                expected="updates one behind the other",
                mend="make the inner unknowns unknowns of the outer system",
            )
    with clock("warmup"):
        inputs, calls = isolated(_first_calls, source, derived_seed(seed, "warmup"))
    for path, loop in within.items():
        if path not in calls:
            raise UnsupportedError("an implicit update is not called", where=path, mend="leave it out of the model")
        if len(calls[path]) > 2:
            raise UnsupportedError(
                "an implicit update is called more than once in a run",
                where=path,
                got=f"{len(calls[path]) // 2} calls",
                expected="an update of its own for each",
            )
        part = as_it_runs(_residual(source, path, loop, calls[path]), derived_seed(seed, "warmup"))
        warm, _, findings = sound_capture(part, seed, allowed, clock=clock)
        with clock("capture"), inference_conditions(source), quiet_deprecations():
            found[path] = newton_capture.captured_loop(path, loop, warm.inputs)
            newton_capture.refuse_borrowed(path, found[path], source.named)
            drawn = warm.sampler.draw(warm.traced_sizes[1], torch.Generator().manual_seed(derived_seed(seed, "solves")))
            newton_capture.hold(path, found[path], [*calls[path], drawn])
        isolated(_refuse_hidden, path, loop, source, inputs)
        said += [dataclasses.replace(f, what=f"{path}: {f.what}") for f in (*warm.findings, *findings)]
    return found, tuple(said)


def _refuse_hidden(path: str, loop: Newton, source: Source, inputs: Inputs) -> None:
    with inference_conditions(source):
        newton_capture.refuse_hidden(path, loop, source, inputs)


def _first_calls(source: Source, seed: int) -> tuple[Inputs, dict[str, list[Inputs]]]:
    """The warmup inputs, and what each solve takes on them, and where it ends: ``(u, *given)``."""
    paths = {loop: path for path, loop in loops(source.named).items()}
    inputs = first_run(source, seed).inputs
    found: dict[str, list[Inputs]] = {}
    with inference_conditions(source):
        for loop, (guess, held), (u, *_) in calls(source, inputs):
            given = held[: loop.batched]
            if guess.shape[0] != inputs[0].shape[0]:
                raise UnsupportedError(
                    "an implicit update has another batch than the model",
                    where=paths[loop],
                    got=f"{guess.shape[0]} systems for {inputs[0].shape[0]} elements",
                    expected="one system for each element",
                    mend="make what is solved for each element one system, or export the update alone",
                )
            found.setdefault(paths[loop], []).extend([(guess, *given), (u, *given)])
    return inputs, found


class _Residual:
    """``(u, *given)`` to the residual, with the parameters as they are."""

    def __init__(self, loop: Newton) -> None:
        self._loop = loop

    def __call__(self, u: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return self._loop.residual(u, self._loop.held(given))


def _residual(source: Source, path: str, loop: Newton, calls: Sequence[Inputs]) -> Source:
    names = ["unknowns", *(f"given_{i}" for i in range(loop.batched))]
    return Source(
        name=f"{path}.residual",
        module=_Residual(loop),
        named=loop.owner,
        inputs=tuple(
            TensorSpec(n, tuple(t.shape[1:]), str(t.dtype).removeprefix("torch."))
            for n, t in zip(names, calls[0], strict=True)
        ),
        outputs=(TensorSpec("residual"),),
        origin=source.origin,
        calls=tuple(calls),
        default_dtype=source.default_dtype,
    )


def _own(source: Source) -> dict[str, nn.Parameter]:
    """Parameters by name, without the settings of solvers."""
    settings = {id(p) for loop in loops(source.named).values() for p in loop.parameters()}
    return {name: p for name, p in source.named.named_parameters() if id(p) not in settings}


def derivatives_of(warm: Warmup, asked: Asked | None) -> tuple[Wanted | None, tuple[Finding, ...]]:
    if asked is None or not asked.derivatives:
        return None, ()
    with inference_conditions(warm.source):
        pairs = reached(warm.source, warm.inputs)
    parameters = {n: str(p.dtype).removeprefix("torch.") for n, p in _own(warm.source).items()}
    if warm.source.sizes:
        raise UsageError(
            "derivatives of a model with open sizes have no shape",
            got=f"open sizes {', '.join(warm.source.sizes)}",
            expected="fixed shapes, or a batch of independent elements",
            mend="take the derivatives in the function itself: torch.autograd.grad, and return them",
        )
    lasting = [path for path, loop in loops(warm.source.named).items() if loop.fails_by() == "last"]
    if lasting:
        raise UsageError(
            "an element that has not converged would have a tangent like any other",
            where=", ".join(lasting),
            got="--on-failure last, and derivatives",
            expected="--on-failure nan or raise",
        )
    specs = warm.source.inputs, warm.output_specs
    return derivative_request.wanted(asked, *specs, parameters, pairs, differentiates=warm.source.differentiates)


def listing_of(warm: Warmup) -> Listing:
    named = warm.source.named
    parameters = {name: tuple(p.shape) for name, p in named.named_parameters()}
    return Listing(
        warm.source.name,
        type(named).__name__,
        warm.source.inputs,
        warm.output_specs,
        parameters,
        warm.source.batch_ndim,
    )


def derived_seed(seed: int, stage: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {stage}".encode()).digest()[:7], "big")


class Clock:
    """Seconds by stage: ``with clock("load"): ...``."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str):
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
