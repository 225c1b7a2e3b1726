"""Check of random numbers that reach an output, from torch, Python or NumPy; with a fixed seed, too."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.capture.data_dependence import RANDOM, is_random
from exporter.common.script_loading import iterate_nodes
from exporter.graph.torch_nodes import find_location
from exporter.model.eager.evaluation import find_forward_line
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import EagerContext, Outputs, make_refusal, outputs_equal, run_eager
from exporter.soundness.culprit_line import find_culprit_line
from exporter.soundness.run_recording import digest, record_run

CHECK = "random numbers"
SEEDS = 24
_MEND = "draw outside the model and pass the numbers in; F.dropout(x, training=self.training)"


def check(context: EagerContext) -> list[Finding]:
    """Check that outputs do not depend on random numbers."""
    room, inputs = context.room, context.inputs
    findings = room(_check, inputs)
    if findings and findings[0].severity != "unsound":
        # Numbers may be drawn in the first call and kept: a weight that is made when it is first needed.
        first, second = (room(_run_first_call, inputs, seed) for seed in (1, 2))
        if not outputs_equal(first, second):
            where = room(_find_drawing_line, inputs) or find_forward_line(context.source)
            return [_make_finding(where, "first calls give different outputs with different seeds")]
    return findings


def _find_drawing_line(source: Source, inputs: Inputs) -> str:
    return find_culprit_line(lambda: run_eager(source, inputs), read_generator_states)


def _run_first_call(source: Source, inputs: Inputs, seed: int) -> Outputs:
    _seed_generators(seed)
    return run_eager(source, inputs)


def read_generator_states() -> tuple[Any, ...]:
    """Return the states of the generators of torch, Python and NumPy."""
    numpy = sys.modules.get("numpy")
    arrays = pickle.dumps(numpy.random.get_state()) if numpy is not None else b""
    return digest(torch.get_rng_state()), random.getstate(), arrays


def _seed_generators(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    before = read_generator_states()
    first = run_eager(source, inputs)
    draws_numbers = read_generator_states() != before
    where = _find_drawing_line(source, inputs) if draws_numbers else ""
    for seed in range(SEEDS if draws_numbers else 0):
        _seed_generators(seed)
        if not outputs_equal(run_eager(source, inputs), first):
            return [_make_finding(where or find_forward_line(source), f"outputs differ with seed {seed}")]
    run = record_run(source, inputs)
    if any(RANDOM in labels for labels in run.labels.values()):
        node = next(node for node in iterate_nodes(run.graph) if is_random(node))
        return [_make_finding(find_location(node) or find_forward_line(source), f"an output depends on {node.kind()}")]
    if draws_numbers:
        return [Finding(CHECK, "the model draws random numbers", where, reason="no output depends on them")]
    return []


def _make_finding(where: str, evidence: str) -> Finding:
    return make_refusal(CHECK, "outputs depend on random numbers", where, evidence, _MEND)
