"""Inverse Fourier transforms in ONNX: the digits of float64, at sizes whose inverse is no float32."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
import torch

import torchferry
from exporter.backends.onnx import export
from exporter.common.errors import MismatchError

pytestmark = pytest.mark.usefixtures("file_without_the_gate")


def transform(x, y):
    spectrum = torch.fft.fft(x, dim=0)
    return {
        "whole": torch.fft.ifft(spectrum * (1.0 + y), dim=0).real,
        "even": torch.fft.irfft(torch.fft.rfft(x) * (1.0 + y[:, :4]), n=6),
        "odd": torch.fft.irfft(torch.fft.rfft(x) * y[:, :4], n=7),
        "scaled": torch.fft.irfft(torch.fft.rfft(x), n=7, norm="ortho"),
        "unscaled": torch.fft.hfft(spectrum[:, :4], n=6),
        # The imaginary parts of the first number and of the middle one have no effect.
        "imaginary": torch.fft.irfft(torch.complex(x, y)[:, :4], n=6),
        "two": torch.fft.irfft2(torch.fft.rfft2(x) * 2.0, s=(5, 7)),
        "first": torch.fft.irfft(torch.complex(x, y), n=9, dim=0),
    }


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(5, 7, dtype=torch.float64, generator=generator) for name in "xy"}


@pytest.mark.thorough
def test_the_digits_of_float64(tmp_path):
    inputs = make_inputs()
    torchferry.export(transform, inputs=inputs, output=tmp_path / "m.onnx", batch="no")
    graph = onnx.load(tmp_path / "m.onnx").graph
    assert not [
        a for node in graph.node if node.op_type == "DFT" for a in node.attribute if a.name == "inverse" and a.i
    ]
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    large = {name: 1e12 * tensor for name, tensor in inputs.items()}
    got = session.run(None, {name: tensor.numpy() for name, tensor in large.items()})
    for array, own in zip(got, transform(**large).values(), strict=True):
        torch.testing.assert_close(torch.from_numpy(array), own, rtol=1e-13, atol=1e-13 * float(own.abs().max()))


def test_the_runtimes_own_inverse_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "replace_inverse_transforms", lambda model: None)
    with pytest.raises(MismatchError, match="does not agree"):
        torchferry.export(transform, inputs=make_inputs(), output=tmp_path / "m.onnx", batch="no")
