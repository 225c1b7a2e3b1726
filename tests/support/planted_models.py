"""Small models by name, sound ones and such with a planted fault. Each is a factory without arguments."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import nn

from torchferry import Signature

HIDDEN = torch.zeros(1, dtype=torch.float64)


def _with(model: Any, **attributes: Any) -> Any:
    """The model with attributes of any kind, which nn.Module's annotations do not foresee."""
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


class Model(nn.Module):
    """``y`` from ``x`` of shape (3,), by a function."""

    signature = Signature.of({"x": (3,)}, {"y": (3,)})

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def sound():
    return Model(lambda self, x: x.sin() * self.scale)


def without_inputs():
    class Constants(nn.Module):
        signature = Signature.of({}, {"y": (2,)}, batch_ndim=0)

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))

        def forward(self) -> torch.Tensor:
            return 3 * self.scale

    return Constants()


def branch_on_data():
    def function(self, x):
        if x.sum() > 0:
            return x * self.scale
        return -x

    return Model(function)


def branch_on_batch():
    def function(self, x):
        if x.shape[0] == 1:
            return x * 2
        return x * self.scale

    return Model(function)


def batch_read_through_python():
    return Model(lambda self, x: x * self.scale + torch.ones(int(x.shape[0]), 1, dtype=x.dtype))


def loop_over_batch():
    return Model(lambda self, x: torch.stack([x[i] * self.scale for i in range(x.shape[0])]))


def length_of_batch():
    return Model(lambda self, x: x * len(x))


def fixed_dimension_read():
    """Sound: a dimension that the contract fixes has one value at every batch size."""
    return Model(lambda self, x: x * self.scale / int(x.shape[1]))


def item():
    return Model(lambda self, x: x * self.scale.max().item())


def numpy_inside():
    return Model(lambda self, x: torch.from_numpy(x.detach().numpy() * 2))


def constant_of_wrong_dtype():
    return Model(lambda self, x: x * torch.tensor([0.1, 0.2, 0.3]))


def exact_constant_of_other_dtype():
    """Sound: 0.5 and 2 are what they are in float32 too."""
    return Model(lambda self, x: x * torch.tensor([0.5, 2.0, 4.0]))


def double_constants():
    """Sound; the constants must move with the archive."""
    return Model(lambda self, x: x * torch.tensor([0.1, 0.2, 0.3], dtype=x.dtype) + torch.tensor(0.7, dtype=x.dtype))


def default_dtype_at_import():
    """Zeros of the default dtype, float64 here: the file must not depend on the loader's default."""
    torch.set_default_dtype(torch.float64)
    return Model(lambda self, x: torch.cat([torch.zeros(x.shape[0], 1) + 0.1, x[:, 1:] * self.scale[1:]], dim=1))


def branch_by_torch_equal():
    def function(self, x):
        return x * 2 if torch.equal(x, x.abs()) else x * self.scale

    return Model(function)


def branch_inside_torch():
    """The read is in torch's own Python code; the line to be named is this one."""
    return Model(lambda self, x: torch.distributions.Normal(0.0, x.abs() + 1).log_prob(x))


def iterates_over_a_fixed_dimension():
    """Sound: as many pieces at every batch size."""

    def function(self, x):
        a, b, c = x.T
        return torch.stack([a + w * b * c for w in self.scale], dim=-1)

    return Model(function)


def iterates_over_the_batch():
    return Model(lambda self, x: torch.stack([row * self.scale for row in x]))


def array_constant():
    """Sound: an array made in __init__ is a constant."""
    model = Model(lambda self, x: x * torch.from_numpy(self.array) + torch.as_tensor(self.array))
    return _with(model, array=numpy.array([0.1, 0.2, 0.3]))


def encoder_layer():
    """Sound: torch's own layer, which reads sizes in torch's own Python code."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
    return _with(layer, signature=Signature.of({"src": (4, 8)}, {"y": (4, 8)}))


def views_its_input():
    """Sound on contiguous inputs, which is all that eager mode takes."""
    model = Model(lambda self, x: x.view(-1, 6) * 2)
    model.signature = Signature.of({"x": (2, 3)}, {"y": (6,)})
    return model


def makes_tensors():
    """Sound; what it makes must follow the inputs' device and dtype."""

    def function(self, x):
        start = torch.zeros(x.shape[0], 3, dtype=x.dtype, device=x.device) + torch.ones(3, dtype=x.dtype)
        return start + x * torch.arange(3, dtype=x.dtype)

    return Model(function)


class MakesIdentity(nn.Module):
    """It has no input and no tensor."""

    def forward(self):
        return torch.eye(3, dtype=torch.float64)


