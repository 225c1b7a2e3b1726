import json
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from project import RATES
from sweep_jobs import DEAF_SECONDS, dies_on_rate_b, fake_convert, fake_export, goes_on_at_rate_b

from exporter.common.errors import MissingRuntimeError, UsageError
from exporter.common.schedulers import _Borrowed
from exporter.common.task_pools import make_pool_factory
from torchferry import sweep
from torchferry.cli.app import run
from torchferry.sweep import Steps
from torchferry.sweep_report import render_coverage_page


class AtOnce(Executor):
    """An executor as a caller may bring one: it runs each task when it is handed in."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


@pytest.fixture
def folder(tmp_path: Path, neml2) -> Path:
    (tmp_path / "models" / "deep").mkdir(parents=True)
    (tmp_path / "models" / "deep" / "part.txt").write_text("\n")
    text = RATES.read_text()
    (tmp_path / "models" / "deep" / "rates.i").write_text(f"{text}!include part.txt\n")
    (tmp_path / "models" / "broken.i").write_text("no HIT")
    return tmp_path / "models"


def test_every_model_gets_a_row_and_failures_do_not_stop_it(folder, tmp_path):
    rows = sweep.sweep([folder], tmp_path / "out", Steps(fake_export), AtOnce)
    result = {(r.file, r.model): (r.archive.verdict, r.archive.kind) for r in rows}
    assert result == {
        ("models/broken.i", ""): ("refused", "SourceError"),
        ("models/deep/rates.i", "rate_a"): ("verified", ""),
        ("models/deep/rates.i", "rate_b"): ("refused", "CaptureError"),
        ("models/deep/rates.i", "rate_c"): ("crashed", "ZeroDivisionError"),
        ("models/deep/rates.i", "eq"): ("verified", ""),
    }
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["counts"] == {"verified": 2, "refused": 2, "crashed": 1}
    assert report["models"][1]["max_rel"] == 2e-13
    assert report["models"][1]["bytes"] == len("archive")
    assert report["models"][1]["formats"] == report["formats"] == {}
    assert (tmp_path / "out" / "models" / "deep" / "rates" / "eq.pt").exists()


def test_threads_of_a_worker_export_one_after_the_other(folder, tmp_path):
    """As those of a worker of Dask, which share a process, and take all tasks at once."""
    running, most = [], []

    def export(source, *, models, output, seed):
        running.append(models)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()
        return fake_export(source, models=models, output=output, seed=seed)

    with ThreadPoolExecutor(4) as pool:
        borrowed = _Borrowed(pool)
        rows = sweep.sweep([folder], tmp_path / "out", Steps(export), lambda: borrowed)
    assert len(rows) == 5
    assert most == [1, 1, 1, 1]
    assert borrowed._max_workers > len(rows)


def test_threads_do_not_sweep(folder, tmp_path, capsys):
    assert run(["sweep", str(folder), "-o", str(tmp_path / "out"), "--scheduler", "threads:2"]) == 2
    assert "a process exports one model at a time" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_formats_have_cells_of_their_own(folder, tmp_path):
    steps = Steps(fake_export, fake_convert, ("onnx", "c"))
    rows = sweep.sweep([folder], tmp_path / "out", steps, AtOnce)
    cells = {r.model: [(c.format, c.verdict, c.bytes) for c in r.cells] for r in rows}
    assert cells["rate_a"] == [("pt", "verified", 7), ("onnx", "verified", 9), ("c", "verified", 9)]
    assert cells["eq"] == [("pt", "verified", 7), ("onnx", "refused", 0), ("c", "verified", 9)]
    assert cells["rate_b"] == [("pt", "refused", 0)]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["formats"]["onnx"] == {"verified": 1, "refused": 1, "crashed": 0}
    assert {m["model"]: m["formats"] for m in report["models"]}["eq"]["onnx"]["kind"] == "MismatchError"


def test_the_coverage_page(folder, tmp_path):
    steps = Steps(fake_export, fake_convert, ("onnx",))
    page = render_coverage_page(sweep.sweep([folder], tmp_path / "out", steps, AtOnce), "these versions")
    assert "| folder | models | pt | onnx | driven models | driven, pt | driven, onnx |" in page
    assert "| models | 5 | 2 | 1 | 1 | 0 | 0 |" in page
    assert "| models/deep/rates.i | `eq` | 0.0 s, 0 | refused |" in page
    assert "### pt: CaptureError: model cannot be captured (1)" in page
    assert "### onnx: MismatchError: numbers differ (1)" in page
    assert "2.0e-13 relative" in page


@pytest.mark.thorough
def test_a_process_that_dies_costs_one_row(folder, tmp_path):
    (folder / "broken.i").unlink()
    seen = []
    rows = sweep.sweep(
        [folder],
        tmp_path / "out",
        Steps(dies_on_rate_b),
        make_pool_factory(2),
        watch=lambda total: lambda row: seen.append((total, row.model)),
    )
    assert {r.model: r.archive.verdict for r in rows} == {
        "rate_a": "verified",
        "rate_b": "crashed",
        "rate_c": "verified",
        "eq": "verified",
    }
    assert sorted(seen) == [(4, "eq"), (4, "rate_a"), (4, "rate_b"), (4, "rate_c")]


def test_an_interrupt_leaves_a_report_of_what_was_done(folder, tmp_path):
    def interrupted_export(source, *, models, output, seed) -> Any:
        if models == ["rate_c"]:
            raise KeyboardInterrupt
        return fake_export(source, models=models, output=output, seed=seed)

    with pytest.raises(KeyboardInterrupt):
        sweep.sweep([folder], tmp_path / "out", Steps(interrupted_export), AtOnce)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    models = [m["model"] for m in report["models"]]
    assert models[0] == ""
    assert "rate_c" not in models


@pytest.mark.parametrize("change", ["nothing", "an option", "an input file", "an archive is gone", "a cut line"])
def test_an_interrupted_sweep_goes_on(change, folder, tmp_path):
    """With the models that are left, as long as all that rows depend on is the same; a whole one starts anew."""
    calls: list[str] = []

    def export(source, *, models, output, seed) -> Any:
        calls.append(models[0])
        return fake_export(source, models=models, output=output, seed=seed)

    done: list[str] = []

    def stop_at_third(row) -> None:
        done.append(row.model)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.sweep([folder], tmp_path / "out", Steps(export), AtOnce, watch=lambda total: stop_at_third)
    calls.clear()
    log = tmp_path / "out" / "unfinished.jsonl"
    names = [task.model for task in sweep.find_tasks([folder], tmp_path / "out", 0)[0]]
    known = {"nothing": done, "a cut line": done[:2], "an archive is gone": done}.get(change, [])
    if change == "an input file":
        (folder / "deep" / "part.txt").write_text("# more\n")
    elif change == "an archive is gone":
        verified = next(name for name in done if name in ("eq", "rate_a"))
        (tmp_path / f"out/models/deep/rates/{verified}.pt").unlink()
        known = [name for name in done if name != verified]
    elif change == "a cut line":
        log.write_text(log.read_text()[:-9])
    steps = Steps(export, options="others" if change == "an option" else "")
    rows = sweep.sweep([folder], tmp_path / "out", steps, AtOnce)
    # What crashed is always tried again.
    assert sorted(calls) == sorted({*names} - {*known} | {"rate_c"})
    assert [row.model for row in rows if row.model] == names
    assert not log.exists()
    calls.clear()
    sweep.sweep([folder], tmp_path / "out", steps, AtOnce)
    assert sorted(calls) == sorted(names)


def test_what_a_machine_lacked_is_tried_again(folder, tmp_path):
    """As is what crashed; an interrupt before the first row leaves a report without any."""
    lacking, calls = [True], []

    def export(source, *, models, output, seed) -> Any:
        calls.append(models[0])
        if lacking[0] and models[0] in ("eq", "rate_a"):
            raise MissingRuntimeError("there is no compiler")
        return fake_export(source, models=models, output=output, seed=seed)

    def stop_at_last(row) -> None:
        rows.append(row)
        if len(rows) == 4:
            raise KeyboardInterrupt

    rows: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep([folder], tmp_path / "out", Steps(export), AtOnce, watch=lambda total: stop_at_last)
    lacking[0] = False
    calls.clear()
    verdicts = {r.model: r.archive.verdict for r in sweep.sweep([folder], tmp_path / "out", Steps(export), AtOnce)}
    assert sorted(calls) == ["eq", "rate_a", "rate_c"]
    assert verdicts["eq"] == verdicts["rate_a"] == "verified"
    (folder / "broken.i").unlink()

    def interrupt(source, **_) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.sweep([folder], tmp_path / "out", Steps(interrupt), AtOnce)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["models"] == []


def test_an_interrupt_does_not_wait_for_a_process_that_goes_on(folder, tmp_path):
    def interrupt(row) -> None:
        raise KeyboardInterrupt

    (folder / "broken.i").unlink()
    start, pools = time.perf_counter(), make_pool_factory(2)
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep([folder], tmp_path / "out", Steps(goes_on_at_rate_b), pools, watch=lambda total: interrupt)
    assert time.perf_counter() - start < DEAF_SECONDS / 2
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [m["verdict"] for m in report["models"]] == ["verified"]


def test_nothing_to_sweep(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        sweep.find_tasks([tmp_path / "none"], tmp_path, 0)
    with pytest.raises(UsageError, match="no input file"):
        sweep.find_tasks([tmp_path], tmp_path, 0)


def test_a_pool_ends_after_a_few_models(folder, tmp_path, monkeypatch):
    """torch keeps every graph that a process traced."""
    monkeypatch.setattr(sweep, "TASKS_PER_PROCESS", 2)
    pools: list[list[str]] = []

    class Counted(AtOnce):
        def __init__(self) -> None:
            pools.append([])

        def submit(self, fn, /, *args, **kwargs):
            pools[-1].append(args[0].model)
            return super().submit(fn, *args, **kwargs)

    rows = sweep.sweep([folder], tmp_path / "out", Steps(fake_export), Counted)
    models = [row.model for row in rows if row.model]
    assert len(models) > 2
    assert [len(pool) for pool in pools] == [2] * (len(models) // 2) + [1] * (len(models) % 2)
    assert sorted(name for pool in pools for name in pool) == sorted(models)
