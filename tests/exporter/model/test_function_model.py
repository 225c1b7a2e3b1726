"""Functions as models: what they take, what they read, and what of the user's is left alone."""

import pytest
import torch
from torch import nn
from training_functions import Detached, check, exported, layer, training

import torchferry
from exporter.common.errors import CaptureError, SourceError, UnsoundError
from exporter.model.function_model import FunctionModule

F = torch.float64


def test_the_users_gradients_are_left_alone(tmp_path):
    model = layer()
    model.weight.grad = torch.full((10, 10), 3.0, dtype=F)
    exported(training(model=model), tmp_path / "m.pt")
    assert torch.equal(model.weight.grad, torch.full((10, 10), 3.0, dtype=F))
    assert model.weight.requires_grad


def test_gradients_of_the_users_are_left_alone_where_a_function_adds_to_them(tmp_path):
    model = layer()
    model.weight.grad = torch.ones(10, 10, dtype=F)

    @torchferry.declare({"x": ("n", 10)})
    def adds(x):
        model(x).sum().backward()
        return model.weight.grad

    with pytest.raises(UnsoundError):
        exported(adds, tmp_path / "m.pt")
    assert torch.equal(model.weight.grad, torch.ones(10, 10, dtype=F))


class Trainer:
    def __init__(self):
        self.net = layer()
        self.myself = self


TRAINER = Trainer()


def test_modules_behind_an_object():
    def function(x):
        return TRAINER.net(x)

    assert {n for n, _ in FunctionModule(function).named_parameters()} == {"TRAINER_net.weight", "TRAINER_net.bias"}


def test_a_factory_and_a_class_that_are_given(tmp_path):
    def make():
        return Detached()

    for position, source in enumerate((Detached, make)):
        assert exported(source, tmp_path / f"{position}.pt").contract.outputs[0].name == "stress"


def test_a_function_that_does_not_say_what_it_takes(tmp_path):
    path = tmp_path / "f.py"
    path.write_text("def loss(x, y):\n    return (x - y).sum()\n")
    with pytest.raises(SourceError, match=r"@torchferry\.declare"):
        torchferry.export(f"{path}:loss", output=tmp_path / "m.pt")


def test_a_function_with_examples(tmp_path):
    """``--inputs`` say what it takes: a batch of independent elements."""
    path = tmp_path / "g.py"
    path.write_text("def twice(x):\n    return {'y': 2 * x}\n")
    (item,) = torchferry.export(f"{path}:twice", output=tmp_path / "m.pt", inputs={"x": torch.rand(4, 3, dtype=F)})
    assert [s.describe() for s in item.contract.inputs] == ["x: Tensor[3] float64"]


def test_what_a_function_reads_is_its_own():
    shared, other, bare = nn.Linear(2, 2), nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    parts = [shared, other]

    def inner(x):
        return parts[1](x) * bare

    def outer(x, scale=shared):
        return inner(scale(x))

    result = FunctionModule(outer)
    assert {n for n, _ in result.named_parameters()} == {
        "scale.weight",
        "scale.bias",
        "parts_1.weight",
        "parts_1.bias",
        "bare",
    }


def test_names_that_a_file_cannot_have():
    result = []
    weights = {"layer.0": nn.Parameter(torch.ones(2)), "forward": nn.Linear(2, 2)}
    forward, append = weights["forward"], result.append

    def function(x):
        append(x)
        return forward(x) * weights["layer.0"]

    def later(x):
        return function(x) if x is None else earlier(x)

    module = FunctionModule(later)

    def earlier(x):
        return x

    assert {n for n, _ in module.named_parameters()} == {"weights_layer_0", "forward_.weight", "forward_.bias"}


def test_a_network_that_trains_is_not_put_to_rest(tmp_path):
    """The function uses its modules in the mode that it has set them to: dropout draws, batch norm writes."""
    for part, result in ((nn.Dropout(0.5), "random numbers"), (nn.BatchNorm1d(10, dtype=F), "side effect")):
        net = nn.Sequential(layer(), part).train()

        @torchferry.declare({"x": ("n", 10)})
        def gradient(x, net=net):
            return torch.autograd.grad(net(x).pow(2).sum(), next(iter(net.parameters())))[0]

        with pytest.raises(UnsoundError) as caught:
            exported(gradient, tmp_path / "m.pt")
        assert caught.value.details["check"] == result
        assert net.training


def test_tensors_that_ask_for_gradients_are_parameters(tmp_path):
    """In a list; and what a hook puts aside for the function to return is no side effect."""
    weights = [torch.rand(10, 4, dtype=F, requires_grad=True)]

    @torchferry.declare({"x": ("n", 10)})
    def gradient(x):
        kept = {}
        inner = torch.tanh(x @ weights[0])
        inner.register_hook(lambda g: kept.update(inner=g))
        result = torch.autograd.grad(inner.pow(2).sum(), weights[0])[0]
        return {"gradient": result, "inner": kept["inner"]}

    (item,) = torchferry.export(gradient, output=tmp_path / "m.pt")
    assert [p.name for p in item.contract.parameters] == ["weights_0"]
    check(gradient, tmp_path / "m.pt", 2, 50)


def test_a_step_that_moves_the_modules_own_parameters(tmp_path):
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torchferry.declare({"x": ("n", 10)})
    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    before = model.weight.detach().clone()
    with pytest.raises(UnsoundError, match=r"writes to parameter 'model\.weight'"):
        exported(step, tmp_path / "m.pt")
    # The user's module is what it was, but for what one eager run does.
    assert model.weight.requires_grad
    assert model.weight.shape == before.shape


def test_a_write_to_what_the_file_keeps(tmp_path):
    """Where the gate is told to let it pass, the capture says it."""
    model = layer()

    @torchferry.declare({"x": ("n", 10)})
    def step(x):
        (gradient,) = torch.autograd.grad(model(x).sum(), model.weight)
        with torch.no_grad():
            model.weight.sub_(0.1 * gradient)
        return gradient

    with pytest.raises(CaptureError, match="writes to a tensor that the file keeps"):
        exported(step, tmp_path / "m.pt", allow=["side effect:to see", "hidden state:to see"])
