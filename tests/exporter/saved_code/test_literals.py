"""Constants of code, and values of attributes against their types."""

from __future__ import annotations

import ast
import math
from typing import Any

import pytest
import torch

from exporter.saved_code.literals import has_type, make_device, read_literal
from exporter.saved_code.script_types import INT, ScriptType, list_of, parse_type_text


@pytest.mark.parametrize(
    ("text", "value"),
    [("-3", -3), ("0.1", 0.1), ("True", True), ("None", None), ("-inf", -math.inf), ("(1+2j)", 1 + 2j), ("'a'", "a")],
)
def test_constants(text, value):
    literal = read_literal(ast.parse(text, mode="eval").body)
    assert literal is not None
    assert literal[0].value == value
    assert type(literal[0].value) is type(value)


def test_a_text_that_stands_as_bytes():
    literal = read_literal(ast.parse(r"'Gr\303\266\303\237e'", mode="eval").body)
    assert literal is not None
    assert literal[0].value == "Größe"


@pytest.mark.parametrize("text", ["x", "f()", "-'a'", "'a' + 1j", "[1]", "1 * 2", "b'a'"])
def test_what_is_no_constant(text):
    assert read_literal(ast.parse(text, mode="eval").body) is None


@pytest.mark.parametrize(
    ("value", "text", "fits"),
    [
        (1, "int", True),
        (True, "int", False),
        (1, "float", False),
        (None, "Optional[int]", True),
        ([1, 2], "List[int]", True),
        ([1, "a"], "List[int]", False),
        ((1, [0.5]), "Tuple[int, List[float]]", True),
        ((1,), "Tuple[int, int]", False),
        (object(), "Tensor", False),
    ],
)
def test_values_against_types(value, text, fits):
    assert has_type(value, parse_type_text(text)) is fits


def test_lists_that_share_their_elements():
    """Thirty lists in each other, twice each: a billion elements to whoever looks at each."""
    value: Any = 1
    script_type = INT
    for _ in range(30):
        value, script_type = [value, value], list_of(script_type)
    with pytest.raises(ValueError, match="a list of more than"):
        has_type(value, script_type)


def test_a_type_of_many_parts():
    script_type = INT
    for _ in range(15):
        script_type = ScriptType("Tuple", (script_type, script_type))
    with pytest.raises(ValueError, match="a type of more than"):
        ScriptType("Tuple", (script_type, script_type))


def test_devices():
    assert make_device("cpu").value == torch.device("cpu")
    with pytest.raises(ValueError, match="no device: nonsense"):
        make_device("nonsense")
