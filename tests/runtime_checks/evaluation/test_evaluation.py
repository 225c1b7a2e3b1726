"""Evaluations give the numbers of the file itself, survive whatever ends them, and say what they found."""

from __future__ import annotations

import errno
import filecmp
import itertools
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import xarray
from data_sets import (
    RETURN_MAP,
    SHAPES,
    call_directly,
    make_dataset,
    make_steps,
    read_results,
    write_data,
    write_dataset,
)
from project import ARTIFACTS, ROOT, mark_rest_thorough, mark_thorough_after, skip_checks

import torchferry
from exporter.common.errors import OutputError, RunError, TorchferryError, UsageError
from exporter.common.schedulers import _Borrowed
from runtime_checks.evaluation import evaluation as module
from runtime_checks.evaluation.chunk_evaluation import DataRequest, OpenJob, close_job
from runtime_checks.evaluation.evaluation import Evaluation
from runtime_checks.evaluation.evaluator import FileRequest
from runtime_checks.failure_replay import read_failures, replay_iterations

STORES = (".zarr", ".nc", ".parquet")


def make_pool() -> Executor:
    return ThreadPoolExecutor(2)


class Power(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp2(x)


def evaluate(data: Path | None, output: Path, file: FileRequest | None = None, **options: Any) -> Any:
    failures = options.pop("failures", None)
    request = DataRequest(data, **{"elements": 30, **options})
    return Evaluation(file or FileRequest(RETURN_MAP), request, output).run(make_pool, failures=failures)


def list_files(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def have_same_bytes(one: Path, other: Path) -> bool:
    if one.is_file():
        return filecmp.cmp(one, other, shallow=False)
    names = list_files(one)
    return names == list_files(other) and all(filecmp.cmp(one / n, other / n, shallow=False) for n in names)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "steps.zarr", make_steps(100))


@pytest.mark.parametrize(
    ("source", "suffix"),
    mark_rest_thorough([(suffix, suffix) for suffix in STORES], list(itertools.permutations(STORES, 2))),
)
def test_numbers_are_those_of_the_file(tmp_path, source, suffix):
    values = make_steps(100)
    data = write_data(tmp_path / f"steps{source}", values)
    result = evaluate(data, tmp_path / f"out{suffix}")
    assert (result.evaluated, result.kept, result.summary.elements) == (4, 0, 100)
    expected, got = call_directly(values), read_results(tmp_path / f"out{suffix}")
    stress = numpy.stack([got[f"stress[{k}]"] for k in range(6)], 1) if suffix == ".parquet" else got["stress"]
    # Equal to the bit but for what a tail of a vector register rounds otherwise.
    numpy.testing.assert_allclose(stress, expected["stress"], rtol=1e-13, atol=1e-6)
    numpy.testing.assert_allclose(got["ep"], expected["ep"], rtol=1e-13)
    assert not got["status"].any()
    if source != ".parquet":
        assert numpy.array_equal(got["point"], numpy.arange(100) * 10)
    assert not list(tmp_path.glob("*.unfinished"))
    extent = result.summary.outputs["ep"]
    assert (extent.low, extent.high) == (got["ep"].min(), got["ep"].max())


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
def test_dimensions_are_broadcast_by_name(tmp_path, suffix):
    values = make_steps(6)
    dataset = make_dataset(values)
    dataset["ep~1"] = ("t", [0.0, 0.01, 0.02])
    dataset["strain"] = dataset["strain"] * xarray.DataArray([1.0, 2.0, 3.0], dims="t")
    dataset["strain"] = dataset["strain"].transpose("t", "point", "strain_c0")
    data = write_dataset(tmp_path / "d.zarr", dataset)
    evaluate(data, tmp_path / f"out{suffix}", elements=4)
    got = read_results(tmp_path / f"out{suffix}")
    wide = {name: numpy.broadcast_to(values[name], (3, 6, *shape)).copy() for name, shape in SHAPES.items()}
    wide["strain"] *= numpy.array([1.0, 2.0, 3.0])[:, None, None]
    wide["ep~1"] = numpy.broadcast_to([[0.0], [0.01], [0.02]], (3, 6)).copy()
    expected = call_directly(wide)
    if suffix == ".zarr":
        numpy.testing.assert_allclose(got["ep"], expected["ep"], rtol=1e-13)
        return
    flat = numpy.full((3, 6), numpy.nan)
    flat[got["t_index"], got["point_index"]] = got["ep"]
    numpy.testing.assert_allclose(flat, expected["ep"], rtol=1e-13)


def test_parameters_and_inputs_are_varied(tmp_path):
    values = make_steps(5)
    data = write_data(tmp_path / "d.zarr", values)
    studies = (("residual.yield_stress", (100.0, 300.0)), ("ep~1", (0.0, 0.05)))
    evaluate(data, tmp_path / "out.zarr", studies=studies)
    with xarray.open_zarr(tmp_path / "out.zarr") as got:
        assert got.ep.dims == ("residual.yield_stress", "ep~1", "point")
        model = torchferry.load(RETURN_MAP)
        for value in (100.0, 300.0):
            for before in (0.0, 0.05):
                model.set_parameter("residual.yield_stress", torch.tensor(value, dtype=torch.float64))
                inputs = {n: torch.from_numpy(v) for n, v in values.items()}
                inputs["ep~1"] = torch.full_like(inputs["ep~1"], before)
                expected = model.call("forward", inputs)["ep"].detach()
                chosen = got.ep.sel({"residual.yield_stress": value, "ep~1": before})
                numpy.testing.assert_allclose(chosen, expected, rtol=1e-13)


def test_without_a_data_set(tmp_path):
    """A file of which every input is one number."""
    path = tmp_path / "power.pt"
    with skip_checks():
        torchferry.export(Power(), output=path, inputs={"x": torch.rand(4, dtype=torch.float64)}, batch="yes")
    output = torchferry.load(path).contract.outputs[0].name
    evaluate(None, tmp_path / "out.nc", FileRequest(path), studies=(("x", (0.0, 1.0, 2.0, 10.0)),))
    assert read_results(tmp_path / "out.nc")[output].tolist() == [1.0, 2.0, 4.0, 1024.0]


@pytest.mark.parametrize("kind", ["archive", "kernel", "engine"])
def test_every_format(tmp_path, kind, folders, solid):
    values = make_steps(40)
    data = write_data(tmp_path / "d.zarr", values)
    files = {
        "archive": FileRequest(RETURN_MAP, "jacobian"),
        "kernel": FileRequest(folders["return_map"]),
        "engine": FileRequest(solid, engine="kernel"),
    }
    file = files[kind]
    evaluate(data, tmp_path / "out.zarr", file)
    got, expected = read_results(tmp_path / "out.zarr"), call_directly(values, file.method)
    for name, value in expected.items():
        stored = got[name.replace(" ", "_").replace("/", "_")]
        numpy.testing.assert_allclose(stored, value, rtol=1e-9, atol=1e-9 * abs(value).max())


@pytest.mark.parametrize("suffix", [".onnx", ".program.pt2"])
def test_other_containers(tmp_path, suffix):
    path = tmp_path / f"power{suffix}"
    with skip_checks():
        torchferry.export(Power(), output=path, inputs={"x": torch.rand(4, dtype=torch.float64)}, batch="yes")
    data = write_data(tmp_path / "d.zarr", {"x": numpy.linspace(0.0, 1.0, 100)})
    evaluate(data, tmp_path / "out.zarr", FileRequest(path))
    output = torchferry.load(path).contract.outputs[0].name
    numpy.testing.assert_allclose(read_results(tmp_path / "out.zarr")[output], 2 ** numpy.linspace(0.0, 1.0, 100))


@pytest.mark.parametrize(("number", "fits"), [(2**53, True), (2**53 + 1, False), (-(2**53) - 1, False), (2**63, False)])
@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
def test_whole_numbers_that_would_be_rounded(tmp_path, suffix, number, fits):
    values = make_steps(4)
    values["ep~1"] = numpy.array([0, 1, number, 2], "uint64" if number == 2**63 else "int64")
    data, output = write_data(tmp_path / f"d{suffix}", values), tmp_path / "out.zarr"
    if fits:
        assert evaluate(data, output).summary.elements == 4
        return
    with pytest.raises(TorchferryError, match="'ep~1' has whole numbers that float64 rounds") as caught:
        evaluate(data, output)
    assert caught.value.details["got"] == str(abs(number))


def test_elements_that_fail(tmp_path, data):
    studies = (("newton.max_its", (25.0, 1.0)),)
    result = evaluate(data, tmp_path / "out.zarr", studies=studies, failures=tmp_path / "failed.pt")
    got = read_results(tmp_path / "out.zarr")
    failed = got["status"][1] != 0
    assert failed.any()
    assert not got["status"][0].any()
    assert numpy.array_equal(failed, numpy.isnan(got["stress"][1]).any(1))
    assert result.summary.statuses == {0: 200 - failed.sum(), 1: failed.sum()}
    assert result.summary.outputs["ep"].nan == failed.sum()
    contract = torchferry.load(RETURN_MAP).contract
    failures = read_failures(tmp_path / "failed.pt", contract)
    assert numpy.array_equal(failures.inputs["strain"], make_steps(100)["strain"][failed])
    assert failures.parameters["newton.max_its"].tolist() == [1] * failed.sum()
    # So many iterations as failed there, and no more.
    assert len(replay_iterations(torchferry.load(RETURN_MAP), failures)["residual_norm"]) == 2
    elements = dict(torch.load(tmp_path / "failed.pt"))["elements"]
    assert elements.tolist() == (100 + failed.nonzero()[0]).tolist()


def test_what_is_outside_of_the_envelope(tmp_path):
    values = make_steps(10)
    bounds = torchferry.load(RETURN_MAP).contract.envelope.values["ep~1"]
    values["ep~1"][3], values["ep~1"][4] = bounds.high * 2, numpy.nan
    result = evaluate(write_data(tmp_path / "d.zarr", values), tmp_path / "out.zarr")
    extent = result.summary.inputs["ep~1"]
    assert (extent.outside, extent.nan, extent.high) == (2, 1, bounds.high * 2)
    assert result.summary.inputs["strain"].outside == 0
    # NaN never passes.
    assert read_results(tmp_path / "out.zarr")["status"].tolist()[4] != 0


def test_variables_that_are_kept(tmp_path):
    dataset = make_dataset(make_steps(10)).assign(region=("point", numpy.arange(10, dtype="int16")))
    data = write_dataset(tmp_path / "d.zarr", dataset)
    for suffix in (".zarr", ".nc", ".parquet"):
        evaluate(data, tmp_path / f"out{suffix}", elements=3, keep=("region",))
        assert read_results(tmp_path / f"out{suffix}")["region"].tolist() == list(range(10))


COMMAND = """
import sys
from pathlib import Path
import runtime_checks.evaluation.chunk_evaluation as chunks
from runtime_checks.evaluation.evaluation import Evaluation
from runtime_checks.evaluation.evaluator import FileRequest
from concurrent.futures import ThreadPoolExecutor
import time
evaluate = chunks.OpenJob.evaluate
def slowly(self, chunk):
    record = evaluate(self, chunk)
    time.sleep(0.05)
    return record
chunks.OpenJob.evaluate = slowly
data, output = map(Path, sys.argv[2:])
print("ready", flush=True)
request = chunks.DataRequest(data, elements=2)
result = Evaluation(FileRequest(Path(sys.argv[1])), request, output).run(lambda: ThreadPoolExecutor(2))
print(result.evaluated, result.kept)
"""


# NetCDF is written at the end, from a store of Zarr.
@pytest.mark.parametrize("suffix", mark_thorough_after(1, [".parquet", ".zarr"]))
def test_kills_change_nothing(tmp_path, data, suffix):
    whole, output = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    evaluate(data, whole, elements=2)
    command = [sys.executable, "-c", COMMAND, str(RETURN_MAP), str(data), str(output)]
    log, kills = output.with_name(output.name + ".unfinished") / "chunks.jsonl", 0
    lines = 0
    wanted = 3 if suffix == ".zarr" else 1
    for _ in range(wanted):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            end = time.monotonic() + 60
            while time.monotonic() < end and process.poll() is None:
                now = log.read_text().count("\n") if log.exists() else 0
                if now >= lines + 5:
                    process.send_signal(signal.SIGKILL)
                    kills, lines = kills + 1, now
                    break
                time.sleep(0.01)
            process.wait()
    assert kills == wanted
    assert not output.exists()
    result = evaluate(data, output, elements=2)
    assert result.kept >= 3 * wanted
    assert result.evaluated + result.kept == 50
    assert have_same_bytes(whole, output)


def interrupt(data: Path, output: Path, after: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Path:
    """Evaluate some chunks, then end; return the folder of unfinished results."""
    with monkeypatch.context() as patch:
        write, count = OpenJob.evaluate, iter(range(10**6))

        def write_some(self: OpenJob, chunk: Any) -> Any:
            if next(count) >= after:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(self, chunk)

        patch.setattr(OpenJob, "evaluate", write_some)
        # One after the other, so that the first ones are those that are kept.
        patch.setattr(sys.modules[__name__], "make_pool", lambda: ThreadPoolExecutor(1))
        with pytest.raises(OutputError, match="finished chunks are kept"):
            evaluate(data, output, **options)
    assert not output.exists()
    return output.with_name(output.name + ".unfinished")


@pytest.mark.thorough
def test_what_a_killed_process_was_writing_is_removed(tmp_path, data, monkeypatch):
    whole, output = tmp_path / "whole.zarr", tmp_path / "out.zarr"
    evaluate(data, whole)
    folder = interrupt(data, output, 2, monkeypatch)
    chunks = folder / "store" / "ep" / "c"
    (chunks / "3.599f0e4ddb3f4f939f7c975850396c90.partial").write_bytes(b"half")
    evaluate(data, output)
    assert have_same_bytes(whole, output)


def test_a_full_disk_loses_nothing(tmp_path, data, monkeypatch):
    whole, output = tmp_path / "whole.zarr", tmp_path / "out.zarr"
    evaluate(data, whole)
    interrupt(data, output, 2, monkeypatch)
    result = evaluate(data, output)
    assert (result.evaluated, result.kept) == (2, 2)
    assert have_same_bytes(whole, output)


@pytest.mark.parametrize("suffix", mark_thorough_after(1, [".zarr", ".parquet"]))
def test_a_chunk_that_was_changed_is_evaluated_again(tmp_path, data, monkeypatch, suffix):
    whole, output = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    evaluate(data, whole)
    folder = interrupt(data, output, 3, monkeypatch)
    pattern = "store/stress/c/0/*" if suffix == ".zarr" else "store/000000000.parquet"
    (chunk,) = folder.glob(pattern)
    content = bytearray(chunk.read_bytes())
    # A number of the table as it lies in the file; of Zarr's, which stand byte by byte, any byte.
    number = read_results(whole)["stress[0]"][5].tobytes() if suffix == ".parquet" else b""
    place = content.index(number) if number else len(content) // 2
    content[place] ^= 1
    chunk.write_bytes(content)
    result = evaluate(data, output)
    assert result.kept == 2
    assert have_same_bytes(whole, output)


def test_a_log_with_lines_of_a_stranger(tmp_path, data, monkeypatch):
    whole, output = tmp_path / "whole.zarr", tmp_path / "out.zarr"
    evaluate(data, whole)
    folder = interrupt(data, output, 2, monkeypatch)
    with (folder / "chunks.jsonl").open("a") as file:
        file.write('{"chunk": 3}\n[1]\n{"chunk": 77, "digests": {}, "summary": 3}\nnot JSON\n{"chunk": "x"')
    evaluate(data, output)
    assert have_same_bytes(whole, output)


def change_chunks(data: Path) -> dict[str, Any]:
    return {"elements": 20}


def change_data(data: Path) -> dict[str, Any]:
    (data / "strain" / "more").write_text("x")
    return {}


def change_method(data: Path) -> dict[str, Any]:
    return {"file": FileRequest(RETURN_MAP, "newton_info")}


@pytest.mark.parametrize("change", [change_chunks, change_data, change_method])
def test_results_of_another_evaluation_are_not_touched(tmp_path, data, monkeypatch, change):
    folder = interrupt(data, tmp_path / "out.zarr", 2, monkeypatch)
    before = list_files(folder)
    with pytest.raises(UsageError, match="unfinished results of another evaluation") as caught:
        evaluate(data, tmp_path / "out.zarr", **change(data))
    assert str(folder) in str(caught.value)
    assert [path for path in list_files(folder) if path.name != "lock"] == [p for p in before if p.name != "lock"]


def test_workers_that_live_on_see_the_new_data(tmp_path):
    """As those of Dask do: what they have open is of another state."""
    with ThreadPoolExecutor(1) as pool:
        for factor in (1.0, 2.0):
            values = make_steps(20)
            values["strain"] *= factor
            data = write_data(tmp_path / "new.nc", values).rename(tmp_path / "d.nc")
            output = tmp_path / "out.zarr"
            Evaluation(FileRequest(RETURN_MAP), DataRequest(data), output).run(lambda: _Borrowed(pool))
            numpy.testing.assert_allclose(read_results(output)["ep"], call_directly(values)["ep"], rtol=1e-13)
            shutil.rmtree(output)
        pool.submit(close_job).result()
    # Nothing of the data stays open here.
    (tmp_path / "d.nc").unlink()
    write_data(tmp_path / "d.nc", make_steps(5))


def test_a_file_that_changes_meanwhile(tmp_path, data):
    file = Path(shutil.copy(RETURN_MAP, tmp_path))
    evaluation = Evaluation(FileRequest(file), DataRequest(data), tmp_path / "out.zarr")
    shutil.copy(ARTIFACTS / "perzyna.pt", file)
    with pytest.raises(RunError, match="another one than when the evaluation began"):
        evaluation.run(make_pool)
    assert not (tmp_path / "out.zarr").exists()


def test_data_can_be_written_again(tmp_path):
    data = write_data(tmp_path / "d.nc", make_steps(5))
    evaluate(data, tmp_path / "out.zarr")
    write_data(data, make_steps(6))


def test_a_store_that_is_gone_is_begun_anew(tmp_path, data, monkeypatch):
    """What is left where a process was killed after it has moved the results, and they were removed."""
    folder = interrupt(data, tmp_path / "out.zarr", 2, monkeypatch)
    shutil.rmtree(folder / "store")
    assert evaluate(data, tmp_path / "out.zarr").evaluated == 4


def test_an_output_that_appears_meanwhile(tmp_path, data):
    for suffix in (".nc", ".parquet", ".zarr"):
        output = tmp_path / f"out{suffix}"
        evaluation = Evaluation(FileRequest(RETURN_MAP), DataRequest(data), output)
        output.write_text("somebody's")
        with pytest.raises(OutputError, match="there already"):
            evaluation.run(make_pool)
        assert output.read_text() == "somebody's"


@pytest.mark.parametrize("name", ["steps.zarr", "out.zarr", "folder"])
def test_failures_replace_nothing(tmp_path, data, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError):
        evaluate(data, tmp_path / "out.zarr", failures=tmp_path / name)
    file = Path(shutil.copy(RETURN_MAP, tmp_path))
    with pytest.raises(OutputError, match="would replace a file"):
        evaluate(data, tmp_path / "out.zarr", FileRequest(file), failures=file)


@pytest.mark.parametrize("suffix", [".zarr", ".nc", ".parquet"])
def test_one_element_without_dimensions(tmp_path, suffix):
    values = make_steps(1)
    dataset = make_dataset(values).isel(point=0, drop=True)
    evaluate(write_dataset(tmp_path / "d.nc", dataset), tmp_path / f"out{suffix}")
    got = read_results(tmp_path / f"out{suffix}")
    numpy.testing.assert_allclose(got["ep"].reshape(()), call_directly(values)["ep"][0], rtol=1e-13)


@pytest.mark.parametrize("suffix", [".zarr", ".nc", ".parquet"])
def test_names_with_a_slash(tmp_path, suffix):
    path = ARTIFACTS / "slash.pt"
    contract = torchferry.load(path).contract
    assert any("/" in spec.name for spec in contract.inputs)
    studies = tuple((spec.name, (1.0, 2.0)) for spec in contract.inputs)
    evaluate(None, tmp_path / f"out{suffix}", FileRequest(path), studies=studies)
    if suffix != ".parquet":
        engine: Any = "zarr" if suffix == ".zarr" else "h5netcdf"
        with xarray.open_dataset(tmp_path / f"out{suffix}", engine=engine) as got:
            assert {name.replace("/", "_") for name, _ in studies} <= set(got.sizes)


def test_what_is_said_of_a_kept_coordinate(tmp_path):
    dataset = make_dataset(make_steps(4))
    dataset["point"].attrs = {"units": "days since 2000-01-01", "calendar": "360_day", "standard_name": "time"}
    data = write_dataset(tmp_path / "d.zarr", dataset)
    for suffix, engine in ((".zarr", "zarr"), (".nc", "h5netcdf")):
        evaluate(data, tmp_path / f"out{suffix}")
        chosen: Any = engine
        with xarray.open_dataset(tmp_path / f"out{suffix}", engine=chosen, decode_times=False) as got:
            assert got["point"].attrs == dataset["point"].attrs


def test_an_output_that_is_there(tmp_path, data):
    output = tmp_path / "out.zarr"
    output.mkdir()
    with pytest.raises(OutputError, match="there already"):
        evaluate(data, output)
    assert not list(output.iterdir())


def test_two_processes_at_once(tmp_path, data):
    started, go_on = threading.Event(), threading.Event()

    def watch(progress: Any) -> None:
        started.set()
        go_on.wait(60)

    first = Evaluation(FileRequest(RETURN_MAP), DataRequest(data, elements=30), tmp_path / "out.zarr")
    thread = threading.Thread(target=lambda: first.run(make_pool, watch=watch))
    thread.start()
    assert started.wait(60)
    try:
        with pytest.raises(UsageError, match="another process is at this evaluation"):
            evaluate(data, tmp_path / "out.zarr")
    finally:
        go_on.set()
        thread.join()
    assert (tmp_path / "out.zarr").exists()


class DyingPool(ThreadPoolExecutor):
    """A pool whose workers die, on one chunk, some times."""

    deaths = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if args[0][0] == 2 and type(self).deaths > 0:
            type(self).deaths -= 1
            return super().submit(self.die)
        return super().submit(fn, *args, **kwargs)

    @staticmethod
    def die() -> None:
        raise BrokenExecutor("a process has died")


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_a_worker_that_dies(tmp_path, data, deaths):
    DyingPool.deaths = deaths
    evaluation = Evaluation(FileRequest(RETURN_MAP), DataRequest(data, elements=30), tmp_path / "out.zarr")
    if deaths <= module.TRIES:
        assert evaluation.run(lambda: DyingPool(1)).evaluated == 4
        return
    with pytest.raises(RunError, match="has died") as caught:
        evaluation.run(lambda: DyingPool(1))
    assert caught.value.details["where"] == "chunk 2: point 60 to 89"
    assert not (tmp_path / "out.zarr").exists()
    assert evaluate(data, tmp_path / "out.zarr").kept == 3


def test_a_file_that_fails_on_a_chunk(tmp_path):
    """A model that raises where an element does not converge."""
    path = tmp_path / "raises.pt"
    with skip_checks():
        torchferry.export(f"{ROOT / 'examples' / 'return_map.py'}:make_model", output=path, on_failure="raise")
    data = write_data(tmp_path / "d.zarr", make_steps(20))
    with pytest.raises(RunError) as caught:
        evaluate(data, tmp_path / "out.zarr", FileRequest(path), studies=(("newton.max_its", (1.0,)),))
    assert caught.value.details["where"] == "chunk 0: newton.max_its 0 to 0, point 0 to 19"


@pytest.mark.parametrize("suffix", [".csv", ""])
def test_results_of_an_unknown_kind(tmp_path, data, suffix):
    with pytest.raises(UsageError, match="no format of this suffix"):
        evaluate(data, tmp_path / f"out{suffix}")


def test_what_chunks_are_asked_for(tmp_path, data):
    with pytest.raises(UsageError, match="a chunk has elements"):
        evaluate(data, tmp_path / "out.zarr", elements=0)


def test_a_summary_is_written_as_json(tmp_path, data):
    result = evaluate(data, tmp_path / "out.zarr")
    text = json.dumps(result.as_dict(), allow_nan=False)
    assert json.loads(text)["summary"]["statuses"] == {"0": 100}
