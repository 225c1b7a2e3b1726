"""Terms: each there once, and simplified only where every IEEE number allows it."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.backends.c_kernel.expression_graph import BOOL, F64, I64, ExprGraph
from exporter.common.errors import UnsupportedError

SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.1, 5e-324, 1e308, math.inf, -math.inf, math.nan)
OPERATIONS = {"add": numpy.add, "sub": numpy.subtract, "mul": numpy.multiply, "div": numpy.divide}


def value_of(terms: ExprGraph, index: int, leaves: dict[int, float]) -> float:
    term = terms[index]
    if term.op == "leaf":
        return leaves[index]
    if term.op == "const":
        return terms.constant_value(index)
    arguments = [numpy.float64(value_of(terms, a, leaves)) for a in term.args]
    with numpy.errstate(all="ignore"):
        return float(-arguments[0]) if term.op == "neg" else float(OPERATIONS[term.op](*arguments))


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1.0, a) == math.copysign(1.0, b))


@pytest.mark.parametrize("op", OPERATIONS)
def test_simplified_is_the_same_number(op):
    for constant, swapped in itertools.product(SPECIAL, (False, True)):
        terms = ExprGraph()
        x, c = terms.add_leaf("x", 0, F64, 1), terms.add_constant(constant, F64)
        result = terms.add(op, (c, x) if swapped else (x, c), F64)
        for value in SPECIAL:
            arguments = (constant, value) if swapped else (value, constant)
            with numpy.errstate(all="ignore"):
                wanted = float(OPERATIONS[op](*map(numpy.float64, arguments)))
            assert same(value_of(terms, result, {x: value}), wanted), (op, constant, swapped, value)


@given(st.sampled_from(sorted(OPERATIONS)), st.floats(), st.floats())
def test_negatives_are_moved_exactly(op, a, b):
    terms = ExprGraph()
    x, y = terms.add_leaf("x", 0, F64, 1), terms.add_leaf("x", 1, F64, 1)
    result = terms.add(op, (x, terms.add("neg", (y,), F64)), F64)
    with numpy.errstate(all="ignore"):
        wanted = float(OPERATIONS[op](numpy.float64(a), -numpy.float64(b)))
    assert same(value_of(terms, result, {x: a, y: b}), wanted)


def test_zero_times_what_may_be_infinite():
    """Only where the caller says that it is finite."""
    for finite in (False, True):
        terms = ExprGraph(finite_math=finite)
        x = terms.add_leaf("x", 0, F64, 1)
        result = terms.add("mul", (terms.add_constant(0.0, F64), x), F64)
        assert (terms.constant_value(result) == 0.0) is finite


def test_each_is_there_once():
    terms = ExprGraph()
    x, y = (terms.add_leaf("x", i, F64, 1) for i in range(2))
    assert terms.add("add", (x, y), F64) == terms.add("add", (y, x), F64)
    assert terms.add("sub", (x, y), F64) != terms.add("sub", (y, x), F64)
    assert terms.add_constant(0.0, F64) != terms.add_constant(-0.0, F64)
    assert terms.add_constant(math.nan, F64) == terms.add_constant(math.nan, F64)
    assert terms.add_constant(1, I64) != terms.add_constant(1.0, F64)


def test_constants_are_folded_as_torch_does():
    terms = ExprGraph()
    third = terms.add("div", (terms.add_constant(1.0, F64), terms.add_constant(3.0, F64)), F64)
    assert terms.constant_value(third) == 1.0 / 3.0
    assert terms.constant_value(terms.add("lt", (third, terms.add_constant(1.0, F64)), BOOL)) == 1


def test_elements_of_the_batch_do_not_meet():
    terms = ExprGraph()
    terms.origin = "in layer, at net.py:3"
    item, other = terms.add_leaf("x", 0, F64, 1), terms.add_leaf("x", 0, F64, 2)
    mixed = terms.add("add", (item, other), F64)
    terms.origin = "behind it"
    later = terms.add("exp", (mixed,), F64)
    terms.check_unmixed([item, other, terms.add("mul", (item, item), F64)])
    for index in (mixed, later):
        with pytest.raises(UnsupportedError, match=r"mixes elements(.|\n)*add of numbers") as caught:
            terms.check_unmixed([item, index])
        assert caught.value.details["where"] == "in layer, at net.py:3"
