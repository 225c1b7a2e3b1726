"""Pictures of a load history: selected components against one another, a line for each element of the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter.common.atomic_files import atomic_write_path
from exporter.common.errors import MissingRuntimeError, UsageError
from exporter.common.plain_text import escape_formula
from runtime_checks.component_names import find_component

STEP = "step"
# Lines of one curve, and panels if none is requested.
LINES, PANELS = 20, 6


@dataclass(frozen=True)
class Component:
    """One component of a variable: ``stress[0]`` or ``D[0,1]``; the name alone if the variable has one component."""

    text: str
    # (steps, elements)
    values: torch.Tensor


def parse_curves(
    requests: Sequence[str], values: Mapping[str, torch.Tensor], ranks: Mapping[str, int]
) -> list[tuple[Component, Component]]:
    """Parse curves: ``"stress[0]:strain[0]"`` draws one over the other, ``"stress[0]"`` over the steps. Without any,
    take the first component of each of the first variables of ``ranks``.

    ``values`` are ``(steps, *batch, *event)``; ``ranks`` gives each variable's number of event dimensions. Raise
    ``UsageError`` for an unknown name or index."""
    if not requests:
        requests = [f"{n}[{','.join('0' * ranks[n])}]" if ranks[n] else n for n in list(ranks)[:PANELS]]
    pairs = []
    for text in requests:
        up, _, over = text.partition(":")
        pair = [_select_component(part.strip() or STEP, values, ranks) for part in (up, over)]
        if len({c.values.shape[1] for c in pair} - {1}) > 1:
            mend = "draw each over the steps: leave out what stands behind the colon"
            raise UsageError("the two components have other batches", where=f"--curve {text}", mend=mend)
        pairs.append((pair[0], pair[1]))
    return pairs


def draw(pairs: Sequence[tuple[Component, Component]], path: Path) -> None:
    """Write an ``.svg``, ``.png`` or ``.pdf``. Raise ``MissingRuntimeError`` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        what, mend = "matplotlib is not installed; it is needed to draw a picture", 'pip install "torchferry[plot]"'
        raise MissingRuntimeError(what, where="--plot", mend=mend) from None
    across = min(len(pairs), 3)
    down = -(-len(pairs) // across)
    figure = Figure(figsize=(4.2 * across, 3.4 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    file_format, supported = path.suffix.removeprefix("."), figure.canvas.get_supported_filetypes()
    if file_format not in supported:
        what, expected = "a picture of that format cannot be drawn", ", ".join(supported)
        raise UsageError(what, where=f"--plot {path}", got=file_format, expected=expected)
    for panel in axes.flat[len(pairs) :]:
        panel.set_visible(False)
    for panel, (up, over) in zip(axes.flat, pairs, strict=False):
        _draw_lines(panel, up, over)
    with atomic_write_path(path) as beside:
        figure.savefig(beside, format=file_format)


def _draw_lines(panel: Any, up: Component, over: Component) -> None:
    elements = up.values.shape[1]
    shown = torch.linspace(0, elements - 1, min(LINES, elements), dtype=torch.float64).long().tolist()
    for element in shown:
        x = over.values[:, element if over.values.shape[1] > 1 else 0]
        panel.plot(x.numpy(), up.values[:, element].numpy(), lw=1)
    panel.set(xlabel=escape_formula(over.text), ylabel=escape_formula(up.text))
    if len(shown) < elements:
        panel.set_title(f"{len(shown)} of {elements} elements", fontsize="small")
    panel.grid(alpha=0.3)


def _select_component(text: str, values: Mapping[str, torch.Tensor], ranks: Mapping[str, int]) -> Component:
    if text == STEP:
        steps = next(iter(values.values())).shape[0]
        return Component(STEP, torch.arange(steps, dtype=torch.float64)[:, None])
    shapes = {name: tuple(value.shape[value.ndim - ranks[name] :]) for name, value in values.items() if name in ranks}
    name, index = find_component(text, shapes, "--curve")
    value = values[name]
    flat = value.reshape(value.shape[0], -1, *shapes[name])
    return Component(text, flat[(slice(None), slice(None), *index)].detach().cpu())
