"""Every field of the manifests of kernels and ONNX containers, forged in every way: refused with a reason, or taken."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path

import pytest
from forging import CHANGES, list_places
from project import ARTIFACTS, mark_rest_thorough
from tampering import change_contract

import torchferry
from exporter.archive import kernel_container, onnx_container
from exporter.archive.contract_text import is_file_name
from exporter.archive.sealed_manifest import seal_manifest
from exporter.common.errors import ArchiveError


def read_kernel(path: Path) -> None:
    opened = kernel_container.read(path)
    opened.cases()
    opened.sources()


def read_onnx(path: Path) -> None:
    opened = onnx_container.read(path)
    opened.cases()
    opened.parameters()


@pytest.mark.parametrize(
    ("format_name", "name", "manifest_name", "read"),
    mark_rest_thorough(
        [("c", "rates", kernel_container.MANIFEST, read_kernel)], [("onnx", "rates.onnx", "rates.onnx.json", read_onnx)]
    ),
)
def test_every_field_is_refused_or_taken(format_name, name, manifest_name, read, tmp_path):
    """Any other error than ``ArchiveError`` is ours."""
    path = tmp_path / name
    torchferry.convert(ARTIFACTS / "rates.pt", path, to=format_name)
    manifest = (path if path.is_dir() else tmp_path) / manifest_name
    whole = json.loads(manifest.read_bytes())
    whole.pop("sha256")
    refusals = total = 0
    for place in list_places(whole):
        for change in CHANGES if place else ():
            content = copy.deepcopy(whole)
            change(content, place)
            manifest.write_bytes(seal_manifest(content))
            total += 1
            try:
                read(path)
            except ArchiveError:
                refusals += 1
    manifest.write_bytes(seal_manifest(whole))
    read(path)
    # Names of cases that are left out, and most texts of a contract, are free.
    assert total // 2 < refusals < total


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(b"{", b'{"name": "x", ', 1), "twice"),
        (lambda text: text.replace(b'"batched": true', b'"batched": 1'), "field batched"),
        (lambda text: text.replace(b'"batched": true', b'"batched": false'), "own sha256"),
        (lambda text: text[:-1], "Expecting"),
        (lambda text: text.replace(b": true", b":  true"), "another spelling"),
    ],
)
def test_a_manifest_is_called_one(change, message, tmp_path):
    torchferry.convert(ARTIFACTS / "rates.pt", tmp_path / "rates", to="c")
    manifest = tmp_path / "rates" / kernel_container.MANIFEST
    manifest.write_bytes(change(manifest.read_bytes()))
    with pytest.raises(ArchiveError, match=rf"the kernel's manifest is damaged(.|\n)*{message}"):
        kernel_container.read(tmp_path / "rates")


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
