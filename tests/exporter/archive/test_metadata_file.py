"""What a file says of a model and its variables, and what it cannot say."""

from __future__ import annotations

import dataclasses
import json

import pytest
from contracts import contract

from exporter.archive.contract import ParameterSpec, contract_from_json
from exporter.archive.metadata import Metadata
from exporter.archive.metadata_file import MAX_BYTES, MetadataRules, assign_metadata, read_metadata
from exporter.archive.tensor_spec import TensorSpec
from exporter.archive.variable_renaming import RenameRule, rename_variables
from exporter.archive.variable_units import assign_units, parse_unit_rule
from exporter.common.errors import ArchiveError, UsageError

WHOLE = """
description = '''
Elastic bar.
Small strains.'''
authors = ["Jane Doe", "Ann Other <ann@example.org>"]
license = "MIT OR Apache-2.0"
references = ["doi:10.1/2"]

[variables."*strain"]
unit = "1"
quantity = "strain"

[variables."*"]
quantity = "number"

[variables.stress]
unit = "MPa"
description = "true stress"
[variables.E]
unit = "GPa"
"""


def make_bar():
    inputs = [TensorSpec("strain", (6,), description="of the author"), TensorSpec("old_strain", (6,))]
    plain = contract(inputs, [TensorSpec("stress", (6,), quantity="of the author")])
    return dataclasses.replace(plain, parameters=(ParameterSpec("E", (), "float64"),))


def write(tmp_path, text):
    path = tmp_path / "meta.toml"
    path.write_text(text)
    return path


def list_notes(of):
    specs = (*of.inputs, *of.outputs, *of.parameters)
    return {spec.name: (spec.unit, spec.quantity, spec.description) for spec in specs}


def test_a_whole_file(tmp_path):
    described = assign_metadata(make_bar(), read_metadata(write(tmp_path, WHOLE)))
    assert described.metadata == Metadata(
        "Elastic bar.\nSmall strains.",
        ("Jane Doe", "Ann Other <ann@example.org>"),
        "MIT OR Apache-2.0",
        ("doi:10.1/2",),
    )
    # The first glob counts, and what the file does not say stays as the author said it.
    assert list_notes(described) == {
        "strain": ("1", "strain", "of the author"),
        "old_strain": ("1", "strain", ""),
        "stress": ("MPa", "number", "true stress"),
        "E": ("GPa", "number", ""),
    }
    assert contract_from_json(described.to_json(), "here") == described


def test_the_file_fills_what_the_signature_says():
    own = dataclasses.replace(make_bar(), metadata=Metadata("own", ("own",), references=("own",)))
    described = assign_metadata(own, read_metadata({"description": "new", "license": "MIT"}))
    assert described.metadata == Metadata("new", ("own",), "MIT", ("own",))
    assert assign_metadata(own, MetadataRules()) == own


def test_a_unit_of_the_command_line_goes_before_the_file():
    described = assign_metadata(make_bar(), read_metadata({"variables": {"*": {"unit": "Pa"}}}))
    units = list_notes(assign_units(described, [parse_unit_rule("stress=MPa")]))
    assert [unit for unit, _, _ in units.values()] == ["Pa", "Pa", "MPa", "Pa"]


def test_notes_go_with_a_renamed_variable_and_not_to_what_is_derived_from_it(tmp_path):
    described = assign_metadata(make_bar(), read_metadata(write(tmp_path, WHOLE)))
    renamed = rename_variables(described, [RenameRule.parse("stress:sigma")])
    assert renamed.output_spec("sigma").note == "true stress (number)"
    assert renamed.output_spec(("sigma", "strain")).note == renamed.output_spec("tangent:sigma").note == ""


