"""Accidents: bytes that change, are lost, come in, or change places. No reader takes one that is another file."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from project import ROOT, mark_rest_thorough
from two_readers import TF_ERROR_ARCHIVE, read_natively

import torchferry
from exporter.common.errors import ArchiveError
from runtime_checks.containers import open_container

FORMATS = ("pt", "onnx", "pt2", "program", "c")
# Accidents for each container, in `make test` and in `make test-all`.
FEW, MANY = 60, 2000


def change(data: bytes, draw: random.Random) -> bytes:
    """One accident."""
    start, length = draw.randrange(len(data)), draw.choice((1, 1, 1, 4, 64, 4096))
    end = min(start + length, len(data))
    kind = draw.choice(("flip", "flip", "random", "lose", "insert", "zero", "double", "swap", "end"))
    piece = data[start:end]
    if kind == "flip":
        place = draw.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]
    if kind == "swap":
        other = draw.randrange(len(data))
        low, high = sorted((start, other))
        middle = data[low + 1 : high]
        return (
            data
            if low == high
            else data[:low] + data[high : high + 1] + middle + data[low : low + 1] + data[high + 1 :]
        )
    if kind == "end":
        return data[:start]
    replacement = {
        "random": draw.randbytes(len(piece)),
        "lose": b"",
        "insert": draw.randbytes(length) + piece,
        "zero": bytes(len(piece)),
        "double": piece + piece,
    }[kind]
    return data[:start] + replacement + data[end:]


@pytest.fixture(scope="module")
def containers(tmp_path_factory, compiled_robertson) -> dict[str, Path]:
    """A container of each format: a file, or a folder of all its files."""
    folder = tmp_path_factory.mktemp("containers")
    source = Path(shutil.copy(ROOT / "artifacts" / "robertson.pt", folder / "robertson.pt"))
    paths = {"pt": source, "pt2": Path(shutil.copy(compiled_robertson, folder))}
    for name, suffix in (("onnx", ".onnx"), ("program", ".program.pt2"), ("c", "_kernel")):
        paths[name] = torchferry.convert(source, folder / f"robertson{suffix}", to=name).path
    return paths


def list_files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.iterdir())
    return sorted(path.parent.glob("robertson.onnx*")) if path.suffix == ".onnx" else [path]


@pytest.mark.parametrize(
    ("name", "count"),
    mark_rest_thorough([("pt", FEW)], [(name, MANY) for name in FORMATS]),
)
def test_mutants(name, count, containers, tmp_path):
    original = containers[name]
    draw, problems, natively = random.Random(0), list[str](), list[Path]()
    is_read_natively = name in ("pt", "pt2")
    for number in range(count):
        place = tmp_path / str(number)
        if original.is_dir():
            path = Path(shutil.copytree(original, place))
        else:
            place.mkdir()
            path = place / original.name
            for file in list_files(original):
                shutil.copy(file, place)
        victim = draw.choice(list_files(path))
        data = victim.read_bytes()
        changed = change(data, draw)
        victim.write_bytes(changed)
        if changed == data:
            continue
        try:
            open_container(path).cases()
        except ArchiveError:
            pass
        except Exception as error:
            problems.append(f"{victim}: {type(error).__name__}: {error}")
        else:
            problems.append(f"{victim}: taken")
        natively += [path] if is_read_natively else []
        if len(natively) == 100:
            problems += list_taken_natively(natively)
            natively.clear()
        if not is_read_natively:
            shutil.rmtree(place)
    problems += list_taken_natively(natively) if natively else []
    assert not problems, "\n".join(problems[:20])


def list_taken_natively(paths: Sequence[Path]) -> list[str]:
    """What C++ does not refuse as a damaged file, also where native code may run; the files are removed."""
    answers = read_natively(paths, trusts_native=True)
    problems = [
        f"{path}: {status}, {message}"
        for path, (status, message) in zip(paths, answers, strict=True)
        if status != TF_ERROR_ARCHIVE
    ]
    for path in paths:
        shutil.rmtree(path.parent)
    return problems


def test_what_is_no_accident(containers, tmp_path):
    """The control."""
    paths = []
    for name in ("pt", "pt2"):
        (tmp_path / name).mkdir()
        paths.append(Path(shutil.copy(containers[name], tmp_path / name)))
    assert len(list_taken_natively(paths)) == 2
