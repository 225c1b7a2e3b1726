"""Pictures of what was varied: outputs over the values, a line for each element and each other value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from exporter.common.errors import UsageError
from runtime_checks.component_names import find_component
from runtime_checks.evaluation.binding import STATUS
from runtime_checks.evaluation.data_set import PARQUET
from runtime_checks.evaluation.data_sets import open_data_set
from runtime_checks.history_plot import draw, parse_curves

# More numbers are not drawn: nobody sees them.
NUMBERS = 10_000_000
PANELS = 6


def check_curves(curves: Sequence[str], shapes: Mapping[str, Sequence[int]], suffix: str) -> None:
    """Raise ``UsageError`` for curves of what an evaluation does not give, and for results that have no dimensions.

    Args:
        curves: Texts such as ``stress[0]:E``.
        shapes: The own shapes of outputs and of what is varied.
        suffix: That of the results.
    """
    if suffix in PARQUET:
        what, mend = "a table is not drawn over what is varied", "write to .zarr or .nc"
        raise UsageError(what, where="--plot", got=suffix, expected="results with dimensions", mend=mend)
    for text in curves:
        for part in filter(None, text.split(":")):
            find_component(part.strip(), shapes, f"--curve {text}")


def draw_study(results: Path, studied: Sequence[str], curves: Sequence[str], picture: Path) -> None:
    """Draw results over what was varied, over the first of it unless curves say otherwise.

    Args:
        results: What an evaluation has written.
        studied: Names of what was varied.
        curves: Texts such as ``stress[0]:E``; by default the first component of each output.
        picture: An ``.svg``, ``.png`` or ``.pdf``.

    Raises:
        UsageError: A curve names what is not there, or there are too many numbers.
        MissingRuntimeError: matplotlib is missing.
    """
    over = next((c.partition(":")[2] for c in curves if c.partition(":")[2] in studied), studied[0])
    data = open_data_set(results)
    values, ranks = {}, {}
    for name in data.list_names():
        variable = data.find_variable(name, ())
        if variable is None or name == STATUS or (over not in variable.dims):
            continue
        own = [dim for dim in variable.dims if dim.startswith(f"{name}_")]
        if torch.Size(variable.shape).numel() > NUMBERS:
            what, mend = "there are too many numbers to draw", "leave --plot out, and draw some of them"
            got, expected = f"{variable.describe()}", f"at most {NUMBERS:,}"
            raise UsageError(what, where="--plot", got=got, expected=expected, mend=mend)
        value = torch.from_numpy(data.read(variable, (slice(None),) * len(variable.dims)))
        value = value.movedim(variable.dims.index(over), 0)
        values[name], ranks[name] = value.reshape(len(value), -1, *value.shape[value.ndim - len(own) :]), len(own)
    if not curves:
        outputs = [name for name in values if name not in studied][:PANELS]
        curves = [f"{n}[{','.join('0' * ranks[n])}]:{over}" if ranks[n] else f"{n}:{over}" for n in outputs]
    draw(parse_curves(list(curves), values, ranks), picture)
