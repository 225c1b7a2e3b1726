"""What an early end removes, and what the next process does of an earlier one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT

from exporter.common import temporary_folders
from exporter.common.atomic_files import atomic_write_folder, atomic_write_path
from exporter.common.forking import run_in_fork
from exporter.common.temporary_folders import remove_temporary_paths, temporary_folder


def test_what_is_listed_is_removed_and_nothing_else(tmp_path):
    (tmp_path / "other.txt").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept.txt").touch()
    with contextlib.ExitStack() as contexts:
        folder = contexts.enter_context(temporary_folder(parent=tmp_path))
        file = contexts.enter_context(atomic_write_path(tmp_path / "a" / "b" / "m.pt"))
        replaced = contexts.enter_context(atomic_write_folder(tmp_path / "old", "last", list))
        (folder / "calls.pt").touch()
        file.write_bytes(b"half")
        (replaced / "kernel.c").touch()
        remove_temporary_paths()
        left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")}
        # This process would end here.
        contexts.pop_all()
    assert left == {"other.txt", "old", "old/kept.txt"}


def test_what_is_done_is_listed_no_more(tmp_path):
    with atomic_write_path(tmp_path / "m.pt") as file:
        file.write_bytes(b"whole")
    remove_temporary_paths()
    assert (tmp_path / "m.pt").read_bytes() == b"whole"


DIES = """
import contextlib, os, sys
from pathlib import Path
from exporter.common.atomic_files import atomic_write_folder, atomic_write_path
from exporter.common.temporary_folders import temporary_folder
place = Path(sys.argv[1])
with contextlib.ExitStack() as contexts:
    contexts.enter_context(temporary_folder(parent=place)).joinpath("calls.pt").touch()
    contexts.enter_context(atomic_write_path(place / "m.pt")).write_bytes(b"half")
    contexts.enter_context(atomic_write_folder(place / "kernel", "last", list)).joinpath("m.c").touch()
    print("ready", flush=True)
    sys.stdin.readline()
"""


def list_hidden(place: Path) -> set[str]:
    paths = place.rglob("*")
    return {str(path.relative_to(place)) for path in paths if path.name.startswith((".", "torchferry-"))}


def use_all(place: Path) -> set[str]:
    """What is hidden in a place after a process has used it."""
    with temporary_folder(parent=place), atomic_write_path(place / "other.pt"):
        pass
    with atomic_write_folder(place / "kernel", "last", list):
        pass
    return list_hidden(place)


def test_the_next_process_removes_what_a_killed_one_has_left(tmp_path):
    command = [sys.executable, "-c", DIES, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (tmp_path / ".mine.tmp").touch()
        (tmp_path / "torchferry-mine").mkdir()
        left = list_hidden(tmp_path)
        # Of a process that lives nothing is removed.
        assert run_in_fork(use_all, tmp_path) == left
        process.kill()
        process.wait()
    assert len(left) == 5
    assert run_in_fork(use_all, tmp_path) == {".mine.tmp", "torchferry-mine"}


def test_two_writers_of_one_file(tmp_path):
    """Each writes a file of its own; the last one stays, whole."""
    path = tmp_path / "m.pt"
    with atomic_write_path(path) as mine, atomic_write_path(path) as other:
        mine.write_bytes(b"mine")
        other.write_bytes(b"other")
    assert path.read_bytes() == b"mine"
    assert list_hidden(tmp_path) == set()


def test_a_name_that_somebody_else_owns_stays(tmp_path, monkeypatch):
    name = f"torchferry-{temporary_folders._HOST}00000000"
    (tmp_path / name).mkdir()
    monkeypatch.setattr(temporary_folders.os, "getuid", lambda: 12345)
    assert run_in_fork(use_all, tmp_path) == {name}


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_of_ours_stays(kind, tmp_path):
    """A link leads elsewhere, and nobody may wait for the other end of a pipe."""
    target, path = tmp_path / "target", tmp_path / f".torchferry-{temporary_folders._HOST}00000000.tmp"
    target.write_text("kept")
    if kind == "link":
        path.symlink_to(target)
    else:
        os.mkfifo(path)
    run_in_fork(use_all, tmp_path)
    assert target.read_text() == "kept"
    # A link is not followed; a pipe is a file of ours, which nobody holds.
    assert path.is_symlink() == (kind == "link")


@pytest.mark.parametrize(
    "name", [".notes.txt.1a2b3c4d.tmp", ".torchferry-1a2b3c4d.tmp", ".torchferry-00000000ffffffff.tmp", ".1a2b3c4d.tmp"]
)
@pytest.mark.parametrize("is_folder", [True, False])
def test_files_of_other_programs_and_hosts_stay(name, is_folder, tmp_path):
    path = tmp_path / name
    if is_folder:
        path.mkdir()
        (path / "a").touch()
    else:
        path.touch()
    left = run_in_fork(use_all, tmp_path)
    assert left == {name}
