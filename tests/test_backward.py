"""Functions that take gradients themselves, as one graph in the file: the cases of torch's tutorial on compiled
autograd, what each operation comes from, and what asks for another graph."""

import json
import warnings

import pytest
import torch
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import torchferry
from exporter.capture.backward import followed
from exporter.capture.comparisons import COMPARED
from exporter.capture.origins import AFTER, BACKWARD, FORWARD, HOOK, Origin, of_node
from exporter.capture.torchscript import torchscript
from exporter.cli.app import app
from exporter.differentiating import as_it_runs
from exporter.eager import inference_conditions
from exporter.errors import CaptureError, OperatorError, SourceError, UnsoundError, UsageError
from exporter.graph.against import CONSTANTS, DTYPE, OPERATIONS, SIZE, STRUCTURE, VARIABLES, reasons
from exporter.graph.steps import captured_methods, opened, steps
from exporter.sources import python
from exporter.sources.function import Function
from exporter.warmup import first_run
from runtime_checks.runners.libtorch import Libtorch
from runtime_checks.verify import examine

F = torch.float64


def layer(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(10, 10, dtype=F)


def training(loss=lambda y: y.sum(), hook=None, size: int | str = "n", model=None):
    """``loss`` of a linear layer, and the gradient of its weight by ``backward()``."""
    model = model or layer()

    @torchferry.declare({"x": (size, 10)}, batch_ndim=0)
    def train(x):
        model.zero_grad()
        handle = model.weight.register_hook(hook) if hook else None
        value = loss(model(x))
        value.backward()
        if handle is not None:
            handle.remove()
        return {"loss": value, "gradient": model.weight.grad}

    return train


def exported(function, path, **more):
    (one,) = torchferry.export(function, output=path, **more)
    return one


def check(function, path, *sizes):
    """The file alone, without autograd, against eager mode."""
    module = torch.jit.load(str(path))
    for n in sizes:
        x = torch.randn(n, 10, dtype=F, generator=torch.Generator().manual_seed(n))
        wanted = [v.detach().clone() for v in function(x).values()]
        with torch.inference_mode():
            got = module(x)
        for value, expected in zip(got, wanted, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_a_linear_layer_is_one_graph_for_any_batch(tmp_path):
    function = training()
    one = exported(function, tmp_path / "m.pt")
    check(function, tmp_path / "m.pt", 1, 4, 333)
    methods = captured_methods(torch.jit.load(str(tmp_path / "m.pt")))
    assert list(methods) == ["forward_batch"]
    # No other operation is left out of it: no method that calls autograd.
    assert {s.origin.part for s in methods["forward_batch"]} == {FORWARD, BACKWARD}
    assert one.contract.inputs[0].shape == ("n", 10)
    assert {p.name for p in one.contract.parameters} == {"model.weight", "model.bias"}


def test_with_a_hook(tmp_path):
    def doubled(gradient):
        return gradient * 2 + 1

    function = training(hook=doubled)
    exported(function, tmp_path / "m.pt")
    check(function, tmp_path / "m.pt", 3, 20)
    found = steps(torch.jit.load(str(tmp_path / "m.pt")))
    hooks = [s for s in found if s.origin.part == HOOK]
    assert [s.operator for s in hooks] == ["aten::mul", "aten::add"]
    line = doubled.__code__.co_firstlineno + 1
    assert {(s.origin.of, s.origin.where) for s in hooks} == {("doubled", f"test_backward.py:{line}")}
    linear = [s for s in found if s.origin.of == "AddmmBackward0"]
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
    assert AFTER in {s.origin.part for s in steps(torch.jit.load(str(tmp_path / "m.pt")))}


def test_across_a_graph_break(tmp_path):
    def broken(y):
        torch._dynamo.graph_break()
        y = y + 10
        torch._dynamo.graph_break()
        return y.sin().sum()

    function = training(broken)
    exported(function, tmp_path / "m.pt")
    check(function, tmp_path / "m.pt", 2, 31)
    assert len(captured_methods(torch.jit.load(str(tmp_path / "m.pt")))) == 1


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
    report = examine(tmp_path / "m.pt", runners=[Libtorch()])
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
    one = exported(model, tmp_path / "m.pt", derivatives="stress:strain", symmetric=["stress:strain"])
    assert one.contract.batch.ndim == 1
    strain = torch.randn(5, 3, dtype=F)
    with torch.inference_mode():
        got = torchferry.load(tmp_path / "m.pt").call("jacobian", {"strain": strain})["d stress / d strain"]
    hessian = torch.func.vmap(torch.func.hessian(lambda e: model.net(e)[0]))(strain)
    torch.testing.assert_close(got, hessian.detach(), rtol=1e-10, atol=1e-12)


class Detached(nn.Module):
    signature = torchferry.Signature.of({"strain": (3,)}, {"stress": (3,)})

    def forward(self, strain):
        e = strain.detach().requires_grad_()
        return torch.autograd.grad((e**4).sum(), e)[0]


def test_a_tangent_of_a_gradient_without_a_graph(tmp_path):
    exported(Detached(), tmp_path / "m.pt")
    with pytest.raises(UsageError, match="create_graph=True"):
        exported(Detached(), tmp_path / "n.pt", derivatives="stress:strain")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("against") / "old.pt"
    exported(training(), path)
    return path


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (lambda: training(model=layer(3)), []),
        (lambda: training(lambda y: (y * y).sum()), [STRUCTURE]),
        (lambda: training(hook=lambda g: g * 2), [STRUCTURE]),
        (lambda: training(size=12), [SIZE]),
        (lambda: training(lambda y: y.sum() + y.detach().sin().sum()), [OPERATIONS]),
    ],
    ids=["other parameters", "another loss", "a hook", "a static size", "what has no gradient"],
)
def test_what_asks_for_another_graph(plain, tmp_path, function, kinds):
    one = exported(function(), tmp_path / "m.pt", against=plain)
    assert one.reasons is not None
    assert [r.kind for r in one.reasons] == kinds, one.reasons


