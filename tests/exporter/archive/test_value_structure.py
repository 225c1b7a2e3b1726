"""Structures of calls as lists of nodes: what they are built from, what they refuse, and what both readers refuse."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections import deque, namedtuple
from typing import Any

import numpy
import pytest
from call_structures import FORGED, HONEST
from contracts import contract
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from exporter.archive.contract import contract_from_json
from exporter.archive.tensor_spec import TensorSpec
from exporter.archive.value_structure import (
    MAX_DEPTH,
    StructureNode,
    build_value,
    check_structure,
    format_structure,
    is_plain_dict,
    list_parts,
    take_apart,
)
from exporter.archive.variable_renaming import RenameRule, rename_variables
from exporter.common.errors import ArchiveError, UsageError
from exporter.model.argument_structures import describe_value

Pair = namedtuple("Pair", "left right")


class Variable:
    """What stands for a tensor."""


leaves = st.one_of(
    st.builds(Variable), st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text('ab"\\ü', max_size=3)
)
keys = st.one_of(st.text("abc", min_size=1, max_size=3), st.integers(0, 5))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


def describe(value: Any) -> tuple[tuple[StructureNode, ...], dict[str, Variable]]:
    """Return the structure of a value, and its variables by the names that they are given."""
    variables: dict[str, Variable] = {}

    def name(place: str, leaf: Any) -> str:
        if not is_variable(leaf):
            return ""
        variables[f"v{len(variables)}"] = leaf
        return f"v{len(variables) - 1}"

    return describe_value(value, name, is_variable), variables


def is_variable(value: Any) -> bool:
    return isinstance(value, Variable)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Pair):
        return b._fields == a._fields and all(map(equal, a, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    return len(a) == len(b) and all(map(equal, a, b)) if isinstance(a, (list, tuple)) else a == b


@settings(max_examples=200, deadline=None)
@given(values)
def test_a_value_comes_back_and_is_taken_apart(value):
    nodes, variables = describe(value)
    check_structure(nodes, list(variables))
    back = build_value(nodes, variables)
    assert equal(value, back)
    assert take_apart(nodes, value, "x") == take_apart(nodes, back, "x") == variables
    if len(nodes) > 1:
        # A list of nodes that ends too early, or goes on, is none.
        for broken in (nodes[:-1], (*nodes, StructureNode("fixed", value="1"))):
            with pytest.raises(UsageError, match=r"broken|other variables"):
                check_structure(broken, list(variables))


def test_people_read_it():
    first, second = Variable(), Variable()
    nodes, _ = describe({"x": first, "state": Pair([second], (1.5,)), 2: None})
    assert format_structure(nodes) == "{'x': v0, 'state': NamedTuple(left=[v1], right=(1.5,)), 2: None}"
    assert format_structure(()) == ""
    assert not is_plain_dict(nodes)
    assert is_plain_dict(describe({"v0": first, "v1": second})[0])
    parts = list_parts(describe({"x": first, "y": [second, 1], "z": 2})[0])
    assert {key: len(part) for key, part in parts.items()} == {"x": 1, "y": 3, "z": 1}


@dataclasses.dataclass
class State:
    left: Any
    right: Any


@pytest.mark.parametrize("other", [Pair(1, 2), State(1, 2), {"left": 1, "right": 2}])
def test_a_named_tuple_is_whatever_has_its_parts(other):
    nodes, _ = describe(Pair(Variable(), Variable()))
    assert take_apart(nodes, other, "x") == {"v0": 1, "v1": 2}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([1], "'x' has another structure(.|\n)*got: list(.|\n)*a dict with h, n, more"),
        ({"h": 1, "n": 3, "mode": "fast"}, "got: dict with h, n, mode"),
        ({"h": 1, "n": 3.0, "more": [1]}, "'x.n' is fixed(.|\n)*got: 3.0(.|\n)*expected: 3"),
        ({"h": 1, "n": True, "more": [1]}, "'x.n' is fixed"),
        ({"h": 1, "n": 3, "more": [1, 2]}, "'x.more' has another(.|\n)*list with 0, 1(.|\n)*a list with 0"),
        ({"h": 1, "n": 3, "more": 4}, "'x.more' has another(.|\n)*got: int"),
        ({"h": 1, "n": 3, "more": "a"}, "'x.more' has another(.|\n)*got: str"),
    ],
)
def test_another_structure_is_named(value, says):
    nodes, _ = describe({"h": Variable(), "n": 3, "more": [Variable()]})
    with pytest.raises(UsageError, match=says):
        take_apart(nodes, value, "x")


@pytest.mark.parametrize(("whole", "other"), [([], {}), ((), 3.0), ({}, []), ({}, 1), ([], "")])
def test_what_has_no_parts_is_nothing_else(whole, other):
    nodes, _ = describe(whole)
    assert take_apart(nodes, whole, "x") == {}
    with pytest.raises(UsageError, match="has another structure"):
        take_apart(nodes, other, "x")


class Mode(enum.IntEnum):
    FAST = 1


@pytest.mark.parametrize("value", [Mode.FAST, numpy.float64(2.0), True, None, "text", -7])
def test_a_fixed_value_is_itself(value):
    nodes, _ = describe([value])
    take_apart(nodes, [value], "x")
    with pytest.raises(UsageError, match="is fixed"):
        take_apart(nodes, [3.5], "x")


class Unnamed(dict):
    """A class that torch's pytrees take apart, whose parts have no names there, as huggingface's outputs."""


pytree.register_pytree_node(
    Unnamed, lambda u: (list(u.values()), list(u)), lambda v, c: Unnamed(zip(c, v, strict=True))
)


def nest(count: int) -> Any:
    return [nest(count - 1)] if count else Variable()


@pytest.mark.parametrize(
    ("value", "has_structure"),
    [
        (Unnamed(a=Variable()), True),
        (deque([Variable(), 2]), True),
        ({True: Variable()}, False),
        ({"a\nb": Variable()}, False),
        ({("a", "b"): Variable()}, False),
        ([2**63], False),
        ([1j], False),
        ([float("nan")], False),
        (nest(MAX_DEPTH - 2), True),
        (nest(MAX_DEPTH), False),
        (nest(400), False),
        ([Variable() for _ in range(10_000)], False),
        (namedtuple("Odd", "class_ a")(Variable(), 1), True),
    ],
)
def test_what_no_contract_holds_has_no_structure(value, has_structure):
    nodes, variables = describe(value)
    assert bool(nodes) == has_structure
    if has_structure:
        assert take_apart(nodes, value, "x") == variables


def test_variables_are_renamed_and_keys_are_not():
    nodes, _ = describe({"v0": Variable()})
    plain = contract([TensorSpec("v0")], [TensorSpec("v0")], arguments=nodes, results=nodes)
    renamed = rename_variables(plain, [RenameRule.parse("v0:a")])
    assert format_structure(renamed.arguments) == format_structure(renamed.results) == "{'v0': a}"
    assert contract_from_json(renamed.to_json(), "here") == renamed


@pytest.mark.parametrize("nodes", [pytest.param(nodes, id=label) for label, nodes in FORGED.items()])
def test_a_forged_structure_is_refused(nodes):
    with pytest.raises(ArchiveError):
        contract_from_json(forge(nodes), "here")


@pytest.mark.parametrize("nodes", [pytest.param(nodes, id=label) for label, nodes in HONEST.items()])
def test_an_honest_structure_is_taken(nodes):
    taken = contract_from_json(forge(nodes), "here").results
    if taken:
        build_value(taken, {"v": 1})


def forge(nodes: Any) -> str:
    raw = json.loads(contract([TensorSpec("x")], [TensorSpec("v")]).to_json())
    return json.dumps({**raw, "results": nodes})
