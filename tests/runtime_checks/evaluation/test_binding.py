"""Names, shapes and dtypes of a data set are held against the contract before anything runs."""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import xarray
from data_sets import RETURN_MAP, SHAPES, make_dataset, make_steps
from project import ARTIFACTS

import torchferry
from exporter.common.errors import UsageError
from runtime_checks.evaluation.binding import Binding, bind
from runtime_checks.evaluation.data_sets import open_data_set
from runtime_checks.evaluation.xarray_data import XarrayData


def bind_to(dataset: xarray.Dataset, method: str = "forward", **options: Any) -> Binding:
    contract = torchferry.load(RETURN_MAP).contract
    arguments = {"names": {}, "studies": {}, **options}
    return bind(contract, method, XarrayData(dataset, "the data"), **arguments)


@pytest.fixture
def dataset() -> xarray.Dataset:
    return make_dataset(make_steps(4))


def test_dimensions_of_elements(dataset):
    dataset["ep~1"] = ("t", numpy.zeros(3))
    binding = bind_to(dataset)
    assert binding.sizes == {"point": 4, "t": 3}
    assert [bound.batch_dims for bound in binding.inputs] == [("point",)] * 3 + [("t",)]
    assert [(o.name, o.dims, o.shape) for o in binding.outputs] == [("stress", ("stress_0",), (6,)), ("ep", (), ())]
    assert [variable.name for variable in binding.kept] == ["point"]


def test_names_of_blocks_are_names_of_variables(dataset):
    names = {output.name: output.method_name for output in bind_to(dataset, "jacobian").outputs}
    assert names["d_stress___d_strain"] == "d stress / d strain"


def test_names_of_outputs_are_their_own(dataset):
    """``newton_info`` has an output that is called as the variable of the results."""
    assert [o.name for o in bind_to(dataset, "newton_info").outputs][-1] == "status_out"
    renamed = dataset.drop_vars("point").rename({"point": "stress_0"})
    assert bind_to(renamed).outputs[0].dims == ("stress_out_0",)
    kept = dataset.assign(ep=("point", numpy.zeros(4)))
    assert [o.name for o in bind_to(kept, keep=["ep"]).outputs] == ["stress", "ep_out"]


def test_a_coordinate_that_is_varied_is_not_kept(dataset):
    changed = dataset.assign_coords({"ep~1": dataset["ep~1"]})
    assert [v.name for v in bind_to(changed, studies={"ep~1": numpy.zeros(2)}).kept] == ["point"]


def test_another_name_and_that_of_c(dataset):
    renamed = dataset.rename({"strain": "eps", "strain~1": "strain_old1"})
    binding = bind_to(renamed, names={"strain": "eps"})
    variables = [bound.variable.name for bound in binding.inputs if bound.variable]
    assert variables == ["eps", "strain_old1", "stress~1", "ep~1"]


def test_what_is_varied_comes_first(dataset):
    studies = {"residual.bulk": numpy.array([1.0, 2.0]), "ep~1": numpy.array([0.0, 0.1, 0.2])}
    binding = bind_to(dataset, studies=studies)
    assert binding.sizes == {"residual.bulk": 2, "ep~1": 3, "point": 4}
    assert list(binding.parameters) == ["residual.bulk"]


def drop(d):
    return d.drop_vars("strain"), {}


def transpose(d):
    return d.assign(strain=d.strain.transpose()), {}


def shorten(d):
    return d.assign(strain=(("point", "five"), numpy.zeros((4, 5)))), {}


def make_single(d):
    return d.assign(strain=d.strain.astype("complex128")), {}


def make_text(d):
    return d.assign({"ep~1": ("point", numpy.array(list("abcd")))}), {}


def make_empty(d):
    return d.isel(point=slice(0, 0)), {}


def use_twice(d):
    return d.assign({"ep~1": ("strain_c0", numpy.zeros(6))}), {}


def name_unknown(d):
    return d, {"names": {"strains": "strain"}}


def name_absent(d):
    return d, {"names": {"strain": "absent"}}


