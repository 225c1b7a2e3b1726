"""What a machine does to a command: nothing is lost, and what is wrong is said."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from native_build import verify_natively
from project import ROOT, mark_rest_thorough

import torchferry
from exporter.archive import kernel_container, pt_archive
from runtime_checks.native_code import record_own_code

DECAY = str(ROOT / "examples" / "solvers" / "decay.py") + ":make_model"
ROBERTSON = ROOT / "artifacts" / "robertson.pt"


def start(place: Path, *words: object, **variables: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    pipe = subprocess.PIPE
    line = [sys.executable, "-m", "exporter", *map(str, words)]
    return subprocess.Popen(line, cwd=place, env=environment, stdout=pipe, stderr=pipe, text=True)


def command(place: Path, *words: object, **variables: str) -> tuple[int, str]:
    process = start(place, *words, **variables)
    _, errors = process.communicate(timeout=200)
    assert "Traceback" not in errors
    return process.returncode, errors


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.thorough
def test_two_exports_of_one_file(tmp_path):
    """Each is whole, the last one stays, and neither has anything of the other."""
    processes = [start(tmp_path, "export", DECAY, "-o", "decay.pt", HOME=str(tmp_path)) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    pt_archive.read(tmp_path / "decay.pt").cases()
    assert [name for name in list_names(tmp_path) if not name.startswith(".cache")] == ["decay.pt"]


@pytest.mark.thorough
def test_without_a_home(tmp_path):
    """The password file says where it is."""
    assert command(tmp_path, "export", DECAY, "-o", "decay.pt")[0] == 0
    assert command(tmp_path, "verify", "decay.pt")[0] == 0


@pytest.mark.thorough
def test_a_home_that_is_no_place(tmp_path):
    """What lies below the folder that one works in may be somebody else's, also a record of native code."""
    assert command(tmp_path, "export", DECAY, "-o", "decay.pt", HOME="here")[0] == 0
    code, errors = command(tmp_path, "export", DECAY, "-o", "kernel", "--format", "c", HOME="here")
    assert code == 6
    assert "an absolute path" in errors
    assert list_names(tmp_path) == ["decay.pt"]


