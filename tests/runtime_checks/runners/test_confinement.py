"""The processes that run a file are kept from the rest of the machine."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kernel_host import resealed, write_hook
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


def attempt(folder: Path, outside: Path, port: int) -> tuple[dict[str, str], dict[str, list[str]]]:
    """What each attempt gives in a process that is confined to ``folder``, an error or nothing; and the report."""
    report = confinement.confine(str(folder))

    def outcome(action) -> str:
        try:
            action()
        except OSError as error:
            return type(error).__name__
        return ""

    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    outcomes = {
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
        "connect": outcome(lambda: socket.create_connection(("127.0.0.1", port), 1.0)),
    }
    return outcomes, report


def test_what_a_confined_process_can_do(tmp_path):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("as it was")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcomes, report = run_in_fork(attempt, folder, outside, port)
        # The control: this process reaches it.
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    assert outcomes["inside"] == outcomes["null"] == outcomes["read"] == ""
    for name in ("write", "make", "remove", "start"):
        assert outcomes[name] == "PermissionError", name
    assert outcomes["move"] in ("PermissionError", "OSError")
    assert outside.read_text() == "as it was"
    assert not outside.with_name("new").exists()
    assert (outcomes["signal"] == "PermissionError") == (landlockpy.abi_version() >= 6)
    is_cut_off = any(text.startswith("no network") for text in report["in force"])
    assert bool(outcomes["datagram"]) == is_cut_off
    # Landlock itself knows TCP from version 4 on.
    assert bool(outcomes["connect"]) == (is_cut_off or landlockpy.abi_version() >= 4)
    assert len(report["in force"]) + len(report["missing"]) >= 2


def attempt_with_devices(folder: Path, devices: bool) -> list[str]:
    """Return which of these files a confined process can write, while a thread of its own runs."""
    confinement.confine(str(folder), devices)
    with ThreadPoolExecutor(1) as pool:
        own = pool.submit(threading.get_native_id).result()
        files = [f"/proc/self/task/{own}/comm", "/proc/self/comm", f"/proc/{os.getppid()}/comm", "/dev/zero"]
        return [path for path in files if os.path.exists(path) and is_writable(path)]


def is_writable(path: str) -> bool:
    try:
        with open(path, "w") as file:
            file.write("a")
    except PermissionError:
        return False
    return True


def test_a_driver_of_gpus_can_write_what_it_needs(tmp_path):
    """It gives its threads names. The control: other processes, and other devices, stay out of reach."""
    written = run_in_fork(attempt_with_devices, tmp_path, True)
    assert [path.rpartition("/")[2] for path in written] == ["comm", "comm"]
    assert all(path.startswith("/proc/self/") for path in written)
    assert run_in_fork(attempt_with_devices, tmp_path, False) == []
    assert is_writable("/dev/zero")


@pytest.fixture
def path(runtime, request, tmp_path) -> Path:
    """A file that the runtime runs."""
    if runtime == "onnxruntime":
        pytest.importorskip("onnxruntime")
        return torchferry.convert(ROBERTSON, tmp_path / "robertson.onnx", to="onnx").path
    if runtime == "c":
        return request.getfixturevalue("solid").with_suffix("")
    return request.getfixturevalue("compiled_robertson") if runtime == "aoti" else ROBERTSON


@pytest.mark.parametrize("runtime", ["python", "libtorch", "interpreter", "onnxruntime", "c", "aoti"])
def test_every_runtime_is_confined(runtime, path):
    (leg,) = torchferry.verify(path, runtimes=runtime).legs
    report = leg.evidence["confinement"]
    assert any("Landlock" in text for text in report["in force"]), report
    (check,) = [c for c in leg.checks if c.check == "confinement"]
    assert check.verdict == (NOT_RUN if report["missing"] else PASSED)


@pytest.mark.parametrize("runtime", ["python", "libtorch", "interpreter", "onnxruntime", "c"])
def test_every_runtime_has_a_limit_of_memory(runtime, path):
    with pytest.raises(torchferry.ArchiveError, match=r"ended early|MemoryError"):
        torchferry.verify(path, runtimes=runtime, memory_limit=0.02)
    assert torchferry.verify(path, runtimes=runtime, memory_limit=8.0).passed


def test_an_older_system_is_said(monkeypatch, tmp_path):
    """Landlock grows by versions: what one does not know is no part of what it confines."""
    monkeypatch.setattr(landlockpy, "abi_version", lambda: 2)
    missing = run_in_fork(confinement.confine, str(tmp_path))["missing"]
    assert [text for text in missing if "Landlock 2 instead of" in text] == [
        "files outside can be cut short: Landlock 2 instead of 3",
        "processes outside can be signalled: Landlock 2 instead of 6",
    ]


def count_processes(folder: str, limit: int) -> tuple[int, dict[str, list[str]]]:
    """How many processes a user without privileges can make, of 40; and the report."""
    # It imports what that user cannot read.
    confinement.set_limits(2.0**40, 60)
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(*[65_534] * 3)
        os.setresuid(*[65_534] * 3)
    confinement._PROCESSES = limit
    report, children = confinement.confine(folder), list[int]()
    try:
        while len(children) < 40:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    except BlockingIOError:
        pass
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return len(children), report


def test_the_number_of_processes():
    """It is counted in a user namespace of the process's own: what else this user runs makes no difference."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        count, report = run_in_fork(count_processes, folder, 20)
        is_counted = "at most 20 processes and threads" in report["in force"]
        assert is_counted or any(text.startswith("the network") for text in report["missing"])
        assert (count < 20) == is_counted
        # The control.
        assert run_in_fork(count_processes, folder, 10_000)[0] == 40


def test_code_of_a_kernel_writes_nothing(solid, tmp_path):
    """What a stranger's kernel would do when it is loaded, had somebody asked for it; loaded here it does."""
    path, marker = Path(shutil.copytree(solid.with_suffix(""), tmp_path / "solid")), tmp_path / "ran"

    def change(files: dict[str, bytes]) -> None:
        files["make_model.c"] += write_hook(marker).encode()

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
        "package": subprocesses.find_package_folder(subprocesses.CONFINEMENT_PACKAGE),
    }
    command = [sys.executable, "-I", "-S", LAUNCHER, json.dumps(job), program, folder / "in", outside]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "10"
    assert any("Landlock" in text for text in json.loads(evidence.read_text())["in force"])


def confine_beside_a_thread(folder: str) -> list[str]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    missing = confinement.confine(folder)["missing"]
    end.set()
    thread.join()
    return missing


def test_threads_that_had_begun_before_are_said(tmp_path):
    assert "threads that had begun before are as they were: 1" in run_in_fork(confine_beside_a_thread, str(tmp_path))
    # The control.
    assert not any("threads" in text for text in run_in_fork(confinement.confine, str(tmp_path))["missing"])


def test_a_system_without_landlock_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "landlockpy", None)
    missing = run_in_fork(confinement.confine, str(tmp_path))["missing"]
    assert missing[-1] == "files and programs: landlockpy is not installed"


def test_a_report_says_what_was_not_in_force(monkeypatch):
    monkeypatch.setattr(subprocesses, "CONFINEMENT_PACKAGE", "no_such_package")
    with fork_server.shared_fork_server() as server:
        server.close()
        report = torchferry.verify(ROBERTSON)
    (check,) = [c for c in report.legs[0].checks if c.check == "confinement"]
    assert check.verdict == NOT_RUN
    assert "landlockpy is not installed" in check.detail
    assert report.passed


def test_the_file_runs_by_its_path():
    """The children run it so, without torchferry."""
    assert runpy.run_path(confinement.__file__)["confine"]
