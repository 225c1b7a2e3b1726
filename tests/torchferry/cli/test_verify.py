"""``torchferry verify``: what it takes, and what it says of files that are not as they were written."""

from __future__ import annotations

import json

import pytest
import torch
from project import ARTIFACTS
from tampering import change_cases, change_contract, rewrite

import torchferry
from torchferry.cli.app import run


def test_verify_takes_as_many_processes_as_it_is_given(capfd):
    path = ARTIFACTS / "return_map.pt"
    for jobs in ("1", "2"):
        assert run(["verify", str(path), "--jobs", jobs, "--json"]) == 0
        (leg,) = json.loads(capfd.readouterr().out)["legs"]
        assert leg["evidence"]["processes"] == int(jobs)
    assert run(["verify", str(path), "--jobs", "0"]) == 2
    assert "a number from 1 on" in capfd.readouterr().err
    (leg,) = torchferry.verify(path, jobs=1).legs
    assert leg.evidence["processes"] == 1


@pytest.mark.parametrize(
    ("damage", "code", "message"),
    [
        (lambda p: p.write_bytes(b""), 4, "empty"),
        (lambda p: p.write_bytes(p.read_bytes()[:5000]), 4, "damaged"),
        (lambda p: p.write_text("text" * 100), 4, "damaged"),
        (lambda p: torch.jit.save(torch.jit.script(torch.nn.Tanh()), p), 4, "not a torchferry archive"),
        (lambda p: change_contract(p, lambda c: c.update(schema=2)), 4, "schema 2"),
        (lambda p: rewrite(p, lambda r: r.pop("data.pkl"), manifest=False), 4, "missing: data.pkl"),
        (lambda p: rewrite(p, lambda r: r.update({"extra/x": b""}), manifest=False), 4, "added: extra/x"),
        (lambda p: rewrite(p, lambda r: r.update({"data.pkl": b"x"}), manifest=False), 4, "record data.pkl"),
        (lambda p: rewrite(p, lambda r: r.update({"data.pkl": b"x"}), manifest=True), 4, "opcode"),
        (lambda p: change_cases(p, lambda t: t["warmup/forward/out/0"].add_(1)), 5, "stored cases"),
        (lambda p: p.unlink(), 4, "no such file"),
    ],
)
def test_bad_archives(damage, code, message, eq_copy, capfd):
    damage(eq_copy)
    assert run(["verify", str(eq_copy)]) == code
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_mismatch_in_json_carries_the_report(eq_copy, capfd):
    change_cases(eq_copy, lambda t: t["warmup/forward/out/0"].mul_(1 + 1e-6))
    assert run(["verify", str(eq_copy), "--json"]) == 5
    result = json.loads(capfd.readouterr().out)
    assert result["error"] == "MismatchError"
    assert result["report"]["passed"] is False


@pytest.mark.parametrize("limit", ["nan", "-5", "0"])
def test_limits_that_are_none(limit, eq_path, capfd):
    assert run(["verify", str(eq_path), "--time-limit", limit]) == 2
    assert "not a positive number" in capfd.readouterr().err
