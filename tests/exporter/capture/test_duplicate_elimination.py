"""Repeated expressions are computed once, and nothing that is written to is shared."""

from __future__ import annotations

import pytest
import torch

from exporter.capture import fx_tracing
from exporter.capture.batch_recording import record_batch_program
from exporter.capture.duplicate_elimination import eliminate_duplicates
from exporter.capture.fx_tracing import FxProgram
from exporter.common.tensors import bitwise_equal

F = torch.float64
WEIGHTS = torch.linspace(0.5, 1.5, 9, dtype=F).reshape(3, 3)


def count(program, name):
    return sum(name in str(node.target) for node in program.graph.graph.nodes)


def reduce(function):
    return eliminate_duplicates(record_batch_program(function, [torch.rand(5, 3, dtype=F)], [0]))


def write_to_one_of_two(x):
    first, second = x.clone(), x.clone()
    first[:, 0].mul_(2.0)
    return first, second


def read_before_and_after(x):
    value = x * 2.0
    before = value.sin()
    value.add_(1.0)
    return before, value.sin()


def write_to_a_piece(x):
    value = x * 2.0
    pieces = torch.split(value, 1, -1)
    before = value.sin()
    pieces[1].zero_()
    return before, value.sin()


def write_to_one_of_two_products(x):
    rows = x[:, :, None].expand(-1, -1, 3)
    first, second = rows @ WEIGHTS, rows @ WEIGHTS
    first.mul_(2.0)
    return first, second


def write_to_one_of_two_copies(x):
    turned = x[:, :, None].expand(-1, -1, 2).mT
    first, second = turned.reshape(len(x), -1), turned.reshape(len(x), -1)
    first.mul_(2.0)
    return first, second


WRITERS = (
    write_to_one_of_two,
    read_before_and_after,
    write_to_a_piece,
    write_to_one_of_two_products,
    write_to_one_of_two_copies,
)


@pytest.mark.parametrize("function", WRITERS)
def test_what_is_written_to_is_not_shared(function):
    x = torch.rand(7, 3, dtype=F)
    for actual, expected in zip(reduce(function).graph(x.clone()), function(x.clone()), strict=True):
        assert bitwise_equal(actual, expected)


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda x: (x.sin() + x.sin() * x.sin(),), 1),
        (lambda x: (x.sin().detach() + x.sin(),), 1),
        (lambda x: ((x + 1.0).sin() + (x + 1).sin(),), 2),
        (lambda x: ((x * 0.0).sin() + (x * -0.0).sin(),), 2),
        (lambda x: (x[:, 0].sin() + x[:, 1].sin() + x[:, 0].sin(),), 2),
        (lambda x: (torch.sum(x.sin(), -1, keepdim=True) + torch.sum(x.sin(), -1, keepdim=False)[:, None],), 1),
    ],
    ids=["three times", "detached", "1 and 1.0", "0.0 and -0.0", "two columns", "true and false"],
)
def test_equal_expressions_are_one(function, kept):
    program, x = reduce(function), torch.rand(7, 3, dtype=F)
    assert count(program, "sin") == kept
    assert bitwise_equal(program.graph(x)[0], function(x)[0])


def test_a_truth_is_no_number():
    def count_twice(x):
        return torch.add(x > 0.5, True), torch.add(x > 0.5, 1)

    x = torch.rand(7, 3, dtype=F)
    for actual, expected in zip(reduce(count_twice).graph(x), count_twice(x), strict=True):
        assert bitwise_equal(actual, expected)


def test_chance_is_drawn_anew():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    draws = [graph.call_function(torch.ops.aten.rand_like.default, (x,)) for _ in range(2)]
    graph.output((graph.call_function(torch.ops.aten.sub.Tensor, tuple(draws)),))
    program = eliminate_duplicates(FxProgram(torch.fx.GraphModule({}, graph), {}, 3, 1))
    assert count(program, "rand_like") == 2


def test_views_of_views_are_followed_once(monkeypatch):
    def turn(x):
        result = x * 2.0
        for _ in range(50):
            result = result.mT
        result.add_(1.0)
        return (result * 3.0,)

    program = record_batch_program(turn, [torch.rand(5, 3, dtype=F)], [0])
    nodes = list[torch.fx.Node]()
    is_view = fx_tracing._is_view
    monkeypatch.setattr(fx_tracing, "_is_view", lambda node: nodes.append(node) or is_view(node))
    eliminate_duplicates(program)
    assert len(nodes) == len(set(nodes)) > 50


def test_what_is_not_initialised_is_not_shared():
    def fill(x):
        first, second = torch.empty_like(x), torch.empty_like(x)
        return first.fill_(1.0) * x, second.fill_(2.0) * x

    x = torch.rand(7, 3, dtype=F)
    for actual, expected in zip(reduce(fill).graph(x), fill(x), strict=True):
        assert bitwise_equal(actual, expected)
