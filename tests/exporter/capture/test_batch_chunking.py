"""Large batches go through a file chunk by chunk."""

from __future__ import annotations

import pytest
import torch
from project import ROOT, load_module, skip_checks
from torch import nn

import torchferry
from exporter.capture import batch_chunking
from exporter.capture.batch_chunking import CHUNK
from exporter.common.errors import MismatchError
from exporter.common.torch_hooks import DispatchHook
from runtime_checks.report import FAILED

F = torch.float64


class CallCount(DispatchHook):
    """How often an operator is called."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.calls = name, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += func.name() == f"aten::{self.name}"
        return func(*args, **(kwargs or {}))


class Chain(nn.Module):
    """Of enough operations to be worth it."""

    def forward(self, x):
        for k in range(12):
            x = torch.sin(x) + k
        return {"y": x, "z": x.sum(-1)}


X = torch.linspace(-1, 1, 12, dtype=F).reshape(4, 3)


@pytest.fixture
def exported(tmp_path, without_the_gate):
    (item,) = torchferry.export(Chain(), inputs={"x": X}, output=tmp_path / "chain.pt")
    return item


@pytest.mark.parametrize("rows", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 7])
def test_chunks_are_put_together(exported, rows):
    x = torch.randn(rows, 3, dtype=F, generator=torch.Generator().manual_seed(0))
    module = load_module(exported.path)
    for got, wanted in zip(module(x), module.forward_batch(x), strict=True):
        assert torch.equal(got, wanted)


@pytest.fixture(scope="module")
def derived(tmp_path_factory):
    """With every method of derivatives."""
    path = tmp_path_factory.mktemp("derived") / "chain.pt"
    asked = {"derivatives": ["y:x", "z:x"], "jvp": True, "vjp": True}
    with skip_checks():
        torchferry.export(Chain(), inputs={"x": X}, output=path, **asked)
    return load_module(path)


@pytest.mark.parametrize("method", ["jacobian", "jvp", "vjp"])
def test_derivatives_of_chunks_are_put_together(derived, method):
    generator = torch.Generator().manual_seed(0)
    x, along, z = (torch.randn(CHUNK + 7, *s, dtype=F, generator=generator) for s in ((3,), (3,), ()))
    arguments = {"jacobian": (x,), "jvp": (x, along), "vjp": (x, along, z)}[method]
    assert f"{method}_slices_batch" in derived._c._method_names()
    whole = getattr(derived, f"{method}_batch")(*arguments)
    for got, wanted in zip(getattr(derived, method)(*arguments), whole, strict=True):
        assert torch.equal(got, wanted)


def test_so_are_those_of_a_source_librarys_chain_rule():
    module = load_module(ROOT / "artifacts" / "perzyna.pt")
    rows = 2 * CHUNK + 3
    shapes = [(6,), (6,), (6,), (), (), (6,)]
    generator = torch.Generator().manual_seed(0)
    arguments = [torch.rand(rows, *s, dtype=F, generator=generator) for s in shapes]
    assert "jacobian_slices_batch" in module._c._method_names()
    for got, wanted in zip(module.jacobian(*arguments), module.blocks_batch(*arguments), strict=True):
        assert torch.equal(got, wanted)


def test_an_implicit_models_jacobian_goes_in_chunks():
    module = load_module(ROOT / "artifacts" / "return_map.pt")
    methods = module._c._method_names()
    assert ("jacobian_slices_batch" in methods, "forward_slices_batch" in methods) == (True, False)


def test_gradients_go_through_chunks(exported):
    x = torch.randn(CHUNK + 5, 3, dtype=F, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    module = load_module(exported.path)
    got, wanted = (torch.autograd.grad(run(x)[1].sum(), x)[0] for run in (module, module.forward_batch))
    assert torch.equal(got, wanted)


def test_a_large_batch_is_part_of_every_verification(exported):
    (sizes,) = (c for c in exported.report.checks if c.check == "batch sizes")
    assert "batch 20011" in sizes.detail


def test_a_few_operations_go_at_once():
    methods = load_module(ROOT / "artifacts" / "rates.pt")._c._method_names()
    assert "forward_slices_batch" not in methods


def test_wide_values_go_in_smaller_chunks(tmp_path, without_the_gate):
    """A few operations on much that is not returned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 2)).double()
    torchferry.export(model, inputs={"input": X}, output=tmp_path / "net.pt")
    module = load_module(tmp_path / "net.pt")
    x = torch.randn(5000, 3, dtype=F)
    with CallCount("tanh") as counted:
        result = module(x)[0]
    assert counted.calls == 5
    torch.testing.assert_close(result, model(x), rtol=1e-12, atol=1e-14)


def test_chunks_are_longer_on_a_device(tmp_path, without_the_gate):
    """The device without data stands for a GPU."""
    torchferry.export(Chain(), inputs={"x": X}, output=tmp_path / "chain.pt")
    module = load_module(tmp_path / "chain.pt")
    rows = 40 * CHUNK
    for device, count in (("cpu", 40), ("meta", 2)):
        with CallCount("sin") as counted:
            module.to(device)(torch.zeros(rows, 3, dtype=F, device=device))
        assert counted.calls == 12 * count


@pytest.mark.parametrize("method", ["forward", "jacobian", "jvp", "vjp"])
def test_a_lost_chunk_is_seen(method, tmp_path, monkeypatch, without_the_gate):
    original = batch_chunking.emit_chunked_source

    def short(name, *arguments):
        source = original(name, *arguments)
        rows = arguments[-1]
        return source.replace("max(tf_rows, 1),", f"max(tf_rows - {rows}, 1),") if name.startswith(method) else source

    monkeypatch.setattr(batch_chunking, "emit_chunked_source", short)
    asked = {"jacobian": {"derivatives": "y:x"}, "jvp": {"jvp": True}, "vjp": {"vjp": True}}.get(method, {})
    with pytest.raises(MismatchError) as caught:
        torchferry.export(Chain(), inputs={"x": X}, output=tmp_path / "chain.pt", **asked)
    assert {c.check for c in caught.value.report.checks if c.verdict == FAILED} == {"batch sizes"}
