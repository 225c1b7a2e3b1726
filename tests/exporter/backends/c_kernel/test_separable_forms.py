"""Sums of products against the expressions that they are of, in CasADi's numbers."""

from __future__ import annotations

import casadi
import numpy
import pytest
from casadi_oracle import Oracle, values
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.backends.c_kernel import separable_forms
from exporter.backends.c_kernel.expression_graph import F64, Expr, ExprGraph, sqrt
from exporter.backends.c_kernel.newton_loop import find_loop_nodes
from exporter.backends.c_kernel.separable_forms import SeparableForms

NUMBERS = st.lists(st.floats(0.2, 1.7), min_size=5, max_size=5)
OPERATIONS = st.lists(st.tuples(st.sampled_from(["add", "sub", "mul", "neg", "div"]), *[st.integers(0, 30)] * 2))


class Loop:
    """Two numbers ``t`` that change in a loop and three ``a`` from outside."""

    def __init__(self) -> None:
        self.graph = ExprGraph()
        self.loop = self.graph.new_loop()
        self.t = [Expr(self.graph, self.graph.add_leaf("t", k, F64, 1, 1 << self.loop)) for k in range(2)]
        self.a = [Expr(self.graph, self.graph.add_leaf("a", k, F64, 1)) for k in range(3)]
        self.forms = SeparableForms(self.graph, self.loop)

    def compute(self, nodes: list[int], numbers: list[float]) -> numpy.ndarray:
        leaves = [e.index for e in (*self.t, *self.a)]
        symbols = [casadi.MX.sym(f"s{k}") for k in range(len(leaves))]
        return values(
            symbols, Oracle(self.graph, {}, dict(zip(leaves, symbols, strict=True))).of(nodes), numbers
        ).ravel()


def apply_operations(loop: Loop, operations: list[tuple[str, int, int]]) -> tuple[Expr, separable_forms.Separable]:
    """Return the last of some operations on what is there by then, as an expression and as a sum of products."""
    forms = loop.forms
    known = [(e, forms.lift(e.index)) for e in (*loop.t, *loop.a)]
    for op, first, second in operations:
        (left, left_form), (right, right_form) = known[first % len(known)], known[second % len(known)]
        if op == "neg":
            known.append((-left, forms.negate(left_form)))
        elif op == "div":
            # Of what is at least one, so that rounding stays rounding.
            safe = right * right + 1.0
            squared = forms.multiply(right_form, right_form)
            known.append((left / safe, forms.divide(left_form, forms.add(squared, forms.lift(forms.one)))))
        else:
            form = forms.multiply(left_form, right_form) if op == "mul" else forms.add(left_form, right_form, op)
            known.append((left.apply(op, right), form))
    return known[-1]


@settings(max_examples=150, deadline=None)
@given(NUMBERS, OPERATIONS)
def test_a_form_has_the_value_of_its_expression(numbers, operations):
    loop = Loop()
    expression, form = apply_operations(loop, operations)
    assert len(form) <= separable_forms.MOST_TERMS
    wanted, got = loop.compute([expression.index, loop.forms.join(form)], numbers)
    assert got == pytest.approx(wanted, rel=1e-6, abs=1e-6 * max(1.0, abs(wanted)))


def test_a_sign_that_is_lost_is_seen(monkeypatch):
    monkeypatch.setattr(SeparableForms, "negate", lambda self, form: form)
    loop = Loop()
    expression, form = apply_operations(loop, [("sub", 0, 2)])
    wanted, got = loop.compute([expression.index, loop.forms.join(form)], [0.3, 0.5, 0.7, 0.2, 0.4])
    assert got != pytest.approx(wanted)


def test_a_norm_of_many_components_is_one_product():
    """Components that one number of the loop scales: their inner product is computed before the loop."""
    loop = Loop()
    graph, forms = loop.graph, loop.forms
    scale = forms.lift((1.0 / (1.0 + loop.t[0] * loop.t[1])).index)
    total = {}
    for k in range(20):
        leaf = graph.add_leaf("b", k, F64, 1)
        component = forms.multiply(scale, forms.lift(leaf))
        total = forms.add(total, forms.multiply(component, component))
    assert len(total) == 1
    norm = sqrt(Expr(graph, forms.join(total)))
    assert len(find_loop_nodes(graph, [norm.index], loop.loop)) < 10


def test_equal_products_are_one_node_whatever_their_order():
    loop = Loop()
    (t, s), (a, b, _) = loop.t, loop.a
    first = loop.forms.lift((-(t * a) * (b * s) * 2.0).index)
    assert loop.forms.lift((s * (2.0 * b) * (-t) * a).index) == first
    assert len(first) == 1


def test_what_cancels_leaves_nothing():
    """A component of three equal ones less their mean: a third of three times a number is that number."""
    forms = Loop().forms
    number = forms.lift((Expr(forms.graph, forms.graph.add_leaf("c", 0, F64, 1)) * 1.632993161855452).index)
    third = forms.lift(forms.graph.add_constant(1 / 3, F64))
    mean = forms.multiply(forms.add(forms.add(number, number), number), third)
    assert forms.add(number, mean, "sub") == {}
    assert forms.join({}) == forms.graph.add_constant(0.0, F64)


def test_long_products_and_long_sums_stay_bounded():
    """A chain of squares has 2^k factors, and a product of sums as many terms: neither is written out."""
    loop = Loop()
    value, form = loop.t[0], loop.forms.lift(loop.t[0].index)
    for _ in range(40):
        value = value * value
        form = loop.forms.multiply(form, form)
    assert len(loop.graph) < 2_000
    deep = loop.t[0]
    for _ in range(5_000):
        deep = deep * loop.a[0]
    assert len(loop.forms.lift(deep.index)) == 1
