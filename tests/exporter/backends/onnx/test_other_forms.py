"""Operators that torch.onnx does not take as a trace records them, or writes with other numbers."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from typing import Any

import contracts
import onnx_ir
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import torchferry
from exporter.backends.onnx import export
from runtime_checks.containers import open_container

pytestmark = pytest.mark.usefixtures("file_without_the_gate")


def compute(x, picture, weight, number, nothing):
    y = x.clone()
    z = y.squeeze(0)
    z.unsqueeze_(0)
    first = x[0, :1].clone()
    # No place is written to.
    first[1:].copy_(first)
    return {
        "into nothing": first,
        "of three dtypes": torch.cat([x > 0.5, x.argsort(0), x[:1]]),
        "of two": torch.stack([number > 0.5, number.long()]),
        "power of another precision": (picture[0, 0, :, :3] + 0.5) ** x,
        "length of a truth value": torch.hypot(x, x > 0.5),
        "none beside others": torch.cat([torch.empty(0), x, x.argsort(0).int()], 1),
        "length of another precision": torch.hypot(picture[0, 0, :, :3], x),
        "median": x.median(),
        "medians": x.median(0, keepdim=True)[0],
        "their places": x.median(1)[1],
        # Written in place, by a function that onnxruntime has for float32 alone.
        "in place": x.clone().acos_(),
        "sorted": torch.sort(x, dim=1, stable=True, descending=True)[1],
        "places": x.argsort(0),
        "one number": torch.amin(number),
        # A dimension that is not 1 stays; what is reshaped later is not x.
        "squeezed": x.squeeze(0),
        "other": z,
        "y": y + 1,
        "shape in place": x[:1].clone().squeeze_(0),
        "convolution": F.conv2d(picture, weight),
        "minus infinity is far": F.logsigmoid(100 * picture.flatten() - 150),
        "nothing": nothing * 2,
        "mean": number.expand(4).scatter_reduce(0, torch.tensor([0, 1, 1]), x[:3, 0], "mean"),
        "mean of others": x[:, 1].scatter_reduce(0, torch.tensor([0, 1, 1]), x[:3, 0], "mean", include_self=False),
        "power 0": torch.linalg.matrix_power(picture, 0),
        "power 5": torch.linalg.matrix_power(picture, 5),
        "power -2": torch.linalg.matrix_power(x[:2, :2], -2),
    }


def double(x):
    return x * 2


def test_they_are_written_with_the_same_numbers(tmp_path):
    torch.manual_seed(0)
    inputs = {
        "x": torch.rand(4, 3, dtype=torch.float64),
        "picture": torch.rand(2, 3, 4, 4),
        "weight": torch.rand(3, 3, 2, 2),
        "number": torch.rand((), dtype=torch.float64),
        "nothing": torch.rand(0, 3),
    }
    (exported,) = torchferry.export(compute, inputs=inputs, output=tmp_path / "m.onnx", batch="no")
    assert exported.report.passed


def divide_by_zero(*_):
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGFPE)


@pytest.mark.thorough
def test_a_batch_that_ends_the_runtimes_process_is_left_out_and_said(tmp_path, monkeypatch):
    torchferry.export(double, inputs={"x": torch.rand(4, 3)}, output=tmp_path / "m.onnx")
    assert 0 in open_container(tmp_path / "m.onnx").contract.batch.sizes
    monkeypatch.setattr(export, "_run_empty_batch", divide_by_zero)
    torchferry.export(double, inputs={"x": torch.rand(4, 3)}, output=tmp_path / "m.onnx")
    batch = open_container(tmp_path / "m.onnx").contract.batch
    assert 0 not in batch.sizes
    assert "ends the process" in batch.limits


class Endless:
    """A session of onnxruntime's that computes for ever where there are no elements."""

    def __init__(self, *_: object) -> None:
        pass

    def run(self, _: object, values: dict[str, Any]) -> list[Any]:
        while not next(iter(values.values())).size:
            time.sleep(0.01)
        return list(values.values())


def test_a_batch_that_the_runtime_does_not_end_is_left_out_soon(monkeypatch):
    model = onnx_ir.Model(onnx_ir.Graph([], [], nodes=[], opset_imports={"": 18}), ir_version=10)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Endless)
    monkeypatch.setattr(export, "EMPTY_SECONDS", 0.5)
    begun = time.monotonic()
    assert "does not end" in export.probe_empty_batch({"forward": model}, contracts.contract())
    assert 0.5 < time.monotonic() - begun < 30
