"""A sample: a function of tensors, with inputs to export it with, others to judge it with; several form one model."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from exams.ode_problems import OdeProblem

Tensors = tuple[torch.Tensor, ...]
# Rows of the batch that a network, a program, or a rate is exported with, and of those that its file is judged with.
ROWS, FRESH_ROWS = 3, (1, 5)
# Evaluates a file.
Run = Callable[..., Tensors]
# What a file must hold by itself: returns what is violated, or an empty text.
Law = Callable[[Run, Tensors], str]
# The inputs by the names that a bundle's ``forward`` has.
Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Sample:
    """``function`` takes the tensors of ``inputs``; it is judged with each of ``fresh``, which no export has seen. Its
    file must hold ``laws``.

    ``rows`` is the size of the batch that the inputs have, if they have one: samples of one bundle share it.
    ``published`` are the outputs for the first inputs to judge with, as others have them. ``takes_gradients`` says that
    the function itself differentiates; a solver solves the ``problem`` whose rate it is.
    Raises ``ValueError`` without inputs to judge with."""

    function: Callable[..., Any]
    inputs: Tensors
    fresh: tuple[Tensors, ...]
    rows: int = 0
    laws: Mapping[str, Law] = field(default_factory=dict)
    takes_gradients: bool = False
    problem: OdeProblem | None = None
    published: Tensors = ()

    def __post_init__(self) -> None:
        if not self.fresh:
            raise ValueError("a sample without fresh inputs would be verified by nothing")


class ArrangedCall(nn.Module):
    """A function of tensors alone, made of one that takes them among other arguments, in lists, by keyword."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.function = function
        leaves, self._spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._leaves = [None if i in self._places else leaf for i, leaf in enumerate(leaves)]
        self.example = tuple(leaves[i].detach().clone() for i in self._places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call the function with these tensors in the places of the example's."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return self.function(*args, **kwargs)

    def takes_same(self, other: ArrangedCall) -> bool:
        """Return whether another call differs in the numbers of its tensors alone."""
        kinds = [[(t.shape, t.dtype, t.layout) for t in call.example] for call in (self, other)]
        return self._spec == other._spec and repr(self._leaves) == repr(other._leaves) and kinds[0] == kinds[1]


class Bundle(nn.Module):
    """Several samples as one model, which costs little more to export than one.

    Sample 3 takes ``x3_0``, ``x3_1``, ..., and gives ``o3_0``, ..."""

    forward: Callable[..., dict[str, Any]]

    def __init__(self, samples: Mapping[int, Sample]) -> None:
        super().__init__()
        self.samples = dict(samples)
        for number, sample in samples.items():
            if isinstance(sample.function, nn.Module):
                self.add_module(f"part{number}", sample.function)
        names = list(self.name_inputs(0))
        # Exports read the names of inputs from the signature of ``forward``.
        scope: dict[str, Any] = {}
        exec(f"def forward(self, {', '.join(names)}):\n    return self._call([{', '.join(names)}])\n", scope)
        # A method of this object: of a copy it becomes that of the copy.
        self.forward = types.MethodType(scope["forward"], self)

    def name_inputs(self, fresh: int) -> Inputs:
        """Return the inputs of the export by name for 0, and fresh ones from 1 on."""
        by_sample = {n: s.fresh[fresh - 1] if fresh else s.inputs for n, s in self.samples.items()}
        return {f"x{n}_{i}": tensor for n, tensors in by_sample.items() for i, tensor in enumerate(tensors)}

    def evaluate(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        """Return the outputs of a copy of the bundle, on copies of inputs: it may write to both, and take gradients."""
        takes_gradients = any(sample.takes_gradients for sample in self.samples.values())
        with torch.set_grad_enabled(takes_gradients):
            outputs = copy.deepcopy(self).forward(**{name: tensor.clone() for name, tensor in inputs.items()})
        return {
            name: tensor.detach() if isinstance(tensor, torch.Tensor) else tensor for name, tensor in outputs.items()
        }

    @property
    def count_fresh(self) -> int:
        """Return how many sets of fresh inputs all samples have."""
        return min(len(sample.fresh) for sample in self.samples.values())

    def _call(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        outputs, position = {}, 0
        for number, sample in self.samples.items():
            count = len(sample.inputs)
            result = sample.function(*tensors[position : position + count])
            position += count
            outputs |= {f"o{number}_{i}": leaf for i, leaf in enumerate(pytree.tree_leaves(result))}
        return outputs


def get_number(name: str) -> int:
    """Return the number of the sample that a bundle's input or output belongs to."""
    return int(name[1:].partition("_")[0])
