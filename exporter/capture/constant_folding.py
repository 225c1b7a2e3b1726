"""Folding of batch constants: values that a graph computes from the batch size alone are taken out of it.

A chain rule that starts from identities carries them through half of its operations before it meets an input. Such a
value is the same for every element of the batch, so one element's value stands for all: it is computed once and
broadcast. It is taken out only if batches of other sizes confirm that, and if the graph gives the same bits."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from exporter.capture.batch_recording import BATCH, BatchSize, ValueShape
from exporter.capture.fx_tracing import FxProgram
from exporter.common.tensors import bitwise_equal

_aten: Any = torch.ops.aten
_POINTWISE = (_aten.mul.Tensor, _aten.add.Tensor, _aten.sub.Tensor, _aten.div.Tensor)
# Batch sizes that show whether the elements of a batch differ.
PROBE_SIZES = (1, 2, 5)


def fold_batch_constants(program: FxProgram, inputs: Sequence[torch.Tensor]) -> FxProgram:
    """Fold the batch constants of a recorded program; the first of ``inputs`` has the batch in front."""
    graph = copy.deepcopy(program.graph.graph)
    values = {size: _evaluate_constants(graph, program.constants, size) for size in PROBE_SIZES}
    shared_values = {n: v for n in values[1] if (v := _extract_shared_element(n, values)) is not None}
    frontier = [n for n in shared_values if n.op != "get_attr" and any(user not in shared_values for user in n.users)]
    if not frontier:
        return program
    constants = dict(program.constants)
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        size_node = graph.call_function(_aten.sym_size.int, (next(iter(graph.nodes)), 0))
        size_node.meta["val"] = BATCH
    for node in frontier:
        name = f"folded_{node.name}"
        constants[name] = shared_values[node]
        with graph.inserting_before(node):
            element = graph.create_node("get_attr", name)
            element.meta["val"] = ValueShape(tuple(shared_values[node].shape), shared_values[node].dtype)
            shape = [size_node if size == BATCH else size for size in node.meta["val"].shape]
            expand = graph.call_function
            expanded = expand(_aten.expand.default, (element, shape)) if size_node in shape else element
            expanded.meta = dict(node.meta)
        for user in list(node.users):
            user.replace_input_with(node, element if _has_batched_operand(user, node) else expanded)
    graph.eliminate_dead_code()
    read_names = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
    constants = {n: v for n, v in constants.items() if n in read_names}
    folded_program = dataclasses.replace(program, graph=GraphModule(constants, graph), constants=constants)
    return folded_program if _is_same(program, folded_program, inputs) else program


def _has_batched_operand(user: Node, node: Node) -> bool:
    """Return whether another operand has the batch where ``node`` has it, so one element of ``node`` suffices."""
    if user.target not in _POINTWISE:
        return False
    batch_dims = [i - node.meta["val"].ndim for i, size in enumerate(node.meta["val"].shape) if size == BATCH]
    shapes = [n.meta["val"].shape for n in user.all_input_nodes if n is not node and n.op != "get_attr"]
    return any(all(len(shape) >= -i and shape[i] == BATCH for i in batch_dims) for shape in shapes)


def _evaluate_constants(graph: Graph, constants: Mapping[str, Any], size: int) -> dict[Node, Any]:
    """Evaluate the nodes that depend on nothing but the batch size, for a batch of ``size``."""
    numbers: dict[Node, Any] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, BatchSize):
            numbers[node] = value.evaluate(size)
        elif node.op == "get_attr":
            numbers[node] = constants[str(node.target)]
        elif node.op != "call_function" or not isinstance(value, ValueShape) or node.is_impure():
            continue
        elif all(n in numbers for n in node.all_input_nodes):
            arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), lambda n: numbers[n])
            numbers[node] = node.target(*arguments, **keywords)
    return {n: v for n, v in numbers.items() if isinstance(v, torch.Tensor)}


def _extract_shared_element(node: Node, values: Mapping[int, Mapping[Node, Any]]) -> torch.Tensor | None:
    """Return the value with one element in place of the batch; None if elements differ or their number matters."""
    sizes = node.meta["val"].shape if node.op != "get_attr" else ()
    batch_dims = [i for i, size in enumerate(sizes) if size == BATCH]
    if len(batch_dims) > 1 or any(isinstance(s, BatchSize) for i, s in enumerate(sizes) if i not in batch_dims):
        return None
    if any(node not in batch_values for batch_values in values.values()):
        return None
    element = values[1][node].contiguous()
    for batch_values in values.values():
        value = batch_values[node]
        if value.dtype != element.dtype or value.ndim != element.ndim:
            return None
        if not bitwise_equal(element.expand(value.shape) if batch_dims else element, value):
            return None
    return element.clone()


def _is_same(program: FxProgram, folded_program: FxProgram, inputs: Sequence[torch.Tensor]) -> bool:
    available = inputs[0].shape[0]
    for batch_size in (available, *PROBE_SIZES):
        rows = torch.arange(batch_size) % available
        arguments = [t[rows] if _has_batch(program, i) else t for i, t in enumerate(inputs)]
        try:
            expected, actual = (p.graph(*arguments) for p in (program, folded_program))
        except RuntimeError:
            return False
        if not all(bitwise_equal(a, b) for a, b in zip(expected, actual, strict=True)):
            return False
    return True


def _has_batch(program: FxProgram, index: int) -> bool:
    """Return whether an input has the batch in front: another size that varies is a parameter's."""
    nodes = [n for n in program.graph.graph.nodes if n.op == "placeholder"]
    shape = nodes[index].meta["val"].shape
    return bool(shape) and shape[0] == BATCH
