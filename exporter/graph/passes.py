"""Passes over a copy of a saved graph, one after the other: what each removes.

The ten that NEML2's tutorial on just-in-time compilation speaks of (neml2 2.x,
doc/content/tutorials/models/just_in_time_compilation), in torch's order (torch/csrc/jit/runtime/graph_executor.cpp:
``runRequiredPasses`` and what stands around it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from exporter.archive.input_files import Given
from exporter.common.errors import UsageError, first_line
from exporter.graph.executor_stages import method_named, run_inputs
from exporter.graph.loading import File
from exporter.graph.torch_nodes import nodes


@dataclass(frozen=True)
class Pass:
    """What one pass did: nodes as torch counts them, and by kind how many are fewer and how many more.

    ``not_run`` says why it could not run.
    """

    name: str
    before: int
    after: int
    removed: dict[str, int] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    not_run: str = ""


def passes(file: File, asked: str, given: Given | None = None) -> tuple[Pass, ...]:
    """The ten passes on one method. Raises ``UsageError`` for a method that is not there."""
    module = file.module()
    method = method_named(file, module, asked)
    graph = module._c._get_method(method).graph.copy()
    found: list[Pass] = []
    for name, run in _PASSES.items():
        before = Counter(node.kind() for node in nodes(graph))
        # One that fails may have changed half of it.
        copy = graph.copy()
        try:
            run(copy, lambda: (module, *run_inputs(file, module, asked, method, given)))
        except UsageError as error:
            found.append(_not_run(name, before, error.details.get("got", error.what)))
            continue
        except RuntimeError as error:
            found.append(_not_run(name, before, first_line(error)))
            continue
        graph = copy
        after = Counter(node.kind() for node in nodes(graph))
        found.append(Pass(name, before.total(), after.total(), dict(before - after), dict(after - before)))
    return tuple(found)


def _not_run(name: str, nodes_of: Counter[str], why: str) -> Pass:
    return Pass(name, nodes_of.total(), nodes_of.total(), not_run=why)


Inputs = Callable[[], Sequence[Any]]
# Not all of them are in torch's stubs.
_torch: Any = torch._C


def _shapes(graph: Any, inputs: Inputs) -> None:
    _torch._jit_pass_complete_shape_analysis(graph, tuple(inputs()), False)


_PASSES: dict[str, Callable[[Any, Inputs], Any]] = {
    "inlining": lambda graph, _: _torch._jit_pass_inline(graph),
    "constant pooling": lambda graph, _: _torch._jit_pass_constant_pooling(graph),
    "removing expands": lambda graph, _: _torch._jit_pass_remove_expands(graph),
    "canonicalisation": lambda graph, _: _torch._jit_pass_canonicalize_graph_fuser_ops(graph),
    "dead code": lambda graph, _: _torch._jit_pass_dce(graph),
    "constant propagation": lambda graph, _: _torch._jit_pass_constant_propagation(graph),
    "input shape propagation": _shapes,
    "common subexpressions": lambda graph, _: _torch._jit_pass_cse(graph),
    "peephole": lambda graph, _: _torch._jit_pass_peephole(graph, False),
    "loop unrolling": lambda graph, _: _torch._jit_pass_loop_unrolling(graph),
}