def test_a_change_of_structure_is_said_with_its_line(plain, tmp_path):
    one = exported(training(lambda y: (y * y).sum()), tmp_path / "m.pt", against=plain)
    assert one.reasons
    reason = one.reasons[0]
    assert "MulBackward0" in reason.text
    assert "test_backward.py" in reason.text


def test_other_variables_dtypes_and_constants(tmp_path):
    def scaled(factor, name="x", dtype="float64"):
        @torchferry.declare({name: ("n", 2)}, dtype=dtype)
        def function(*values):
            x = values[0].requires_grad_()
            return torch.autograd.grad((x**2).sum() * factor, x)[0]

        return function

    exported(scaled(2.0), tmp_path / "old.pt")
    old = opened(tmp_path / "old.pt")
    for at, (function, kind) in enumerate(
        [(scaled(3.0), CONSTANTS), (scaled(2.0, "y"), VARIABLES), (scaled(2.0, dtype="float32"), DTYPE)]
    ):
        exported(function, tmp_path / f"{at}.pt")
        assert kind in {r.kind for r in reasons(old, opened(tmp_path / f"{at}.pt"))}


def test_the_command_line(plain, tmp_path):
    run = CliRunner()
    shown = run.invoke(app, ["inspect", str(plain), "--autograd"])
    assert shown.exit_code == 0
    assert "graphs with a backward pass: 1" in shown.output
    assert "AddmmBackward0" in shown.output
    rows = json.loads(run.invoke(app, ["inspect", str(plain), "--autograd", "--json"]).output)
    assert {row["origin"]["part"] for row in rows["forward_batch"]} == {FORWARD, BACKWARD}
    source = f"{ROOT}/examples/train_step.py:loss_and_grad"
    said = run.invoke(app, ["export", source, "-o", str(tmp_path / "m.pt"), "--against", str(plain)])
    assert said.exit_code == 0
    assert "another specialisation" in said.output
    assert "variables: inputs are x, target; they were x" in said.output
    missing = run.invoke(app, ["export", source, "-o", str(tmp_path / "n.pt"), "--against", str(tmp_path / "no.pt")])
    assert missing.exit_code != 0
    assert not (tmp_path / "n.pt").exists()


def test_show_and_check():
    run, source = CliRunner(), f"{ROOT}/examples/train_step.py:momentum_step"
    shown = run.invoke(app, ["show", source])
    assert shown.exit_code == 0, shown.output
    assert "new_velocity" in shown.output
    assert "sound" in run.invoke(app, ["check", source]).output


def test_what_a_file_without_backward_pass_says(eq_path):
    shown = CliRunner().invoke(app, ["inspect", str(eq_path), "--autograd"])
    assert "graphs with a backward pass: 0" in shown.output


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


