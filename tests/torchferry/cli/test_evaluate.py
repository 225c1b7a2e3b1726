"""``torchferry evaluate`` as its user types it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from data_sets import RETURN_MAP, make_steps, read_results, write_data
from project import ROOT, mark_thorough_after

from torchferry.cli import app

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "exporter", "evaluate", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def run(*arguments: object) -> tuple[int, str, str]:
    with start(*arguments) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "steps.parquet", make_steps(100))


def test_what_is_said_of_the_results(tmp_path, data):
    out = tmp_path / "out.parquet"
    arguments = ("--vary", "newton.max_its=1,25", "--chunk", 50, "--failures", tmp_path / "failed.pt")
    code, text, _ = run(RETURN_MAP, data, "-o", out, *arguments)
    assert code == 0
    failed = int((read_results(out)["status"] != 0).sum())
    assert f"{failed} elements: the maximum number of iterations was reached" in text
    assert f"torchferry run --replay {tmp_path / 'failed.pt'}" in text
    assert f"wrote {out}: 200 elements" in text
    replayed = subprocess.run(
        [sys.executable, "-m", "exporter", "run", str(RETURN_MAP), "--replay", str(tmp_path / "failed.pt")],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert replayed.returncode == 0
    assert "iteration" in replayed.stdout


def test_json_and_a_picture(tmp_path, data):
    arguments = ("--vary", "residual.hardening=1e3:1e5:5:log", "--vary", "ep~1=0,0.1", "--json")
    picture = ("--plot", tmp_path / "study.svg", "--curve", "stress[0]", "--curve", "ep:ep~1")
    code, text, _ = run(RETURN_MAP, data, "-o", tmp_path / "out.zarr", *arguments, *picture)
    assert code == 0
    assert json.loads(text)["summary"]["elements"] == 1000
    # matplotlib writes each text as a comment too: a panel over each of what is varied.
    drawn = (tmp_path / "study.svg").read_text()
    for label in ("stress[0]", "residual.hardening", "ep", "ep~1"):
        assert f"<!-- {label} -->" in drawn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "out.csv"], "no format of this suffix"),
        (["-o", "out.zarr", "--scheduler", "many"], "no such scheduler"),
        (["-o", "out.zarr", "--vary", "ep~1"], "not understood"),
        (["-o", "out.zarr", "--vary", "ep~1=1", "--vary", "ep~1=2"], "varied twice"),
        (["-o", "out.zarr", "--name", "strain"], "a name is not understood"),
        (["-o", "out.zarr", "--plot", "a.svg"], "nothing varied to draw over"),
        (["-o", "out.parquet", "--plot", "a.svg", "--vary", "ep~1=1"], "a table is not drawn"),
        (["-o", "out.zarr", "--plot", "a.svg", "--vary", "ep~1=1", "--curve", "eps:ep~1"], "no variable 'eps'"),
        (["-o", "out.zarr", "--plot", "a.svg", "--vary", "ep~1=1", "--curve", "ep:strain"], "'strain' is not varied"),
        (["-o", "out.zarr", "--failures", "steps.parquet"], "over another one of this command"),
        (["-o", "out.zarr", "--curve", "ep", "--vary", "ep~1=1"], "curves need a picture"),
        (["-o", "out.zarr", "--method", "backward"], "no method 'backward'"),
        (["-o", "out.zarr", "--engine", "auto"], "no such engine"),
        (["-o", "out.zarr", "--keep", "absent"], "no variable 'absent'"),
    ],
)
def test_wrong_arguments(tmp_path, data, arguments, message, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    code = app.run(["evaluate", str(RETURN_MAP), str(data), *arguments])
    out, err = capfd.readouterr()
    assert (code, out.strip()) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before


def test_a_damaged_file(tmp_path, data, capfd):
    path = Path(shutil.copy(RETURN_MAP, tmp_path))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("archive/extra/stowaway", "x")
    assert app.run(["evaluate", str(path), str(data), "-o", str(tmp_path / "out.zarr")]) == 4
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("scheduler", mark_thorough_after(1, ["threads:2", "processes:2"]))
def test_an_interrupt_keeps_what_is_finished(tmp_path, scheduler):
    data = write_data(tmp_path / "many.zarr", make_steps(3_000))
    out = tmp_path / "out.zarr"
    arguments = (RETURN_MAP, data, "-o", out, "--chunk", 10, "--scheduler", scheduler)
    log = tmp_path / "out.zarr.unfinished" / "chunks.jsonl"
    with start(*arguments) as process:
        end = time.monotonic() + 100
        while time.monotonic() < end and not (log.exists() and log.read_text().count("\n") > 5):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "of 300 chunks are kept: the same command goes on" in err
    assert not out.exists()
    code, text, err = run(*arguments[:-1], "threads")
    assert code == 0, err
    assert "chunks kept from before" in text


@pytest.mark.parametrize("scheduler", ["threads", "processes:1"])
def test_what_computes_is_confined(tmp_path, data, scheduler):
    """A worker that writes elsewhere is stopped; the control is that it is found to try."""
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    results = tmp_path / "results"
    results.mkdir()
    source = f"""
import sys
from pathlib import Path
from runtime_checks.evaluation import chunk_evaluation
def intrude(self, inputs, evaluate=chunk_evaluation.Evaluator.evaluate):
    try:
        Path({str(outside)!r}, "found").touch()
    except OSError as error:
        Path({str(results)!r}, "stopped").write_text(str(error))
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/status")]
    # What no thread can undo comes with what confines it.
    Path({str(results)!r}, "free").write_text(str(sum("NoNewPrivs:\\t1" not in text for text in threads)))
    return evaluate(self, inputs)
chunk_evaluation.Evaluator.evaluate = intrude
if __name__ == "__main__":
    from torchferry.cli.app import run
    sys.exit(run(["evaluate", {str(RETURN_MAP)!r}, {str(data)!r}, "-o", {str(results / "out.zarr")!r},
                  "--scheduler", {scheduler!r}]))
"""
    script = tmp_path / "intruder.py"
    script.write_text(source)
    command: list[Any] = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "Permission denied" in (results / "stopped").read_text()
    assert (results / "free").read_text() == "0"
    assert not list(outside.iterdir())
