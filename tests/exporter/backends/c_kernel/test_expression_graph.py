"""Terms: each there once, and simplified only where every IEEE number allows it."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.backends.c_kernel.expression_graph import BOOL, F64, I64, Terms
from exporter.common.errors import UnsupportedError

SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.1, 5e-324, 1e308, math.inf, -math.inf, math.nan)
OPERATIONS = {"add": numpy.add, "sub": numpy.subtract, "mul": numpy.multiply, "div": numpy.divide}


def value_of(terms: Terms, index: int, leaves: dict[int, float]) -> float:
    term = terms[index]
    if term.op == "leaf":
        return leaves[index]
    if term.op == "const":
        return terms.value(index)
    given = [numpy.float64(value_of(terms, a, leaves)) for a in term.args]
    with numpy.errstate(all="ignore"):
        return float(-given[0]) if term.op == "neg" else float(OPERATIONS[term.op](*given))


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1.0, a) == math.copysign(1.0, b))


@pytest.mark.parametrize("op", OPERATIONS)
def test_simplified_is_the_same_number(op):
    for constant, swapped in itertools.product(SPECIAL, (False, True)):
        terms = Terms()
        x, c = terms.leaf("x", 0, F64, 1), terms.constant(constant, F64)
        made = terms.make(op, (c, x) if swapped else (x, c), F64)
        for value in SPECIAL:
            given = (constant, value) if swapped else (value, constant)
            with numpy.errstate(all="ignore"):
                wanted = float(OPERATIONS[op](*map(numpy.float64, given)))
            assert same(value_of(terms, made, {x: value}), wanted), (op, constant, swapped, value)


@given(st.sampled_from(sorted(OPERATIONS)), st.floats(), st.floats())
def test_negatives_are_moved_exactly(op, a, b):
    terms = Terms()
    x, y = terms.leaf("x", 0, F64, 1), terms.leaf("x", 1, F64, 1)
    made = terms.make(op, (x, terms.make("neg", (y,), F64)), F64)
    with numpy.errstate(all="ignore"):
        wanted = float(OPERATIONS[op](numpy.float64(a), -numpy.float64(b)))
    assert same(value_of(terms, made, {x: a, y: b}), wanted)


def test_zero_times_what_may_be_infinite():
    """Only where the caller says that it is finite."""
    for finite in (False, True):
        terms = Terms(finite_math=finite)
        x = terms.leaf("x", 0, F64, 1)
        made = terms.make("mul", (terms.constant(0.0, F64), x), F64)
        assert (terms.value(made) == 0.0) is finite


def test_each_is_there_once():
    terms = Terms()
    x, y = (terms.leaf("x", i, F64, 1) for i in range(2))
    assert terms.make("add", (x, y), F64) == terms.make("add", (y, x), F64)
    assert terms.make("sub", (x, y), F64) != terms.make("sub", (y, x), F64)
    assert terms.constant(0.0, F64) != terms.constant(-0.0, F64)
    assert terms.constant(math.nan, F64) == terms.constant(math.nan, F64)
    assert terms.constant(1, I64) != terms.constant(1.0, F64)


def test_constants_are_folded_as_torch_does():
    terms = Terms()
    third = terms.make("div", (terms.constant(1.0, F64), terms.constant(3.0, F64)), F64)
    assert terms.value(third) == 1.0 / 3.0
    assert terms.value(terms.make("lt", (third, terms.constant(1.0, F64)), BOOL)) == 1


def test_elements_of_the_batch_do_not_meet():
    terms = Terms()
    terms.origin = "in layer, at net.py:3"
    one, other = terms.leaf("x", 0, F64, 1), terms.leaf("x", 0, F64, 2)
    with pytest.raises(UnsupportedError, match="mixes elements") as caught:
        terms.make("add", (one, other), F64)
    assert caught.value.details["where"] == "in layer, at net.py:3"
