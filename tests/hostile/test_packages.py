"""Every field of packages and programs, forged in every way: refused, or the same numbers, or what verify finds."""

from __future__ import annotations

import copy
import io
import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forging import CHANGES, list_places
from project import ARTIFACTS, ROOT, mark_rest_thorough
from tampering import records, rewrite
from two_readers import TF_ERROR_ARCHIVE, TF_OK, read_natively

import torchferry
from exporter.archive import pt_archive, target_machine
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
    """Any other error than one of ours is a fault. What one reader refuses the other does; what it takes it runs."""
    is_manifest, is_machine = record == f"extra/{pt_archive.MANIFEST}", record.endswith("machine.json")
    forgeries = dict(forge_fields(json.loads(records(compiled_robertson)[1][record]), share))
    files = {label: tmp_path / str(number) / compiled_robertson.name for number, label in enumerate(forgeries)}
    refusals, problems = dict[str, str](), list[str]()
    for start in range(0, len(files), 100):
        labels = list(files)[start : start + 100]
        for label in labels:
            files[label].parent.mkdir()
            shutil.copy(compiled_robertson, files[label])
            text = json.dumps(forgeries[label]).encode()
            rewrite(files[label], lambda r, text=text: r.update({record: text}), manifest=not is_manifest)
            if refusal := find_refusal(files[label]):
                refusals[label] = refusal
        answers = read_natively([files[label] for label in labels], trusts_native=True)
        for label, (status, message) in zip(labels, answers, strict=True):
            # Of a contract C++ reads more: whether the code has its parameters, and gives the numbers of its cases.
            is_other = label not in refusals and status != TF_OK and (is_machine or is_manifest)
            if (label in refusals and status != TF_ERROR_ARCHIVE) or is_other:
                problems.append(f"{label}: {refusals.get(label)}; C++ {status}: {message}")
            shutil.rmtree(files[label].parent)
    assert not problems, f"{len(problems)} of {len(files)}:\n" + "\n".join(problems[:20])
    # Texts of a contract, and instruction sets that the code does not need, are free.
    assert len(files) // 10 < len(refusals) <= len(files)


def find_refusal(path: Path) -> str:
    """Why Python does not load a file of compiled code here; empty if it does."""
    try:
        opened = pt_archive.read(path)
        opened.cases()
        check_machine(opened, "cpu")
    except TorchferryError as error:
        return str(error)
    return ""


def test_compiled_code_as_it_is(compiled_robertson):
    """The control."""
    assert find_refusal(compiled_robertson) == ""
    assert read_natively([compiled_robertson]) == [(TF_OK, "")]


MACHINE_TEXTS = {
    "another field": lambda text: text.replace(b"{", b'{"more": "x", ', 1),
    "a field twice": lambda text: text.replace(b"{", b'{"torch": "2.13.0", ', 1),
    "a mark": lambda text: b"\xef\xbb\xbf" + text,
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "no UTF-8": lambda text: text.replace(b'"Linux"', b'"Lin\xffx"'),
    "an object of instructions": lambda text: re.sub(rb"\[[^]]*\]", b'{"a": "avx"}', text),
    "a text of instructions": lambda text: re.sub(rb"\[[^]]*\]", b'"avx"', text),
    "nesting": lambda text: b"[" * 200_000,
    "nested objects": lambda text: b'{"a":' * 200_000,
    "many instructions": lambda text: re.sub(rb"\[[^]]*\]", b"[" + b'"avx", ' * 10_000 + b'"avx"]', text),
    "a long text": lambda text: text.replace(b'"Linux"', b'"' + b"n" * 100_001 + b'"'),
    "an escape": lambda text: text.replace(b'"Linux"', b'"\\u001b[2J"'),
    "nothing": lambda text: b"",
    "a zero byte": lambda text: text + b"\0",
}


@pytest.mark.parametrize("change", MACHINE_TEXTS.values(), ids=MACHINE_TEXTS)
def test_texts_of_a_machine_that_are_none(change, compiled_robertson, tmp_path):
    path, record = Path(shutil.copy(compiled_robertson, tmp_path)), "extra/torchferry/machine.json"
    whole = records(path)[1][record]
    assert change(whole) != whole
    rewrite(path, lambda r: r.update({record: change(whole)}), manifest=True)
    ((status, message),) = read_natively([path], trusts_native=True)
    assert (status, "the record of the machine is" in message) == (TF_ERROR_ARCHIVE, True), message
    assert "the record of the machine is" in find_refusal(path)


@pytest.mark.parametrize("name", ["fpu", "lm", "constant_tsc", "no_such_set"])
def test_what_is_no_instruction_set_of_compilers(name, compiled_robertson, tmp_path):
    """Other flags of a processor are none: neither reader looks for them."""
    path, record = Path(shutil.copy(compiled_robertson, tmp_path)), "extra/torchferry/machine.json"
    whole = json.loads(records(path)[1][record])
    text = json.dumps({**whole, "instructions": [*whole["instructions"], name]}).encode()
    rewrite(path, lambda r: r.update({record: text}), manifest=True)
    ((status, message),) = read_natively([path], trusts_native=True)
    assert (status, f"a processor without {name}" in message) == (TF_ERROR_ARCHIVE, True), message
    assert f"a processor without {name}" in find_refusal(path)


def test_a_build_of_torch_is_no_other_version(compiled_robertson, tmp_path):
    path, record = Path(shutil.copy(compiled_robertson, tmp_path)), "extra/torchferry/machine.json"
    whole = json.loads(records(path)[1][record])
    minor = ".".join(whole["torch"].split(".")[:2])
    text = json.dumps({**whole, "torch": f"{minor}+cpu"}).encode()
    rewrite(path, lambda r: r.update({record: text}), manifest=True)
    assert read_natively([path], trusts_native=True) == [(TF_OK, "")]
    assert find_refusal(path) == ""


def test_instruction_sets_are_those_of_both_readers():
    source = (ROOT / "runtime_checks" / "native" / "src" / "machine.cpp").read_text()
    listed = re.search(r"kBeginnings\[\] = \{(.*?)\}", source, re.DOTALL)
    assert listed is not None
    pattern = target_machine._INSTRUCTION_SETS.pattern
    assert re.findall(r'"(\w+)"', listed[1]) == pattern[1 : pattern.index(")")].split("|")


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
