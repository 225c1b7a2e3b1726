"""Passes over a copy of a saved graph, one after the other, with what each removes.

The ten that NEML2's tutorial on just-in-time compilation describes (neml2 2.x,
doc/content/tutorials/models/just_in_time_compilation), in torch's order (torch/csrc/jit/runtime/graph_executor.cpp:
``runRequiredPasses`` and the code around it)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from exporter.archive.input_files import InputValues
from exporter.common import torch_internals
from exporter.common.errors import UsageError, summarize_error
from exporter.common.script_loading import iterate_nodes
from exporter.graph.executor_stages import prepare_inputs, resolve_method
from exporter.graph.loading import File


@dataclass(frozen=True)
class PassResult:
    """The effect of one pass: nodes as torch counts them, and how many fewer and more there are of each operator.

    ``not_run`` is the reason why it could not run."""

    name: str
    before: int
    after: int
    removed: dict[str, int] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    not_run: str = ""


def run_passes(file: File, requested: str, inputs: InputValues | None = None) -> tuple[PassResult, ...]:
    """Run the ten passes on one method; raise ``UsageError`` if there is no such method."""
    module = file.load()
    method = resolve_method(file, module, requested)
    graph = module._c._get_method(method).graph.copy()
    results: list[PassResult] = []
    for name, run in _PASSES.items():
        before = Counter(node.kind() for node in iterate_nodes(graph))
        # A failing pass may have changed half of the graph.
        copy = graph.copy()
        try:
            run(copy, lambda: (module, *prepare_inputs(file, module, requested, method, inputs)))
        except UsageError as error:
            results.append(_make_skipped_result(name, before, error.details.get("got", error.what)))
            continue
        except RuntimeError as error:
            results.append(_make_skipped_result(name, before, summarize_error(error)))
            continue
        graph = copy
        after = Counter(node.kind() for node in iterate_nodes(graph))
        results.append(PassResult(name, before.total(), after.total(), dict(before - after), dict(after - before)))
    return tuple(results)


def _make_skipped_result(name: str, node_counts: Counter[str], reason: str) -> PassResult:
    return PassResult(name, node_counts.total(), node_counts.total(), not_run=reason)


Inputs = Callable[[], Sequence[Any]]


def _propagate_shapes(graph: Any, inputs: Inputs) -> None:
    torch_internals.propagate_shapes(graph, tuple(inputs()), False)


_PASSES: dict[str, Callable[[Any, Inputs], Any]] = {
    "inlining": lambda graph, _: torch_internals.inline_calls(graph),
    "constant pooling": lambda graph, _: torch_internals.pool_constants(graph),
    "removing expands": lambda graph, _: torch_internals.remove_expands(graph),
    "canonicalisation": lambda graph, _: torch_internals.canonicalize_operators(graph),
    "dead code": lambda graph, _: torch_internals.remove_dead_code(graph),
    "constant propagation": lambda graph, _: torch_internals.propagate_constants(graph),
    "input shape propagation": _propagate_shapes,
    "common subexpressions": lambda graph, _: torch_internals.merge_subexpressions(graph),
    "peephole": lambda graph, _: torch_internals.simplify_peepholes(graph, False),
    "loop unrolling": lambda graph, _: torch_internals.unroll_loops(graph),
}
