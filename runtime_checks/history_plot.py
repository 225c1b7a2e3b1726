"""A picture of a load history: chosen components against one another, a line for each element of the batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter.common.atomic_files import replacing
from exporter.common.errors import MissingRuntimeError, UsageError, near

STEP = "step"
# Lines of one curve, and panels where none is asked for.
LINES, PANELS = 20, 6
_COMPONENT = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<index>\d+(,\d+)*)\])?")


@dataclass(frozen=True)
class Component:
    """``stress[0]`` or ``D[0,1]``; the name alone where the variable has one component."""

    text: str
    # (steps, elements)
    values: torch.Tensor


def curves(
    asked: Sequence[str], values: Mapping[str, torch.Tensor], ranks: Mapping[str, int]
) -> list[tuple[Component, Component]]:
    """``["stress[0]:strain[0]"]``: what is drawn over what; ``["stress[0]"]`` alone over the steps. Without any, the
    first component of each of the first variables of ``ranks``.

    ``values`` are ``(steps, *batch, *own)``; ``ranks`` says how many dimensions are a variable's own.
    Raises ``UsageError`` for a name or an index that is not there.
    """
    if not asked:
        asked = [f"{n}[{','.join('0' * ranks[n])}]" if ranks[n] else n for n in list(ranks)[:PANELS]]
    found = []
    for text in asked:
        up, _, over = text.partition(":")
        pair = [_component(one.strip() or STEP, values, ranks) for one in (up, over)]
        if len({c.values.shape[1] for c in pair} - {1}) > 1:
            raise UsageError("the two components have other batches", where=f"--curve {text}")
        found.append((pair[0], pair[1]))
    return found


def draw(found: Sequence[tuple[Component, Component]], path: Path) -> None:
    """Writes an ``.svg``, ``.png`` or ``.pdf``. Raises ``MissingRuntimeError`` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingRuntimeError(
            "matplotlib is not installed, and a picture is asked for",
            where="--plot",
            mend='pip install "torchferry[plot]"',
        ) from None
    across = min(len(found), 3)
    down = -(-len(found) // across)
    figure = Figure(figsize=(4.2 * across, 3.4 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    kind, known = path.suffix.removeprefix("."), figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise UsageError(
            "a picture of that kind cannot be drawn", where=f"--plot {path}", got=kind, expected=", ".join(known)
        )
    for panel in axes.flat[len(found) :]:
        panel.set_visible(False)
    for panel, (up, over) in zip(axes.flat, found, strict=False):
        _lines(panel, up, over)
    with replacing(path) as beside:
        figure.savefig(beside, format=kind)


def _lines(panel: Any, up: Component, over: Component) -> None:
    elements = up.values.shape[1]
    shown = torch.linspace(0, elements - 1, min(LINES, elements), dtype=torch.float64).long().tolist()
    for element in shown:
        x = over.values[:, element if over.values.shape[1] > 1 else 0]
        panel.plot(x.numpy(), up.values[:, element].numpy(), lw=1)
    panel.set(xlabel=over.text, ylabel=up.text)
    if len(shown) < elements:
        panel.set_title(f"{len(shown)} of {elements} elements", fontsize="small")
    panel.grid(alpha=0.3)


def _component(text: str, values: Mapping[str, torch.Tensor], ranks: Mapping[str, int]) -> Component:
    if text == STEP:
        steps = next(iter(values.values())).shape[0]
        return Component(STEP, torch.arange(steps, dtype=torch.float64)[:, None])
    match = _COMPONENT.fullmatch(text)
    name = match["name"] if match else text
    if match is None or name not in values:
        raise UsageError(
            f"there is no variable {name!r} to draw", where="--curve", expected=near(name, [STEP, *values])
        )
    value, own = values[name], ranks[name]
    index = tuple(map(int, match["index"].split(","))) if match["index"] else ()
    sizes = tuple(value.shape[value.ndim - own :])
    if len(index) != own or any(i >= n for i, n in zip(index, sizes, strict=True)):
        raise UsageError(
            f"{name!r} has no such component",
            where="--curve",
            got=text,
            expected=f"{name}[{', '.join(f'0 to {n - 1}' for n in sizes)}]" if own else name,
        )
    flat = value.reshape(value.shape[0], -1, *sizes)
    return Component(text, flat[(slice(None), slice(None), *index)].detach().cpu())
