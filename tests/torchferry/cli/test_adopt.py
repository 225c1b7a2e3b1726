"""``torchferry adopt`` as its user types it: confined, with one message, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from foreign_files import Network, Noise, Printing

from exporter.common.torch_hooks import ignore_deprecations
from torchferry import api
from torchferry.cli.app import run

F = torch.float64
X = torch.linspace(-1, 1, 15, dtype=F).reshape(5, 3)


@pytest.fixture(autouse=True)
def _with_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": X}, "x.pt")


def script(module, name="foreign.pt"):
    with ignore_deprecations():
        torch.jit.script(module.double()).save(name)


def test_a_file_becomes_an_archive(capfd):
    script(Network())
    assert run(["adopt", "foreign.pt", "--inputs", "x.pt", "-o", "net.pt", "--json"]) == 0
    (result,) = json.loads(capfd.readouterr().out)
    assert result["name"] == "foreign"
    assert run(["verify", "net.pt", "--json"]) == 0
    capfd.readouterr()
    assert run(["inspect", "net.pt"]) == 0
    assert "torchscript" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("module", "arguments", "code", "message"),
    [
        (Noise(), ["--inputs", "x.pt"], 3, "random numbers"),
        (Printing(), ["--inputs", "x.pt"], 4, "prim::Print"),
        (Network(), [], 2, "forward(x: Tensor)"),
    ],
    ids=["not-sound", "operator", "usage"],
)
def test_exit_codes(module, arguments, code, message, capfd):
    script(module)
    assert run(["adopt", "foreign.pt", *arguments, "-o", "net.pt"]) == code
    assert message in capfd.readouterr().err
    assert not Path("net.pt").exists()


def test_a_program_is_not_read_before_it_is_trusted(monkeypatch, capfd):
    torch.export.save(torch.export.export(Network().double(), (X,)), "foreign.pt2")
    monkeypatch.setattr(torch.export, "load", lambda path: pytest.fail("it was read"))
    assert run(["adopt", "foreign.pt2", "-o", "net.pt"]) == 2
    assert "--allow-native" in capfd.readouterr().err


def test_the_file_runs_in_confinement(monkeypatch, tmp_path):
    """What stands for its code can write beside the archive, and nowhere else."""
    landlockpy = pytest.importorskip("landlockpy", reason="Landlock is Linux's")
    if landlockpy.abi_version() == 0:
        pytest.skip("this kernel has no Landlock")
    for name in ("results", "elsewhere"):
        (tmp_path / name).mkdir()

    def adopt(path: Path, **options: object) -> None:
        (tmp_path / "results" / "new").touch()
        (tmp_path / "elsewhere" / "new").touch()

    monkeypatch.setattr(api, "adopt", adopt)
    script(Network())
    arguments = ["adopt", "foreign.pt", "--inputs", "x.pt", "-o", "results/net.pt"]
    assert run(arguments) != 0
    assert (tmp_path / "results" / "new").exists()
    assert not (tmp_path / "elsewhere" / "new").exists()
    # The control: without the second write there is no error before the results are printed.
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 0
