"""Packages of a suite: installed once into the cache; nothing is left where pip fails."""

from __future__ import annotations

import pytest

from exams import environments
from exams.environments import ensure_packages
from exporter.common.errors import MissingRuntimeError


def test_packages_are_installed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    wanted = tmp_path / "few.txt"
    wanted.write_text("# torch is there already\ntorch\n")
    folder = ensure_packages(wanted)
    assert folder.parent.parent == tmp_path / "cache" / "exams"
    assert not (folder / "torch").exists()

    def refuse(*arguments):
        raise AssertionError("installed again")

    monkeypatch.setattr(environments, "_install", refuse)
    assert ensure_packages(wanted) == folder
    wanted.write_text("# other ones\n")
    with pytest.raises(AssertionError, match="installed again"):
        ensure_packages(wanted)


def test_a_package_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wanted = tmp_path / "few.txt"
    wanted.write_text("torchferry-has-no-such-package==1\n")
    with pytest.raises(MissingRuntimeError, match=r"cannot install(.|\n)*few\.txt(.|\n)*no-such-package"):
        ensure_packages(wanted)
    assert list((tmp_path / "cache" / "exams").rglob("site-packages")) == []
    assert not list((tmp_path / "cache" / "exams").rglob("scratch"))
