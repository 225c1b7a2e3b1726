"""Derivatives of a file, held against eager mode's autograd, and against the file's own function.

Only samples whose inputs and outputs are real floating numbers take part."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from exams.cells import PASS, REFUSED, WRONG, Verdict
from exams.judgement import explain_difference
from exams.samples import Bundle, Inputs, get_number
from exporter.archive.contract import COTANGENT, TANGENT, block_name

# Of the largest number: other rules of differentiation add in another order.
CLOSE = {"float64": 1e-9, "float32": 1e-3}
# Of central differences with steps of 1e-6, where the function is smooth.
STEP, OF_DIFFERENCES = 1e-6, {"float64": 1e-4}
SEED = 7


def judge_jacobian(bundle: Bundle, model: Any) -> dict[int, Verdict]:
    """Judge each block against reverse mode in eager mode, one direction against central differences of the file."""
    inputs = bundle.name_inputs(bundle.count_fresh)
    got = model.call("jacobian", inputs)
    method = model.contract.methods["jacobian"]
    blocks = {pair for pair in method.outputs if not isinstance(pair, str)}
    verdicts = dict.fromkeys(bundle.samples, PASS)
    expected = _differentiate(bundle, inputs)
    for (output, wrt), whole in expected.items():
        name = block_name(output, wrt)
        block = _take_own_rows(whole, inputs[wrt]) if model.contract.batch.ndim else whole
        if (output, wrt) in blocks:
            _blame(verdicts, output, explain_difference(block, got[name], CLOSE))
        elif block.count_nonzero() and got[output].dtype != inputs[wrt].dtype:
            _blame(verdicts, output, "no block of an output by an input of another precision", REFUSED)
        elif block.count_nonzero():
            _blame(verdicts, output, f"no block {name}")
    direction = _Direction(bundle, inputs, expected)
    of_eager_mode = direction.explain(bundle.evaluate)
    for output, text in direction.explain(lambda moved: model.call("forward", moved)).items():
        # A kink or a jump near the point is no fault of the file's.
        if not of_eager_mode[output]:
            _blame(verdicts, output, text and f"finite differences: {text}")
    return verdicts


def judge_products(bundle: Bundle, model: Any) -> dict[int, Verdict]:
    """Judge ``jvp`` and ``vjp`` against the blocks of eager mode, times tangents, and cotangents times them."""
    inputs, generator = bundle.name_inputs(bundle.count_fresh), torch.Generator().manual_seed(SEED)
    expected = _differentiate(bundle, inputs)
    # A block by a float32 input is float32, whatever the output is.
    kinds = {o: (t.shape, t.dtype) for o, t in bundle.evaluate(inputs).items() if o in {o for o, _ in expected}}
    tangents = {n: _draw(t.shape, t.dtype, generator) for n, t in inputs.items() if t.is_floating_point()}
    weights = {output: _draw(*kind, generator) for output, kind in kinds.items()}
    forward = model.call("jvp", inputs | {TANGENT + name: t for name, t in tangents.items()})
    spec = model.contract.methods["vjp"]
    cotangents = {n.removeprefix(COTANGENT) for n in spec.inputs if n.startswith(COTANGENT)}
    zeros = {name: torch.zeros_like(forward[name]) for name in cotangents - weights.keys()}
    backward = model.call("vjp", inputs | {COTANGENT + n: t for n, t in (weights | zeros).items()})
    verdicts = dict.fromkeys(bundle.samples, PASS)
    for output in weights:
        pushed = sum(_contract(t, tangents[wrt]) for (o, wrt), t in expected.items() if o == output)
        of_output = (t for (o, _), t in expected.items() if o == output)
        text = _explain(torch.as_tensor(pushed).to(kinds[output][1]), forward[TANGENT + output], of_output)
        _blame(verdicts, output, text)
    for wrt in dict.fromkeys(wrt for _, wrt in expected):
        pulled = sum(_pull(t, weights[o]) for (o, w), t in expected.items() if w == wrt)
        text = _explain(torch.as_tensor(pulled).to(inputs[wrt].dtype), backward[COTANGENT + wrt], ())
        _blame(verdicts, f"o{get_number(wrt)}", text)
    return verdicts


def _blame(verdicts: dict[int, Verdict], output: str, text: str, state: str = WRONG) -> None:
    """Note what an output is blamed for: the first reason stays, but what is wrong goes before what is refused."""
    known = verdicts[get_number(output)]
    if text and (known is PASS or (known.state == REFUSED and state == WRONG)):
        verdicts[get_number(output)] = Verdict(state, text)


def _explain(expected: torch.Tensor, got: torch.Tensor, factors: Iterable[torch.Tensor]) -> str:
    """Return how products differ, by as many digits as the product and the blocks that it was made of all have."""
    if got.dtype != expected.dtype:
        return explain_difference(expected, got, CLOSE)
    coarsest = max((expected, *factors), key=lambda t: torch.finfo(t.dtype).eps).dtype
    return explain_difference(expected.to(coarsest), got.to(coarsest), CLOSE)


def _draw(shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def _differentiate(bundle: Bundle, inputs: Inputs) -> dict[tuple[str, str], torch.Tensor]:
    """Return the blocks of each sample by the names of output and input, row by row, by reverse mode."""
    names = [name for name, tensor in inputs.items() if tensor.is_floating_point()]
    leaves = {name: t.clone().requires_grad_(name in names) for name, t in inputs.items()}
    # A function may write to what it takes, which leaves do not allow.
    outputs = copy.deepcopy(bundle).forward(**{n: t * 1 if n in names else t for n, t in leaves.items()})
    blocks = {}
    for output, tensor in outputs.items():
        if not tensor.is_floating_point():
            continue
        own = [n for n in names if get_number(n) == get_number(output)]
        rows = []
        for seed in torch.eye(tensor.numel(), dtype=tensor.dtype).reshape(tensor.numel(), *tensor.shape):
            if not tensor.requires_grad:
                break
            rows.append(
                torch.autograd.grad(tensor, [leaves[n] for n in own], seed, retain_graph=True, allow_unused=True)
            )
        for i, name in enumerate(own):
            zero = torch.zeros_like(inputs[name])
            stack = [row[i] if row[i] is not None else zero for row in rows] or [zero] * tensor.numel()
            shape = (*tensor.shape, *zero.shape)
            blocks[output, name] = torch.stack(stack).reshape(shape) if stack else zero.new_zeros(shape)
    return blocks


def _take_own_rows(block: torch.Tensor, wrt: torch.Tensor) -> torch.Tensor:
    """Return the derivatives of each row of a batch by the same row of the input: all others are 0."""
    return torch.diagonal(block, dim1=0, dim2=block.ndim - wrt.ndim).movedim(-1, 0)


def _split(block: torch.Tensor, wrt: torch.Tensor) -> tuple[torch.Size, torch.Size]:
    count = block.ndim - wrt.ndim
    return block.shape[:count], block.shape[count:]


def _contract(block: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    shape, _ = _split(block, tangent)
    return (block.reshape(shape.numel(), tangent.numel()).double() @ tangent.reshape(-1).double()).reshape(shape)


def _pull(block: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    shape = block.shape[weight.ndim :]
    return (weight.reshape(-1).double() @ block.reshape(weight.numel(), shape.numel()).double()).reshape(shape)


def differs_from_differences(bundle: Bundle) -> bool:
    """Return whether eager mode's own derivatives are not those of its function, at fresh inputs."""
    fresh = bundle.name_inputs(bundle.count_fresh)
    # Differences of float32 would say little.
    inputs = {name: t.double() if t.is_floating_point() else t for name, t in fresh.items()}
    return any(_Direction(bundle, inputs, _differentiate(bundle, inputs)).explain(bundle.evaluate).values())


