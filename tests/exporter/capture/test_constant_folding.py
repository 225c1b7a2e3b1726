"""What hangs on the size of the batch alone leaves the graph; what differs from element to element stays."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from exporter.capture import batch_recording, constant_folding, newton_capture
from exporter.capture.batch_recording import NotRecordedError, record_batch_program
from exporter.capture.duplicate_elimination import eliminate_duplicates
from exporter.capture.fx_tracing import FxProgram
from exporter.common.tensors import bitwise_equal

F = torch.float64


def operations(program: FxProgram) -> list[str]:
    return [
        str(n.target) for n in program.graph.graph.nodes if n.op == "call_function" and "sym_size" not in str(n.target)
    ]


def both(function, *inputs):
    before = eliminate_duplicates(record_batch_program(function, inputs, [0]))
    return before, constant_folding.fold_batch_constants(before, inputs)


def chain(x: torch.Tensor):
    """Seeds through a linear operation, as a chain rule writes them."""
    seeds = torch.eye(3, dtype=F)[:, None].expand(3, x.shape[0], 3)
    trace = seeds[..., 0] + seeds[..., 1] + 2.0 * seeds[..., 2]
    return ((x * x).sum(-1) * trace / 3.0, torch.cat([x, trace.mT], -1))


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_the_same_bits_at_any_batch(rows):
    before, after = both(chain, torch.rand(5, 3, dtype=F))
    x = torch.rand(rows, 3, dtype=F)
    for a, b in zip(before.graph(x), after.graph(x), strict=True):
        assert bitwise_equal(a, b)


def test_what_is_linear_in_the_seeds_is_gone():
    before, after = both(chain, torch.rand(5, 3, dtype=F))
    assert len(operations(after)) < len(operations(before)) - 5
    # A product takes one element as it is; what is put beside others is expanded.
    assert operations(after).count("aten.expand.default") == 1
    assert set(after.constants) == {str(n.target) for n in after.graph.graph.nodes if n.op == "get_attr"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + torch.arange(x.shape[0], dtype=F)[:, None],),
        lambda x: (x + torch.ones(x.shape[0], dtype=F).sum(),),
        lambda x: (x + torch.ones(x.shape[0] * 2, dtype=F)[: x.shape[0], None],),
    ],
    ids=["a number of its own", "the number of elements", "twice the batch"],
)
def test_what_elements_do_not_share_stays(function):
    _, after = both(function, torch.rand(5, 3, dtype=F))
    for rows in (1, 4, 9):
        x = torch.rand(rows, 3, dtype=F)
        assert bitwise_equal(after.graph(x)[0], function(x)[0])


def test_a_planted_fault_is_not_let_through(monkeypatch):
    """The graph is held against the one before, whatever was taken out."""
    monkeypatch.setattr(
        constant_folding,
        "_extract_shared_element",
        lambda node, values: values[1].get(node, torch.zeros(1)).clone() + 1e-12,
    )
    before, after = both(chain, torch.rand(5, 3, dtype=F))
    assert after is before


def test_a_parameter_has_a_size_of_its_own():
    def function(x: torch.Tensor, matrix: torch.Tensor):
        return (chain(x)[0] * matrix.sum(), x @ matrix)

    before, after = both(function, torch.rand(5, 3, dtype=F), torch.rand(3, 4, dtype=F))
    assert len(operations(after)) < len(operations(before))
    x, matrix = torch.rand(7, 3, dtype=F), torch.rand(3, 4, dtype=F)
    for a, b in zip(before.graph(x, matrix), after.graph(x, matrix), strict=True):
        assert bitwise_equal(a, b)


def test_the_graph_of_a_loop_is_folded_however_it_is_captured(monkeypatch):
    arguments = torch.rand(5, 3, dtype=F), list[torch.Tensor]()

    def capture() -> FxProgram:
        function = lambda x, held: chain(x)  # noqa: E731
        return newton_capture.trace_loop_graph(function, arguments, range(1), "loop", torch.nn.Identity())

    def refuse(*_arguments):
        raise NotRecordedError

    recorded = capture()
    monkeypatch.setattr(batch_recording, "record_batch_program", refuse)
    traced = capture()
    assert Counter(operations(traced)) == Counter(operations(recorded))
    assert len(operations(traced)) < len(operations(record_batch_program(chain, arguments[:1], [0]))) - 5
    x = torch.rand(7, 3, dtype=F)
    for a, b in zip(traced.graph(x), chain(x), strict=True):
        assert bitwise_equal(a, b)
