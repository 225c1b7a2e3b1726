import contextlib

import pytest
import torch
from tampering import rewrite

import torchferry
from runtime_checks.engines import engines
from runtime_checks.model import Model

F = torch.float64


def test_call_by_name(eq_path):
    model = torchferry.load(eq_path)
    inputs = {s.name: torch.rand(3, dtype=F) for s in model.contract.inputs}
    outputs = model.call("forward", inputs)
    rate = (inputs["a"] - inputs["a~1"]) / (inputs["t"] - inputs["t~1"])
    torch.testing.assert_close(outputs["a_rate"], rate)
    assert torch.equal(model(*inputs.values())[0], outputs["a_rate"])
    assert "a~1: Scalar[] float64" in repr(model)


def test_wrong_names(eq_path):
    model = torchferry.load(eq_path)
    with pytest.raises(torchferry.UsageError, match="no method 'forwards'"):
        model.call("forwards", {})
    with pytest.raises(torchferry.UsageError, match="does not take these inputs"):
        model.call("forward", {"a": torch.zeros(1)})
    with pytest.raises(torchferry.UsageError, match="no parameter 'E'"):
        model.set_parameter("E", torch.zeros(()))


def test_a_damaged_file_does_not_load(eq_copy):
    rewrite(eq_copy, lambda r: r.update({"constants.pkl": b"x"}), manifest=False)
    with pytest.raises(torchferry.ArchiveError, match=r"constants\.pkl"):
        torchferry.load(eq_copy)


def test_another_dtype(eq_path):
    model = torchferry.load(eq_path).to(torch.float32)
    assert model(*[torch.rand(2) for _ in range(8)])[0].dtype == torch.float32


def test_a_large_graph_runs_as_it_is(eq_path, monkeypatch):
    """torch's optimiser takes minutes on it."""
    inputs = [torch.rand(3, dtype=F) for _ in range(8)]
    small = torchferry.load(eq_path)
    monkeypatch.setattr(engines, "MAX_OPTIMISED_NODES", 3)
    large = torchferry.load(eq_path)
    assert [getattr(m.engine, "optimised", None) for m in (small, large)] == [True, False]
    asked = []
    monkeypatch.setattr(engines, "optimized_execution", lambda on: asked.append(on) or contextlib.nullcontext())
    for model in (small, large):
        model(*inputs)
        model.call("forward", {s.name: v for s, v in zip(model.contract.inputs, inputs, strict=True)})
    assert asked == [False, False]


def test_a_call_from_the_cpu_of_a_model_that_is_elsewhere(eq_path):
    """What has no numbers is the other device."""

    class Elsewhere:
        @property
        def parameters(self):
            return {}

        def run(self, method, inputs):
            assert all(value.device.type == "meta" for value in inputs)
            return (torch.ones(3, dtype=F),) * len(contract.methods[method].outputs)

        def to(self, *target):
            return None

    contract = torchferry.load(eq_path).contract
    model = Model(contract, Elsewhere(), "meta")
    inputs = {s.name: torch.rand(3, dtype=F) for s in contract.inputs}
    assert torch.equal(model.call_from_anywhere("forward", inputs)["a_rate"], torch.ones(3, dtype=F))
    with pytest.raises(torchferry.UsageError, match="wrong device"):
        model.call("forward", inputs)
