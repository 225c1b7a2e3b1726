"""Every field of a contract, forged in every way: both readers refuse the file, or both take it."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from call_structures import FORGED, HONEST, V
from contract_fields import format_fields
from forging import CHANGES, list_places
from project import ARTIFACTS, ROOT, mark_rest_thorough
from tampering import change_contract, records, rewrite
from two_readers import (
    TF_ERROR_ARCHIVE,
    TF_ERROR_MISMATCH,
    TF_OK,
    Forge,
    expect_taken,
    list_wrong_answers,
    read_in_python,
    read_natively,
)

from exporter.archive.pt_archive import CONTRACT
from runtime_checks.verification import collect_report

RECORD = f"extra/{CONTRACT}"


@pytest.mark.parametrize(
    ("name", "share"), mark_rest_thorough([("rates", 13)], [("rates", 1), ("return_map", 11), ("loss_and_grad", 3)])
)
def test_both_readers_agree(name, share, tmp_path):
    """``share``: one of how many forgeries is made."""
    path = ARTIFACTS / f"{name}.pt"
    whole = json.loads(records(path)[1][RECORD])
    for spec in (*whole["inputs"][:1], *whole["outputs"][:1], *whole["parameters"][:1]):
        spec.update(unit="MPa", quantity="stress", description="of a part")
    whole["metadata"] = {"description": "a\nb", "authors": ["Jane"], "license": "MIT", "references": ["doi:10.1/2"]}
    whole["results"] = [{"kind": "list", "keys": [0, 1]}, {**V, "name": whole["outputs"][0]["name"]}, FIXED]
    whole["arguments"] = [{"kind": "dict", "keys": ["x"]}, {**V, "name": whole["inputs"][0]["name"]}]
    whole["positional"] = 1
    forgeries = [(place, change) for place in list_places(whole) if place for change in CHANGES][::share]
    files, known = list[tuple[str, Path, tuple[str | int, ...]]](), set[bytes]()
    for number, (place, change) in enumerate(forgeries):
        contract = copy.deepcopy(whole)
        change(contract, place)
        text = json.dumps(contract).encode()
        if text in known:
            continue
        known.add(text)
        file = Path(shutil.copy(path, tmp_path / f"{number}.pt"))
        rewrite(file, lambda r, text=text: r.update({RECORD: text}), manifest=True)
        files.append((f"{change.__name__} at {place}", file, place))
    native = read_natively([file for _, file, _ in files])
    problems = []
    for (label, file, place), (status, message) in zip(files, native, strict=True):
        refused = read_in_python(file)
        # Without its tolerance an honest file's cases pass on the processor alone that wrote them, in both languages.
        is_taken = status == TF_OK or (
            status == TF_ERROR_MISMATCH and place[0] == "tolerance" and has_other_numbers(file)
        )
        if bool(refused) != (status == TF_ERROR_ARCHIVE) or (not refused and not is_taken):
            problems.append(f"{label}: Python {refused[:300]!r}, C++ {status}: {message[:300]!r}")
    assert not problems, f"{len(problems)} of {len(files)}:\n" + "\n".join(problems[:40])
    refusals = sum(status == TF_ERROR_ARCHIVE for status, _ in native)
    assert len(files) // 2 < refusals < len(files)


def test_both_readers_agree_on_units(tmp_path):
    def say(unit: str) -> Forge:
        return lambda path: change_contract(path, lambda contract: contract["outputs"][0].update(unit=unit))

    refused = dict.fromkeys(["n" * 201, " MPa", "MPa ", "M\x1b[2JPa", "M\uffffPa"], "unit")
    forgeries = {repr(unit): (say(unit), reason) for unit, reason in refused.items()}
    forgeries |= expect_taken({repr(unit): say(unit) for unit in ("", "n" * 200, "\u00b5" * 200, "kg m-3")})
    assert not list_wrong_answers(ARTIFACTS / "rates.pt", forgeries, tmp_path)


def test_both_readers_agree_on_metadata(tmp_path):
    def say(key: str, value: object) -> Forge:
        return lambda path: change_contract(path, lambda contract: contract.update(metadata={key: value}))

    def note(role: str, key: str, text: str) -> Forge:
        return lambda path: change_contract(path, lambda contract: contract[role][0].update({key: text}))

    unfit = ["n" * 501, " a", "a ", "a\nb", "a\x1b[2J", "\u202ea"]
    keys = {"authors": "author", "references": "reference"}
    forgeries = {f"{k} {v!r}": (say(k, [v]), reason) for v in (*unfit, "") for k, reason in keys.items()}
    forgeries |= {f"license {v!r}": (say("license", v), "license") for v in unfit}
    forgeries |= {f"{r} {k} {v!r}": (note(r, k, v), k) for v in unfit[3:] for r, k in NOTES}
    forgeries["description"] = (say("description", "a\x1b[2J"), "description")
    forgeries["editor"] = (say("editor", "Jane"), "editor")
    taken = {"description": say("description", "a\nb\tc\u00fc" + "n" * 99_000), "nothing": say("license", "")}
    taken |= {f"{r} {k}": note(r, k, "\u00b5" * 500) for r, k in NOTES}
    forgeries |= expect_taken(
        {**taken, "authors": say("authors", ["J\u00fcrgen", "Ann"]), "no": note("inputs", "quantity", "")}
    )
    assert not list_wrong_answers(ARTIFACTS / "return_map.pt", forgeries, tmp_path)


def test_both_readers_agree_on_structures_of_calls(tmp_path):
    def say(key: str, nodes: list[Any], variable: str) -> Forge:
        named = [{**n, "name": variable} if n.get("name") == "v" else n for n in nodes]
        return lambda path: change_contract(path, lambda contract: contract.update({key: named}))

    forgeries = {label: (say("results", nodes, "a_rate"), "results|call") for label, nodes in FORGED.items()}
    for number in (-1, 1):
        forgeries[f"{number} by position"] = (
            lambda path, number=number: change_contract(path, lambda contract: contract.update(positional=number)),
            "position",
        )
    forgeries["no dict"] = (say("arguments", [{"kind": "list"}], "a"), "arguments")
    forgeries["an output"] = (say("arguments", [{"kind": "dict", "keys": ["x"]}, V], "a_rate"), "arguments|call")
    taken = {label: say("results", nodes, "a_rate") for label, nodes in HONEST.items()}
    forgeries |= expect_taken({**taken, "inputs": say("arguments", [{"kind": "dict", "keys": ["x"]}, V], "a")})
    assert not list_wrong_answers(ARTIFACTS / "rates.pt", forgeries, tmp_path)


FIXED = {"kind": "fixed", "value": "1"}
NOTES = (("inputs", "quantity"), ("outputs", "description"), ("parameters", "description"))


def has_other_numbers(file: Path) -> bool:
    """Return whether a replay in Python finds that stored cases differ."""
    return any(c.check == "stored cases" and c.verdict == "failed" for c in collect_report(file).checks)


def test_the_native_reader_has_the_fields_of_the_contract():
    text = (ROOT / "runtime_checks" / "native" / "src" / "contract_fields.cpp").read_text()
    match = re.search(r'kFields = R"\(\n(.*?)\n\)"', text, re.DOTALL)
    assert match is not None
    assert match[1] == format_fields()
