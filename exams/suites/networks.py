"""Networks of packages from pip, with random weights: a case is one network, and the laws that its file must hold."""

from __future__ import annotations

from pathlib import Path

import torch

from exams.examination import Case
from exams.networks import atoms, graphs, language, numerics, vision
from exams.networks.catalogue import declare_detection
from exams.pipelines import LAWS
from exams.samples import FRESH_ROWS, ROWS, Sample

REQUIREMENTS = Path(__file__).parents[1] / "networks.txt"
CATALOGUE = vision.CATALOGUE | language.CATALOGUE | atoms.CATALOGUE | graphs.CATALOGUE | numerics.CATALOGUE


def list_cases() -> list[str]:
    """List the networks."""
    return list(CATALOGUE)


def make_case(name: str, most: int) -> Case:
    """Make a case by its name: one sample, whatever ``most`` is."""
    del most
    torch.manual_seed(0)
    declare_detection()
    network = CATALOGUE[name]()
    inputs, *fresh = (
        network.draw(torch.Generator().manual_seed(seed), rows) for seed, rows in enumerate((ROWS, *FRESH_ROWS))
    )
    rows = ROWS if network.has_batch else 0
    sample = Sample(network.model, inputs, tuple(fresh), rows, network.laws, network.takes_gradients)
    pipelines = tuple(name for name in network.pipelines if name != LAWS or network.laws)
    return Case([sample], pipelines, budget=None)
