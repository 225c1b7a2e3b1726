"""Commands in which torch reads a stranger's file: in a confined process, whose end is the command's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from early_ends import raise_bug, raise_usage_error, wait_for_ever
from project import ROOT, need

from exporter.archive import pt_archive
from exporter.common.errors import ArchiveError, UsageError
from exporter.graph import loading
from runtime_checks import model as running
from runtime_checks.runners.confined_calls import Confinement
from torchferry.cli.app import run
from torchferry.cli.confined_process import run_confined
from torchferry.cli.exit_codes import AlreadyReportedError

landlockpy = pytest.importorskip("landlockpy", reason="Landlock is Linux's")
pytestmark = pytest.mark.skipif(landlockpy.abi_version() == 0, reason="this kernel has no Landlock")
ROBERTSON = ROOT / "artifacts" / "robertson.pt"


def try_all(attempts: dict[str, Callable[[], object]]) -> dict[str, bool]:
    """Which attempts the system lets pass."""

    def succeeds(attempt: Callable[[], object]) -> bool:
        try:
            attempt()
        except OSError:
            return False
        return True

    return {name: succeeds(attempt) for name, attempt in attempts.items()}


@pytest.mark.parametrize("programs", [(), (sys.executable,), None], ids=["none", "python", "compilers"])
def test_what_the_work_can_do(programs, tmp_path, monkeypatch):
    """Its results lie in the folder of its outputs; with compilers it also writes to the cache."""
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    for name in ("results", "elsewhere"):
        (tmp_path / name).mkdir()
    attempts: dict[str, Callable[[], object]] = {
        **{name: (tmp_path / name / "new").touch for name in ("results", "elsewhere", "cache")},
        "temporary": lambda: Path(os.environ["TMPDIR"], "new").touch(),
        "python": lambda: subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True),
        "other": lambda: subprocess.run(["true"], check=True),
    }

    def work() -> None:
        done = try_all(attempts)
        (tmp_path / "results" / "report").write_text(json.dumps(done))

    outputs = (tmp_path / "results" / "folder" / "file", None)
    run_confined(work, Confinement(ROBERTSON, outputs, programs=programs))
    assert json.loads((tmp_path / "results" / "report").read_text()) == {
        "results": True,
        "elsewhere": False,
        "cache": programs is None,
        "temporary": True,
        "python": programs != (),
        "other": programs is None,
    }
    # The control: here all of it can be done.
    assert all(try_all({name: attempts[name] for name in ("elsewhere", "python", "other")}).values())


def take_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("work", "code", "message"),
    [
        (lambda: None, 0, ""),
        (lambda: print("said"), 0, ""),
        (raise_usage_error, 2, "this is not meant so"),
        (raise_bug, 1, "KeyError: 'a bug'"),
        (take_memory, 4, "raise --memory-limit"),
        (lambda: torch.empty(10**13), 4, "raise --memory-limit"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), 4, "signal 9, Killed"),
        (wait_for_ever, 4, "raise --time-limit"),
    ],
    ids=["returns", "prints", "usage", "bug", "memory", "tensors", "signal", "time"],
)
def test_the_end_of_the_work_is_that_of_the_command(work, code, message, capfd):
    try:
        run_confined(work, Confinement(ROBERTSON, time_limit=1.0))
        ended = 0
    except AlreadyReportedError as end:
        ended = end.code
    except ArchiveError as error:
        ended = error.exit_code
        print(error, file=sys.stderr)
    out, err = capfd.readouterr()
    assert (ended, message in err) == (code, True), err
    assert (out == "said\n") == (message == "" and bool(out))


def test_an_error_for_machines(capfd):
    with pytest.raises(AlreadyReportedError):
        run_confined(raise_usage_error, Confinement(ROBERTSON), as_json=True)
    assert json.loads(capfd.readouterr().out)["what"] == "this is not meant so"


@pytest.mark.parametrize("limits", [(0.0, 16.0), (600.0, float("nan"))])
def test_limits_that_are_none(limits):
    with pytest.raises(UsageError, match="a limit is not a positive number"):
        run_confined(lambda: None, Confinement(ROBERTSON, (), *limits))


COMMANDS = {
    "graph": ("graph", "m.pt"),
    "passes": ("graph", "m.pt", "--passes"),
    "backward": ("inspect", "m.pt", "--autograd"),
    "svg": ("graph", "m.pt", "--svg", "m.svg"),
    "diff": ("diff", "m.pt", "n.pt"),
    "convert": ("convert", "m.pt", "--to", "c", "-o", "kernel"),
    "run": ("run", "m.pt", "--history", "history.pt", "-o", "out.pt"),
    "bench": ("bench", "m.pt", "--batch", "1"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_torch_reads_a_file_in_confinement(command, tmp_path, monkeypatch):
    """What a fault of torch's reader would let a file do is not done outside."""
    need("--svg" not in command or shutil.which("dot") is not None, "graphviz is not installed")
    work, marker = tmp_path / "work", tmp_path / "marker"
    work.mkdir()
    monkeypatch.chdir(work)
    for name in ("m.pt", "n.pt"):
        shutil.copyfile(ROBERTSON, name)
    shapes = {v.name: [2, *map(int, v.shape)] for v in pt_archive.read(Path("m.pt")).contract.inputs}
    prescribed = {f"prescribed/{name}": torch.ones(shape, dtype=torch.float64) for name, shape in shapes.items()}
    torch.save(prescribed, "history.pt")
    load = loading.load_script
    receiver, sender = os.pipe()

    def load_and_act(path: str, device: object = "cpu") -> object:
        os.write(sender, b"a")
        with contextlib.suppress(PermissionError):
            marker.touch()
        return load(path, device)

    for module in (loading, running):
        monkeypatch.setattr(module, "load_script", load_and_act)
    assert run(list(command)) == 0
    assert os.read(receiver, 16)
    assert not marker.exists()
    # The control: it does act where nothing confines it.
    load_and_act("m.pt")
    assert marker.exists()


