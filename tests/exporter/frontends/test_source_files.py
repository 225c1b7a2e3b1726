"""What a contract says a model was made of: files, their digests, and the commit that has them."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from exporter.archive import pt_archive
from exporter.frontends import source_files
from exporter.frontends.source_files import compute_digests, find_revision, list_included_files, list_module_files
from torchferry.cli.app import run

MAIN = (
    "import torch, helpers.law\nfrom helpers.law import TABLE\ndef make_model():\n    return helpers.law.Law(TABLE)\n"
)
LAW = """import torch, torchferry
from .table import TABLE
class Law(torch.nn.Module):
    signature = torchferry.Signature.of({"x": (3,)})
    def __init__(self, table):
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor(table))
    def forward(self, x):
        return x * self.table
"""
FILES = {
    "main_of_files.py": MAIN,
    "helpers/__init__.py": "",
    "helpers/law.py": LAW,
    "helpers/table.py": "TABLE = [1.0, 2.0, 3.0]\n",
    "helpers/unused.py": "",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model of several files, which no other test has imported."""
    for name, text in FILES.items():
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in [n for n in sys.modules if n.split(".")[0] in ("helpers", "main_of_files")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path / "models")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    return tmp_path / "models"


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(["git", "-C", folder, *author, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit_all(folder: Path) -> str:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all")
    return git(folder, "rev-parse", "HEAD")


def test_what_an_archive_says_of_its_making(place, monkeypatch, tmp_path):
    commit = commit_all(place)
    monkeypatch.chdir(tmp_path)
    # What else the process has imported is no part of the model.
    importlib.import_module("helpers.unused")
    assert run(["export", f"{place}/main_of_files.py:make_model", "-o", "a.pt"]) == 0
    contract = pt_archive.read(Path("a.pt")).contract
    used = ("helpers/__init__.py", "helpers/law.py", "helpers/table.py", "main_of_files.py")
    assert contract.source.files == {name: hashlib.sha256(FILES[name].encode()).hexdigest() for name in used}
    assert contract.source.revision == commit
    assert contract.created_with.command == "torchferry export main_of_files.py:make_model -o a.pt"
    assert str(tmp_path) not in contract.to_json()


def test_a_model_without_a_file():
    """A notebook's, or one that a program has put together."""
    assert list_module_files(type(torch)("nowhere")) == []
    assert (compute_digests([]), find_revision([])) == ({}, "")


def test_packages_that_are_installed_are_no_sources(place, monkeypatch):
    """Nor is torchferry; and a project may have its environment in its folder."""
    assert list_module_files(torch.nn.functional) == list_module_files(os) == list_module_files(source_files) == []
    main = importlib.import_module("main_of_files")
    names = [path.name for path in list_module_files(main)]
    assert names == ["__init__.py", "law.py", "table.py", "main_of_files.py"]
    monkeypatch.setattr(source_files, "_INSTALLED", {place / "helpers"})
    assert [path.name for path in list_module_files(main)] == ["main_of_files.py"]


def test_included_files(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "a.i").write_text(
        "[Models]\n!include parts/b.i\n  !include 'c.i'\n!include nowhere.i\n# !include d.i\n[]\n"
    )
    (tmp_path / "parts" / "b.i").write_text("!include ../a.i\n!include e.i\n")
    for name in ("c.i", "d.i", "parts/e.i"):
        (tmp_path / name).touch()
    assert list(compute_digests(list_included_files(tmp_path / "a.i"))) == ["a.i", "c.i", "b.i", "e.i"]


def test_the_revision(place, tmp_path, monkeypatch):
    files = [place / "main_of_files.py", place / "helpers" / "law.py"]
    assert find_revision(files) == ""
    commit = commit_all(place)
    # Programs that run below git say where it is; that is not where the files are.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert find_revision(files) == commit
    files[1].write_text(LAW + "\n")
    assert find_revision(files) == f"{commit}, changed"
    files[1].write_text(LAW)
    assert find_revision(files) == commit
    (place / "new.py").touch()
    assert find_revision([*files, place / "new.py"]) == f"{commit}, changed"
    (tmp_path / "outside.py").touch()
    assert find_revision([*files, tmp_path / "outside.py"]) == f"{commit}, changed"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_revision(files) == ""


def test_nothing_that_a_repository_names_is_run(place, tmp_path):
    """Git runs programs of a repository's settings for many a command."""
    commit_all(place)
    marker, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    (place / ".gitattributes").write_text("*.py filter=acts\n")
    for name in ("core.fsmonitor", "filter.acts.clean", "filter.acts.smudge", "core.pager", "core.sshCommand"):
        git(place, "config", name, str(program))
    files = [place / "main_of_files.py"]
    files[0].touch()
    assert find_revision(files)
    assert not marker.exists()
    # The control.
    git(place, "status")
    assert marker.exists()


def test_no_folder_is_named(tmp_path):
    """Files of one model may lie anywhere; those of one name are told apart."""
    for name in ("one/base.i", "other/deep/base.i", "third/base.i"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    digests = compute_digests(sorted(tmp_path.rglob("*.i")))
    assert list(digests) == ["base.i", "base.i (2)", "base.i (3)"]
    assert len(set(digests.values())) == 3


def test_a_name_that_obeys_nobody(tmp_path):
    file = tmp_path / "a\x1b[2Kb.py"
    file.touch()
    assert list(compute_digests([file])) == ["a\\u001b[2Kb.py"]
