"""Which derivatives are asked for, by name and by glob, and what bad requests get."""

from __future__ import annotations

import pytest

from exporter.archive.derivative_request import (
    DerivativeRequest,
    find_second_derivatives,
    resolve_derivatives,
    resolve_settable_parameters,
)
from exporter.archive.tensor_spec import TensorSpec
from exporter.common.errors import UsageError

INPUTS = (TensorSpec("a"), TensorSpec("a~1"), TensorSpec("old/b", (3,)), TensorSpec("k", (), "int64"))
OUTPUTS = (TensorSpec("rate"), TensorSpec("stress", (6,)), TensorSpec("n", (), "int64"))
PARAMETERS = {"E": "float64", "G": "float64", "low": "float32"}
REACHED = {("rate", "low"), ("rate", "a"), ("rate", "a~1"), ("stress", "old/b"), ("stress", "E"), ("rate", "E")}


def pairs(*blocks):
    result, message = resolve_derivatives(DerivativeRequest(tuple(blocks)), INPUTS, OUTPUTS, PARAMETERS, REACHED)
    return result, message


def test_all_is_every_block_by_an_input_that_is_not_zero():
    result, message = pairs("all")
    assert result.pairs == (("rate", "a"), ("rate", "a~1"), ("stress", "old/b"))
    assert result.parameter_pairs == ()
    assert ("rate", "old/b") in result.zeros
    assert all("k" not in pair and "n" not in pair for pair in result.zeros)
    assert any("int64" in f.reason for f in message)


def test_globs_and_order():
    result, _ = pairs("*:E", "stress:*", "rate:a~1", "rate:a")
    assert result.pairs == (("rate", "a"), ("rate", "a~1"), ("stress", "old/b"))
    assert result.parameter_pairs == (("rate", "E"), ("stress", "E"))
    assert pairs("rate:a*")[0].pairs == (("rate", "a"), ("rate", "a~1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rates:a", "no output matches 'rates'"),
        ("rate:aa", "no input or parameter matches 'aa'"),
        ("rate", "needs an output and an input"),
        ("rate:k", "'k' is int64"),
        ("n:a", "'n' is int64"),
        ("rate:old/b", "'rate' does not depend on 'old/b'"),
        ("rate:a:a", "--derivative 'rate:a,a'"),
        ("*:k", "no block of the Jacobian is left"),
        ("rate:low", "'rate' is float64 and 'low' float32"),
        ("rate:G", "does not depend on 'G'"),
    ],
)
def test_what_bad_requests_get(text, message):
    with pytest.raises(UsageError) as caught:
        pairs(text)
    assert message in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [("rate:k", "no block 'rate:k'"), ("stress:old/b", "not square"), ("stress:E", "not square")]
)
def test_what_cannot_be_symmetric(text, message):
    with pytest.raises(UsageError, match=message):
        resolve_derivatives(
            DerivativeRequest(("all", "stress:E"), symmetric=(text,)), INPUTS, OUTPUTS, PARAMETERS, REACHED
        )


def test_symmetry_of_a_block_that_was_not_asked_for():
    asked = DerivativeRequest(symmetric=("rate:a",))
    assert asked.has_derivatives
    with pytest.raises(UsageError, match="--derivative"):
        resolve_derivatives(asked, INPUTS, OUTPUTS, {}, REACHED)


def test_near_names_are_offered():
    with pytest.raises(UsageError, match="'rate'"):
        pairs("rates:a")


def test_a_variable_that_is_called_like_a_tangent():
    with pytest.raises(UsageError, match="--rename"):
        resolve_derivatives(DerivativeRequest(("all",)), [TensorSpec("tangent:a")], OUTPUTS, {}, REACHED)


def test_settable_parameters():
    known = ["E", "G", "l.weight", "l.bias"]
    assert resolve_settable_parameters((), ["E", "G"], known) == ("E", "G")
    assert resolve_settable_parameters(("l.*",), ["E", "l.weight", "l.bias"], known) == ("l.weight", "l.bias")
    assert resolve_settable_parameters(("l.*",), ["E", "l.weight", "l.bias"], known, {"E"}) == (
        "E",
        "l.weight",
        "l.bias",
    )
    with pytest.raises(UsageError, match="no parameter matches 'F'"):
        resolve_settable_parameters(("F",), known, known)
    with pytest.raises(UsageError, match="cannot stay settable"):
        resolve_settable_parameters(("G",), ["E"], known)


def find_seconds(*blocks, ins=("a", "b"), outs=("e",)):
    seconds = find_second_derivatives(DerivativeRequest(tuple(blocks)), ins, outs, ["E"])
    return [(second.output, second.wrt, second.other, second.is_exact) for second in seconds]


def test_second_derivatives():
    assert find_seconds("e:a", "all", "*:*") == []
    assert find_seconds("e:a,b", "e:b,E") == [("e", "a", "b", True), ("e", "b", "E", True)]
    assert find_seconds("e:*,*") == [("e", "a", "*", False), ("e", "b", "*", False)]


def test_names_with_commas_and_colons():
    assert find_seconds("e:a,b", ins=("a,b", "a")) == []
    assert find_seconds("e:a,b,a", ins=("a,b", "a")) == [("e", "a,b", "a", True)]
    assert find_seconds("e:1:a,a", ins=("a",), outs=("e:1",)) == [("e:1", "a", "a", True)]
