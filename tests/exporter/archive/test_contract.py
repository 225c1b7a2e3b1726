import dataclasses
import json

import pytest
from contracts import contract
from hypothesis import given
from hypothesis import strategies as st

from exporter.archive.contract import (
    DEFAULT_TOLERANCE,
    MethodSpec,
    contract_from_json,
    strip_prefix,
)
from exporter.archive.tensor_spec import Sampling, Signature, TensorSpec
from exporter.common.errors import ArchiveError, SchemaError, UsageError
from exporter.common.plain_text import find_unsafe

# What is called a tangent is one of a variable's.
names = st.text(min_size=1, max_size=8).filter(
    lambda name: strip_prefix(name) == name and not find_unsafe(name, is_name=True)
)
specs = st.builds(
    TensorSpec,
    names,
    st.tuples(st.integers(0, 9)),
    st.sampled_from(["float64", "float32", "int64"]),
    st.just("SR2"),
    st.builds(Sampling, st.just("uniform"), st.floats(-9, 9), st.floats(-9, 9)),
)


@given(st.lists(specs, max_size=4, unique_by=lambda s: s.name), st.lists(specs, max_size=4, unique_by=lambda s: s.name))
def test_json_round_trip(inputs, outputs):
    result = contract(inputs, outputs)
    assert contract_from_json(result.to_json(), "here") == result


def test_jacobian_outputs_round_trip():
    methods = {"jacobian": MethodSpec(("a~1",), ("old_state/a", ("old_state/a", "a~1")))}
    result = contract(methods=methods)
    assert contract_from_json(result.to_json(), "here").methods == methods


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda c: c.pop("operators"), "operators"),
        (lambda c: c.update(surprise=1), "surprise"),
        (lambda c: c["inputs"][0].update(shape=[6.5]), "inputs.0.shape"),
        (lambda c: c["inputs"][0].update(shape=["6"]), "a size whose name is not an identifier"),
        (lambda c: c["outputs"][0].update(shape=["n"]), "open sizes and a batch"),
        (lambda c: c["batch"].update(ndim=1.5), "batch.ndim"),
        (lambda c: c["tolerance"]["dtypes"]["float64"].update(rtol="loose"), "tolerance"),
        (lambda c: c.update(schema="one"), "schema"),
    ],
)
def test_a_broken_field_is_named(change, field):
    raw = json.loads(contract().to_json())
    change(raw)
    with pytest.raises(ArchiveError) as error:
        contract_from_json(json.dumps(raw), "eq.pt")
    assert field in str(error.value)


def test_another_schema_names_the_version_that_reads_it():
    raw = json.loads(contract().to_json()) | {"schema": 2}
    raw["created_with"]["torchferry"] = "7.1"
    with pytest.raises(SchemaError, match=r"schema 2(.|\n)*7\.1"):
        contract_from_json(json.dumps(raw), "eq.pt")


def test_text_that_is_not_json():
    with pytest.raises(ArchiveError, match="not JSON"):
        contract_from_json("{", "eq.pt")


def test_a_method_may_not_speak_of_unknown_variables():
    raw = json.loads(contract().to_json())
    raw["methods"]["forward"]["inputs"] = ["b"]
    with pytest.raises(ArchiveError, match="variables that are not in the contract"):
        contract_from_json(json.dumps(raw), "eq.pt")


def test_two_inputs_of_one_name():
    with pytest.raises(UsageError, match="two inputs have the same name"):
        contract(inputs=(TensorSpec("a"), TensorSpec("a")))


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        contract().name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_signature_takes_shapes_and_specs():
    signature = Signature.of({"x": (3,), "n": TensorSpec("", (), "int64")}, {"y": ()}, dtype="float32")
    assert [s.describe() for s in signature.inputs] == ["x: Tensor[3] float32", "n: Tensor[] int64"]


def test_unknown_dtype():
    with pytest.raises(UsageError, match="unknown dtype"):
        TensorSpec("x", dtype="double")


def test_integers_have_no_tolerance():
    bounds = DEFAULT_TOLERANCE.bounds("y", "int64")
    assert (bounds.rtol, bounds.atol) == (0.0, 0.0)
