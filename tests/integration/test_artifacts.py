"""The reference archives: they load, they are verified, and they are what a fresh export gives."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from project import ROOT
from tampering import change_contract

import torchferry
from exporter.archive import pt_archive
from exporter.graph.canonical_text import format_canonical_text, hash_graph_text
from exporter.graph.loading import load_module
from exporter.graph.reader import list_settable_tensors, read
from torchferry.pytest_plugin import UPDATE

FOLDER = ROOT / "artifacts"
spec = importlib.util.spec_from_file_location("models", FOLDER / "models.py")
assert spec is not None
assert spec.loader is not None
models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(models)
NAMES = list(models.REFERENCES)
OF_NEML2 = ("rates", "slash", "perzyna")
# An export of these takes ten seconds.
LONG = ("return_map", "perzyna")


def _hold(name: str) -> Any:
    marks = [pytest.mark.torchferry_golden(folder="../../artifacts", name=name)]
    return pytest.param(name, marks=[*marks, pytest.mark.thorough] if name in LONG else marks, id=name)


HELD = [_hold(name) for name in NAMES]


@pytest.fixture
def torchferry_golden_export(request):
    """To compare, without the gate and the fresh process, which these models go through elsewhere."""
    if request.config.getoption(UPDATE):
        return torchferry.export
    request.getfixturevalue("without_the_gate")
    request.getfixturevalue("without_verification")
    return torchferry.export


@pytest.mark.parametrize("name", HELD)
def test_a_fresh_export_is_the_reference(name, request, torchferry_golden):
    if name in OF_NEML2:
        request.getfixturevalue("neml2")
    source, options = models.REFERENCES[name]
    allowed = models.other_torch((FOLDER / "README.md").read_text(), name, torch.__version__)
    if allowed and not torchferry_golden.update:
        torchferry_golden.export(source, output=torchferry_golden.fresh, **options)
        assert pt_archive.read(torchferry_golden.fresh).contract.graph == allowed
    else:
        torchferry_golden(source, **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_is_verified(name):
    assert torchferry.verify(FOLDER / f"{name}.pt").passed


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_is_small_and_names_no_folder(name):
    path = FOLDER / f"{name}.pt"
    assert path.stat().st_size < models.LARGEST
    whole = pt_archive.read(path)
    message = f"{whole.contract}{whole.graph}"
    assert "/work/" not in message
    assert "/home/" not in message
    assert "/tmp/" not in message
    saved = read(load_module(path), list_settable_tensors(whole.contract))
    assert {n.origin.where[:1] for g in saved.graphs.values() for n in g} & {"/"} == set()


@pytest.mark.parametrize("name", NAMES)
def test_this_torch_reads_the_graph_that_was_written(name):
    """Where it does not, the difference is torch's, and not of what we export."""
    contract = pt_archive.read(FOLDER / f"{name}.pt").contract
    text = format_canonical_text(read(load_module(FOLDER / f"{name}.pt"), list_settable_tensors(contract)))
    now = hash_graph_text(text)
    assert now in (contract.graph, models.other_torch((FOLDER / "README.md").read_text(), name, torch.__version__))


def test_the_table_is_of_these_archives():
    text = (FOLDER / "README.md").read_text()
    assert models.table() in text
    assert models.written(text) == text


def test_a_row_allows_one_torch_one_graph():
    row = f"| `rates` | 2.12.1 | `{'a' * 64}` | sub has another overload there |"
    assert models.other_torch(row, "rates", "2.12.1+cpu") == "a" * 64
    assert models.other_torch(row, "rates", "2.13.0") == ""
    assert models.other_torch(row, "slash", "2.12.1") == ""


def test_a_difference_of_torchs_is_told_apart(tmp_path: Path):
    """An archive that says that another torch wrote another graph: this torch reads otherwise."""
    path = Path(shutil.copy(FOLDER / "composed.pt", tmp_path / "composed.pt"))
    change_contract(path, lambda raw: raw["created_with"].update(torch="2.10.0"))
    result = torchferry.diff(path, FOLDER / "composed.pt")
    assert result.verdict == "same graph"
    assert any("made with torch" in note for note in result.notes)