def vary_unknown(d):
    return d, {"studies": {"bulk": numpy.ones(2)}}


def vary_tensor(d):
    return d, {"studies": {"strain": numpy.ones(2)}}


def vary_dimension(d):
    return d.drop_vars(["ep~1", "point"]).rename({"point": "ep~1"}), {"studies": {"ep~1": numpy.ones(2)}}


def keep_absent(d):
    return d, {"keep": ["absent"]}


def keep_status(d):
    return d.assign(status=("point", numpy.zeros(4))), {"keep": ["status"]}


def call_a_dimension_status(d):
    return d.drop_vars("point").rename({"point": "status"}), {}


def vary_a_third(d):
    return d, {"studies": {"newton.max_its": numpy.array([1.0, 1.5])}}


def keep_own(d):
    return d, {"keep": ["strain"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, "no variable for input 'strain'"),
        (transpose, "wrong shape for input 'strain'"),
        (shorten, "wrong shape for input 'strain'"),
        (make_single, "wrong dtype for input 'strain'"),
        (make_text, "wrong dtype for input 'ep~1'"),
        (make_empty, "has no elements"),
        (use_twice, "'strain_c0' is one of elements and one of a variable's own"),
        (name_unknown, "no input 'strains'"),
        (name_absent, "no variable for input 'strain'"),
        (vary_unknown, "no input or parameter 'bulk'"),
        (vary_tensor, "'strain' is not one number"),
        (vary_dimension, "has the name of what is varied"),
        (keep_absent, "no variable 'absent'"),
        (keep_own, "'strain' cannot be kept"),
        (keep_status, "'status' cannot be kept by this name"),
        (call_a_dimension_status, "a dimension of elements is called 'status'"),
        (vary_a_third, "'newton.max_its' cannot have these values"),
    ],
)
def test_what_does_not_fit(dataset, change, message):
    changed, options = change(dataset)
    with pytest.raises(UsageError) as caught:
        bind_to(changed, **options)
    assert message in str(caught.value)
    assert {"got", "expected"} & caught.value.details.keys()


@pytest.mark.parametrize(("rows", "fits"), [((5, 5), True), ((5, 4), False)])
def test_open_sizes_are_the_same_for_all_inputs(rows, fits):
    contract = torchferry.load(ARTIFACTS / "loss_and_grad.pt").contract
    variables = {
        name: (("call", f"{name}_0", f"{name}_1"), numpy.zeros((7, count, width)))
        for name, count, width in zip(("x", "target"), rows, (3, 2), strict=True)
    }
    data = XarrayData(xarray.Dataset(variables), "the data")
    if fits:
        assert bind(contract, "forward", data, {}, {}).sizes == {"call": 7}
    else:
        with pytest.raises(UsageError, match="wrong shape for input 'target'") as caught:
            bind(contract, "forward", data, {}, {})
        assert "n = 5" in caught.value.details["expected"]


def test_lists_of_another_length_in_a_table(tmp_path):
    columns: dict[str, Any] = {name: numpy.zeros((3, *shape)).tolist() for name, shape in SHAPES.items()}
    columns["strain"] = pyarrow.array([[0.0] * 4] * 3, pyarrow.list_(pyarrow.float64(), 4))
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "d.parquet")
    with pytest.raises(UsageError, match="wrong shape for input 'strain'") as caught:
        bind(torchferry.load(RETURN_MAP).contract, "forward", open_data_set(tmp_path / "d.parquet"), {}, {})
    assert "4" in caught.value.details["got"]


def test_a_method_that_is_not_there(dataset):
    with pytest.raises(UsageError, match="no method 'forwards'"):
        bind_to(dataset, "forwards")


def test_numbers_that_the_dtype_holds(dataset):
    assert bind_to(dataset.assign({"ep~1": dataset["ep~1"].astype("int32")}))
    assert bind_to(dataset.astype("float32"))


def test_no_data_set():
    contract = torchferry.load(RETURN_MAP).contract
    with pytest.raises(UsageError, match="'strain' has no values"):
        bind(contract, "forward", None, {}, {"ep~1": numpy.zeros(2)})
