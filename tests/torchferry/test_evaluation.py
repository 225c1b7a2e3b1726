"""``torchferry.evaluate`` gives the numbers of the file, when they are asked for."""

from __future__ import annotations

import shutil

import numpy
import pytest
import torch
import xarray
from data_sets import RETURN_MAP, call_directly, make_dataset, make_steps, write_data
from project import skip_checks

import torchferry
from exporter.common.errors import RunError, UsageError
from runtime_checks.evaluation.evaluator import Evaluator


@pytest.mark.parametrize("chunks", [None, {"point": 30}, {"point": 30, "strain_c0": 2}])
def test_numbers_are_those_of_the_file(chunks):
    values = make_steps(100)
    dataset = make_dataset(values)
    results = torchferry.evaluate(RETURN_MAP, dataset.chunk(chunks) if chunks else dataset)
    assert results.stress.chunks is not None
    assert (results.stress.dims, results.ep.dims, results.status.dims) == (
        ("point", "stress_0"),
        ("point",),
        ("point",),
    )
    expected = call_directly(values)
    numpy.testing.assert_allclose(results.stress.to_numpy(), expected["stress"], rtol=1e-13, atol=1e-6)
    numpy.testing.assert_allclose(results.ep.to_numpy(), expected["ep"], rtol=1e-13)
    assert results.point.to_numpy().tolist() == list(range(0, 1000, 10))


def test_a_part_of_a_stored_dataset(tmp_path):
    values = make_steps(20)
    path = write_data(tmp_path / "d.zarr", values)
    with xarray.open_dataset(path, engine="zarr", consolidated=False) as dataset:
        result = torchferry.evaluate(RETURN_MAP, dataset.isel(point=3)).compute()
    numpy.testing.assert_allclose(result.ep, call_directly(values)["ep"][3], rtol=1e-13)


def test_nothing_runs_before_it_is_asked_for(monkeypatch):
    calls = []
    evaluate = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", lambda *a: calls.append(len(a[1][0])) or evaluate(*a))
    results = torchferry.evaluate(RETURN_MAP, make_dataset(make_steps(100)).chunk(point=20))
    assert not calls
    results.ep.isel(point=slice(0, 20)).compute(scheduler="synchronous")
    assert calls == [20]


def test_threads_do_not_multiply(monkeypatch):
    seen = []
    evaluate = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", lambda *a: seen.append(torch.get_num_threads()) or evaluate(*a))
    results = torchferry.evaluate(RETURN_MAP, make_dataset(make_steps(10)).chunk(point=5))
    torch.set_num_threads(2)
    results.ep.compute(scheduler="synchronous")
    assert seen == [1, 1]
    assert torch.get_num_threads() == 2


def test_dimensions_are_broadcast_by_name():
    dataset = make_dataset(make_steps(5))
    dataset["ep~1"] = ("t", numpy.array([0.0, 0.01, 0.02]))
    results = torchferry.evaluate(RETURN_MAP, dataset, method="jacobian").compute()
    assert results["d_stress___d_strain"].shape == (5, 3, 6, 6)
    alone = torchferry.evaluate(RETURN_MAP, dataset.isel(t=[1])).compute()
    numpy.testing.assert_allclose(results.stress.isel(t=1), alone.stress.isel(t=0), rtol=1e-13)


def test_another_file_in_its_place(tmp_path):
    path = tmp_path / "m.pt"
    shutil.copy(RETURN_MAP, path)
    results = torchferry.evaluate(path, make_dataset(make_steps(5)))
    with skip_checks():
        module = torch.nn.Linear(3, 2)
        torchferry.export(module, output=path, inputs={"input": torch.rand(4, 3)}, batch="yes")
    with pytest.raises(RunError, match="another one than when the dataset was made"):
        results.compute(scheduler="synchronous")


def test_whole_numbers_that_would_be_rounded():
    dataset = make_dataset(make_steps(4))
    whole = dataset.assign({"ep~1": ("point", numpy.array([0, 1, 2, 3]))})
    assert torchferry.evaluate(RETURN_MAP, whole)["ep"].load().shape == (4,)
    large = dataset.assign({"ep~1": ("point", numpy.array([0, 1, 2, 2**53 + 1]))})
    with pytest.raises(UsageError, match="'ep~1' has whole numbers that float64 rounds"):
        torchferry.evaluate(RETURN_MAP, large)["ep"].load()


def test_a_dataset_that_does_not_fit():
    with pytest.raises(UsageError, match="no variable for input 'strain'"):
        torchferry.evaluate(RETURN_MAP, xarray.Dataset())


def test_into_a_file(tmp_path):
    data = write_data(tmp_path / "d.zarr", make_steps(20))
    seen = []
    threads = torch.get_num_threads()
    result = torchferry.evaluate_to_file(
        RETURN_MAP, data, tmp_path / "out.nc", chunk=8, vary={"residual.bulk": [1e5, 2e5]}, watch=seen.append
    )
    assert torch.get_num_threads() == threads
    assert (result.evaluated, result.summary.elements) == (6, 40)
    assert [p.done for p in seen if p.stage == "evaluate"] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(UsageError, match="processes of MPI run a command"):
        torchferry.evaluate_to_file(RETURN_MAP, data, tmp_path / "two.nc", scheduler="mpi")
