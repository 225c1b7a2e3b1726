"""Operators whose derivatives torch writes in ways of their own, and shapes at the edge."""

from __future__ import annotations

import pytest
import torch
from project import mark_rest_thorough
from torch import nn
from torch.nn import functional

import torchferry
from exporter.capture import batch_recording
from exporter.capture.batch_recording import NotRecordedError
from exporter.common.errors import MismatchError
from exporter.model.eager import case_generation
from torchferry import Signature

pytestmark = pytest.mark.thorough

F = torch.float64


class Of(nn.Module):
    """A function of tensors as a model, with the parameters and submodules that it is given."""

    def __init__(self, function, inputs, outputs, batch_ndim=1, **parts):
        super().__init__()
        self.signature = Signature.of(inputs, outputs, batch_ndim=batch_ndim)
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def parameter(*shape):
    return nn.Parameter(torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=F) + 0.5)


class Shift(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = parameter(size)

    def forward(self, x):
        return torch.sigmoid(x * self.weight)


class Tied(nn.Module):
    signature = Signature.of({"x": (3,)}, {"y": (3,)})

    def __init__(self):
        super().__init__()
        self.a, self.b = Shift(3), Shift(3)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


def attention(self, q):
    return functional.scaled_dot_product_attention(q, torch.sin(q), q**2)


def shifted(x):
    return x + 4 * torch.eye(3, dtype=x.dtype, device=x.device)


MODELS = {
    "an output that is transposed": lambda: Of(lambda _, x: (x**2).transpose(1, 2), {"x": (3, 3)}, {"y": (3, 3)}),
    "inverse": lambda: Of(lambda _, x: torch.linalg.inv(shifted(x)), {"x": (3, 3)}, {"y": (3, 3)}),
    "determinant": lambda: Of(lambda _, x: torch.linalg.det(shifted(x)), {"x": (3, 3)}, {"y": ()}),
    "a layer over rows": lambda: Of(lambda m, x: m.l(x), {"x": (3, 4)}, {"y": (3, 2)}, l=nn.Linear(4, 2, dtype=F)),
    "batch norm": lambda: Of(lambda m, x: m.b(x) ** 2, {"x": (3,)}, {"y": (3,)}, b=nn.BatchNorm1d(3, dtype=F)),
    "group norm": lambda: Of(lambda m, x: m.g(x), {"x": (4, 3)}, {"y": (4, 3)}, g=nn.GroupNorm(2, 4, dtype=F)),
    "attention": lambda: Of(attention, {"q": (2, 3)}, {"y": (2, 3)}),
    "logcumsumexp": lambda: Of(lambda _, x: torch.logcumsumexp(x, -1), {"x": (4,)}, {"y": (4,)}),
    "distances": lambda: Of(lambda _, x: torch.cdist(x, x + 1.0), {"x": (3, 2)}, {"y": (3, 3)}),
    "a singular map": lambda: Of(lambda _, x: x - x.mean(-1, keepdim=True), {"x": (3,)}, {"y": (3,)}),
    "no batch, scalars": lambda: Of(lambda _, a, b: a * b.sin(), {"a": (), "b": ()}, {"y": ()}, 0),
    "a parameter called like an input": lambda: Of(
        lambda m, w: m.w * w.sin(), {"w": (3,)}, {"y": (3,)}, w=parameter(3)
    ),
}


@pytest.mark.parametrize("name", mark_rest_thorough(list(MODELS)[::2], list(MODELS)[1::2]))
def test_blocks_are_those_of_eager_mode(name, tmp_path):
    model = MODELS[name]()
    torchferry.export(model, output=tmp_path / "m.pt", derivatives="all", jvp=True, vjp=True)
    loaded = torchferry.load(tmp_path / "m.pt")
    generator = torch.Generator().manual_seed(4)
    lead = (4,) if loaded.contract.batch.ndim else ()
    inputs = [torch.rand((*lead, *s.static_shape), generator=generator, dtype=F) for s in loaded.contract.inputs]
    model.requires_grad_(False)
    wanted = torch.autograd.functional.jacobian(lambda *arguments: tuple_of(model(*arguments)), tuple(inputs))
    spec = loaded.contract.methods["jacobian"]
    with torch.inference_mode():
        got = dict(zip(spec.outputs, loaded.module.jacobian(*inputs), strict=True))
    for i, output in enumerate(loaded.contract.outputs):
        for j, other in enumerate(loaded.contract.inputs):
            block = wanted[i][j]
            if lead:
                out = len(output.shape)
                block = torch.stack([block.select(1 + out, e)[e] for e in range(4)])
            pair = (output.name, other.name)
            if pair in got:
                assert torch.allclose(got[pair], block, rtol=1e-10, atol=1e-12)
            else:
                assert not block.any()


def tuple_of(value):
    return value if isinstance(value, tuple) else (value,)


def test_parameters_of_several_modules_in_any_order(tmp_path):
    """The directions of each go to the parameter that they are of."""
    model = Of(lambda m, x: m.s(x) * m.k, {"x": (3,)}, {"y": (3,)}, k=parameter(3), s=Shift(3))
    torchferry.export(model, output=tmp_path / "m.pt", derivatives=["*:s.weight", "*:k"])
    loaded = torchferry.load(tmp_path / "m.pt")
    x = torch.rand(3, dtype=F)
    got = loaded.call("jacobian", {"x": x})
    s = torch.sigmoid(x * model.get_parameter("s.weight"))
    assert torch.allclose(got["d y / d k"], torch.diag(s))
    assert torch.allclose(got["d y / d s.weight"], torch.diag(model.get_parameter("k") * s * (1 - s) * x))


def test_a_parameter_under_two_names(tmp_path):
    model = Tied().requires_grad_(False)
    torchferry.export(model, output=tmp_path / "m.pt", derivatives=["all", "*:a.weight"])
    x, w = torch.rand(3, dtype=F), model.a.weight.clone()
    wanted = torch.func.jacrev(lambda w: torch.sigmoid(torch.sigmoid(x * w) * w))(w)
    got = torchferry.load(tmp_path / "m.pt").call("jacobian", {"x": x})
    assert torch.allclose(got["d y / d a.weight"], wanted)


def pooled(model, x):
    return functional.max_pool1d(torch.tanh(model.c(x[:, None])), 2).mean(-1)


@pytest.mark.parametrize(("is_recorded", "how"), [(True, "forward mode"), (False, "reverse mode, element by element")])
def test_a_formula_of_torch_that_writes_a_size_into_a_trace(tmp_path, monkeypatch, is_recorded, how):
    """The second derivative of max_pool1d does, where sizes are symbolic; what comes by another way is there."""

    def refuse(*_args):
        raise NotRecordedError

    if not is_recorded:
        monkeypatch.setattr(batch_recording, "record_batch_program", refuse)
    model = Of(pooled, {"x": (8,)}, {"y": (3,)}, c=nn.Conv1d(1, 3, 3, dtype=F))
    torchferry.export(model, output=tmp_path / "m.pt", derivatives="all", jvp=True)
    torchferry.export(model, output=tmp_path / "w.pt", derivatives=["*:x", "*:c.weight"])
    loaded = torchferry.load(tmp_path / "w.pt")
    assert loaded.contract.methods["jacobian"].how.endswith(f"by parameters: {how}")
    model.requires_grad_(False)
    assert loaded.call("jacobian", {"x": torch.rand(0, 8, dtype=F)})["d y / d c.weight"].shape == (0, 3, 3, 1, 3)
    for n in (1, 4):
        x, weight = torch.rand(n, 8, dtype=F), model.get_parameter("c.weight")
        with torch.inference_mode():
            got = loaded.call("jacobian", {"x": x})
        assert torch.equal(got["y"], model(x))

        def moved(w, x=x):
            return torch.func.functional_call(model, {"c.weight": w}, (x,))

        assert torch.allclose(got["d y / d c.weight"], torch.func.jacrev(moved)(weight.clone()), rtol=1e-10)


def test_rows_of_an_embedding(tmp_path):
    model = Of(
        lambda m, x, k: (m.e(k) * x[:, None]).sin(),
        {"x": (), "k": torchferry.TensorSpec("k", (), "int64")},
        {"y": (3,)},
        e=nn.Embedding(2, 3, dtype=F),
    )
    torchferry.export(model, output=tmp_path / "m.pt", derivatives="y:e.weight")
    x, k = torch.rand(5, dtype=F), torch.tensor([0, 1, 1, 0, 1])
    got = torchferry.load(tmp_path / "m.pt").call("jacobian", {"x": x, "k": k})["d y / d e.weight"]
    weight = model.get_parameter("e.weight").detach()
    wanted = torch.func.jacrev(lambda w: (w[k] * x[:, None]).sin())(weight)
    assert torch.allclose(got, wanted)


def test_nothing_in_a_variable(tmp_path):
    model = Of(lambda _, x, y: (x * 2, y**2), {"x": (0,), "y": (2,)}, {"a": (0,), "b": (2,)})
    torchferry.export(model, output=tmp_path / "m.pt", derivatives="all", jvp=True, vjp=True)
    inputs = {"x": torch.rand(4, 0, dtype=F), "y": torch.rand(4, 2, dtype=F)}
    result = torchferry.load(tmp_path / "m.pt").call("jacobian", inputs)
    assert result["d a / d x"].shape == (4, 0, 0)


def test_tangents_by_rows_where_a_backward_has_no_derivative(tmp_path):
    model = MODELS["distances"]()
    torchferry.export(model, output=tmp_path / "m.pt", jvp=True)
    spec = torchferry.load(tmp_path / "m.pt").contract.methods["jvp"]
    assert spec.how == "reverse mode, times the tangents"


def compute_arcosh(input):
    return torch.acosh(input)


def test_no_derivatives_are_compared_where_an_output_is_none(tmp_path, monkeypatch):
    """Beyond the domain, reverse mode has NaN by every input there, and forward mode 0.

    The first number is so near to the end of the domain that some of the drawn ones are beyond it."""
    inputs = {"input": torch.tensor([1.0 + 1e-9, 1.2, 1.5, 3.0], dtype=F)}
    torchferry.export(compute_arcosh, inputs=inputs, output=tmp_path / "m.pt", batch="no", derivatives="all")
    jacobian = torchferry.load(tmp_path / "m.pt").call("jacobian", inputs)
    torch.testing.assert_close(
        next(v for n, v in jacobian.items() if n.startswith("d ")), torch.diag((inputs["input"] ** 2 - 1).rsqrt())
    )
    monkeypatch.setattr(case_generation, "_has_nan", lambda tensors: False)
    with pytest.raises(MismatchError):
        torchferry.export(compute_arcosh, inputs=inputs, output=tmp_path / "n.pt", batch="no", derivatives="all")
