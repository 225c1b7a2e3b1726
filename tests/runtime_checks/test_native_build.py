"""Where the native library comes from: the package ``torchferry-native``, or a build."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from exporter.common.errors import MissingRuntimeError
from runtime_checks import native_build


def test_no_compiler_is_a_runtime_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingRuntimeError, match="no-such-compiler"):
        native_build.build()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(shutil.which("g++") or "/usr/bin/g++").parent))
    monkeypatch.setattr(native_build, "find_tool", lambda name, needed=True: "/bin/false")
    with pytest.raises(MissingRuntimeError, match="could not be built"):
        native_build.build()
    assert not [p for p in (tmp_path / "native").iterdir() if p.is_dir()]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an installed package that was built for this torch."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "torch").symlink_to(native_build.torch_folder())
    information = tmp_path / "torchferry_native-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.4\nName: torchferry-native\nVersion: 0.1.0\n")
    folder = tmp_path / "torchferry_native"
    for name in ("bin/torchferry_verify", "lib/libtorchferry.so"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    (folder / "build.json").write_text(json.dumps(native_build.describe_build()))
    return folder


def test_the_package_serves_without_a_compiler(package, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    messages: list[str] = []
    assert native_build.build(announce=messages.append) == package
    assert messages == []
    # A sanitizer, or another build, is made here.
    with pytest.raises(MissingRuntimeError, match="no-such-compiler"):
        native_build.build(sanitize="address")
    with pytest.raises(MissingRuntimeError, match="no-such-compiler"):
        native_build.build(force=True)


def _forge(package: Path, **fields: str) -> None:
    (package / "build.json").write_text(json.dumps(native_build.describe_build() | fields))


UNFIT = {
    "another torch": (lambda package: _forge(package, torch="2.9.0+cpu"), "2.9.0+cpu"),
    "another build of that version": (lambda package: _forge(package, **{"commit of torch": "abc"}), "abc"),
    "another machine": (lambda package: _forge(package, machine="riscv64"), "riscv64"),
    "no library": (lambda package: (package / "lib" / "libtorchferry.so").unlink(), "no lib/libtorchferry.so"),
    "no harness": (lambda package: (package / "bin" / "torchferry_verify").unlink(), "no bin/torchferry_verify"),
    "a record of something else": (lambda package: (package / "build.json").write_text("[1]"), "no record"),
    "other sources": (lambda package: _forge(package, sources="0" * 64), "0" * 64),
    "no record": (lambda package: (package / "build.json").unlink(), "no record"),
    "half a record": (lambda package: (package / "build.json").write_text("{"), "no record"),
    "torch elsewhere": (lambda package: (package.parent / "torch").unlink(), "not beside it"),
    "another torch beside it": (
        lambda package: [(package.parent / "torch").unlink(), (package.parent / "torch").mkdir()],
        "not beside it",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_package_that_does_not_serve_says_why(name, package, monkeypatch):
    forge, got = UNFIT[name]
    forge(package)
    messages: list[str] = []
    assert native_build.find_installed_build(messages.append) is None
    assert len(messages) == 1
    assert got in messages[0]
    assert str(package) in messages[0]
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingRuntimeError, match="no-such-compiler"):
        native_build.build()


def test_where_the_package_is_not_installed_nothing_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert native_build.find_installed_build(pytest.fail) is None


def test_what_somebody_built_beside_the_sources_is_none_of_them(tmp_path, monkeypatch):
    shutil.copytree(native_build.SOURCES, tmp_path / "native")
    monkeypatch.setattr(native_build, "SOURCES", tmp_path / "native")
    before = native_build.describe_build()
    (tmp_path / "native" / "build").mkdir()
    (tmp_path / "native" / "build" / "CMakeCache.txt").touch()
    assert native_build.describe_build() == before
    (tmp_path / "native" / "src" / "other.cpp").touch()
    assert native_build.describe_build() != before
