"""Native code runs where it was made here or was asked for, and nowhere else, by either reader."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from kernel_host import resealed, write_hook
from native_build import fill_cache, verify_natively
from project import ROOT

import torchferry
from exporter.archive import kernel_container, pt_archive
from exporter.common.errors import ArchiveError
from runtime_checks.engines.engines import Kernel
from runtime_checks.native_code import record_own_code
from torchferry.cli.app import run


@pytest.fixture
def elsewhere(monkeypatch, tmp_path) -> Path:
    """The cache of somebody who made none of the files."""
    cache = tmp_path / "cache"
    fill_cache(cache)
    monkeypatch.setenv("TORCHFERRY_CACHE", str(cache))
    return cache


@pytest.fixture
def kernel(solid, tmp_path) -> Path:
    return Path(shutil.copytree(solid.with_suffix(""), tmp_path / "solid"))


def test_what_is_made_here_runs_here(compiled_robertson, kernel, carrying):
    torchferry.load(compiled_robertson)
    torchferry.load(kernel)
    assert isinstance(torchferry.load(carrying, engine="kernel").engine, Kernel)
    assert verify_natively(compiled_robertson)[0] == 0
    assert verify_natively(carrying, "--engine", "kernel")[1]["engine"] == "kernel"


@pytest.mark.parametrize("name", ["compiled_robertson", "kernel"])
def test_a_strangers_code_is_refused(name, request, elsewhere, capsys):
    path = request.getfixturevalue(name)
    with pytest.raises(torchferry.TrustError, match="nobody asked for it"):
        torchferry.load(path)
    assert run(["verify", str(path)]) == 2
    assert "--allow-native" in capsys.readouterr().err
    # Nothing was built.
    assert not (elsewhere / "kernels").exists()


def test_a_strangers_code_is_not_timed(compiled_robertson, elsewhere, capfd):
    assert run(["bench", str(compiled_robertson), "--batch", "1"]) == 2
    assert "--allow-native" in capfd.readouterr().err
    assert run(["bench", str(compiled_robertson), "--batch", "1", "--allow-native"]) == 0


@pytest.mark.parametrize("name", ["compiled_robertson", "kernel"])
def test_a_strangers_code_runs_when_it_is_asked_for(name, request, elsewhere):
    path = request.getfixturevalue(name)
    torchferry.load(path, trust="native")
    assert run(["verify", str(path), "--allow-native"]) == 0
    # To ask for it once is not to own it.
    with pytest.raises(torchferry.TrustError):
        torchferry.load(path)


def test_a_carried_kernel_of_a_stranger(carrying, elsewhere, capsys):
    with pytest.warns(torchferry.EngineWarning, match="TrustError"):
        assert not isinstance(torchferry.load(carrying, engine="kernel").engine, Kernel)
    assert run(["verify", str(carrying), "--runtime", "c"]) == 2
    assert run(["verify", str(carrying)]) == 0
    assert not (elsewhere / "kernels").exists()
    assert isinstance(torchferry.load(carrying, engine="kernel", trust="native").engine, Kernel)
    capsys.readouterr()


def test_a_pt2_beside_an_archive(compiled_robertson, elsewhere, tmp_path):
    path = Path(shutil.copy(ROOT / "artifacts" / "robertson.pt", tmp_path))
    shutil.copy(compiled_robertson, tmp_path)
    with pytest.warns(torchferry.EngineWarning, match="TrustError"):
        torchferry.load(path, engine="pt2")


def test_the_native_library(compiled_robertson, carrying, elsewhere):
    code, report = verify_natively(compiled_robertson)
    assert (code, report["status"]) == (2, "TF_ERROR_TRUST")
    assert str(elsewhere / "own") in report["error"]
    assert verify_natively(compiled_robertson, "--allow-native")[0] == 0
    code, report = verify_natively(carrying, "--engine", "kernel")
    assert (code, report["engine"]) == (0, "torchscript")
    assert "nobody asked for it" in report["warnings"][0]
    assert not (elsewhere / "kernels").exists()
    assert verify_natively(carrying, "--engine", "kernel", "--allow-native")[1]["engine"] == "kernel"


def test_a_shared_object_is_refused_before_its_code_runs(kernel, elsewhere, tmp_path):
    """A library's constructor runs as soon as it is opened."""
    marker, hook, path = tmp_path / "ran", tmp_path / "hook.c", tmp_path / "solid.so"
    hook.write_text(write_hook(marker))
    sources = [kernel / "make_model.c", kernel / "make_model_shared.c", hook]
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", path, *sources, "-lm"], check=True)
    assert verify_natively(path)[1]["status"] == "TF_ERROR_TRUST"
    assert not marker.exists()
    assert verify_natively(path, "--allow-native")[0] == 0
    assert marker.exists()


def test_a_changed_file_is_nobodys(kernel):
    """What this user made, and somebody changed and sealed again."""
    torchferry.load(kernel)

    def change(files: dict[str, bytes]) -> None:
        files["make_model.c"] += b"/* another */\n"

    resealed(kernel, change)
    with pytest.raises(torchferry.TrustError):
        torchferry.load(kernel)


def test_a_record_that_others_can_write_counts_for_nothing(compiled_robertson, elsewhere):
    record_own_code(pt_archive.read(compiled_robertson))
    torchferry.load(compiled_robertson)
    assert verify_natively(compiled_robertson)[0] == 0
    (elsewhere / "own").chmod(0o777)
    with pytest.raises(ArchiveError, match="others can write"):
        torchferry.load(compiled_robertson)
    assert verify_natively(compiled_robertson)[1]["status"] == "TF_ERROR_ARCHIVE"


def test_without_a_place_for_the_record(kernel, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "file"))
    record_own_code(kernel_container.read(kernel))
    with pytest.raises(torchferry.TrustError):
        torchferry.load(kernel)


def test_an_unknown_trust(kernel):
    with pytest.raises(torchferry.UsageError, match="no such trust"):
        torchferry.load(kernel, trust="everything")
