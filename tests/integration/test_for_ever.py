"""Files that earlier versions wrote: each byte is as it was, and this version reads all of them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from project import ARTIFACTS

import torchferry
from exporter.archive import pt_archive
from exporter.archive.kernel_container import is_kernel
from exporter.archive.onnx_container import SUFFIX
from runtime_checks.comparison import compare_tensors

FOLDER = ARTIFACTS / "for_ever"
VERSIONS = sorted(path for path in FOLDER.iterdir() if path.is_dir())
SUMS = "SHA256SUMS"


def list_changes(folder: Path) -> list[str]:
    """List what differs from the sums: files that changed, that are gone, and that were added."""
    wanted = {}
    for line in (folder / SUMS).read_text().splitlines():
        digest, name = line.split(maxsplit=1)
        wanted[name] = digest
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != SUMS]
    present = {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def list_containers(folder: Path) -> list[Path]:
    kinds = (".pt", ".pt2", SUFFIX)
    files = [p for p in folder.iterdir() if is_kernel(p) or (p.suffix in kinds and len(p.suffixes) < 3)]
    # The methods of an ONNX container are files beside it.
    return sorted(p for p in files if p.suffix != SUFFIX or p.with_name(f"{p.name}.json").exists())


CONTAINERS = [pytest.param(p, id=f"{v.name}-{p.name}") for v in VERSIONS for p in list_containers(v)]
GRAPHS = [parameter for parameter in CONTAINERS if str(parameter.id).endswith(".pt")]


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda path: path.name)
def test_they_are_as_they_were_written(folder):
    assert list_changes(folder) == []
    assert len(list_containers(folder)) >= 7


def test_a_file_that_is_not_as_it_was(tmp_path):
    """The control: a changed byte, a file that is gone, and one that was added."""
    folder = Path(shutil.copytree(VERSIONS[0], tmp_path / "0"))
    data = bytearray((folder / "rates.pt").read_bytes())
    data[100] ^= 1
    (folder / "rates.pt").write_bytes(data)
    (folder / "bar.pt").unlink()
    (folder / "robertson" / "more.c").write_text("")
    assert list_changes(folder) == ["bar.pt", "rates.pt", "robertson/more.c"]


@pytest.mark.parametrize("path", CONTAINERS)
def test_this_version_verifies_them(path, tmp_path):
    copy = tmp_path / path.name
    # A kernel is built beside its sources.
    path = Path(shutil.copytree(path, copy)) if path.is_dir() else path
    report = torchferry.verify(path, trust="native")
    assert report.passed


@pytest.mark.parametrize("path", GRAPHS)
def test_this_version_evaluates_them_without_torchscript(path):
    archive = pt_archive.read(path)
    model = torchferry.load(path, engine="interpreter")
    for case in archive.cases():
        names = archive.contract.methods[case.method].inputs
        outputs = model.call(case.method, dict(zip(names, case.inputs, strict=True)))
        pairs = zip(archive.contract.methods[case.method].outputs, outputs.values(), case.outputs, strict=True)
        for name, got, expected in pairs:
            bounds = archive.contract.tolerance.bounds(name, str(expected.dtype).removeprefix("torch."))
            assert compare_tensors(got, expected, bounds).passed
