"""Every field of packages and programs, forged in every way: refused, or the same numbers, or what verify finds."""

from __future__ import annotations

import copy
import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forging import CHANGES, list_places
from project import ARTIFACTS, mark_rest_thorough
from tampering import records, rewrite

import torchferry
from exporter.archive import pt_archive
from exporter.common.errors import TorchferryError
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.common.script_loading import OPERATORS
from runtime_checks.containers import open_container
from runtime_checks.engines.engines import check_machine
from runtime_checks.runners.children.package_loading import check_programs

PROGRAM = ARTIFACTS / "for_ever" / "0.1.0" / "robertson.program.pt2"
FORWARD = "models/forward.json"
REFUSED, SAME, OTHER = "refused", "same numbers", "other numbers, or an error of the model's"


def forge_fields(whole: Any, share: int) -> Iterator[tuple[str, Any]]:
    """What each change of each field makes of a record; one of so many is made."""
    for place, change in [(place, change) for place in list_places(whole) if place for change in CHANGES][::share]:
        forged = copy.deepcopy(whole)
        change(forged, place)
        yield f"{change.__name__} at {place}", forged


@pytest.mark.parametrize(
    ("record", "share"),
    mark_rest_thorough(
        [("extra/torchferry/machine.json", 1)],
        [("extra/torchferry/contract.json", 3), ("extra/torchferry/manifest.json", 1)],
    ),
)
def test_records_of_compiled_code(record, share, compiled_robertson, tmp_path):
    """Any other error than one of ours is a fault; nothing is loaded."""
    path = Path(shutil.copy(compiled_robertson, tmp_path))
    refusals = total = 0
    for _, forged in forge_fields(json.loads(records(compiled_robertson)[1][record]), share):
        shutil.copy(compiled_robertson, path)
        is_manifest = record == f"extra/{pt_archive.MANIFEST}"
        rewrite(
            path, lambda r, forged=forged: r.update({record: json.dumps(forged).encode()}), manifest=not is_manifest
        )
        total += 1
        try:
            opened = pt_archive.read(path)
            opened.cases()
            check_machine(opened, "cpu")
        except TorchferryError:
            refusals += 1
    # Texts of a contract, and instruction sets that the code does not need, are free.
    assert total // 10 < refusals <= total
    # The control.
    shutil.copy(compiled_robertson, path)
    pt_archive.read(path).cases()


def pack(forged: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(f"archive/{FORWARD}", json.dumps(forged))
    return buffer


def use(path: Path) -> str:
    """What becomes of a file at its own cases: ``verify`` finds other numbers, and errors."""
    cases = [case for case in open_container(PROGRAM).cases() if case.method == "forward"]
    try:
        model = torchferry.load(path)
    except TorchferryError:
        return REFUSED
    for case in cases:
        try:
            got = model(*case.inputs)
        except Exception:
            return OTHER
        if len(got) != len(case.outputs) or not all(map(torch.allclose, got, case.outputs)):
            return OTHER
    return SAME


@pytest.mark.parametrize(("share", "loads"), mark_rest_thorough([(79, 5)], [(3, 150)]))
def test_fields_of_a_program(share, loads, tmp_path):
    """All of them are checked; of those that pass some are loaded, each in a process that nothing is to end."""
    whole, path, taken = json.loads(records(PROGRAM)[1][FORWARD]), tmp_path / PROGRAM.name, []
    total = 0
    for label, forged in forge_fields(whole, share):
        total += 1
        try:
            check_programs(pack(forged), OPERATORS)
        except ValueError:
            continue
        taken.append((label, forged))
    assert total // 20 < len(taken) < total
    outcomes, problems = dict[str, int](), []
    for label, forged in taken[:: max(1, len(taken) // loads)]:
        shutil.copy(PROGRAM, path)
        rewrite(path, lambda r, forged=forged: r.update({FORWARD: json.dumps(forged).encode()}), manifest=True)
        try:
            outcome = run_in_fork(use, path, seconds=60)
        except ForkFailedError as error:
            problems.append(f"{label}: {error}")
        else:
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert not problems, "\n".join(problems)
    assert {REFUSED, SAME} <= set(outcomes)


def test_a_program_as_it_is():
    """The control."""
    assert run_in_fork(use, PROGRAM) == SAME
