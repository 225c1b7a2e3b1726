"""Commands over the files of strangers: nothing of the file runs or reaches the terminal, and the exit code is 4."""

from __future__ import annotations

import shutil
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from forging import ESCAPE
from native_build import verify_natively
from planted_scripts import Reads, RunsAtLoad, Saves, Seeds
from project import ARTIFACTS
from rich.text import Text
from tampering import change_contract

import torchferry
from exporter.common.errors import MissingRuntimeError, RunError, UsageError
from exporter.common.torch_hooks import ignore_deprecations
from exporter.graph.loading import load_module
from runtime_checks import native_build, torch_environments
from runtime_checks.kernels import compilation
from runtime_checks.runners.python_runner import PythonRunner
from torchferry.cli.app import run
from torchferry.cli.output import PlainConsole


@pytest.mark.parametrize("command", ["graph", "inspect", "verify"])
def test_a_foreign_file_that_runs_at_load(command, tmp_path, capfd):
    path = tmp_path / "foreign.pt"
    with ignore_deprecations():
        torch.jit.save(torch.jit.script(RunsAtLoad()), path)
    assert run([command, str(path)]) == 4
    message = "not a torchferry archive" if command != "graph" else "runs while it is loaded"
    assert message in capfd.readouterr().err


class Whole(torch.nn.Module):
    signature = torchferry.Signature.of({"x": (3,)})

    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = torchferry.mark(part, jit="script")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


def test_a_foreign_file_with_two_records_of_a_name(tmp_path):
    """Python reads the last one, and torch the first; torch does not look at the case of letters."""
    with ignore_deprecations():
        torch.jit.save(torch.jit.script(RunsAtLoad()), tmp_path / "acts.pt")
        torch.jit.save(torch.jit.script(torch.nn.Tanh()), tmp_path / "sound.pt")
    for number, rename in enumerate((str, str.upper)):
        path = tmp_path / f"{number}.pt"
        with zipfile.ZipFile(path, "w") as target, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for source in (tmp_path / "acts.pt", tmp_path / "sound.pt"):
                with zipfile.ZipFile(source) as saved:
                    for name in saved.namelist():
                        record = name.partition("/")[2]
                        target.writestr(f"archive/{rename(record) if 'code' in record else record}", saved.read(name))
        with pytest.raises(torchferry.ArchiveError, match="runs while it is loaded"):
            load_module(path)


