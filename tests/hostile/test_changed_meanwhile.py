"""Files that somebody changes after they were checked and before they are loaded: what was checked is loaded."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from project import ARTIFACTS, mark_rest_thorough

import torchferry
from exporter.archive import pt_archive
from exporter.archive.file_signature import make_keys, sign_file
from exporter.archive.formats import path_for_format
from exporter.common.errors import TorchferryError
from exporter.common.frozen_files import FrozenFile
from runtime_checks import model as loading
from runtime_checks.engines import selection

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="sealed memory is Linux's")
NAME = "return_map.pt"


@pytest.fixture
def path(tmp_path) -> Path:
    return Path(shutil.copy(ARTIFACTS / NAME, tmp_path))


def run_cases(model: torchferry.Model) -> None:
    cases = [case for case in pt_archive.read(ARTIFACTS / NAME).cases() if case.method == "forward"]
    assert cases
    for case in cases:
        for value, expected in zip(model.engine.run("forward", case.inputs), case.outputs, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-12, equal_nan=True)


class Writer:
    """Somebody who writes other bytes to a file, once, as soon as a function of the loader has returned."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.has_written = False
        function = getattr(owner, name)

        def call(*arguments: object) -> object:
            result = function(*arguments)
            if not self.has_written:
                path.write_bytes(bytes(path.stat().st_size))
                self.has_written = True
            return result

        monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("engine", ["torchscript", "interpreter"])
@pytest.mark.parametrize("moment", ["resolve_trust", "check_code_trust"])
def test_graphs(path, monkeypatch, engine, moment):
    writer = Writer(path, monkeypatch, loading, moment)
    run_cases(torchferry.load(path, engine=engine))
    assert writer.has_written


@pytest.mark.parametrize(("owner", "moment"), [(pt_archive, "freeze_archive"), (loading, "resolve_trust")])
def test_a_signed_file(path, monkeypatch, owner, moment):
    pytest.importorskip("cryptography")
    public = make_keys(path.with_name("key"))
    sign_file(path, path.with_name("key"))
    writer = Writer(path, monkeypatch, owner, moment)
    run_cases(torchferry.load(path, public_key=public))
    assert writer.has_written


@pytest.mark.parametrize("to", mark_rest_thorough(["program"], ["pt2"]))
def test_packages(path, monkeypatch, to):
    package = torchferry.convert(path, to=to).path
    writer = Writer(package, monkeypatch, loading, "check_code_trust")
    run_cases(torchferry.load(package))
    assert writer.has_written


@pytest.mark.thorough
def test_the_package_beside_an_archive(path, monkeypatch):
    torchferry.convert(path, to="pt2")
    writer = Writer(path_for_format(path, "pt2"), monkeypatch, selection, "check_code_trust")
    model = torchferry.load(path, engine="pt2")
    assert writer.has_written
    assert type(model.engine).__name__ == "AotInductorEngine"
    run_cases(model)


def test_what_is_no_archive_is_not_copied(path):
    for data, is_copied in ((path.read_bytes(), True), (bytes(10**6), False)):
        path.write_bytes(data)
        assert isinstance(pt_archive.freeze_archive(path), FrozenFile) is is_copied
    os.mkfifo(path.with_name("pipe"))
    # A pipe is not opened: nobody writes to it.
    for other in (Path("a\0b"), path.with_name("n" * 300), path.with_name("pipe"), path.parent):
        assert pt_archive.freeze_archive(other) == other


def test_the_control(path, monkeypatch):
    """Where the system has no such memory the writer is heard."""
    monkeypatch.delattr(os, "memfd_create")
    assert os.fspath(FrozenFile(path)) == str(path)
    Writer(path, monkeypatch, loading, "check_code_trust")
    with pytest.raises(TorchferryError):
        torchferry.load(path)
