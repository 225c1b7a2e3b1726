"""Calls of functions in a confined process: what they can do, how they end, and what of their answer is believed."""

from __future__ import annotations

import importlib
import inspect
import io
import mmap
import os
import pickle
import re
import signal
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from early_ends import raise_bug, raise_usage_error, wait_for_ever

from exporter.archive.contract import Finding
from exporter.common.atomic_files import atomic_write_path
from exporter.common.errors import ArchiveError, RunError, UnsoundError, UsageError
from exporter.common.forking import tell_parent
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.report import CheckResult, Report
from runtime_checks.runners import confined_calls
from runtime_checks.runners.confined_calls import Confinement, ConfinementWarning, call_confined

landlockpy = pytest.importorskip("landlockpy", reason="Landlock is Linux's")
pytestmark = pytest.mark.skipif(landlockpy.abi_version() == 0, reason="this kernel has no Landlock")
FILE = Path("model.pt")


def test_the_result_comes_back():
    result = {"a": (1, 2.5, "text"), "path": Path("x"), "check": CheckResult("c", "passed", 1)}
    assert call_confined(lambda: result, Confinement(FILE)) == result


def test_what_is_told_is_heard():
    heard = []

    def work() -> int:
        tell_parent("half")
        return 1

    assert call_confined(work, Confinement(FILE), heard.append) == 1
    assert heard == ["half"]


def test_it_writes_to_its_outputs_alone(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "folder" / "inside"
    inside.parent.mkdir()

    def work() -> str:
        inside.touch()
        try:
            outside.touch()
        except OSError as error:
            return type(error).__name__
        return ""

    assert call_confined(work, Confinement(FILE, (inside,))) == "PermissionError"
    assert (inside.exists(), outside.exists()) == (True, False)
    # The control: within a confined process no other one is made, and here nothing is confined.
    assert work() == ""


def test_a_call_inside_a_call_is_a_call():
    def work() -> bool:
        return call_confined(os.getpid, Confinement(FILE)) == os.getpid()

    assert call_confined(work, Confinement(FILE))
    assert not work()


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (raise_usage_error, UsageError, "this is not meant so"),
        (raise_bug, RuntimeError, "KeyError: 'a bug'"),
        (lambda: torch.empty(10**13), ArchiveError, "raise --memory-limit"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), RunError, "signal 9, Killed"),
        (lambda: os._exit(7), RunError, "exit code 7"),
        (wait_for_ever, RunError, "raise --time-limit"),
    ],
    ids=["usage", "bug", "memory", "signal", "exit", "time"],
)
def test_how_it_ends(work, error, message):
    with pytest.raises(error, match=message):
        call_confined(work, Confinement(FILE, time_limit=1.0))


class Acts:
    """What a process that a file took over would send."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        ("exporter.common.forking", "os.system"),
        ("exporter.common.forking", "fork"),
    ],
)
def test_an_answer_names_nothing_else(module, attribute):
    text = b"\x80\x04\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(attribute)])
    with pytest.raises(pickle.UnpicklingError, match="the answer of a confined process names"):
        confined_calls._AnswerReader(io.BytesIO(text + attribute.encode() + b"\x93.")).load()


def test_an_answer_that_changes_a_class():
    """Each later report would have passed."""
    text = pickle.dumps(Report)[:-1] + pickle.dumps((None, {"passed": True}), 4)[2:-1] + b"b."
    text = re.sub(rb"\x80\x04\x95.{8}", b"\x80\x04", text, count=1, flags=re.DOTALL)
    text = re.sub(rb"\x95.{8}", b"", text, flags=re.DOTALL)
    with pytest.raises(pickle.UnpicklingError, match="changes what is no new object"):
        confined_calls._AnswerReader(io.BytesIO(text)).load()
    assert isinstance(vars(Report)["passed"], property)


def test_an_error_comes_back_whole(monkeypatch):
    """However another library has exceptions pickled."""

    def work() -> None:
        error = UnsoundError("what", check="c", where="w", got="g", expected="e", mend="m")
        error.findings = (Finding("c", "what"),)
        # As torch does.
        vars(error)["real_stack"] = traceback.extract_stack()
        raise error

    monkeypatch.setattr(UnsoundError, "__reduce_ex__", lambda self, protocol: (print, ()))
    with pytest.raises(UnsoundError, match="what") as caught:
        call_confined(work, Confinement(FILE))
    assert (caught.value.details["mend"], caught.value.findings) == ("m", (Finding("c", "what"),))


@pytest.mark.parametrize("way", ["listener", "interrupt"])
def test_an_early_end_leaves_nothing(way, tmp_path):
    def work() -> None:
        with atomic_write_path(tmp_path / "new" / "file"):
            tell_parent("it is there")
            time.sleep(60)

    def hear(value: object) -> None:
        assert list((tmp_path / "new").iterdir())
        raise KeyboardInterrupt if way == "interrupt" else KeyError("of the listener's")

    with temporary_folder(parent=tmp_path) as of_this_process:
        with pytest.raises((KeyboardInterrupt, KeyError)):
            call_confined(work, Confinement(FILE, (tmp_path / "new" / "file",)), hear)
        assert list(tmp_path.iterdir()) == [of_this_process]


def test_memory_of_the_process_around_it_does_not_count():
    """Drivers of GPUs take hundreds of GiB of addresses."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    with mmap.mmap(-1, 40 * 2**30, flags=flags):
        numbers = 2**26
        assert call_confined(lambda: torch.ones(numbers).numel(), Confinement(FILE, memory_limit=2.0)) == numbers
        # The control.
        with pytest.raises(ArchiveError, match="raise --memory-limit"):
            call_confined(lambda: torch.empty(2**32), Confinement(FILE, memory_limit=2.0))