class ScalesIdentity(nn.Module):
    """Its only tensor is its submodule's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ParameterDict({"k": nn.Parameter(torch.tensor(2.0, dtype=torch.float64))})

    def forward(self):
        return self.inner["k"] * torch.eye(3, dtype=torch.float64)


class MakesTensorsAlone(nn.Module):
    """Sound: tensors are made where no input is at hand, as NEML2 makes tensors of elasticity."""

    signature = Signature.of({"x": (3,)}, {"y": (3,)})

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = MakesIdentity(), ScalesIdentity()

    def forward(self, x):
        return x @ (self.one() + self.other())


class MakesZeros(nn.Module):
    def forward(self):
        return torch.zeros(3, dtype=torch.float64, device="cpu")


class StaysOnTheCpu(nn.Module):
    """A tensor that is made where no input is at hand: it does not move with the archive."""

    signature = Signature.of({"x": (3,)}, {"y": (3,)})

    def __init__(self):
        super().__init__()
        self.zeros = MakesZeros()

    def forward(self, x):
        return {"y": x + self.zeros()}


def writes_to_its_own_constant():
    """Sound in eager mode: the constant is new at every call."""

    def function(self, x):
        c = torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype)
        c += 1
        return x * c

    return Model(function)


def remembers_the_first_batch():
    def function(self, x):
        if self.mean is None:
            self.mean = x.mean(0)
        return x - self.mean

    return _with(Model(function), mean=None)


def relu_in_place():
    return Model(lambda self, x: nn.functional.relu(x, inplace=True))


def parameter_as_data():
    return Model(lambda self, x: x * self.scale.data)


def parameter_in_a_list():
    return _with(Model(lambda self, x: self.layers[0](x)), layers=[nn.Linear(3, 3, dtype=torch.float64)])


def flag_over_the_batch():
    model = Model(lambda self, x: (x * self.scale, (x < -5).any()))
    model.signature = Signature.of({"x": (3,)})
    return model


def other_shape_than_declared():
    return Model(lambda self, x: x[:, :2])


def reserved_name():
    model = sound()
    model.layers = nn.ModuleDict({"class": nn.Tanh()})
    return model


def rows_of_one_batch_mixed():
    return Model(lambda self, x: x - x.mean(0))


def size_as_a_constant():
    """What comes out is a constant to a trace, and draws a TracerWarning."""
    return Model(lambda self, x: x * torch.as_tensor(x.shape[0]) * self.scale)


def dropout():
    return Model(lambda self, x: nn.functional.dropout(x * self.scale, training=True))


class StaysInTraining(nn.Dropout):
    def train(self, mode: bool = True):
        return super().train(True)


def left_in_train_mode():
    model = sound()
    model.drop = StaysInTraining(0.5)
    return model


def hidden_counter():
    def function(self, x):
        HIDDEN.add_(1)
        return x * self.scale + HIDDEN

    return Model(function)


def counts_in_a_buffer():
    model = Model(lambda self, x: x * self.scale + 0 * self.count.add_(1))
    model.register_buffer("count", torch.zeros(1, dtype=torch.float64))
    return model


def changes_its_input():
    return Model(lambda self, x: x.mul_(2))


def changes_its_parameter():
    return Model(lambda self, x: x * self.scale.data.mul_(1.5))


def not_a_number():
    return Model(lambda self, x: (x - 100).log())


def no_tensor():
    return Model(lambda self, x: "text")


def wrong_count():
    return Model(lambda self, x: (x, x))


def sum_over_batch():
    return Model(lambda self, x: x.sum(0))


def raises():
    raise RuntimeError("the factory's own error")


def raises_in_forward():
    def function(self, x):
        raise KeyError("lost")

    return Model(function)


def no_module():
    return {"not": "a module"}


def needs_arguments(size):
    return sound()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, *grads):
        return grads[0]


def python_function_in_graph():
    return Model(lambda self, x: Square.apply(x) * self.scale)


torch.library.define("planted::twice", "(Tensor x) -> Tensor")


@torch.library.impl("planted::twice", "CompositeExplicitAutograd")
def _twice(x):
    return 2 * x


def unknown_operator():
    return Model(lambda self, x: torch.ops.planted.twice(x) * self.scale)


class Plain(nn.Module):
    """Named tensors, nothing of torchferry's."""

    def forward(self, position, velocity):
        return {"kinetic": 0.5 * (velocity**2).sum(-1), "turned": position.flip(-1)}


def plain():
    return Plain()


def plain_with_examples():
    model = Plain()
    examples = {
        "velocity": torch.tensor([[3.0, 4.0]], dtype=torch.float64),
        "position": torch.tensor([[1.0, 2.0]], dtype=torch.float64),
    }
    return _with(model, example_inputs=examples)


def fixed_shapes():
    """The elements of a batch depend on each other, and the author says so."""
    model = Model(lambda self, x: x - x.mean(0))
    model.signature = Signature.of({"x": (4, 3)}, {"y": (4, 3)}, batch_ndim=0)
    return model


def constant_output():
    model = Model(lambda self, x: (x * self.scale, self.scale.sum()))
    model.signature = Signature.of({"x": (3,)}, {"y": (3,), "total": ()})
    return model


def shared_layer():
    """One module under two names: its parameters must have one place in the file."""
    model = Model(lambda self, x: self.second(self.first(x)))
    model.first = nn.Linear(3, 3, dtype=torch.float64)
    model.second = model.first
    return model


def layer_called_many_times():
    """Sound: an unrolled iteration. Each call as a method of its own would cost more than it tells."""

    def function(self, x):
        for _ in range(40):
            x = self.layer(x).tanh()
        return x

    model = Model(function)
    model.layer = nn.Linear(3, 3, dtype=torch.float64)
    return model


def integers():
    model = Model(lambda self, x: self.table[x])
    model.signature = Signature.of({"x": ()}, {"y": (2,)}, dtype="int64")
    model.signature = Signature(model.signature.inputs, Signature.of({}, {"y": (2,)}).outputs)
    model.register_buffer("table", torch.arange(20, dtype=torch.float64).reshape(10, 2))
    return model


not_callable = 3
