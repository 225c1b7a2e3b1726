"""Losses by classes in ONNX: what torch gives, at every reduction, with weights, smoothing and ignored samples."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import torchferry
from exporter.backends.onnx.losses import MEAN, NONE, cross_entropy, nll_loss

SUM = 2
SHAPES = [(4,), (5, 4), (2, 4, 3), (2, 4, 3, 2)]


def make_logits(shape, is_probability):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    if is_probability:
        return x, torch.randn(shape, dtype=torch.float64, generator=generator).softmax(0)
    rest = [size for dim, size in enumerate(shape) if dim != min(1, len(shape) - 1)]
    return x, torch.randint(0, 4, rest, generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_probability", [False, True])
def test_cross_entropy(shape, is_probability):
    x, target = make_logits(shape, is_probability)
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)
    ignored = [-100] if is_probability else [-100, 1]
    for weight, reduction, own, smoothing in itertools.product((None, weights), (NONE, MEAN, SUM), ignored, (0.0, 0.3)):
        options = (weight, reduction, own, smoothing)
        wanted = torch.ops.aten.cross_entropy_loss(x, target, *options)
        torch.testing.assert_close(cross_entropy(x, target, *options), wanted, rtol=1e-13, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_negative_logarithms(shape):
    x, target = make_logits(shape, is_probability=False)
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)
    for weight, reduction, ignored in itertools.product((None, weights), (NONE, MEAN, SUM), (-100, 1)):
        options = (weight, reduction, ignored)
        wanted = torch.ops.aten.nll_loss_nd(x, target, *options)
        torch.testing.assert_close(nll_loss(x, target, *options), wanted, rtol=1e-13, atol=1e-14, equal_nan=True)


def test_places_of_other_dtypes_and_no_rows():
    x, target = make_logits((5, 4), is_probability=False)
    wanted = F.cross_entropy(x, target.to(torch.uint8))
    torch.testing.assert_close(
        cross_entropy(x, target.to(torch.uint8), None, MEAN, -100, 0.0), wanted, rtol=1e-13, atol=0
    )
    assert cross_entropy(x[:0], target[:0], None, NONE).shape == (0,)


def score(x, y):
    target = (x[:, 0] > 0.5).long() + 1
    return {
        "smooth": F.cross_entropy(x, target, label_smoothing=0.2),
        "weighted": F.cross_entropy(x, y.softmax(1), weight=torch.tensor([1.0, 2.0, 3.0])),
        "one": F.cross_entropy(x[0], target[0]),
        "logs": F.nll_loss(x, target, reduction="sum", ignore_index=1),
    }


@pytest.mark.thorough
def test_they_are_written(tmp_path):
    inputs = {name: torch.rand(6, 3, generator=torch.Generator().manual_seed(0)) for name in "xy"}
    (exported,) = torchferry.export(score, inputs=inputs, output=tmp_path / "m.onnx", batch="no")
    assert exported.report.passed
