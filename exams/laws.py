"""Laws of physics and of structure that a file must hold by itself, whatever eager mode says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from exams.samples import Law, Run, Tensors

CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}
STEP = 1e-5


def explain_inequality(what: str, got: torch.Tensor, expected: torch.Tensor, close: float = 0.0) -> str:
    """Return how far two sides of a law are apart, by the largest number; empty if they agree.

    Zeros obey any law, and say nothing."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{what}: one side is {list(got.shape)} {got.dtype}, the other {list(expected.shape)} {expected.dtype}"
    scale = float(expected.abs().max())
    if scale == 0.0:
        return f"{what}: there is nothing but zeros"
    off = float((got - expected).abs().max()) / scale
    limit = close or CLOSE[expected.dtype]
    return "" if off <= limit else f"{what}: the sides differ by {off:.0e}"


def make_equivariance(what: str, change: Callable[[Tensors], Tensors], follow: Callable[[Tensors], Tensors]) -> Law:
    """Return the law that ``change`` of the inputs makes the outputs ``follow``."""

    def judge(run: Run, inputs: Tensors) -> str:
        pairs = zip(run(*change(inputs)), follow(run(*inputs)), strict=True)
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