def test_a_contract_without_metadata_is_what_earlier_readers_take():
    raw = json.loads(contract(make_bar().inputs[1:], [TensorSpec("stress")]).to_json())
    assert "metadata" not in raw
    assert not {"quantity", "description", "unit"} & {*raw["inputs"][0], *raw["parameters"][0]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("license = MIT", "not TOML(.|\n)*line 1"),
        ("a = " + "[" * 100_000, "not TOML(.|\n)*nested too deeply"),
        ("autors = ['x']", "autors(.|\n)*authors"),
        ("authors = 'x'", "field authors"),
        ("authors = [1]", r"field authors\.0"),
        ("license = 2024-01-01", "field license"),
        ("[variables]\nstress = 'MPa'", r"field variables\.stress"),
        ("[variables.stress]\nunits = 'MPa'", r"field variables\.stress\.units"),
        ("[variables.stress]", "nothing is said of 'stress'"),
        ('license = "M\\u001bIT"', r"the license(.|\n)*U\+001B"),
        ("authors = ['']", "an author"),
        ("references = ['a\\n']\nlicense = \"a\\nb\"", "the license"),
        ('description = "\\u202eabc"', r"description(.|\n)*U\+202E"),
        (f"[variables.E]\ndescription = '{'n' * 501}'", "the description of 'E'(.|\n)*501"),
        ('[variables.E]\nquantity = " a"', "the quantity of 'E'"),
        ('[variables.E]\nunit = " a"', "the unit of 'E'"),
        (".".join("a" * 5_000) + " = 1", "not understood(.|\n)*nested too deeply"),
        (f"license = {'1' * 5_000}", "not TOML"),
        ("#" * (MAX_BYTES + 1), "too large"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path, text, says):
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=says) as caught:
        read_metadata(path)
    assert str(path) in str(caught.value)
    assert caught.value.details["mend"]


def test_a_mark_of_utf_8_is_none_of_its_text(tmp_path):
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbflicense = 'MIT'")
    assert read_metadata(tmp_path / "marked.toml").metadata.license == "MIT"


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(UsageError, match=r"cannot be read(.|\n)*none\.toml"):
        read_metadata(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"license = '\xff'")
    with pytest.raises(UsageError, match="not TOML"):
        read_metadata(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("pattern", "says"), [("stres", "did you mean 'stress'"), ("x*", "matches no variable and no parameter")]
)
def test_a_pattern_that_matches_nothing_is_named_with_its_place(tmp_path, pattern, says):
    rules = read_metadata(write(tmp_path, f"[variables.'{pattern}']\ndescription = 'a'"))
    with pytest.raises(UsageError, match=says) as caught:
        assign_metadata(make_bar(), rules)
    assert f"meta.toml: variables.{pattern}" in str(caught.value)


def forge(change):
    raw = json.loads(assign_metadata(make_bar(), read_metadata({"license": "MIT"})).to_json())
    change(raw)
    return json.dumps(raw)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["metadata"].update(license=1),
        lambda raw: raw["metadata"].update(license="a\nb"),
        lambda raw: raw["metadata"].update(authors="Jane"),
        lambda raw: raw["metadata"].update(authors=[""]),
        lambda raw: raw["metadata"].update(references=["n" * 501]),
        lambda raw: raw["metadata"].update(description="\x1b[2J"),
        lambda raw: raw["metadata"].update(editor="Jane"),
        lambda raw: raw["inputs"][0].update(description="a\nb"),
        lambda raw: raw["outputs"][0].update(quantity=" a"),
        lambda raw: raw["parameters"][0].update(description="\u202ea"),
    ],
)
def test_forged_metadata_are_refused(change):
    assert contract_from_json(forge(lambda raw: None), "here")
    with pytest.raises(ArchiveError):
        contract_from_json(forge(change), "here")


def test_lines_for_people():
    metadata = Metadata("one\ntwo " + "word " * 40, ("Jane",), "MIT", ("doi:10.1/2",))
    lines = metadata.format_lines(60)
    assert lines[0] == "one"
    assert lines[-3:] == ["Author: Jane", "License: MIT", "Reference: doi:10.1/2"]
    assert max(map(len, lines)) <= 60
    assert Metadata().format_lines() == []
