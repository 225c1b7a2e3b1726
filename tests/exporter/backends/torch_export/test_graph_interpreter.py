"""TorchScript as the interpreter runs it, against TorchScript itself."""

from __future__ import annotations

import pytest
import torch
from scripted_bodies import BODIES, X, Y, scripted
from torch import nn

from exporter.backends.torch_export.graph_interpreter import TracedInterpreter
from exporter.common.errors import UnsupportedError
from exporter.common.torch_hooks import ignore_deprecations
from exporter.graph.reader import read_methods
from exporter.saved_code.ir import APART


def interpreted(module: torch.jit.ScriptModule, *inputs: torch.Tensor) -> torch.Tensor:
    saved = read_methods(module, ["forward"])
    (result,) = TracedInterpreter(saved, saved.tensors, lambda *_: None).run("forward", [t.clone() for t in inputs])
    return result


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_as_torchscript_has_it(body):
    module = scripted(body)
    (wanted,) = module(X.clone(), Y.clone())
    got = interpreted(module, X, Y)
    assert got.dtype == wanted.dtype
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("body", BODIES[:9], ids=range(9))
def test_a_changed_graph_would_be_seen(body):
    (wanted,) = scripted(body)(X.clone(), Y.clone())
    assert not torch.equal(interpreted(scripted(body), X + 0.125, Y), wanted)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("if bool((x > 0).any()):\n    x = x + 1\nreturn (x,)", "a branch depends on the data"),
        ("while bool((x > 0.1).any()):\n    x = x * 0.5\nreturn (x,)", "a loop depends on the data"),
        ("return (x * int(y.sum()),)", "a number is read from a tensor"),
        ("if x.dim() == 2:\n    raise ValueError('flat')\nreturn (x,)", "raises an error wherever it is run"),
        ("n: List[List[float]] = x.tolist()\nreturn (x * n[0][0],)", "no form outside TorchScript"),
    ],
)
def test_what_follows_the_data_is_refused(body, what):
    with pytest.raises(UnsupportedError, match=what):
        interpreted(scripted(body), X, Y)


def test_an_error_of_the_data_is_noted():
    body = "if bool((x > 100).any()):\n    raise ValueError('too large')\nreturn (x,)"
    module = scripted(body)
    saved = read_methods(module, ["forward"])
    interpreter = TracedInterpreter(saved, saved.tensors, lambda *_: None)
    assert torch.equal(interpreter.run("forward", [X, Y])[0], X)
    assert interpreter.notes == ["an error that depends on the data is not raised"]


@pytest.mark.parametrize(
    ("body", "name", "note"),
    [
        ("return (torch.linalg.inv(x[:2]),)", "linalg_inv", "a singular matrix gives infinities or NaN"),
        ("return (torch.linalg.cholesky(x[:2]),)", "linalg_cholesky", "not positive definite gives NaN"),
        (
            "return (torch.nn.functional.nll_loss(x, y[:, 0].long()),)",
            "nll_loss_nd",
            "a class below 0 counts from the last",
        ),
    ],
)
def test_what_raises_no_error_any_more_is_noted(body, name, note):
    saved = read_methods(scripted(body), ["forward"])
    interpreter = TracedInterpreter(saved, saved.tensors, lambda *_: None, overrides={f"aten::{name}": lambda x, *_: x})
    interpreter.run("forward", [X, Y])
    assert len(interpreter.notes) == 1
    assert note in interpreter.notes[0]
    assert "no error" in interpreter.notes[0]


def test_operators_can_be_replaced():
    module = scripted("return (torch.tan(x),)")
    saved = read_methods(module, ["forward"])
    interpreter = TracedInterpreter(saved, saved.tensors, lambda *_: None, overrides={"aten::tan": torch.neg})
    assert torch.equal(interpreter.run("forward", [X, Y])[0], -X)


def test_submodules_that_are_read_apart_are_the_callers():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2).double()

        def forward(self, x, y):
            return (self.inner(x) + y,)

    with ignore_deprecations():
        module = torch.jit.script(Outer())
    saved = read_methods(module, ["forward"], ["inner"])
    assert any(node.kind == APART for node in saved.graphs["forward"])
    seen = []

    def apart(path, arguments):
        seen.append(path)
        return arguments[0] * 2

    assert torch.equal(TracedInterpreter(saved, saved.tensors, apart).run("forward", [X, Y])[0], 2 * X + Y)
    assert seen == ["inner"]
