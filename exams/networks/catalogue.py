"""A catalogue of networks: names, and functions that make them once their packages are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from exams.laws import Law
from exams.samples import Tensors

EVERY = ("pt", "libtorch", "program", "onnx", "onnx.reference", "c", "jacobian", "laws")
# A kernel of one element is no form for a network of millions of weights.
LARGE = ("pt", "libtorch", "program", "onnx")


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


_LIBRARIES: list[Any] = []


def define_detection() -> None:
    """Declare operators that torchvision describes when it is imported: beside a torch of another kind it has none."""
    if not _LIBRARIES and torch.version.cuda is None:
        library = torch.library.Library("torchvision", "FRAGMENT")
        _LIBRARIES.append(library)
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
