"""What the canonical text is blind to, and what it is not: names and order, memory and effects."""

from __future__ import annotations

import io
import sys
import warnings

import pytest
import torch
from project import export_unverified, mark_rest_thorough
from torch import nn

from exporter.archive import pt_archive
from exporter.archive.zip_records import write_zip
from exporter.capture.serialization import serialize_module
from exporter.common import recursion
from exporter.common.errors import ArchiveError
from exporter.common.torch_hooks import ignore_deprecations
from exporter.graph.canonical_text import format_canonical_text, hash_graph_text
from exporter.graph.graph_diff import diff_graphs
from exporter.graph.reader import read


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("other", torch.zeros(3))
        self.register_buffer("graph", torch.full((3,), 1.0))
        self.register_buffer("code", torch.full((3,), 2.0))
        self.items = [0]
        self.weight = nn.Parameter(torch.ones(3))
        self.count = 0


def text_of(source: str) -> str:
    """Of a module whose methods are these, as its file is read."""
    with ignore_deprecations():
        # A class of its own: TorchScript gives modules of one class one set of methods.
        module = torch.jit.script(type("Holder", (Holder,), {})())
        module.define(source)
        again = torch.jit.load(io.BytesIO(write_zip(serialize_module(module))))
    return format_canonical_text(read(again))


def method(*lines: str, takes: str = "x: Tensor, y: Tensor") -> str:
    return "\n    ".join([f"def forward(self, {takes}):", *lines]) + "\n"


SAME = {
    "names": (("a = x + 1", "return a * y"), ("z = x + 1", "return z * y")),
    "independent operations": (
        ("a = x.sin()", "b = y.cos()", "return a - b"),
        ("b = y.cos()", "a = x.sin()", "return a - b"),
    ),
    "order of what a loop carries": (
        ("a = x", "b = y", "for i in range(3):", "    a = a + b", "    b = b * 2", "return a - b"),
        ("z = x", "b = y", "for i in range(3):", "    z = z + b", "    b = b * 2", "return z - b"),
    ),
    "order of what a branch gives": (
        ("a, b = x, y", "if bool(x.sum() > 0):", "    a, b = y, x", "return a - b"),
        ("z, b = x, y", "if bool(x.sum() > 0):", "    z, b = y, x", "return z - b"),
    ),
    "reads of one state of memory": (
        ("x = x.clone()", "x.add_(1)", "a = x.sin()", "b = x.cos()", "return a - b"),
        ("x = x.clone()", "x.add_(1)", "b = x.cos()", "a = x.sin()", "return a - b"),
    ),
    "a read of other memory than is written to": (
        ("x = x.clone()", "a = y.sin()", "x.add_(1)", "return a - x"),
        ("x = x.clone()", "x.add_(1)", "a = y.sin()", "return a - x"),
    ),
    "a list that is put together in one go": (
        ("a = x.sin()", "l = [a, y]", "return torch.cat(l)"),
        ("l = [x.sin(), y]", "return torch.cat(l)"),
    ),
    "numbers where they are used": (("a = 2", "return x * a + y * a"), ("return x * 2 + y * 2",)),
}


@pytest.mark.parametrize("name", SAME)
def test_is_blind_to(name):
    item, other = SAME[name]
    assert text_of(method(*item)) == text_of(method(*other))


