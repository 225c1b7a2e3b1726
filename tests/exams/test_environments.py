"""Packages of a suite: installed once into the cache; nothing is left where pip fails."""

from __future__ import annotations

import zipfile

import pytest

from exams import environments
from exams.environments import ensure_packages
from exporter.common.errors import MissingRuntimeError


def write_wheel(path):
    """Write a wheel of one module."""
    info = f"{path.name.split('-')[0]}-1.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("torchferry_few.py", "number = 7\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torchferry-few\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_packages_are_installed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    wheel, wanted = tmp_path / "torchferry_few-1-py3-none-any.whl", tmp_path / "few.txt"
    write_wheel(wheel)
    wanted.write_text(f"# torch is there already\ntorch\n{wheel}\n")
    folder = ensure_packages(wanted)
    assert folder.is_relative_to(tmp_path / "cache" / "exams")
    assert folder.name == "site-packages"
    assert (folder / "torchferry_few.py").read_text() == "number = 7\n"
    assert not (folder / "torch").exists()

    def refuse(*arguments):
        raise AssertionError("installed again")

    monkeypatch.setattr(environments, "_install", refuse)
    assert ensure_packages(wanted) == folder
    wanted.write_text("# other ones\n")
    with pytest.raises(AssertionError, match="installed again"):
        ensure_packages(wanted)


@pytest.mark.thorough
def test_a_package_that_is_not_there(tmp_path, monkeypatch):
    """What the first call has left is no environment for the second."""
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wanted = tmp_path / "few.txt"
    wanted.write_text("torchferry-has-no-such-package==1\n")
    for _ in range(2):
        with pytest.raises(MissingRuntimeError, match=r"cannot be installed(.|\n)*few\.txt(.|\n)*no-such-package"):
            ensure_packages(wanted)
