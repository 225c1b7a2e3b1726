"""Inputs outside the range of values that was checked: named, in Python and natively."""

from __future__ import annotations

import json
import subprocess
import warnings

import pytest
import torch
from project import PLANTED, export_unverified
from tampering import change_contract

import torchferry
from runtime_checks.envelope import OutsideEnvelopeWarning
from runtime_checks.native_build import build

F = torch.float64


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    where = tmp_path_factory.mktemp("envelope") / "m.pt"
    export_unverified(f"{PLANTED}:sound", where, x=torch.tensor([[1.0, 2.0, 3.0], [1.5, 2.5, 2.0]], dtype=F))
    return where


def test_the_contract_says_what_was_checked(path):
    envelope = torchferry.load(path).contract.envelope
    assert envelope.dtypes == ("float64",)
    assert envelope.values["x"].low <= 1.0
    assert envelope.values["x"].high >= 3.0


def narrowed(path, tmp_path):
    """The same archive with a contract that was checked for less."""
    copy = tmp_path / "narrow.pt"
    copy.write_bytes(path.read_bytes())
    change_contract(copy, lambda contract: contract["envelope"]["values"].update(x={"low": 0.0, "high": 4.0}))
    return copy


@pytest.mark.parametrize("value", [5.0, -0.1, float("nan"), float("inf")])
def test_a_call_outside_names_the_input(value, path, tmp_path):
    narrow = narrowed(path, tmp_path)
    inside = torch.full((2, 3), 3.0, dtype=F)
    beyond = torch.tensor([[1.0, value, 1.0]], dtype=F)
    strict = torchferry.load(narrow, envelope="error")
    strict(inside)
    with pytest.raises(torchferry.UsageError, match=r"input 'x' has values outside(.|\n)*0 to 4"):
        strict(beyond)
    with pytest.raises(torchferry.UsageError, match="input 'x'"):
        strict.call("forward", {"x": beyond})
    with pytest.warns(OutsideEnvelopeWarning, match="input 'x'"):
        torchferry.load(narrow, envelope="warn")(beyond)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torchferry.load(narrow)(beyond)


def test_an_unknown_mode(path):
    with pytest.raises(torchferry.UsageError, match="one of error, warn, off"):
        torchferry.load(path, envelope="loud")


def test_verify_holds_the_stored_cases_to_it(path, tmp_path):
    assert torchferry.verify(path, envelope="error").passed
    narrow = narrowed(path, tmp_path)
    with pytest.raises(torchferry.MismatchError, match="envelope"):
        torchferry.verify(narrow, envelope="error")
    assert "input 'x'" in " ".join(torchferry.verify(narrow, envelope="warn").notes)


def test_the_harness_holds_its_inputs_to_it(path, tmp_path):
    narrow = narrowed(path, tmp_path)
    harness = str(build() / "bin" / "torchferry_verify")

    def run(file, mode):
        done = subprocess.run(
            [harness, str(file), "--json", "--envelope", mode], capture_output=True, text=True, check=False
        )
        return done.returncode, json.loads(done.stdout)

    assert run(path, "error")[0] == 0
    code, report = run(narrow, "error")
    assert code == 5
    assert "input 0 ('x') has values outside" in json.dumps(report["cases"])
    code, report = run(narrow, "warn")
    assert code == 0
    assert "'x'" in report["warnings"][0]
    assert run(narrow, "off") == (0, {**run(narrow, "off")[1], "warnings": []})
