"""Pictures of what was varied: outputs over the values, a line for each element and each other value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter.common.errors import UsageError, suggest_names
from runtime_checks.component_names import Index, find_component
from runtime_checks.evaluation.data_set import PARQUET, DataSet
from runtime_checks.evaluation.data_sets import open_data_set
from runtime_checks.evaluation.evaluation import Evaluation
from runtime_checks.history_plot import PANELS, Component, draw

# More numbers are not drawn: nobody sees them.
NUMBERS = 10_000_000


@dataclass(frozen=True)
class StudyCurve:
    """A component of an output, as ``text`` names it, drawn ``over`` one of what was varied."""

    text: str
    name: str
    index: Index
    over: str


def parse_study_curves(texts: Sequence[str], evaluation: Evaluation, results: Path) -> list[StudyCurve]:
    """Parse what is drawn, before anything is computed.

    Args:
        texts: Texts such as ``stress[0]:E``, or ``stress[0]`` over the first of what is varied; without any the first
            component of each output is taken.
        evaluation: What is to be drawn.
        results: Where its results go.

    Returns:
        A curve for each text.

    Raises:
        UsageError: A text names what is not there, or results have no dimensions.
    """
    if results.suffix in PARQUET:
        what, mend = "a table is not drawn over what is varied", "write to .zarr or .nc"
        raise UsageError(what, where="--plot", got=results.suffix, expected="results with dimensions", mend=mend)
    shapes, studied = evaluation.shapes, evaluation.studied
    if not texts:
        firsts = {name: ",".join("0" * len(shape)) for name, shape in shapes.items() if name not in studied}
        texts = [f"{name}[{zeros}]" if zeros else name for name, zeros in firsts.items()][:PANELS]
    curves = []
    for text in texts:
        up, _, over = (part.strip() for part in text.partition(":"))
        if over and over not in studied:
            what, where = f"{over!r} is not varied", f"--curve {text}"
            raise UsageError(what, where=where, got=over, expected=suggest_names(over, studied))
        curves.append(StudyCurve(up, *find_component(up, shapes, f"--curve {text}"), over or studied[0]))
    return curves


def draw_study(results: Path, curves: Sequence[StudyCurve], picture: Path) -> None:
    """Draw results over what was varied.

    Args:
        results: What an evaluation has written.
        curves: What is drawn, a panel each.
        picture: An ``.svg``, ``.png`` or ``.pdf``.

    Raises:
        UsageError: There are too many numbers.
        MissingRuntimeError: matplotlib is missing.
    """
    data = open_data_set(results)
    draw(
        [(_select(data, curve), _select(data, StudyCurve(curve.over, curve.over, (), curve.over))) for curve in curves],
        picture,
    )


def _select(data: DataSet, curve: StudyCurve) -> Component:
    """Read a component as ``(values, lines)``, the values of what it is drawn over first."""
    variable: Any = data.find_variable(curve.name)
    if torch.Size(variable.shape).numel() > NUMBERS:
        what, mend = "there are too many numbers to draw", "leave --plot out, and draw some of them"
        raise UsageError(what, where="--plot", got=variable.describe(), expected=f"at most {NUMBERS:,}", mend=mend)
    value = torch.from_numpy(data.read(variable, (slice(None),) * len(variable.dims)))[(..., *curve.index)]
    value = value.movedim(variable.dims.index(curve.over), 0)
    label = f"{curve.text} [{variable.unit}]" if variable.unit else curve.text
    return Component(label, value.reshape(len(value), -1))
