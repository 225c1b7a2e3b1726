"""Every field of the manifests of kernels and ONNX containers, forged in every way: refused with a reason, or taken."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path

import pytest
from forging import CHANGES, list_places
from project import ARTIFACTS
from tampering import change_contract

import torchferry
from exporter.archive import kernel_container, onnx_container
from exporter.archive.contract_text import is_file_name
from exporter.common.errors import ArchiveError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("forged")


def count_refusals(manifest: Path, compute_seal, read) -> tuple[int, int]:
    """Of all forgeries those that are refused, and their number. Any other error than ``ArchiveError`` is ours."""
    whole = json.loads(manifest.read_bytes())
    whole.pop("sha256")
    refusals = total = 0
    for place in list_places(whole):
        for change in CHANGES if place else ():
            content = copy.deepcopy(whole)
            change(content, place)
            manifest.write_text(json.dumps({**content, "sha256": compute_seal(content)}))
            total += 1
            try:
                read()
            except ArchiveError:
                refusals += 1
    manifest.write_text(json.dumps({**whole, "sha256": compute_seal(whole)}))
    read()
    return refusals, total


def test_a_kernel(folder):
    torchferry.convert(ARTIFACTS / "rates.pt", folder / "rates", to="c")

    def read() -> None:
        opened = kernel_container.read(folder / "rates")
        opened.cases()
        opened.sources()

    manifest = folder / "rates" / kernel_container.MANIFEST
    refusals, total = count_refusals(manifest, kernel_container._compute_seal, read)
    # Of the cases that are left out only names are said.
    assert 0.9 * total < refusals < total


@pytest.mark.thorough
def test_an_onnx_container(folder):
    torchferry.convert(ARTIFACTS / "rates.pt", folder / "rates.onnx", to="onnx")

    def read() -> None:
        opened = onnx_container.read(folder / "rates.onnx")
        opened.cases()
        opened.parameters()

    manifest = onnx_container.manifest_path(folder / "rates.onnx")
    refusals, total = count_refusals(manifest, onnx_container._compute_seal, read)
    assert total // 2 < refusals < total


@pytest.mark.parametrize("name", ["", ".", "..", "/a", "a/b", "a\\b", "n" * 256, "a\nb"])
def test_what_is_no_name_of_a_file(name):
    assert not is_file_name(name)
    assert is_file_name("m.onnx")


NAMES = ("a*/b", "x */ int evil(void); /*", "??/", "end\\", "! call evil()", "<b>&'\"", "модель")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_reaches_no_other_language(name, tmp_path):
    """What is a name in Python is a comment in C, and no more."""
    path = Path(shutil.copy(ARTIFACTS / "rates.pt", tmp_path / "m.pt"))
    change_contract(path, lambda c: c.update(name=name))
    converted = torchferry.convert(path, tmp_path / "kernel", to="c")
    assert converted.report.passed
    for file in (tmp_path / "kernel").iterdir():
        if file.suffix in (".c", ".h") and not file.name.endswith("_shared.c"):
            text = file.read_text()
            assert not re.search(r"\bevil\b", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
