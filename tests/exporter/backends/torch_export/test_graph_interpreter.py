"""TorchScript as the interpreter runs it, against TorchScript itself."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import nn

from exporter.backends.torch_export.graph_interpreter import TracedInterpreter
from exporter.common.errors import UnsupportedError
from exporter.common.torch_hooks import ignore_deprecations
from exporter.graph.reader import read_methods
from exporter.saved_code.ir import APART

F = torch.float64


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0, 3.0], dtype=F))
        self.register_buffer("count", torch.tensor(3))


def scripted(body: str) -> torch.jit.ScriptModule:
    # A class of its own: TorchScript gives modules of one class one set of methods.
    with ignore_deprecations():
        module = torch.jit.script(type("Own", (Held,), {})())
        text = textwrap.indent(textwrap.dedent(body).strip(), "    ")
        module.define(f"def forward(self, x: Tensor, y: Tensor) -> Tuple[Tensor]:\n{text}\n")
    return module


def interpreted(module: torch.jit.ScriptModule, *inputs: torch.Tensor) -> torch.Tensor:
    saved = read_methods(module, ["forward"])
    (result,) = TracedInterpreter(saved, saved.tensors, lambda *_: None).run("forward", [t.clone() for t in inputs])
    return result


BODIES = [
    "return (x + 2 * y - x / y * 0.5,)",
    """
    n = x.size(0) * -7
    return (x * (n // 4) + y * (n % 4) + 2 ** 3,)""",
    "return (x.reshape([x.size(0) // 2, -1]).sum(-1).repeat(2),)",
    """
    z = x.clone()
    z[1] = 5.0
    z[:, 0] += y[:, 0]
    return (z,)""",
    """
    z = x.clone()
    w = z[0]
    w.mul_(2.0)
    return (z + w,)""",
    """
    parts = [x, y]
    parts.append(x * y)
    for k in range(3):
        parts[k] = parts[k] + k
    return (torch.cat(parts[1:]),)""",
    """
    a, b = x.shape[0], y.shape[1]
    z = torch.zeros([a, b], dtype=x.dtype)
    if a > b and b == 2:
        z = z + min(a, b) / max(a, b)
    return (z + x,)""",
    """
    total = x
    k = 0
    while k < 4:
        total = total * 0.5 + y
        k += 1
    return (total,)""",
    "return (x * self.scale + self.count,)",
    "return (torch.where(x > y, x, y).to(torch.float32),)",
    "return (x[-2:, ::2] + y[:2, :1] + x[None, 0, :][:, 1:],)",
    "return (torch.bmm(x.unsqueeze(2), y.unsqueeze(1)).mean([1, 2]),)",
    """
    i = (x * 10).to(torch.int64)
    return (torch.div(i, 3, rounding_mode='floor') + i % 4 + torch.fmod(i, 4) + (i >> 1),)""",
    """
    v, i = x.sort(-1, True)
    return (v + i,)""",
    """
    t = list(x.size())
    t.append(1)
    return (x.reshape(t) + float(len(t)),)""",
    "return (torch.combinations(x[:, 0], 3, True) - torch.combinations(y[:, 1], 3)[:1],)",
    "return (torch.full([2, 2], 0.1, dtype=x.dtype) + torch.arange(2, dtype=x.dtype) + x[:2],)",
]
X = torch.tensor([[0.5, -1.25], [2.0, 0.75], [-3.5, 1.5], [0.25, -0.5]], dtype=F)
Y = torch.tensor([[1.5, 0.25], [-2.0, 3.0], [0.5, -1.0], [4.0, 2.0]], dtype=F)


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
        ("n: Dict[str, Tensor] = {}\nn['a'] = x\nreturn (n['a'],)", "no form outside TorchScript"),
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
