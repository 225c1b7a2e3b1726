"""Copies of files in memory that nobody can change."""

from __future__ import annotations

import copy
import os
import pickle

import pytest

from exporter.common import frozen_files
from exporter.common.frozen_files import FrozenFile

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="sealed memory is Linux's")


def read(file: FrozenFile) -> bytes:
    with open(file, "rb") as opened:
        return opened.read()


@pytest.mark.parametrize("most_at_once", [3, 2**30])
def test_its_bytes_stay(tmp_path, monkeypatch, most_at_once):
    monkeypatch.setattr(frozen_files, "_MOST_AT_ONCE", most_at_once)
    path = tmp_path / "file"
    path.write_bytes(b"as it was")
    frozen = FrozenFile(path)
    path.write_bytes(b"changed")
    assert [read(frozen), read(frozen)] == [b"as it was"] * 2
    path.unlink()
    assert read(frozen) == b"as it was"


@pytest.mark.parametrize("change", [lambda file: file.write(b"x"), lambda file: file.truncate(1)])
def test_nobody_writes_to_it(tmp_path, change):
    path = tmp_path / "file"
    path.write_bytes(b"as it was")
    frozen = FrozenFile(path)
    with pytest.raises(PermissionError), open(frozen, "r+b", buffering=0) as file:
        change(file)
    assert read(frozen) == b"as it was"


def test_it_ends_with_its_object(tmp_path):
    (tmp_path / "file").write_bytes(b"as it was")
    frozen = FrozenFile(tmp_path / "file")
    place = os.fspath(frozen)
    assert os.path.exists(place)
    del frozen
    assert not os.path.exists(place)


def test_it_is_not_copied(tmp_path):
    (tmp_path / "file").write_bytes(b"as it was")
    frozen = FrozenFile(tmp_path / "file")
    for function in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="of this process"):
            function(frozen)


@pytest.mark.parametrize("reason", ["none", "folder", "system", "room", "name", "no /proc"])
def test_what_is_not_copied_is_the_file_itself(tmp_path, monkeypatch, reason):
    path = tmp_path / ("n" * 300 if reason == "name" else "file")
    if reason == "folder":
        path.mkdir()
    elif reason not in ("none", "name"):
        path.write_bytes(b"as it was")
    if reason == "system":
        monkeypatch.delattr(os, "memfd_create")
    elif reason == "room":
        monkeypatch.setattr(frozen_files.os, "sendfile", raise_no_space)
    elif reason == "no /proc":
        monkeypatch.setattr(frozen_files.os.path, "samestat", lambda one, other: False)
    before = set(os.listdir("/proc/self/fd"))
    assert os.fspath(FrozenFile(path)) == str(path)
    assert set(os.listdir("/proc/self/fd")) == before


def raise_no_space(*arguments: object) -> int:
    raise OSError(28, "No space left on device")
