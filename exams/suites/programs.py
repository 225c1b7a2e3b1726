"""Random programs by hypothesis: a case is a seed, its samples are programs, and a wrong one is shrunk.

The programs depend on hypothesis' version, so no table holds what is expected of them: none may be wrong. A table
records the seeds that were run, with how far their programs went."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import HypothesisException

from exams.cells import WRONG
from exams.examination import LARGEST, Case, settle
from exams.pipelines import DERIVATIVES, FILES, PIPELINES, Workbench
from exams.random_programs import Program, programs
from exams.samples import FRESH_ROWS, ROWS, Sample

WHOLE, BATCH = "whole", "batch"
# Seeds of a usual run, programs of a case, which fit into one bundle, those of which the derivatives are judged, and
# draws of hypothesis, of which some repeat an earlier one or return nothing.
COUNT, PROGRAMS, DIFFERENTIATED, DRAWS = 3, LARGEST, 6, 150


def list_cases() -> list[str]:
    """List the seeds of a usual run."""
    return list_seeds(COUNT)


def list_seeds(count: int) -> list[str]:
    """List so many cases of each kind: programs over whole shapes, and over a batch."""
    return [f"{number} {kind}" for kind in (WHOLE, BATCH) for number in range(count)]


def make_case(name: str, most: int) -> Case:
    """Make a case by its name: as many programs as one has, whatever ``most`` is."""
    del most
    drawn: dict[str, Program] = {}
    _generate(name, (Phase.generate,), lambda program: drawn.setdefault(program.format_source(), program))
    chosen = itertools.islice(drawn.values(), PROGRAMS)
    # Those with derivatives come first: of one without any there is no Jacobian to judge.
    pairs = [(not _has_derivatives(program), _make_sample(program)) for program in chosen]
    samples = [sample for _, sample in sorted(pairs, key=lambda pair: pair[0])]
    return Case(samples, (*FILES, *DERIVATIVES), min(DIFFERENTIATED, sum(not lacks for lacks, _ in pairs)))


def shrink(name: str, pipeline: str) -> str:
    """Return the source of the least program of a case that is wrong in a pipeline, and what is wrong."""
    least = ""

    def judge(program: Program) -> None:
        nonlocal least
        verdict = _judge(program, pipeline)
        if verdict:
            least = f"{program.format_source()}# {[list(shape) for shape, _ in program.inputs]}: {verdict}\n"
            raise AssertionError(verdict)

    with contextlib.suppress(AssertionError, HypothesisException):
        _generate(name, (Phase.generate, Phase.shrink), judge)
    return least


def _generate(name: str, phases: tuple[Phase, ...], take: Callable[[Program], object]) -> None:
    number, kind = name.split()
    options = settings(
        max_examples=DRAWS,
        database=None,
        phases=phases,
        deadline=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=tuple(HealthCheck),  # pyright: ignore[reportArgumentType],
    )

    @seed(int(number))
    @options
    @given(programs(kind == BATCH))
    def run(program: Program) -> None:
        if program.outputs:
            take(program)

    run()


def _make_sample(program: Program) -> Sample:
    rows = ROWS if program.has_batch else 0
    fresh = tuple(program.draw_inputs(number, count) for number, count in enumerate(FRESH_ROWS, 2))
    return Sample(program.compile(), program.draw_inputs(1, rows), fresh, rows)


def _has_derivatives(program: Program) -> bool:
    """Return whether an output depends on an input of its own precision, and hides nothing of it."""
    if "detach" in program.format_source():
        return False
    rows = ROWS if program.has_batch else 0
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in program.draw_inputs(1, rows)]
    # A program may write to what it takes, which leaves do not allow.
    outputs = program.compile()(*(t * 1 if t.requires_grad else t for t in leaves))
    for output in outputs:
        own = [t for t in leaves if t.requires_grad and t.dtype == output.dtype]
        if own and output.requires_grad:
            ones = torch.ones_like(output)
            if any(g is not None for g in torch.autograd.grad(output, own, ones, retain_graph=True, allow_unused=True)):
                return True
    return False


def _judge(program: Program, pipeline: str) -> str:
    """Return what is wrong with a program in one pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        work = Workbench([_make_sample(program)], Path(folder))
        verdict = settle([[0]], lambda numbers: PIPELINES[pipeline](work, numbers))[0]
    return verdict.reason if verdict.state == WRONG else ""
