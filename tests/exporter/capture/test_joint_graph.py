"""Functions that take gradients themselves, as one graph in the file: the cases of torch's tutorial on compiled
autograd, and what cannot be captured."""

import warnings

import pytest
import torch
from project import ROOT
from torch import nn
from training_functions import Detached, check, exported, layer, program_of, training
from typer.testing import CliRunner

import torchferry
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.capture.torchscript_writer import emit_torchscript
from exporter.common.errors import OperatorError, UsageError
from exporter.frontends import python_factory
from exporter.graph.provenance import list_captured_methods, list_model_steps, open_archive
from exporter.model.eager.warmup import run_first
from exporter.model.function_model import FunctionModule
from exporter.saved_code.origin import AFTER, BACKWARD, FORWARD, HOOK
from runtime_checks.runners.libtorch_runner import LibtorchRunner
from runtime_checks.verification import collect_report
from torchferry.cli.app import app

pytestmark = pytest.mark.usefixtures("without_the_gate")

F = torch.float64


def test_a_linear_layer_is_one_graph_for_any_batch(tmp_path):
    function = training()
    item = exported(function, tmp_path / "m.pt")
    check(function, tmp_path / "m.pt", 1, 4, 333)
    methods = list_captured_methods(open_archive(tmp_path / "m.pt").saved)
    assert list(methods) == ["forward_batch"]
    # No other operation is left out of it: no method that calls autograd.
    assert {s.origin.part for s in methods["forward_batch"]} == {FORWARD, BACKWARD}
    assert item.contract.inputs[0].shape == ("n", 10)
    assert {p.name for p in item.contract.parameters} == {"model.weight", "model.bias"}


def test_with_a_hook(tmp_path):
    def doubled(gradient):
        return gradient * 2 + 1

    function = training(hook=doubled)
    exported(function, tmp_path / "m.pt")
    check(function, tmp_path / "m.pt", 3, 20)
    result = list_model_steps(open_archive(tmp_path / "m.pt"))
    hooks = [s for s in result if s.origin.part == HOOK]
    assert [s.operator for s in hooks] == ["aten::mul", "aten::add"]
    line = doubled.__code__.co_firstlineno + 1
    assert {(s.origin.of, s.origin.where) for s in hooks} == {("doubled", f"test_joint_graph.py:{line}")}
    linear = [s for s in result if s.origin.of == "AddmmBackward0"]
    assert linear
    assert {s.origin.module for s in linear} == {"model"}


def test_with_a_step_of_an_optimiser(tmp_path):
    """Five steps of the file are five steps of ``torch.optim``."""
    exported(f"{ROOT}/examples/train_step.py:momentum_step", tmp_path / "m.pt")
    loaded = torchferry.load(tmp_path / "m.pt")
    generator = torch.Generator().manual_seed(0)
    x, target = torch.randn(40, 3, dtype=F, generator=generator), torch.randn(40, 2, dtype=F, generator=generator)
    state = {"weight": torch.zeros(2, 3, dtype=F), "velocity": torch.zeros(2, 3, dtype=F)}
    weight = nn.Parameter(state["weight"].clone())
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(x @ weight.T, target)
        loss.backward()
        optimizer.step()
        got = loaded.call("forward", {"x": x, "target": target, "rate": torch.tensor(0.1, dtype=F), **state})
        state = {"weight": got["new_weight"], "velocity": got["new_velocity"]}
        torch.testing.assert_close(got["loss"], loss.detach(), rtol=1e-12, atol=0)
        losses.append(loss.item())
    torch.testing.assert_close(state["weight"], weight.detach(), rtol=1e-12, atol=1e-14)
    assert losses == sorted(losses, reverse=True)
    assert AFTER in {s.origin.part for s in list_model_steps(open_archive(tmp_path / "m.pt"))}


def test_across_a_graph_break(tmp_path):
    def broken(y):
        torch._dynamo.graph_break()
        y = y + 10
        torch._dynamo.graph_break()
        return y.sin().sum()

    function = training(broken)
    exported(function, tmp_path / "m.pt")
    check(function, tmp_path / "m.pt", 2, 31)
    assert len(list_captured_methods(open_archive(tmp_path / "m.pt").saved)) == 1


def test_parameters_are_set_in_loss_and_gradients(tmp_path):
    model = layer()
    exported(training(lambda y: (y**2).mean(), model=model), tmp_path / "m.pt")
    loaded = torchferry.load(tmp_path / "m.pt")
    other = layer(7)
    for name, value in other.named_parameters():
        loaded.set_parameter(f"model.{name}", value.detach())
    x = torch.randn(6, 10, dtype=F)
    wanted = training(lambda y: (y**2).mean(), model=other)(x)
    for got, value in zip(loaded.call("forward", {"x": x}).values(), wanted.values(), strict=True):
        torch.testing.assert_close(got, value.detach())


