"""Functions that train a linear layer, their files, and what is captured of them."""

import torch
from torch import nn

import torchferry
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.capture.joint_graph import trace_joint_graph
from exporter.frontends import python_factory
from exporter.model.eager.evaluation import eager_context
from exporter.model.function_model import FunctionModule

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
    (item,) = torchferry.export(function, output=path, **more)
    return item


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


class Detached(nn.Module):
    signature = torchferry.Signature.of({"strain": (3,)}, {"stress": (3,)})

    def forward(self, strain):
        e = strain.detach().requires_grad_()
        return torch.autograd.grad((e**4).sum(), e)[0]


def program_of(function, size=5):
    function.__dict__["signature"] = torchferry.Signature.of({"x": ("n", 3)})
    source = detect_inner_autograd(python_factory.source_from_module(FunctionModule(function), "f", None, "here"), 0)
    with eager_context(source):
        return trace_joint_graph(source, (torch.rand(size, 3, dtype=F) + 0.1,))
