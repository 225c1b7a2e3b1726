"""Small models by name, sound ones and such with a planted fault. Each is a factory without arguments."""

from __future__ import annotations

import torch
from torch import nn

from torchferry import Signature

HIDDEN = torch.zeros(1, dtype=torch.float64)


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
    object.__setattr__(model, "example_inputs", examples)
    return model


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