def test_natively(tmp_path):
    exported(f"{ROOT}/examples/train_step.py:loss_and_grad", tmp_path / "m.pt")
    report = collect_report(tmp_path / "m.pt", runners=[LibtorchRunner()])
    assert report.passed
    assert {c.check: c.calls for c in report.checks}["stored cases"] >= 3


def test_a_module_that_takes_its_stress_from_an_energy(tmp_path):
    """The tangent is a second derivative: it comes where the model keeps the graph of its first."""

    class Hyperelastic(nn.Module):
        signature = torchferry.Signature.of({"strain": (3,)}, {"stress": (3,), "energy": ()})

        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 8, dtype=F), nn.Softplus(), nn.Linear(8, 1, dtype=F))

        def forward(self, strain):
            strain.requires_grad_()
            energy = self.net(strain)[:, 0]
            (stress,) = torch.autograd.grad(energy.sum(), strain, create_graph=True)
            return stress, energy

    model = Hyperelastic()
    item = exported(model, tmp_path / "m.pt", derivatives="stress:strain", symmetric=["stress:strain"])
    assert item.contract.batch.ndim == 1
    strain = torch.randn(5, 3, dtype=F)
    with torch.inference_mode():
        got = torchferry.load(tmp_path / "m.pt").call("jacobian", {"strain": strain})["d stress / d strain"]
    hessian = torch.func.vmap(torch.func.hessian(lambda e: model.net(e)[0]))(strain)
    torch.testing.assert_close(got, hessian.detach(), rtol=1e-10, atol=1e-12)


def test_a_tangent_of_a_gradient_without_a_graph(tmp_path):
    exported(Detached(), tmp_path / "m.pt")
    with pytest.raises(UsageError, match="create_graph=True"):
        exported(Detached(), tmp_path / "n.pt", derivatives="stress:strain")


def test_show_and_check():
    run, source = CliRunner(), f"{ROOT}/examples/train_step.py:momentum_step"
    shown = run.invoke(app, ["show", source])
    assert shown.exit_code == 0, shown.output
    assert "new_velocity" in shown.output
    assert "sound" in run.invoke(app, ["check", source]).output


def test_numbers_have_no_say_in_the_dtype():
    def scaled(x):
        z = x.to(torch.float32).requires_grad_()
        return torch.autograd.grad((torch.rsub(z.double(), 0.1) ** 3).sum(), z)[0]

    program = program_of(scaled)
    unit = torch.jit.CompilationUnit(emit_torchscript(program, "m", ["x"], {}, [(0, 0)]).replace("(self, ", "(", 1))
    x = torch.rand(4, 3, dtype=F)
    assert torch.equal(unit.m(x)[0], scaled(x))


@pytest.mark.parametrize("forward", [lambda x: x.sin(), lambda x: x.detach()])
def test_most_models_take_no_gradients(forward):
    class Plain(nn.Module):
        signature = torchferry.Signature.of({"x": (3,)})

        def forward(self, x):
            return forward(x)

    assert not detect_inner_autograd(python_factory.source_from_module(Plain(), "m", None, "here"), 0).uses_autograd


def test_an_optimiser_that_works_on_lists(tmp_path):
    @torchferry.declare({"x": ("n", 3), "w": (3,)}, {"w1": (3,)})
    def step(x, w):
        moved = w.clone().requires_grad_()
        optimizer = torch.optim.SGD([moved], lr=0.1, foreach=True)
        (x @ moved).pow(2).mean().backward()
        optimizer.step()
        return moved.detach()

    with pytest.raises(OperatorError, match="foreach=False"):
        exported(step, tmp_path / "m.pt")


def test_a_matrix_that_cannot_be_factorised_is_an_error_in_the_file():
    def gradient(x):
        z = x.requires_grad_()
        factor = torch.linalg.cholesky(z.mT @ z - torch.eye(3, dtype=z.dtype))
        return torch.autograd.grad(factor.diagonal().log().sum(), z)[0]

    program = program_of(gradient, 40)
    text = emit_torchscript(program, "m", ["x"], {}, [(0, 0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unit = torch.jit.CompilationUnit(text.replace("(self, ", "(", 1))
    with pytest.raises(torch.jit.Error, match="positive-definite"):
        unit.m(torch.full((4, 3), 1e-3, dtype=F))


def test_open_sizes_as_large_as_the_model_needs():
    image = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Conv2d(2, 2, 3, stride=2), nn.AdaptiveAvgPool2d(1)).double()

    def gradient(x):
        return torch.autograd.grad(image(x).sum(), next(iter(image.parameters())))[0]

    gradient.__dict__["signature"] = torchferry.Signature.of({"x": (1, "h", "w")})
    source = detect_inner_autograd(python_factory.source_from_module(FunctionModule(gradient), "f", None, "here"), 0)
    assert source.uses_autograd
    assert min(run_first(source, 0).sizes) >= 7