@pytest.mark.parametrize("command", [("verify", "m.pt"), ("inspect", "m.pt"), ("umat", "kernel")])
def test_torch_reads_nothing_here(command, solid, tmp_path, monkeypatch):
    """The processes of a verification do, which import nothing of torchferry."""
    shutil.copyfile(ROBERTSON, tmp_path / "m.pt")
    shutil.copytree(solid.with_suffix(""), tmp_path / "kernel")
    monkeypatch.chdir(tmp_path)
    here = os.getpid()

    def watch(load: Callable[..., Any]) -> Callable[..., Any]:
        def load_elsewhere(*arguments: Any) -> Any:
            assert os.getpid() != here
            return load(*arguments)

        return load_elsewhere

    monkeypatch.setattr(torch._C, "import_ir_module", watch(torch._C.import_ir_module))
    monkeypatch.setattr(torch.jit, "load", watch(torch.jit.load))
    assert run(list(command)) == 0
    # The control.
    with pytest.raises(AssertionError):
        loading.load_script("m.pt")


LONG = """
import sys, time
from pathlib import Path
from torchferry.cli import app
from runtime_checks.runners.confined_calls import Confinement
from torchferry.cli.confined_process import run_confined

def work():
    Path("began").touch()
    {rest}

app.app = lambda arguments, **options: run_confined(work, Confinement(Path("m.pt"), (Path("began"),)))
sys.exit(app.run([]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("whom", [os.kill, os.killpg], ids=["process", "group"])
@pytest.mark.parametrize("rest", ["time.sleep(100)", "import torch; torch.ones(3000, 3000).matrix_power(10**6)"])
def test_an_interrupt(rest, whom, tmp_path):
    """A terminal sends it to all processes of a command, a scheduler to the first."""
    program = LONG.format(rest=rest)
    # A shell that starts the tests in its background has told its children to ignore an interrupt.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", heard + program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while not (tmp_path / "began").exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    begun = time.monotonic()
    whom(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - begun < 10
    assert (process.returncode, errors.count("interrupted: ")) == (130, 1), errors
    assert [path.name for path in tmp_path.iterdir()] == ["began"]