@pytest.mark.usefixtures("without_the_gate")
@pytest.mark.parametrize(
    ("part", "message"),
    [
        (RunsAtLoad, "runs while it is loaded"),
        (Saves, "aten::save, which acts"),
        (Reads, "aten::from_file, which acts"),
        (Seeds, "aten::manual_seed, which acts"),
    ],
)
def test_a_model_that_acts_is_not_exported(part, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("numbers").write_bytes(bytes(8))
    with pytest.raises(torchferry.CaptureError, match=message):
        torchferry.export(Whole(part()), output=tmp_path / "m.pt")
    assert not (tmp_path / "m.pt").exists()


def test_a_file_that_acts_is_not_run(tmp_path, monkeypatch):
    """Its numbers are right, and it writes where it is called."""
    monkeypatch.chdir(tmp_path)
    with ignore_deprecations():
        torch.jit.save(torch.jit.script(Saves()), "foreign.pt")
    with pytest.raises(RunError, match=r"calls aten::save"):
        PythonRunner().run(Path("foreign.pt"), None, [])
    with pytest.raises(torchferry.ArchiveError, match=r"calls aten::save"):
        load_module(Path("foreign.pt"))
    assert [p.name for p in tmp_path.iterdir()] == ["foreign.pt"]


@pytest.mark.parametrize("command", ["inspect", "verify", "graph"])
def test_no_escape_reaches_the_terminal(command, tmp_path, capfd):
    path = Path(shutil.copy(ARTIFACTS / "rates.pt", tmp_path))
    change_contract(path, lambda c: c.update(name=ESCAPE))
    assert run([command, str(path)]) == 4
    out, err = capfd.readouterr()
    assert "\x1b" not in out + err
    assert "U+001B" in err


def test_a_console_shows_what_it_is_given(capfd):
    for shown in (ESCAPE, Text(ESCAPE, style="red")):
        PlainConsole().print(shown)
        out = capfd.readouterr().out
        assert "\x1b" not in out
        assert "\\u001b[32mverified" in out


def test_a_wide_tolerance_is_marked(tmp_path, capfd):
    path = Path(shutil.copy(ARTIFACTS / "rates.pt", tmp_path))
    change_contract(path, lambda c: c["tolerance"]["dtypes"]["float64"].update(rtol=0.5))
    report = torchferry.verify(path)
    assert all(output.is_wide for output in report.outputs)
    assert not any(output.is_wide for output in torchferry.verify(ARTIFACTS / "rates.pt").outputs)
    assert run(["verify", str(path)]) == 0
    out = capfd.readouterr().out
    assert "5e-01" in out
    assert "wide" in out


LONG = "n" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", f"{LONG}.pt"],
        ["inspect", LONG],
        ["graph", LONG],
        ["diff", LONG, LONG],
        ["umat", LONG],
        ["wrap", "fmu", LONG],
        ["show", LONG],
        ["export", f"{LONG}.i"],
        ["convert", str(ARTIFACTS / "rates.pt"), "--to", "c", "-o", LONG],
        ["verify", str(ARTIFACTS / "rates.pt"), "--time-limit", "1e300"],
        ["verify", str(ARTIFACTS / "rates.pt"), "--memory-limit", "1e30"],
    ],
)
def test_what_no_system_has_is_wrong_usage(arguments, capfd):
    assert run(arguments) == 2
    error = capfd.readouterr().err
    assert "error:" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("folder", "use"),
    [
        ("native", native_build.build),
        ("kernels", lambda: torchferry.convert(ARTIFACTS / "rates.pt", "kernel", to="c")),
        ("environments", lambda: torch_environments.ensure_python("2.10.0")),
    ],
)
def test_nothing_of_a_cache_that_others_can_write_to_is_run(folder, use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "cache" / folder
    place.mkdir(parents=True)
    place.chmod(0o777)
    with pytest.raises(torchferry.ArchiveError, match="others can write"):
        use()


@pytest.mark.parametrize(
    ("script", "seconds", "error", "messages"),
    [
        (
            "echo 'fatal error: No space left on device' >&2; exit 1",
            "",
            MissingRuntimeError,
            ("free space", "No space"),
        ),
        ("sleep 60", "1", MissingRuntimeError, ("does not end", "does not end")),
        ("sleep 60", "none", UsageError, ("TORCHFERRY_COMPILE_SECONDS", "TORCHFERRY_COMPILE_SECONDS")),
        ("sleep 60", "-1", UsageError, ("not a positive number", "not a positive number")),
    ],
)
def test_a_compiler_that_has_no_room_or_no_end(script, seconds, error, messages, solid, tmp_path, monkeypatch):
    compiler, cache = tmp_path / "cc", tmp_path / "cache"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in --version) echo 1; exit 0;; esac\n{script}\n')
    compiler.chmod(0o755)
    variables = {"CC": str(compiler), "TORCHFERRY_CACHE": str(cache), "TORCHFERRY_COMPILE_SECONDS": seconds}
    code, report = verify_natively(solid, "--engine", "kernel", "--allow-native", **variables)
    # The archive runs as it is, with a warning that says why.
    assert (code, report["engine"]) == (0, "torchscript")
    assert messages[1] in report["warnings"][0]
    assert not [path for path in (cache / "kernels").glob("*") if path.is_dir()]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=messages[0]):
        compilation.compile_kernel({"a.c": b"int a;"})
