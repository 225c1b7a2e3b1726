"""Commands that are killed: no half of a file, and nothing left of them after the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from project import ROOT, mark_rest_thorough

from exporter.archive.formats import FORMATS, infer_format

EXPORT = (
    "export",
    str(ROOT / "examples" / "solvers" / "decay.py") + ":make_model",
    "-o",
    "decay.pt",
    "--format",
    "pt,c",
)
CONVERT = ("convert", str(ROOT / "artifacts" / "robertson.pt"), "--to", "c", "-o", "robertson")


def start(place: Path, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place / "temporary")}
    where = subprocess.DEVNULL
    line = [sys.executable, "-m", "exporter", *command]
    return subprocess.Popen(
        line, cwd=place / "work", env=environment, stdout=where, stderr=where, start_new_session=True
    )


def wait_for_session(number: int) -> None:
    """Wait for all that a command has started: what outlives it for long would hold its files."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        done = subprocess.run(["ps", "-s", str(number), "-o", "stat="], capture_output=True, text=True, check=False)
        if not [line for line in done.stdout.split() if not line.startswith("Z")]:
            return
        time.sleep(0.05)
    raise AssertionError("a process outlives its command")


def list_files(place: Path) -> list[Path]:
    """Complete files and folders of this place, each read with all its digests."""
    finished = [path for path in (place / "work").iterdir() if not path.name.startswith(".")]
    for path in finished:
        # A folder in which nothing is yet was made for files that are to come.
        if path.is_file() or [file for file in path.iterdir() if not file.name.startswith(".")]:
            FORMATS[infer_format(path) or "none"].read(path)
    return finished


def list_leftovers(place: Path) -> list[str]:
    hidden = (place / "work").rglob(".*")
    return [path.name for path in (*hidden, *(place / "temporary").glob("torchferry-*"))]


@pytest.mark.parametrize(("command", "count"), mark_rest_thorough([(CONVERT, 1)], [(EXPORT, 50), (CONVERT, 50)]))
def test_kills_leave_no_half_of_a_file(command, count, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "temporary").mkdir()
    begun = time.monotonic()
    assert start(tmp_path, command).wait() == 0
    seconds = time.monotonic() - begun
    left = 0
    for number in range(count):
        process = start(tmp_path, command)
        # The first as soon as there is something to leave, the others at any time but the first half second.
        while number == 0 and not list_leftovers(tmp_path) and process.poll() is None:
            time.sleep(0.01)
        time.sleep((0.5 + (seconds - 0.5) * (number + 0.5) / count) if number else 0.0)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
        wait_for_session(process.pid)
        list_files(tmp_path)
        left += len(list_leftovers(tmp_path))
    # The control: a kill does leave something.
    assert left
    assert start(tmp_path, command).wait() == 0
    assert list_files(tmp_path)
    assert list_leftovers(tmp_path) == []
