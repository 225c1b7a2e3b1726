"""The first calls of a model in one process, watched for several checks at once.

Most models give most of these checks nothing to look at, and a process of its own for each takes longer than the calls
of a small model."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.capture.data_dependence import RANDOM
from exporter.model.source import Inputs, Source
from exporter.soundness.branch_search import ChosenDraws, choose_draws
from exporter.soundness.check_context import Draws, run_eager
from exporter.soundness.checks import (
    devices,
    environment,
    exceptions,
    hash_seed,
    hooks,
    random_numbers,
    settings,
    unused_variables,
)
from exporter.soundness.code_numbers import collect_numbers
from exporter.soundness.footprint import Footprint
from exporter.soundness.run_recording import RunRecording, record_run


@dataclass(frozen=True)
class FirstCalls:
    """The draws that checks run, the names of the checks that have nothing to look at, and the numbers of the user's
    code."""

    chosen: ChosenDraws
    quiet: frozenset[str] = frozenset()
    code_numbers: tuple[float, ...] = ()


# A first run may have no end: nothing is known of the model yet.
SECONDS_OF_RECORD = 60.0


def observe_first_calls(source: Source, probes: Draws, numbers: float, limit: float) -> FirstCalls:
    """Run the model for the first times, and choose draws that compute no more than ``limit`` numbers together,
    ``numbers`` each.

    Call it in a forked process."""
    footprint = Footprint()
    try:
        quiet = _find_quiet_checks(source, probes[0][1], footprint)
    except Exception:
        # Each check then looks for itself, and says what keeps it from it.
        quiet = frozenset[str]()
    code_numbers = collect_numbers(source.parameter_module, footprint)
    run = record_run(source, probes[0][1], seconds=SECONDS_OF_RECORD)
    chosen = choose_draws(source, probes, numbers, limit, run, code_numbers)
    return FirstCalls(chosen, quiet - _find_checks_of_outputs(source, run), code_numbers)


def _find_quiet_checks(source: Source, inputs: Inputs, footprint: Footprint) -> frozenset[str]:
    """Return the checks that watched a call, or several, and saw nothing."""
    states = random_numbers.read_generator_states()
    with exceptions.FailingCalls() as failing, devices.DeviceQueries() as asking, footprint:
        outputs = run_eager(source, inputs)
    has_failed = isinstance(outputs, str)
    has_something = {
        random_numbers.CHECK: random_numbers.read_generator_states() != states,
        environment.CHECK: environment.asks_environment(source, inputs, footprint),
        settings.CHECK: not has_failed and settings.list_settings(source, footprint),
        hash_seed.CHECK: hash_seed.find_set_line(source, footprint),
        exceptions.CHECK: not has_failed and failing.calls,
        devices.CHECK: asking.queries,
        hooks.CHECK: hooks.has_something(source, inputs),
        # Of outputs it looks at what they depend on, and at nothing else.
        unused_variables.CHECK: False,
    }
    return frozenset(name for name, something in has_something.items() if not something)


def _find_checks_of_outputs(source: Source, run: RunRecording) -> set[str]:
    """Return the checks that have something to look at in what the outputs of a run depend on."""
    checks = {random_numbers.CHECK} if any(RANDOM in labels for labels in run.labels.values()) else set[str]()
    return checks | ({unused_variables.CHECK} if unused_variables.list_findings(source, run) else set())
