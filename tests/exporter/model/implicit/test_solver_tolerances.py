"""Tolerances of an implicit model: what rounding makes of a block is let pass, and nothing beside it."""

from __future__ import annotations

import pytest
import torch
from cubic_models import F
from project import mark_rest_thorough
from torch import nn

import torchferry
from exporter.archive.contract import DEFAULT_TOLERANCE
from exporter.capture import derivative_methods, jacobian_source
from exporter.common.errors import MismatchError
from exporter.model.implicit.solver_tolerances import CAP

USUAL = DEFAULT_TOLERANCE.bounds("", "float64")


class Flow(nn.Module):
    """Flow at a rate, to a stress that does not see the rate.

    ``p`` does not depend on time, but for what cancels in ``rate * (t - t~1)``.
    """

    signature = torchferry.Signature.of(
        {"p": (3,), "rate": (), "e": (3,), "p~1": (3,), "rate~1": (), "t": (), "t~1": ()},
        {"p_residual": (3,), "rate_residual": ()},
    )

    def forward(self, p, rate, e, old, old_rate, t, old_t):
        stress = 3.0 * (e - p)
        return p - old - (rate * (t - old_t))[:, None] * stress, (stress**2).sum(-1) - 1.0 - 0.0 * old_rate


class Kinked(nn.Module):
    """Every element of the warmup lies on the kink, where an input that moves by its last bit moves the block."""

    signature = torchferry.Signature.of({"x": (), "e": (), "x~1": ()}, {"x_residual": ()})

    def forward(self, x, e, old):
        return x - 0.0 * old - torch.where(e > 1.0, 3.0 * e - 2.0, e)


def flow():
    model = torchferry.ImplicitUpdate(Flow(), ["p", "rate"])
    size, start = torch.linspace(0.5, 2.0, 9, dtype=F), torch.linspace(0.1, 0.3, 9, dtype=F)
    e = size[:, None] * torch.tensor([1.0, 0.5, -0.7], dtype=F)
    model.__dict__["example_inputs"] = {
        "e": e,
        "p~1": 0.3 * e,
        "rate~1": torch.ones(9, dtype=F),
        "t": 0.3 + start,
        "t~1": start,
    }
    return model


def kinked():
    model = torchferry.ImplicitUpdate(Kinked(), ["x"])
    model.__dict__["example_inputs"] = {"e": torch.ones(6, dtype=F), "x~1": torch.ones(6, dtype=F)}
    return model


def changed(monkeypatch, shift):
    """The first block, ``d p / d e``, with ``by`` added."""
    written = jacobian_source.emit_jacobian_source

    def edit(*args, **more):
        head, returned = written(*args, **more).rsplit("return (", 1)
        return f"{head}return ({returned.replace('3])', f'3]).add({shift})', 1)}"

    monkeypatch.setattr(derivative_methods, "emit_jacobian_source", edit)


@pytest.mark.thorough
@pytest.mark.usefixtures("without_the_gate")
def test_a_block_that_is_zero_but_for_rounding(tmp_path):
    (exported,) = torchferry.export(flow(), output=tmp_path / "m.pt", derivatives=["p:e", "p:t"])
    within = exported.contract.tolerance.outputs
    by_t = torchferry.load(tmp_path / "m.pt").call("jacobian", flow().__dict__["example_inputs"])["d p / d t"]
    assert 0 < float(by_t.abs().max()) < within["d p / d t"].floor < CAP
    # Beside a block that is not, the usual tolerance is not widened by much.
    assert within["d p / d e"].floor < 10 * USUAL.atol
    assert within["d p / d e"].rtol < 10 * USUAL.rtol


@pytest.mark.usefixtures("without_the_gate")
@pytest.mark.parametrize("much", mark_rest_thorough([1e-9], [1e-6]))
def test_an_entry_that_is_off(tmp_path, monkeypatch, much):
    changed(monkeypatch, much)
    with pytest.raises(MismatchError, match="d p / d e"):
        torchferry.export(flow(), output=tmp_path / "m.pt", derivatives=["p:e", "p:t"])


@pytest.mark.usefixtures("without_the_gate")
def test_a_block_that_moves_at_a_kink_is_no_rounding(tmp_path):
    (exported,) = torchferry.export(kinked(), output=tmp_path / "m.pt", derivatives="all")
    assert exported.contract.tolerance.outputs["d x / d e"].floor <= 10 * USUAL.atol
