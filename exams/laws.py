"""Laws of physics and of structure that a file must hold by itself, whatever eager mode says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from exams.judgement import explain_difference
from exams.samples import Law, Run, Tensors

CLOSE = {"float64": 1e-9, "float32": 1e-4}
STEP = 1e-5


def explain_inequality(what: str, got: torch.Tensor, expected: torch.Tensor, close: float = 0.0) -> str:
    """Return how far two sides of a law are apart; empty if they agree. Zeros and NaN obey any law, and say nothing."""
    if not bool(expected.isfinite().all()) or not bool(expected.any()):
        return f"{what}: one side is not finite, or nothing but zeros"
    text = explain_difference(expected, got, dict.fromkeys(CLOSE, close) if close else CLOSE)
    return f"{what}: {text}" if text else ""


def make_equivariance(what: str, change: Callable[[Tensors], Tensors], follow: Callable[[Tensors], Tensors]) -> Law:
    """Return the law that ``change`` of the inputs makes the outputs ``follow``, and that all inputs count."""

    def judge(run: Run, inputs: Tensors) -> str:
        outputs = run(*inputs)
        for i, tensor in enumerate(inputs):
            # The other way round, pairs of indices are others.
            moved = tensor + _draw_noise(tensor) if tensor.is_floating_point() else tensor.flip(0)
            others = run(*inputs[:i], moved, *inputs[i + 1 :])
            if all(torch.equal(a, b) for a, b in zip(outputs, others, strict=True)):
                return f"no output depends on input {i}"
        pairs = zip(run(*change(inputs)), follow(outputs), strict=True)
        return next((text for got, expected in pairs if (text := explain_inequality(what, got, expected))), "")

    return judge


def make_force_law(positions: int, energy: int, forces: int) -> Law:
    """Return the law that forces are minus the gradient of the energy, by central differences of the file itself."""

    def judge(run: Run, inputs: Tensors) -> str:
        direction = torch.randn(
            inputs[positions].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
        )

        def move(step: float) -> torch.Tensor:
            moved = [t + step * direction if i == positions else t for i, t in enumerate(inputs)]
            return run(*moved)[energy].sum()

        slope = (move(STEP) - move(-STEP)) / (2 * STEP)
        work = -(run(*inputs)[forces] * direction).sum()
        return explain_inequality("forces are minus the gradient of the energy", slope, work, 1e-6)

    return judge


def make_causality(dim: int) -> Law:
    """Return the law that the first outputs along ``dim`` do not depend on later inputs, which are tokens."""

    def judge(run: Run, inputs: Tensors) -> str:
        count = inputs[0].shape[dim] // 2
        later = [t.clone() for t in inputs]
        later[0].narrow(dim, count, inputs[0].shape[dim] - count).fill_(1)
        pairs = list(zip(run(*later), run(*inputs), strict=True))
        what = "later tokens change earlier outputs"
        if all(torch.equal(got, expected) for got, expected in pairs):
            return "no output depends on later tokens"
        early = ((got.narrow(dim, 0, count), expected.narrow(dim, 0, count)) for got, expected in pairs)
        return next((text for got, expected in early if (text := explain_inequality(what, got, expected))), "")

    return judge


def _draw_noise(tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return 0.1 * torch.randn(tensor.shape, dtype=torch.float64, generator=generator).to(tensor.dtype)


def draw_rotation(seed: int) -> torch.Tensor:
    """Return a rotation of space, of determinant 1, in float64."""
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator))
    q = q * torch.sign(r.diagonal())
    return q * torch.linalg.det(q)


def check_laws(laws: Mapping[str, Law], run: Run, inputs: Sequence[torch.Tensor]) -> str:
    """Return which of the laws is violated first, and how; empty if all hold."""
    texts = ((name, law(run, tuple(inputs))) for name, law in laws.items())
    return next((f"{name}: {text}" for name, text in texts if text), "")