def test_a_gpu_that_the_process_around_it_uses_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert call_confined(torch.cuda.is_available, Confinement(FILE))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not call_confined(lambda: torch.cuda.is_available() or torch.cuda.device_count(), Confinement(FILE))
    assert call_confined(torch.cuda.is_available, Confinement(FILE, has_devices=True))


def test_torch_compiles_among_the_temporary_files(monkeypatch):
    """Whatever this process has compiled before, and wherever."""
    inductor = importlib.import_module("torch._inductor.codecache")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")

    def find_places() -> tuple[str, ...]:
        return tempfile.gettempdir(), inductor._HEADER_DIR, inductor._HEADER_LOCK_DIR, inductor.cache_dir()

    folder, *places = call_confined(find_places, Confinement(FILE, programs=None))
    assert all(Path(place).is_relative_to(folder) for place in places)
    assert folder != tempfile.gettempdir()
    # What the module has now is what torch writes to.
    assert {"_HEADER_DIR", "_HEADER_LOCK_DIR"} <= vars(inductor).keys()
    assert "specified_dir=_HEADER_DIR" in inspect.getsource(inductor._precompile_header)


def test_an_answer_that_is_too_long(monkeypatch):
    assert len(call_confined(lambda: "a" * 1000, Confinement(FILE))) == 1000
    assert confined_calls._ConfinedCall._most_bytes == 2**28
    monkeypatch.setattr(confined_calls._ConfinedCall, "_most_bytes", 500)
    with pytest.raises(RunError, match="ended early"):
        call_confined(lambda: "a" * 1000, Confinement(FILE))


def test_what_lies_beside_a_link(tmp_path):
    for name in ("links", "real"):
        (tmp_path / name).mkdir()
    link = tmp_path / "links" / "a"
    link.symlink_to(tmp_path / "real" / "a")
    call_confined(lambda: [p.touch() for p in (link, link.with_suffix(".b"))] and None, Confinement(FILE, (link,)))
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["a", "a", "a.b"]


def test_an_answer_that_acts(tmp_path):
    with pytest.raises(pickle.UnpicklingError, match=r"names posix\.mkdir"):
        call_confined(lambda: Acts(tmp_path / "made"), Confinement(FILE))
    assert list(tmp_path.iterdir()) == []
    # The control: read without care, it acts.
    pickle.loads(pickle.dumps(Acts(tmp_path / "made")))
    assert list(tmp_path.iterdir())


def test_what_the_system_does_not_offer_is_said(monkeypatch):
    def confine(*arguments: object) -> dict[str, list[str]]:
        return {"in force": [], "missing": ["the network: refused"]}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call_confined(os.getpid, Confinement(FILE))
        monkeypatch.setattr(confined_calls, "confine", confine)
        with pytest.raises(ConfinementWarning, match="not in force: the network: refused"):
            call_confined(os.getpid, Confinement(FILE))
