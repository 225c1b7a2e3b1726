"""Passes over a copy of a saved graph, one after the other: what each removes.

The ten of NEML2's tutorial on optimising a model (neml2, doc/content/tutorials/optimization): those that its C++
library ran before a model was executed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from exporter.capture.operators import nodes
from exporter.errors import UsageError, first_line
from exporter.given import Given
from exporter.graph.loading import File
from exporter.graph.read import read_graph
from exporter.graph.stages import input_names, method_named, run_inputs
from exporter.graph.values import Graph


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


@dataclass(frozen=True)
class Passed:
    """``before`` and ``after`` are the graph as captured, with submodules inlined, and after all passes."""

    before: Graph
    after: Graph
    names: tuple[str, ...]
    passes: tuple[Pass, ...]


def passes(file: File, asked: str, given: Given | None = None) -> Passed:
    """The ten passes on one method. Raises ``UsageError`` for a method that is not there."""
    module = file.module()
    method = method_named(file, module, asked)
    graph = module._c._get_method(method).graph.copy()
    inlined = graph.copy()
    torch._C._jit_pass_inline(inlined)
    found = []
    for name, run in _PASSES.items():
        before = Counter(node.kind() for node in nodes(graph))
        # One that fails may have changed half of it.
        copy = graph.copy()
        try:
            run(copy, lambda: (module, *run_inputs(file, module, asked, method, "raw", given)))
        except UsageError as error:
            found.append(_not_run(name, before, error.details.get("got", error.what)))
            continue
        except RuntimeError as error:
            found.append(_not_run(name, before, first_line(error)))
            continue
        graph = copy
        after = Counter(node.kind() for node in nodes(graph))
        found.append(Pass(name, before.total(), after.total(), dict(before - after), dict(after - before)))
    names = input_names(file, module, asked, method)
    return Passed(read_graph(inlined, module, method), read_graph(graph, module, method), names, tuple(found))


def _not_run(name: str, nodes_of: Counter[str], why: str) -> Pass:
    return Pass(name, nodes_of.total(), nodes_of.total(), not_run=why)


Inputs = Callable[[], Sequence[Any]]
# Not all of them are in torch's stubs.
_torch: Any = torch._C


def _shapes(graph: Any, inputs: Inputs) -> None:
    _torch._jit_pass_complete_shape_analysis(graph, tuple(inputs()), False)


# ``_jit_pass_canonicalize`` numbers the values anew; torch's graph writer has no other pass of that name.
_PASSES: dict[str, Callable[[Any, Inputs], Any]] = {
    "inlining": lambda graph, _: _torch._jit_pass_inline(graph),
    "constant pooling": lambda graph, _: _torch._jit_pass_constant_pooling(graph),
    "removing expands": lambda graph, _: _torch._jit_pass_remove_expands(graph),
    "canonicalisation": lambda graph, _: _torch._jit_pass_canonicalize(graph),
    "dead code": lambda graph, _: _torch._jit_pass_dce(graph),
    "constant propagation": lambda graph, _: _torch._jit_pass_constant_propagation(graph),
    "input shape propagation": _shapes,
    "common subexpressions": lambda graph, _: _torch._jit_pass_cse(graph),
    "peephole": lambda graph, _: _torch._jit_pass_peephole(graph, False),
    "loop unrolling": lambda graph, _: _torch._jit_pass_loop_unrolling(graph),
}
