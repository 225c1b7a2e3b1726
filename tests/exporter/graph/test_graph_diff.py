"""Every single change of a real graph is seen, at its place; what is no change is not."""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import Any

import pytest
import torch
from graph_mutations import MUTANTS, graph_of, module_of, saved_of, tensors
from project import mark_rest_thorough

from exporter.common.script_loading import iterate_nodes
from exporter.graph.canonical_text import format_canonical_text, format_method
from exporter.graph.graph_diff import GraphDiff, diff_graphs
from exporter.saved_code.ir import SavedGraphs

_ORIGINALS: dict[str, SavedGraphs] = {}


def original(name: str) -> SavedGraphs:
    return _ORIGINALS.setdefault(name, saved_of(module_of(name), name))


@functools.cache
def original_text(name: str) -> str:
    return format_canonical_text(original(name))


def list_changes(result: GraphDiff) -> str:
    return "\n".join(f"{c.method} | {c.module} | {c.kind}: {c.what}" for c in result.nodes)


@pytest.mark.thorough
@pytest.mark.parametrize("item", MUTANTS, ids=lambda m: m.name.replace(" ", "_").replace("::", "."))
def test_a_change_is_seen_at_its_place(item):
    module = module_of(item.archive)
    item.change(graph_of(module, item.path, item.method))
    mutated = saved_of(module, item.archive)
    before = original(item.archive)
    assert format_canonical_text(mutated) != original_text(item.archive)
    result = diff_graphs(before, mutated)
    assert not result.tensors
    lines = [c for c in result.nodes if c.method == item.shown_in]
    place = item.path if item.module is None else item.module
    fits = [c for c in lines if c.module == place and all(part in f"{c.kind} {c.what}" for part in item.expected)]
    assert fits, f"none of\n{list_changes(result)}"
    # Nothing else is said of that method: what stands before and behind is the same.
    assert len(lines) <= item.most, list_changes(result)


def test_there_are_thirty_and_more():
    assert len(MUTANTS) >= 30
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(("name", "key"), list(tensors()))
def test_one_ulp_of_one_number_is_seen(name, key):
    module = module_of(name)
    value = module.state_dict()[key]
    flat = value.view(-1)
    with torch.no_grad():
        flat[0] = torch.nextafter(flat[0], flat[0] + 1)
    before, mutated = original(name), saved_of(module, name)
    assert format_canonical_text(mutated) != original_text(name)
    result = diff_graphs(before, mutated)
    assert not result.nodes
    (item,) = result.tensors
    assert item.differ == 1
    assert 0 < item.largest <= 1e-10
    assert "constant" in key or item.name == key


def test_the_other_zero_is_seen():
    before = original("composed")
    module = module_of("composed")
    zeros = [v for v in module.state_dict().values() if v.is_floating_point() and bool((v == 0).any())]
    with torch.no_grad():
        zeros[0][zeros[0] == 0] *= -1.0
    result = diff_graphs(before, saved_of(module, "composed"))
    assert [t.largest for t in result.tensors] == [0.0]
    assert result.tensors[0].differ > 0


# How often: the largest takes seconds each time.
TIMES = {
    "rates": 20,
    "composed": 20,
    "bar": 20,
    "momentum_step": 20,
    "loss_and_grad": 20,
    "robertson": 10,
    "perzyna": 2,
}


@pytest.mark.parametrize("name", mark_rest_thorough(list(TIMES)[:3], list(TIMES)[3:]))
def test_saving_again_and_again_is_no_change(name):
    text = format_canonical_text(original(name))
    module = module_of(name)
    for _ in range(max(TIMES[name], 5)):
        assert format_canonical_text(saved_of(module, name)) == text


def test_a_dropped_output_is_seen():
    before = original("loss_and_grad")
    graph = before.graphs["forward_batch"]
    (*rest, result) = graph.body.nodes
    assert result.kind == "prim::TupleConstruct"
    fewer = dataclasses.replace(result, inputs=result.inputs[:-1])
    body = dataclasses.replace(graph.body, nodes=(*rest, fewer))
    after = dataclasses.replace(
        before, graphs={**before.graphs, "forward_batch": dataclasses.replace(graph, body=body)}
    )
    assert format_canonical_text(after) != format_canonical_text(before)
    assert "prim::TupleConstruct: argument 4 to the last: there are 4; there were 5" in list_changes(
        diff_graphs(before, after)
    )


def rename(graph: Any, draw: random.Random) -> None:
    for node in iterate_nodes(graph):
        for value in node.outputs():
            value.setDebugName(f"v{draw.randrange(10**9)}")


def acts(node: Any) -> bool:
    """Whether the node may do more than compute: torch lets some of these past each other, where they write to other
    memory, and ours keep their order."""
    schema = node.schema()
    own = "!" in schema or node.kind() in ("prim::RaiseException", "prim::CallMethod", "prim::SetAttr", "prim::Print")
    return own or any(acts(inner) for block in node.blocks() for inner in block.nodes())


def reorder(graph: Any, draw: random.Random) -> int:
    """Moves nodes past others where torch's own alias analysis lets them; the number of moves."""
    moves = 0
    for _ in range(12):
        blocks = [graph, *(b for n in iterate_nodes(graph) for b in n.blocks())]
        result = [n for n in draw.choice(blocks).nodes() if n.kind() not in ("prim::Constant", "prim::GetAttr")]
        if len(result) < 2:
            continue
        item, other = draw.sample(result, 2)
        if acts(item):
            continue
        if other.isAfter(item):
            between = [n for n in result if n.isAfter(item) and (n.isBefore(other) or n is other)]
            if sum(map(acts, between)) > 1:
                continue
        moves += bool(graph.alias_db().move_after_topologically_valid(item, other))
    return moves


@pytest.mark.parametrize("name", mark_rest_thorough(list(TIMES)[:1], list(TIMES)[1:]))
def test_names_and_the_order_of_independent_nodes_are_no_change(name):
    draw = random.Random(name)
    text = format_canonical_text(original(name))
    moves = 0
    for _ in range(TIMES[name]):
        module = module_of(name)
        for _, child in module.named_modules():
            for method in child._c._method_names():
                graph = child._c._get_method(method).graph
                moves += reorder(graph, draw)
                rename(graph, draw)
        assert format_canonical_text(saved_of(module, name)) == text
    assert moves > 20


def test_a_method_by_itself_does_not_say_which_tensors():
    """Two exports with other weights are the same graph with other tensors."""
    module = module_of("loss_and_grad")
    with torch.no_grad():
        for value in module.parameters():
            value.mul_(2)
    doubled, before = saved_of(module, "loss_and_grad"), original("loss_and_grad")
    assert format_method(doubled.graphs["forward_batch"]) == format_method(before.graphs["forward_batch"])
    result = diff_graphs(before, doubled)
    assert not result.nodes
    assert len(result.tensors) == len(list(module.parameters()))