def test_against_a_file_whose_constants_are_others(tmp_path):
    """A parameter that cannot be set in the earlier file is a constant of it."""
    model = layer()
    exported(training(model=model), tmp_path / "old.pt", parameters=["model.weight"])
    with torch.no_grad():
        model.get_parameter("bias").add_(1)
    one = exported(training(model=model), tmp_path / "m.pt", parameters=["model.weight"], against=tmp_path / "old.pt")
    assert one.reasons
    assert (one.reasons[0].kind, "model.bias" in one.reasons[0].text) == (CONSTANTS, True)


class Trainer:
    def __init__(self):
        self.net = layer()
        self.myself = self


TRAINER = Trainer()


def test_modules_behind_an_object():
    def function(x):
        return TRAINER.net(x)

    assert {n for n, _ in Function(function).named_parameters()} == {"TRAINER_net.weight", "TRAINER_net.bias"}


def test_numbers_have_no_say_in_the_dtype():
    def scaled(x):
        z = x.to(torch.float32).requires_grad_()
        return torch.autograd.grad((torch.rsub(z.double(), 0.1) ** 3).sum(), z)[0]

    program = program_of(scaled)
    unit = torch.jit.CompilationUnit(torchscript(program, "m", ["x"], {}, [(0, 0)]).replace("(self, ", "(", 1))
    x = torch.rand(4, 3, dtype=F)
    assert torch.equal(unit.m(x)[0], scaled(x))


def test_a_factory_and_a_class_that_are_given(tmp_path):
    def make():
        return Detached()

    for at, source in enumerate((Detached, make)):
        assert exported(source, tmp_path / f"{at}.pt").contract.outputs[0].name == "stress"


def test_a_function_that_does_not_say_what_it_takes(tmp_path):
    path = tmp_path / "f.py"
    path.write_text("def loss(x, y):\n    return (x - y).sum()\n")
    with pytest.raises(SourceError, match=r"@torchferry\.declare"):
        torchferry.export(f"{path}:loss", output=tmp_path / "m.pt")


def test_a_function_with_examples(tmp_path):
    """``--inputs`` say what it takes: a batch of independent elements."""
    path = tmp_path / "g.py"
    path.write_text("def twice(x):\n    return {'y': 2 * x}\n")
    (one,) = torchferry.export(f"{path}:twice", output=tmp_path / "m.pt", inputs={"x": torch.rand(4, 3, dtype=F)})
    assert [s.describe() for s in one.contract.inputs] == ["x: Tensor[3] float64"]


def test_what_a_function_reads_is_its_own():
    shared, other, bare = nn.Linear(2, 2), nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    parts = [shared, other]

    def inner(x):
        return parts[1](x) * bare

    def outer(x, scale=shared):
        return inner(scale(x))

    made = Function(outer)
    assert {n for n, _ in made.named_parameters()} == {
        "scale.weight",
        "scale.bias",
        "parts_1.weight",
        "parts_1.bias",
        "bare",
    }


def test_names_that_a_file_cannot_have():
    found = []
    weights = {"layer.0": nn.Parameter(torch.ones(2)), "forward": nn.Linear(2, 2)}
    forward, append = weights["forward"], found.append

    def function(x):
        append(x)
        return forward(x) * weights["layer.0"]

    def later(x):
        return function(x) if x is None else earlier(x)

    made = Function(later)

    def earlier(x):
        return x

    assert {n for n, _ in made.named_parameters()} == {"weights_layer_0", "forward_.weight", "forward_.bias"}


def test_what_python_asks_of_sizes_is_noted():
    def asks(x):
        z = x.requires_grad_()
        factor = 2 if x.shape[0] > 100 else 1
        return torch.autograd.grad((z**2).sum() * factor, z)[0]

    asks.__dict__["signature"] = torchferry.Signature.of({"x": ("n", 2)})
    source = as_it_runs(python.from_module(Function(asks), "asks", None, "here"), 0)
    assert source.differentiates
    with inference_conditions(source):
        program = followed(source, (torch.rand(5, 2, dtype=F),))
    (read,) = program.compared
    assert read.kind == COMPARED
    assert "> 100 is False" in read.value
    assert read.where.endswith(f"test_backward.py:{asks.__code__.co_firstlineno + 2}")


