"""Effects of nodes: what they read and write, in blocks too, whichever graph was annotated before."""

from __future__ import annotations

from exporter.graph.effects import STATE, annotate_effects
from exporter.saved_code.ir import Block, Graph, Literal, Node, TensorConstant

ADD = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
ADD_IN_PLACE = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
HELD = TensorConstant("float64", (3,), "digest", key="held", memory="held")
ONE = Literal("1", 1)


def make_graph(*nodes: Node) -> Graph:
    return Graph("forward", Block((0,), nodes, (nodes[-1].outputs[0],), ("Tensor",)), ("Tensor",))


def annotate(graph: Graph, *state: str) -> Graph:
    return annotate_effects(graph, lambda name: None, frozenset(state)).graph


def test_a_graph_that_is_annotated_again_keeps_nothing_of_before():
    graph = make_graph(Node("aten::add.Tensor", (0, HELD, ONE), (1,), ("Tensor",), schema=ADD))
    before = annotate(graph, "held")
    assert before.body.nodes[0].reads == {STATE}
    assert annotate(before).body.nodes[0].reads == frozenset()
    assert annotate(annotate(before), "held") == before


def test_what_a_block_gives_back_is_read_by_its_node():
    write = Node("aten::add_.Tensor", (0, 0, ONE), (1,), ("Tensor",), schema=ADD_IN_PLACE)
    # Each way of the branch gives back what is written to, and has no node that reads it.
    branch = Node("prim::If", (ONE,), (2,), ("Tensor",), (Block((), (), (0,)), Block((), (), (1,))))
    first, second = annotate(make_graph(write, branch)).body.nodes
    assert first.writes
    assert second.reads == first.writes


def test_a_node_without_effects_stays_the_same():
    graph = make_graph(Node("aten::add.Tensor", (0, 0, ONE), (1,), ("Tensor",), schema=ADD))
    assert annotate(graph).body.nodes[0] is graph.body.nodes[0]
