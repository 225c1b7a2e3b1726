"""What a graph computes from the size of its batch alone is a constant, and is taken out of the graph.

A chain rule that starts from identities carries them through half of its operations before it meets a number that is
given. Such a value is the same for every element of the batch, so that one element's stands for all: it is computed
once and broadcast. It is taken out only where batches of other sizes show that, and where the graph gives the same
bits.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from exporter.capture.fx_tracing import Program
from exporter.common.tensors import same_bits

_aten: Any = torch.ops.aten
_POINTWISE = (_aten.mul.Tensor, _aten.add.Tensor, _aten.sub.Tensor, _aten.div.Tensor)
# Sizes of a batch that show whether its elements differ.
SHOWN = (1, 2, 5)


def folded(program: Program, inputs: Sequence[torch.Tensor]) -> Program:
    """``inputs``: the first has the batch in front. The program itself where nothing can be taken out."""
    graph = GraphModule(program.graph, copy.deepcopy(program.graph.graph))
    batch = _batch_of(graph)
    if batch is None:
        return program
    values = {size: _values(graph, program.constants, batch, size) for size in SHOWN}
    known = {n: v for n in values[1] if (v := _of_every_element(n, batch, values)) is not None}
    frontier = [n for n in known if n.op != "get_attr" and any(user not in known for user in n.users)]
    if not frontier:
        return program
    constants = dict(program.constants)
    with graph.graph.inserting_before(_first_operation(graph)):
        rows = graph.graph.call_function(_aten.sym_size.int, (next(iter(graph.graph.nodes)), 0))
        rows.meta["val"] = _batch_size(graph)
    for node in frontier:
        name = f"folded_{node.name}"
        constants[name] = known[node]
        graph.register_buffer(name, known[node])
        with graph.graph.inserting_before(node):
            one = graph.graph.create_node("get_attr", name)
            one.meta["val"] = known[node]
            shape = [rows if _is_batch(size, batch) else size for size in node.meta["val"].shape]
            every = graph.graph.call_function(_aten.expand.default, (one, shape)) if rows in shape else one
            every.meta = dict(node.meta)
        for user in list(node.users):
            user.replace_input_with(node, one if _broadcasts(user, node, batch) else every)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    read = {str(n.target) for n in graph.graph.nodes if n.op == "get_attr"}
    found = dataclasses.replace(program, graph=graph, constants={n: v for n, v in constants.items() if n in read})
    return found if _same(program, found, inputs, batch) else program


def _broadcasts(user: Node, node: Node, batch: Any) -> bool:
    """Whether another operand has the batch where ``node`` has it, so that one element of ``node`` will do."""
    if user.target not in _POINTWISE:
        return False
    back = [i - node.meta["val"].ndim for i, size in enumerate(node.meta["val"].shape) if _is_batch(size, batch)]
    shapes = [n.meta["val"].shape for n in user.all_input_nodes if n is not node and n.op != "get_attr"]
    return any(all(len(shape) >= -i and _is_batch(shape[i], batch) for i in back) for shape in shapes)


def _batch_size(graph: GraphModule) -> Any:
    return next(iter(graph.graph.nodes)).meta["val"].shape[0]


def _batch_of(graph: GraphModule) -> Any:
    """The symbol of the batch; none where its size is a number."""
    size = _batch_size(graph)
    return size.node._expr if isinstance(size, torch.SymInt) and size.node._expr.is_Symbol else None


def _is_batch(size: Any, batch: Any) -> bool:
    return isinstance(size, torch.SymInt) and size.node._expr == batch


def _first_operation(graph: GraphModule) -> Node:
    return next(n for n in graph.graph.nodes if n.op != "placeholder")


def _values(
    graph: GraphModule, constants: Mapping[str, torch.Tensor], batch: Any, size: int
) -> dict[Node, torch.Tensor]:
    """What hangs on nothing but the size of the batch, for a batch of ``size``."""
    numbers: dict[Node, Any] = {}
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            number = value.node._expr.subs({batch: size})
            if number.is_Integer:
                numbers[node] = int(number)
        elif node.op == "get_attr":
            numbers[node] = constants[str(node.target)]
        elif (
            node.op == "call_function"
            and isinstance(value, torch.Tensor)
            and not node.is_impure()
            and all(n in numbers for n in node.all_input_nodes)
        ):
            arguments, named = torch.fx.map_arg((node.args, node.kwargs), lambda n: numbers[n])
            numbers[node] = node.target(*arguments, **named)
    return {n: v for n, v in numbers.items() if isinstance(v, torch.Tensor)}


def _of_every_element(node: Node, batch: Any, values: Mapping[int, Mapping[Node, torch.Tensor]]) -> torch.Tensor | None:
    """The value with one element in place of the batch; none where elements differ, or their number matters."""
    sizes = node.meta["val"].shape if node.op != "get_attr" else ()
    at = [i for i, size in enumerate(sizes) if _is_batch(size, batch)]
    if len(at) > 1 or any(isinstance(s, torch.SymInt) for i, s in enumerate(sizes) if i not in at):
        return None
    if any(node not in found for found in values.values()):
        return None
    one = values[1][node].contiguous()
    for found in values.values():
        other = found[node]
        if other.dtype != one.dtype or other.ndim != one.ndim:
            return None
        if not same_bits(one.expand(other.shape) if at else one, other):
            return None
    return one.clone()


def _same(program: Program, other: Program, inputs: Sequence[torch.Tensor], batch: Any) -> bool:
    for rows in (inputs[0].shape[0], *SHOWN):
        size = inputs[0].shape[0]
        given = [t[torch.arange(rows) % size] if _has_batch(program, i, batch) else t for i, t in enumerate(inputs)]
        try:
            one, two = (p.graph(*given) for p in (program, other))
        except RuntimeError:
            return False
        if not all(same_bits(a, b) for a, b in zip(one, two, strict=True)):
            return False
    return True


def _has_batch(program: Program, at: int, batch: Any) -> bool:
    """Another size that varies is that of a parameter."""
    nodes = [n for n in program.graph.graph.nodes if n.op == "placeholder"]
    shape = nodes[at].meta["val"].shape
    return bool(shape) and _is_batch(shape[0], batch)