@pytest.mark.parametrize("forward", [lambda x: x.sin(), lambda x: x.detach()])
def test_most_models_take_no_gradients(forward):
    class Plain(nn.Module):
        signature = torchferry.Signature.of({"x": (3,)})

        def forward(self, x):
            return forward(x)

    assert not as_it_runs(python.from_module(Plain(), "m", None, "here"), 0).differentiates


names = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="._<>"), min_size=1)
origins = st.one_of(
    st.builds(Origin, st.sampled_from([FORWARD, AFTER]), st.just(""), names | st.just(""), names | st.just("")),
    st.builds(Origin, st.sampled_from([BACKWARD, HOOK]), names, names | st.just(""), names | st.just("")),
)


@given(origins)
def test_origins_round_trip(origin):
    assert Origin.parse(origin.text()) == origin


@pytest.mark.parametrize("text", ["", "a comment", "forwards | a | b", "forward | a"])
def test_what_is_no_origin(text):
    assert Origin.parse(text) is None


def test_a_network_that_trains_is_not_put_to_rest(tmp_path):
    """The function uses its modules in the mode that it has set them to: dropout draws, batch norm writes."""
    for part, check in ((nn.Dropout(0.5), "random numbers"), (nn.BatchNorm1d(10, dtype=F), "side effect")):
        net = nn.Sequential(layer(), part).train()

        @torchferry.declare({"x": ("n", 10)})
        def gradient(x, net=net):
            return torch.autograd.grad(net(x).pow(2).sum(), next(iter(net.parameters())))[0]

        with pytest.raises(UnsoundError) as caught:
            exported(gradient, tmp_path / "m.pt")
        assert caught.value.details["check"] == check
        assert net.training


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


def test_tensors_that_ask_for_gradients_are_parameters(tmp_path):
    """In a list; and what a hook puts aside for the function to return is no side effect."""
    weights = [torch.rand(10, 4, dtype=F, requires_grad=True)]

    @torchferry.declare({"x": ("n", 10)})
    def gradient(x):
        kept = {}
        inner = torch.tanh(x @ weights[0])
        inner.register_hook(lambda g: kept.update(inner=g))
        found = torch.autograd.grad(inner.pow(2).sum(), weights[0])[0]
        return {"gradient": found, "inner": kept["inner"]}

    (one,) = torchferry.export(gradient, output=tmp_path / "m.pt")
    assert [p.name for p in one.contract.parameters] == ["weights_0"]
    check(gradient, tmp_path / "m.pt", 2, 50)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *gradients):
        return 2 * gradients[0]


def program_of(function, size=5):
    function.__dict__["signature"] = torchferry.Signature.of({"x": ("n", 3)})
    source = as_it_runs(python.from_module(Function(function), "f", None, "here"), 0)
    with inference_conditions(source):
        return followed(source, (torch.rand(size, 3, dtype=F) + 0.1,))


def test_what_lies_between_two_backward_passes():
    def two(x):
        z = x.requires_grad_()
        first = torch.autograd.grad(Doubled.apply(z).sin().sum(), z)[0]
        second = torch.autograd.grad((first * z).cos().sum(), z)[0]
        return second * 3

    found = [of_node(n) for n in program_of(two).graph.graph.nodes]
    parts = [origin.part for origin in found if origin is not None]
    last = max(i for i, part in enumerate(parts) if part == BACKWARD)
    assert AFTER not in parts[:last]
    assert parts[last + 1 :].count(AFTER) == len(parts) - last - 1 >= 1
    assert FORWARD in parts[parts.index(BACKWARD) :]
    assert {o.of for o in found if o is not None and o.where.startswith("test_backward.py") and "Doubled" in o.of}
    assert HOOK not in parts


def test_a_matrix_that_cannot_be_factorised_is_an_error_in_the_file():
    def gradient(x):
        z = x.requires_grad_()
        factor = torch.linalg.cholesky(z.mT @ z - torch.eye(3, dtype=z.dtype))
        return torch.autograd.grad(factor.diagonal().log().sum(), z)[0]

    program = program_of(gradient, 40)
    text = torchscript(program, "m", ["x"], {}, [(0, 0)])
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
    source = as_it_runs(python.from_module(Function(gradient), "f", None, "here"), 0)
    assert source.differentiates
    assert min(first_run(source, 0).sizes) >= 7