def test_a_record_below_the_folder_one_works_in_counts_for_nothing(solid, tmp_path, monkeypatch):
    without_home = {"TORCHFERRY_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "here"}
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as change:
        change.setenv("TORCHFERRY_CACHE", str(tmp_path / "here" / ".cache" / "torchferry"))
        record_own_code(kernel_container.read(solid.with_suffix("")))
    code, report = verify_natively(solid, "--engine", "kernel", **without_home)
    assert (code, report["engine"]) == (0, "torchscript")
    assert "no place for the cache" in report["warnings"][0]
    for variable, value in without_home.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(torchferry.MissingRuntimeError, match="no place for the cache"):
        torchferry.load(solid.with_suffix(""))


@pytest.mark.thorough
def test_a_cache_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    cache = str(tmp_path / "file" / "cache")
    assert command(tmp_path, "export", DECAY, "-o", "decay.pt", TORCHFERRY_CACHE=cache)[0] == 0
    code, errors = command(tmp_path, "export", DECAY, "-o", "kernel", "--format", "c", TORCHFERRY_CACHE=cache)
    assert code == 6
    assert "TORCHFERRY_CACHE" in errors
    assert list_names(tmp_path) == ["decay.pt", "file"]


def test_a_cache_that_others_can_write(tmp_path):
    cache = tmp_path / "cache"
    (cache / "kernels").mkdir(parents=True)
    (cache / "kernels").chmod(0o777)
    code, errors = command(tmp_path, "export", DECAY, "-o", "kernel", "--format", "c", TORCHFERRY_CACHE=str(cache))
    assert code == 4
    assert "others can write" in errors
    assert list_names(tmp_path) == ["cache"]


# The words of a shell: a disk of its own for one folder, a command, and what is there at its end.
SMALL_DISK = 'mount -t tmpfs -o size=$0 none "$1" && shift && "$@"; echo "code $?"; find out -mindepth 1'


def run_on_a_small_disk(place: Path, folder: str, size: str, *words: object) -> tuple[int, str, list[str]]:
    """Run a command with ``folder`` (out, temporary or cache) on a disk of this size; return its exit code, what it
    printed, and the files that are in ``out`` afterwards."""
    for name in ("out", "temporary", "cache"):
        (place / name).mkdir()
    places = {"TMPDIR": str(place / "temporary"), "TORCHFERRY_CACHE": str(place / "cache")}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(place), **places}
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, size, folder]
    line = [*own_mounts, sys.executable, "-m", "exporter", *map(str, words)]
    done = subprocess.run(line, cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if "code " not in done.stdout or "mount:" in done.stderr:
        pytest.skip(f"this user cannot mount a disk in memory: {done.stderr.strip()}")
    printed, _, end = done.stdout.rpartition("code ")
    code, *files = end.split()
    return int(code), printed + done.stderr, files


EXPORT = ("export", DECAY, "-o", "out/decay.pt", "--format", "pt,c")
DIFF = ("diff", ROBERTSON, ROBERTSON, "--run")
ONNX, PT2 = (("convert", ROBERTSON, "--to", f, "-o", f"out/m.{f}") for f in ("onnx", "pt2"))


@pytest.mark.parametrize(
    ("folder", "size", "words", "code", "mend"),
    mark_rest_thorough(
        [("out", "8k", EXPORT, 2, "free disk space"), ("temporary", "8k", DIFF, 4, "TMPDIR")],
        [
            ("out", "20k", ONNX, 2, "free disk space"),
            ("out", "60k", PT2, 2, "free disk space"),
            ("cache", "8k", EXPORT, 6, "TORCHFERRY_CACHE"),
            ("cache", "20k", PT2, 6, "TORCHFERRY_CACHE"),
            ("temporary", "8k", EXPORT, 2, "TMPDIR"),
        ],
    ),
)
def test_a_full_disk(folder, size, words, code, mend, tmp_path):
    got, printed, files = run_on_a_small_disk(tmp_path, folder, size, *words)
    assert (got, files) == (code, []), printed
    assert mend in printed
    assert "Traceback" not in printed


@pytest.mark.thorough
def test_a_disk_that_is_large_enough(tmp_path):
    """The control."""
    code, _, files = run_on_a_small_disk(tmp_path, "out", "1m", *EXPORT)
    assert (code, {"out/decay.pt", "out/decay/manifest.json"} <= set(files)) == (0, True)


@pytest.mark.thorough
@pytest.mark.parametrize("words", [EXPORT, ("convert", ROBERTSON, "--to", "c", "-o", "out/kernel")])
def test_a_folder_that_nobody_may_write_to(words, tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    if os.access(tmp_path / "out", os.W_OK):
        pytest.skip("root may write everywhere")
    code, errors = command(tmp_path, *words, HOME=str(tmp_path))
    assert (code, list_names(tmp_path / "out")) == (2, [])
    assert "Permission denied" in errors


@pytest.mark.thorough
def test_links_in_the_way(tmp_path):
    """The file behind a link is replaced, and the link stays; a circle of links is said."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "old.pt").write_text("old")
    (tmp_path / "link.pt").symlink_to(tmp_path / "data" / "old.pt")
    (tmp_path / "new.pt").symlink_to(tmp_path / "data" / "new.pt")
    (tmp_path / "circle.pt").symlink_to(tmp_path / "circle.pt")
    for name, target in (("link.pt", "old.pt"), ("new.pt", "new.pt")):
        assert command(tmp_path, "export", DECAY, "-o", name)[0] == 0
        assert (tmp_path / name).is_symlink()
        pt_archive.read(tmp_path / "data" / target)
    code, errors = command(tmp_path, "export", DECAY, "-o", "circle.pt")
    assert code == 2, errors
    assert list_names(tmp_path / "data") == ["new.pt", "old.pt"]


def test_a_temporary_folder_that_is_not_there(tmp_path):
    """Python takes another one."""
    assert command(tmp_path, "verify", ROBERTSON, TMPDIR=str(tmp_path / "none"))[0] == 0


def test_a_clock_that_jumps(tmp_path, monkeypatch):
    """Limits are measured by a clock that nobody sets."""
    real = time.time
    calls = []

    def jumping() -> float:
        calls.append(1)
        return real() + (-(10**6) if len(calls) % 2 else 10**6)

    monkeypatch.setattr(time, "time", jumping)
    torchferry.export(DECAY, output=tmp_path / "decay.pt")
    assert torchferry.verify(tmp_path / "decay.pt", time_limit=60.0).passed
