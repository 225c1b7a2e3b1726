"""The processes that run a file are kept from the rest of the machine."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_host import resealed
from project import ROOT

import torchferry
from exporter.common.forking import run_in_fork
from runtime_checks.report import NOT_RUN, PASSED
from runtime_checks.runners import fork_server, subprocesses
from runtime_checks.runners.children import confinement
from runtime_checks.runners.libtorch_runner import LAUNCHER

landlockpy = pytest.importorskip("landlockpy", reason="Landlock is Linux's")
pytestmark = pytest.mark.skipif(landlockpy.abi_version() == 0, reason="this kernel has no Landlock")
ROBERTSON = ROOT / "artifacts" / "robertson.pt"


def attempt(folder: Path, outside: Path) -> dict[str, str]:
    """What each attempt gives in a process that is confined to ``folder``: its error, or an empty text."""
    in_force = confinement.confine(str(folder))

    def outcome(action) -> str:
        try:
            action()
        except OSError as error:
            return type(error).__name__
        return ""

    import socket

    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    return {
        "inside": outcome(lambda: (folder / "a").write_text("a")),
        "null": outcome(lambda: Path(os.devnull).write_text("a")),
        "read": outcome(outside.read_text),
        "write": outcome(lambda: outside.write_text("changed")),
        "make": outcome(lambda: outside.with_name("new").touch()),
        "remove": outcome(outside.unlink),
        "move": outcome(lambda: outside.rename(folder / "b")),
        "start": outcome(lambda: subprocess.run([sys.executable, "--version"], check=True)),
        "signal": outcome(lambda: os.kill(os.getppid(), 0)),
        "datagram": outcome(lambda: datagram.sendto(b"a", ("192.0.2.1", 9))),
        "connect": outcome(lambda: socket.create_connection(("127.0.0.1", 9), 1.0)),
        **in_force,
    }


def test_what_a_confined_process_can_do(tmp_path):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("as it was")
    outcomes = run_in_fork(attempt, folder, outside)
    assert outcomes["inside"] == outcomes["null"] == outcomes["read"] == ""
    for name in ("write", "make", "remove", "start", "signal"):
        assert outcomes[name] == "PermissionError", name
    assert outcomes["move"] in ("PermissionError", "OSError")
    assert outside.read_text() == "as it was"
    assert [path.name for path in tmp_path.iterdir() if path.name == "new"] == []
    if outcomes["network"].startswith("no network"):
        assert outcomes["datagram"] == "OSError"
    assert outcomes["connect"]


@pytest.mark.parametrize("runtime", ["python", "libtorch", "onnxruntime", "c", "aoti"])
def test_every_runtime_is_confined(runtime, request, tmp_path):
    path = ROBERTSON
    if runtime == "onnxruntime":
        pytest.importorskip("onnxruntime")
        path = torchferry.convert(ROBERTSON, tmp_path / "robertson.onnx", to="onnx").path
    if runtime == "c":
        path = request.getfixturevalue("solid").with_suffix("")
    if runtime == "aoti":
        path = request.getfixturevalue("compiled_robertson")
    (leg,) = torchferry.verify(path, runtimes=runtime).legs
    files = leg.evidence["confinement"]["files"]
    assert "Landlock" in files, files
    (check,) = [c for c in leg.checks if c.check == "confinement"]
    assert check.verdict == (PASSED if leg.evidence["confinement"]["network"].startswith("no") else NOT_RUN)


HOOK = """
#include <stdio.h>
__attribute__((constructor)) static void at_load(void) {{
  FILE* file = fopen("{marker}", "w");
  if (file) fclose(file);
}}
"""


def test_code_of_a_kernel_writes_nothing(solid, tmp_path):
    """What a stranger's kernel would do when it is loaded, had somebody asked for it; loaded here it does."""
    path, marker = Path(shutil.copytree(solid.with_suffix(""), tmp_path / "solid")), tmp_path / "ran"

    def change(files: dict[str, bytes]) -> None:
        files["make_model.c"] += HOOK.format(marker=marker).encode()

    resealed(path, change)
    torchferry.verify(path, trust="native")
    assert not marker.exists()
    torchferry.load(path, trust="native")
    assert marker.exists()


def test_a_program_in_place_of_the_launcher(tmp_path):
    """It is started, with its arguments, and can write to its folder alone."""
    folder, outside, evidence = tmp_path / "folder", tmp_path / "outside", tmp_path / "folder" / "evidence.json"
    folder.mkdir()
    source, program = tmp_path / "a.c", tmp_path / "a"
    source.write_text(
        "#include <stdio.h>\nint main(int count, char** words) {\n"
        '  for (int i = 1; i < count; ++i) printf("%d", fopen(words[i], "w") != NULL);\n  return 0;\n}\n'
    )
    subprocess.run(["cc", source, "-o", program], check=True)
    job = {
        **{"folder": str(folder), "evidence": str(evidence), "devices": False, "memory": 2**30, "seconds": 60},
        "package": subprocesses.find_package_folder(subprocesses.CONFINES),
    }
    command = [sys.executable, "-I", "-S", LAUNCHER, json.dumps(job), program, folder / "in", outside]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "10"
    assert "Landlock" in json.loads(evidence.read_text())["files"]


def test_a_system_without_landlock_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "landlockpy", None)
    assert run_in_fork(confinement.confine, str(tmp_path))["files"] == "not confined: landlockpy is not installed"


def test_a_report_says_what_was_not_in_force(monkeypatch):
    monkeypatch.setattr(fork_server, "CONFINES", "no_such_package")
    with fork_server.shared_fork_server() as server:
        server.close()
        report = torchferry.verify(ROBERTSON)
    (check,) = [c for c in report.legs[0].checks if c.check == "confinement"]
    assert check.verdict == NOT_RUN
    assert "not confined: landlockpy is not installed" in check.detail
    assert report.passed


def test_the_file_runs_by_its_path():
    """The children run it so, without torchferry."""
    assert runpy.run_path(confinement.__file__)["confine"]


@pytest.mark.parametrize("runtime", ["python", "libtorch", "onnxruntime", "c"])
def test_every_runtime_has_a_limit_of_memory(runtime, request, tmp_path):
    path = ROBERTSON
    if runtime == "onnxruntime":
        pytest.importorskip("onnxruntime")
        path = torchferry.convert(ROBERTSON, tmp_path / "robertson.onnx", to="onnx").path
    if runtime == "c":
        path = request.getfixturevalue("solid").with_suffix("")
    with pytest.raises(torchferry.ArchiveError, match=r"ended early|MemoryError"):
        torchferry.verify(path, runtimes=runtime, memory_limit=0.02)
    assert torchferry.verify(path, runtimes=runtime, memory_limit=8.0).passed