class _Direction:
    """One direction of all inputs, and what eager mode's blocks say of the outputs along it."""

    def __init__(self, bundle: Bundle, inputs: Inputs, blocks: Mapping[tuple[str, str], torch.Tensor]) -> None:
        generator = torch.Generator().manual_seed(SEED)
        draws = {n: _draw(t.shape, t.dtype, generator) for n, t in inputs.items()}
        self._inputs, self._draws = inputs, {n: t for n, t in draws.items() if inputs[n].dtype == torch.float64}
        self._pushed: dict[str, torch.Tensor] = {}
        for (output, wrt), block in blocks.items():
            if wrt in self._draws:
                self._pushed[output] = self._pushed.get(output, 0) + _contract(block, self._draws[wrt])

    def explain(self, run: Callable[[Inputs], Mapping[str, torch.Tensor]]) -> dict[str, str]:
        """Return how central differences of a function differ from that, by output; empty where they agree."""
        ahead, behind = (run(self._move(step)) for step in (STEP, -STEP))
        slopes = {name: (ahead[name] - behind[name]) / (2 * STEP) for name in self._pushed}
        return {name: explain_difference(t, slopes[name], OF_DIFFERENCES) for name, t in self._pushed.items()}

    def _move(self, step: float) -> Inputs:
        return {name: t + step * self._draws[name] if name in self._draws else t for name, t in self._inputs.items()}
