"""Units of a contract: by rules, by the author, and in its text."""

from __future__ import annotations

import dataclasses
import json

import pytest
from contracts import contract

from exporter.archive.contract import ParameterSpec, contract_from_json
from exporter.archive.tensor_spec import TensorSpec
from exporter.archive.variable_units import CHECK, assign_units, parse_unit_rule
from exporter.common.errors import ArchiveError, UsageError


def make_material():
    inputs = [TensorSpec("strain", (6,)), TensorSpec("old_strain", (6,)), TensorSpec("T", unit="K")]
    plain = contract(inputs, [TensorSpec("stress", (6,))])
    return dataclasses.replace(plain, parameters=(ParameterSpec("E", (), "float64"),))


def assign(*texts: str):
    return assign_units(make_material(), [parse_unit_rule(text) for text in texts])


def list_units(of):
    return {spec.name: spec.unit for spec in (*of.inputs, *of.outputs, *of.parameters)}


def test_names_globs_and_the_author():
    units = list_units(assign("*strain=%", "strain=1", "stress=MPa", "E=MPa"))
    assert units == {"strain": "1", "old_strain": "%", "T": "K", "stress": "MPa", "E": "MPa"}


def test_a_rule_goes_before_the_author():
    assert list_units(assign("T=degC"))["T"] == "degC"


def test_the_first_glob_counts():
    assert list_units(assign("str*=MPa", "*=1")) == dict.fromkeys(["strain", "old_strain", "T", "E"], "1") | {
        "stress": "MPa",
        "strain": "MPa",
    }
    with pytest.raises(UsageError, match="no effect"):
        assign("*=1", "str*=MPa")
    with pytest.raises(UsageError, match="no effect"):
        assign("stress=MPa", "stre*=1")


@pytest.mark.parametrize("text", ["a", "a=", "=MPa", "a= ", "a=M\x1bPa"])
def test_not_understood(text):
    with pytest.raises(UsageError, match="unit"):
        parse_unit_rule(text)


def test_matches_nothing():
    with pytest.raises(UsageError, match=r"matches no variable(.|\n)*did you mean 'stress'"):
        assign("stres=MPa")


def test_two_units_of_one_name():
    with pytest.raises(UsageError, match=r"'E' has two units(.|\n)*MPa and Pa"):
        assign("E=MPa", "E=Pa")
    assert list_units(assign("E=MPa", "E=MPa"))["E"] == "MPa"


def test_what_pint_does_not_know_is_noted():
    findings = [f.what for f in assign("T=dpa", "E=dpa", "stress=MPa").findings if f.check == CHECK]
    assert findings == ["dpa of T, E"]


def test_derivatives_have_quotients_and_tangents_none():
    assigned = assign("strain=%", "stress=MPa", "E=GPa")
    assert assigned.output_spec(("stress", "strain")).unit == "MPa/(%)"
    assert assigned.output_spec(("stress", "E")).unit == "MPa/(GPa)"
    assert assigned.output_spec(("stress", "old_strain")).unit == ""
    assert assigned.output_spec("stress").unit == "MPa"
    longest = assign(f"strain={'a' * 200}", f"stress={'b' * 200}")
    assert len(longest.output_spec(("stress", "strain")).unit) == 403
    assert assigned.output_spec("tangent:stress").unit == assigned.input_spec("cotangent:stress").unit == ""


def test_the_text_has_units_where_there_are_some():
    """Readers that know no units read files without them."""
    assigned = assign("stress=MPa", "E=GPa")
    raw = json.loads(assigned.to_json())
    assert raw["outputs"][0]["unit"] == "MPa"
    assert raw["parameters"][0]["unit"] == "GPa"
    assert "unit" not in raw["inputs"][0]
    assert contract_from_json(assigned.to_json(), "here") == assigned
    without = contract([TensorSpec("x")], [TensorSpec("y")])
    assert "unit" not in without.to_json()


@pytest.mark.parametrize("unit", [1, None, ["MPa"], "M\x1b[2JPa", "M\nPa", "n" * 201, " MPa", " ", "M\uffffPa"])
@pytest.mark.parametrize("role", ["inputs", "outputs", "parameters"])
def test_a_forged_unit_is_refused(unit, role):
    raw = json.loads(assign("stress=MPa").to_json())
    raw[role][0]["unit"] = unit
    with pytest.raises(ArchiveError):
        contract_from_json(json.dumps(raw), "here")
