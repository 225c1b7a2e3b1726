"""Laws hold for networks that obey them, and find those that do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from exams.examination import Case, examine
from exams.laws import draw_rotation, explain_inequality, make_causality, make_equivariance, make_force_law
from exams.samples import Sample

D = torch.float64


def draw(seed):
    return (torch.randn(4, 3, dtype=D, generator=torch.Generator().manual_seed(seed)),)


def examine_law(function, law, draw=draw):
    case = Case([Sample(function, draw(0), (draw(1), draw(2)), laws={"law": law})], ("pt", "laws"))
    (cells,) = examine([case], [{}])
    assert cells["pt"] == "verified"
    return cells["laws"]


class Springs(nn.Module):
    """Atoms on springs; forces are ``factor`` times right."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, r):
        difference = r[:, None] - r[None]
        energy = (difference**2).sum() / 4
        return energy, -self.factor * difference.sum(1)


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_forces(factor):
    cell = examine_law(Springs(factor), make_force_law(0, 0, 1))
    assert (cell == "verified") is (factor == 1.0)
    if factor != 1.0:
        assert cell.startswith("wrong: law: forces are minus the gradient of the energy: off by 1e-03")


@pytest.mark.parametrize("size", [0.0, 1e-5])
def test_rotations(size):
    rotation = draw_rotation(0)
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(3, dtype=D))
    assert torch.linalg.det(rotation) > 0
    law = make_equivariance("a rotation", lambda x: (x[0] @ rotation.T,), lambda y: (y[0] @ rotation.T,))
    cell = examine_law(lambda x: x / (1 + x.norm(dim=-1, keepdim=True)) + size * x.abs(), law)
    assert cell == "verified" if size == 0.0 else cell.startswith("wrong: law: a rotation: off by")


@pytest.mark.parametrize("is_causal", [True, False])
def test_causality(is_causal):
    def draw_tokens(seed):
        return (torch.randint(2, 9, (2, 6), generator=torch.Generator().manual_seed(seed)),)

    def average(tokens):
        numbers = tokens.double()
        total = numbers.cumsum(1) if is_causal else numbers.sum(1, keepdim=True).expand(-1, 6)
        return total / torch.arange(1, 7)

    cell = examine_law(average, make_causality(1), draw_tokens)
    assert cell == "verified" if is_causal else cell.startswith("wrong: law: later tokens change earlier outputs")


def test_laws_that_say_nothing_are_seen():
    same = make_equivariance("a rotation", lambda x: x, lambda y: y)
    assert "no output depends on input 0" in examine_law(lambda x: x * 0.0 + 3.0, same)
    assert "nothing but zeros" in explain_inequality("a law", torch.zeros(3), torch.zeros(3))
    assert "not finite" in explain_inequality("a law", torch.full((3,), torch.nan), torch.full((3,), torch.nan))
    assert "nothing but zeros" in examine_law(lambda r: (r.sum() * 0.0 + 1.0, r * 0.0), make_force_law(0, 0, 1))
    other = make_equivariance("a copy", lambda x: x, lambda y: (y[0][:1],))
    assert "[4, 3] torch.float64 instead of [1, 3]" in examine_law(lambda x: x.sin(), other)

    def draw_tokens(seed):
        return (torch.randint(2, 9, (2, 6), generator=torch.Generator().manual_seed(seed)),)

    start = lambda tokens: tokens[:, :1].double().expand(-1, 6)  # noqa: E731
    assert "no output depends on later tokens" in examine_law(start, make_causality(1), draw_tokens)
