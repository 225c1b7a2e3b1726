"""Random numbers that reach an output, from torch, Python or NumPy; with a fixed seed, too."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.graph.torch_nodes import location, nodes
from exporter.model.eager.evaluation import forward_line, inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager, Outputs, eager, same_outputs
from exporter.soundness.culprit_line import line_that
from exporter.soundness.data_dependence import RANDOM, is_random
from exporter.soundness.run_recording import record

CHECK = "random numbers"
SEEDS = 24
_MEND = "draw outside the model and pass the numbers in; F.dropout(x, training=self.training)"


def check(eager_mode: Eager) -> list[Finding]:
    room, inputs = eager_mode.room, eager_mode.inputs
    found = room(_check, inputs)
    if found and found[0].severity != "unsound":
        # Drawn in the first call and kept: a weight that is made when it is first needed.
        first, other = (room(_first_call_with, inputs, seed) for seed in (1, 2))
        if not same_outputs(first, other):
            where = room(_drawing_line, inputs) or forward_line(eager_mode.source)
            return [_finding(where, "first calls give other outputs with another seed")]
    return found


def _drawing_line(source: Source, inputs: Inputs) -> str:
    with inference_conditions(source):
        return line_that(lambda: eager(source, inputs), _states)


def _first_call_with(source: Source, inputs: Inputs, seed: int) -> Outputs:
    _seed(seed)
    with inference_conditions(source):
        return eager(source, inputs)


def draws_random_numbers(source: Source, inputs: Inputs) -> bool:
    with inference_conditions(source):
        before = _states()
        eager(source, inputs)
        return _states() != before


def _states() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    arrays = str(numpy.random.get_state()) if numpy is not None else ""
    return bytes(torch.get_rng_state().tolist()), random.getstate(), arrays


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    with inference_conditions(source):
        before = _states()
        first = eager(source, inputs)
        drawn = _states() != before
        where = line_that(lambda: eager(source, inputs), _states) if drawn else ""
        for seed in range(SEEDS if drawn else 0):
            _seed(seed)
            if not same_outputs(eager(source, inputs), first):
                return [_finding(where or forward_line(source), f"other outputs with seed {seed}")]
        run = record(source, inputs)
        if any(RANDOM in labels for labels in run.labels.values()):
            node = next(node for node in nodes(run.graph) if is_random(node))
            return [_finding(location(node) or forward_line(source), f"an output depends on {node.kind()}")]
        if drawn:
            return [Finding(CHECK, "the model draws random numbers", where, reason="no output depends on them")]
    return []


def _finding(where: str, evidence: str) -> Finding:
    return Finding(CHECK, "outputs depend on random numbers", where, severity="unsound", evidence=evidence, mend=_MEND)