OTHER = {
    "a read before or behind a write": (
        ("x = x.clone()", "a = x.sin()", "x.add_(1)", "return a - x"),
        ("x = x.clone()", "x.add_(1)", "a = x.sin()", "return a - x"),
    ),
    "a view that is read before or behind a write": (
        ("x = x.clone()", "v = x.view(-1)", "a = v + 1", "x.add_(1)", "return a"),
        ("x = x.clone()", "v = x.view(-1)", "x.add_(1)", "a = v + 1", "return a"),
    ),
    "a tensor out of a list": (
        ("x = x.clone()", "l = [x, y]", "a = x * 2", "l[0].add_(1)", "return a"),
        ("x = x.clone()", "l = [x, y]", "l[0].add_(1)", "a = x * 2", "return a"),
    ),
    "a tensor that goes through a branch": (
        ("x = x.clone()", "z = y", "if bool(y.sum() > 0):", "    z = x", "a = x * 2", "z.add_(1)", "return a"),
        ("x = x.clone()", "z = y", "if bool(y.sum() > 0):", "    z = x", "z.add_(1)", "a = x * 2", "return a"),
    ),
    "a tensor that goes round a loop": (
        ("x = x.clone()", "z = x", "for i in range(2):", "    z = z[:1]", "a = x * 2", "z.add_(1)", "return a"),
        ("x = x.clone()", "z = x", "for i in range(2):", "    z = z[:1]", "z.add_(1)", "a = x * 2", "return a"),
    ),
    "what a list is when it is read": (
        ("l = [x]", "a = len(l)", "l.append(y)", "return torch.cat(l) * a"),
        ("l = [x]", "l.append(y)", "a = len(l)", "return torch.cat(l) * a"),
    ),
    "two writes": (
        ("x = x.clone()", "x.add_(y)", "x.mul_(y)", "return x"),
        ("x = x.clone()", "x.mul_(y)", "x.add_(y)", "return x"),
    ),
    "two draws of random numbers": (
        ("a = torch.rand(3)", "b = torch.randn(3)", "return a - b"),
        ("b = torch.randn(3)", "a = torch.rand(3)", "return a - b"),
    ),
    "two errors": (
        ("if x.dim() > 1:", "    raise ValueError('x')", "if y.dim() > 1:", "    raise ValueError('y')", "return x"),
        ("if y.dim() > 1:", "    raise ValueError('y')", "if x.dim() > 1:", "    raise ValueError('x')", "return x"),
    ),
    "an attribute before or behind it is set": (
        ("a = self.count", "self.count = 3", "return x * a"),
        ("self.count = 3", "a = self.count", "return x * a"),
    ),
    "a buffer before or behind it is written to": (
        ("a = self.seen * 2", "self.seen.add_(1)", "return a"),
        ("self.seen.add_(1)", "a = self.seen * 2", "return a"),
    ),
    "which of two equal buffers is written to": (
        ("self.seen.add_(x)", "return self.seen * y"),
        ("self.other.add_(x)", "return self.seen * y"),
    ),
    "a buffer in a branch before or behind it is written to": (
        ("a = x", "if x.dim() > 0:", "    a = self.seen * 2", "self.seen.add_(1)", "return a"),
        ("a = x", "self.seen.add_(1)", "if x.dim() > 0:", "    a = self.seen * 2", "return a"),
    ),
    "a list that is given": (
        ("a = l[0]", "b = l[0]", "c = b * 2", "a.add_(1)", "return c"),
        ("a = l[0]", "b = l[0]", "a.add_(1)", "c = b * 2", "return c"),
    ),
    "a list attribute before or behind it grows": (
        ("a = len(self.items)", "self.items.append(1)", "return x * a"),
        ("self.items.append(1)", "a = len(self.items)", "return x * a"),
    ),
    "with or without gradients": (
        ("with torch.no_grad():", "    a = x.sin()", "return a + x.cos()"),
        ("with torch.no_grad():", "    a = x.cos()", "return a + x.sin()"),
    ),
    "which buffer with a name of torch's": (("return x + self.graph",), ("return x + self.code",)),
    "a device": (("return x + torch.zeros(3, device='cpu')",), ("return x + torch.zeros(3, device='meta')",)),
    "a type of number": (("return x * 2",), ("return x * 2.0",)),
    "the other zero": (("return x + 0.0",), ("return x + (-0.0)",)),
    "once or twice": (("a = x.sin()", "return a + a"), ("return x.sin() + x.sin()",)),
    "which of two": (
        ("a = x.sin()", "b = x.sin()", "return (a + 1) * (b + 2) * a"),
        ("a = x.sin()", "b = x.sin()", "return (a + 1) * (b + 2) * b"),
    ),
    "the text of an error": (("assert x.dim() > 0, 'a'", "return x"), ("assert x.dim() > 0, 'b'", "return x")),
    "a parameter or a buffer": (("return x * self.weight",), ("return x * self.seen",)),
    "how often a loop runs": (
        ("for i in range(3):", "    x = x.sin()", "return x"),
        ("for i in range(4):", "    x = x.sin()", "return x"),
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_sees(name):
    item, other = OTHER[name]
    takes = "l: List[Tensor]" if name == "a list that is given" else "x: Tensor, y: Tensor"
    assert text_of(method(*item, takes=takes)) != text_of(method(*other, takes=takes))


@pytest.mark.parametrize("name", OTHER)
def test_what_it_sees_is_said(name):
    saved = []
    for lines in OTHER[name]:
        with ignore_deprecations():
            module = torch.jit.script(type("Holder", (Holder,), {})())
            takes = "l: List[Tensor]" if name == "a list that is given" else "x: Tensor, y: Tensor"
            module.define(method(*lines, takes=takes))
            saved.append(read(torch.jit.load(io.BytesIO(write_zip(serialize_module(module))))))
    result = diff_graphs(*saved)
    assert result.nodes or result.tensors
    assert not diff_graphs(saved[0], saved[0]).nodes


def test_a_write_by_another_method():
    other = "def other(self, x: Tensor):\n    x.add_(1)\n    return x\n"
    quiet = "def other(self, x: Tensor):\n    return x + 1\n"
    early = method("x = x.clone()", "a = x.sin()", "b = self.other(x)", "return a - b")
    late = method("x = x.clone()", "b = self.other(x)", "a = x.sin()", "return a - b")
    assert text_of(f"{other}\n{early}") != text_of(f"{other}\n{late}")
    assert text_of(f"{quiet}\n{early}") == text_of(f"{quiet}\n{late}")


def test_what_one_method_writes_another_reads():
    writer = "def writer(self, x: Tensor):\n    self.seen.add_(x)\n    return x\n"
    assert text_of(writer + method("return self.seen + x")) != text_of(writer + method("return self.other + x"))
    assert text_of(method("return self.seen + x")) == text_of(method("return self.other + x"))


def test_reads_and_writes_of_called_methods():
    reader = "def other(self, x: Tensor):\n    return self.seen + x\n"
    writer = "def other(self, x: Tensor):\n    self.seen.add_(1)\n    return x\n"
    for other, lines in (
        (reader, ("a = self.other(x)", "self.seen.add_(1)")),
        (writer, ("a = self.seen * 2", "self.other(x)")),
    ):
        item, two = (other + method(*order, "return a") for order in (lines, lines[::-1]))
        assert text_of(item) != text_of(two)


def test_defaults_of_arguments_are_part_of_it():
    item, two = (method("return x * n", takes=f"x: Tensor, n: int = {n}") for n in (3, 4))
    assert text_of(item) != text_of(two)


class Warning_(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() > 3:
            warnings.warn("large", stacklevel=2)
        return x


def test_warnings_have_no_number_of_their_process():
    with ignore_deprecations():
        module = torch.jit.script(Warning_())
        item, two = (
            format_canonical_text(read(torch.jit.load(io.BytesIO(write_zip(serialize_module(module))))))
            for _ in range(2)
        )
    assert item == two
    assert "aten::warn('large', 2) !" in item


def chain(depth: int) -> str:
    """A chain of elifs, as deep as it is long."""
    lines = ["if x.dim() == 0:", "    return x"]
    for i in range(1, depth):
        lines += [f"elif x.dim() == {i}:", f"    return x * {i}"]
    return method(*lines, "else:", "    return y")


def test_branches_that_are_deep():
    assert text_of(chain(100)) != text_of(chain(101))


def test_blocks_that_are_too_deep_are_an_error_of_ours(monkeypatch):
    monkeypatch.setattr(recursion, "LIMIT", 1)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(260)
    try:
        with pytest.raises(ArchiveError, match="blocks within blocks"):
            text_of(chain(100))
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("count", mark_rest_thorough([4], [20]))
def test_exports_have_one_hash(tmp_path, without_the_gate, count):
    result = {
        export_unverified("examples/composed/model.py:make_model", tmp_path / f"{i}.pt").contract.graph
        for i in range(count)
    }
    assert len(result) == 1
    last = pt_archive.read(tmp_path / "0.pt")
    assert hash_graph_text(last.graph) == last.contract.graph
    assert len({(tmp_path / f"{i}.pt").read_bytes() for i in range(count)}) == 1
