"""Normalised channels in ONNX: what torch gives, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchferry
from exporter.backends.onnx.normalisation import (
    batch_norm,
    group_norm,
    instance_norm,
    native_batch_norm,
    native_batch_norm_legit,
)


def test_normalised_channels():
    generator = torch.Generator().manual_seed(0)
    for dtype, shape in ((torch.float64, (4, 3)), (torch.float64, (2, 3, 5, 4)), (torch.float32, (2, 3, 5))):
        x = torch.randn(shape, dtype=dtype, generator=generator)
        weight, bias, mean = (torch.randn(3, dtype=dtype, generator=generator) for _ in range(3))
        variance = torch.tensor([1e-6, 1.0, 40.0], dtype=dtype)
        options = (False, 0.1, 1e-5, True)
        for parameters in ((weight, bias), (None, None)):
            wanted = torch.batch_norm(x, *parameters, mean, variance, *options)
            got = batch_norm(x, *parameters, mean, variance, *options)
            torch.testing.assert_close(got, wanted, rtol=1e-13 if dtype == torch.float64 else 0.0, atol=1e-12)


def test_channels_normalised_by_the_batch():
    """torch.onnx takes the statistics that are given in any case; what is written to them counts, too."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((4, 3, 5), dtype=torch.float64, generator=generator)
    weight, bias = (torch.randn(3, dtype=torch.float64, generator=generator) for _ in range(2))
    for is_training in (False, True):
        pairs = []
        for function in (native_batch_norm, torch.native_batch_norm):
            mean, variance = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([0.1, 2.0, 30.0]).double()
            pairs.append([*function(x, weight, bias, mean, variance, is_training, 0.1, 1e-5), mean, variance])
        for mine, own in zip(*pairs, strict=True):
            torch.testing.assert_close(mine, own, rtol=1e-12, atol=1e-12)
    wanted = torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)
    for mine, own in zip(native_batch_norm_legit(x, None, None, True, 0.1, 1e-5), wanted, strict=True):
        torch.testing.assert_close(mine, own, rtol=1e-12, atol=1e-12)
    options = (torch.zeros(3).double(), torch.ones(3).double(), True, 0.1, 1e-5, True)
    torch.testing.assert_close(batch_norm(x, None, None, *options), wanted[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 6), (2, 6, 5), (2, 6, 3, 4)])
def test_groups_and_samples(shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    weight, bias, mean = (torch.randn(6, dtype=torch.float64, generator=generator) for _ in range(3))
    for parameters in ((weight, bias), (None, None)):
        wanted = torch.group_norm(x, 3, *parameters, 1e-3)
        torch.testing.assert_close(group_norm(x, 3, *parameters, 1e-3), wanted, rtol=1e-12, atol=1e-13)
        for options in ((None, None, True, 0.1, 1e-5, True), (mean, weight.abs(), False, 0.1, 1e-5, True)):
            if len(shape) > 2:
                wanted = torch.instance_norm(x, *parameters, *options)
                torch.testing.assert_close(instance_norm(x, *parameters, *options), wanted, rtol=1e-12, atol=1e-13)


def test_no_samples():
    assert group_norm(torch.zeros(0, 6, 3, dtype=torch.float64), 2).shape == (0, 6, 3)


@pytest.mark.thorough
def test_they_are_written(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False))
    x = {"input": torch.randn(3, 4, 5, dtype=torch.float64)}
    (exported,) = torchferry.export(network.double(), inputs=x, output=tmp_path / "m.onnx", batch="no")
    assert exported.report.passed
