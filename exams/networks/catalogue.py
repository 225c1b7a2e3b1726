"""A catalogue of networks: names, and functions that make them once their packages are there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from exams.pipelines import FILES, JACOBIAN, LAWS
from exams.samples import Law, Tensors

EVERY = (*FILES, JACOBIAN, LAWS)
# A kernel of one element is no form for a network of millions of weights.
LARGE = (*(name for name in FILES if name not in ("c", "onnx.reference")), LAWS)


@dataclass(frozen=True)
class Network:
    """A model, inputs by a generator and a number of rows, and the laws that its file must hold."""

    model: Callable[..., Any]
    draw: Callable[[torch.Generator, int], Tensors]
    has_batch: bool = True
    pipelines: tuple[str, ...] = EVERY
    laws: Mapping[str, Law] = field(default_factory=dict)
    takes_gradients: bool = False


Catalogue = dict[str, Callable[[], Network]]


def draw_numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Callable[[torch.Generator, int], Tensors]:
    """Return a function that draws normal numbers, with rows in front."""
    return lambda generator, rows: (torch.randn((rows, *shape), generator=generator, dtype=torch.float64).to(dtype),)


@functools.cache
def declare_detection() -> Any:
    """Declare the operators that torchvision describes when it is imported, and return their library: a torchvision
    that was built for another torch does not define them."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms") if torch.version.cuda is None else ():
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
