"""What the libtorch harness says and finds, alone and as a runner of ``verify``."""

from __future__ import annotations

import io
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from native_build import run
from project import RATES, ROOT, export_unverified
from tampering import change_cases, change_contract, rewrite
from verifying import verify

from exporter.archive import pt_archive
from exporter.common.errors import ArchiveError, MismatchError, MissingRuntimeError, UsageError
from runtime_checks import native_build
from runtime_checks.options import VerifyOptions
from runtime_checks.runners import selection
from runtime_checks.runners.base import Call
from runtime_checks.runners.libtorch_runner import LibtorchRunner
from runtime_checks.verification import collect_report


def harness(path: Path, *arguments: str) -> tuple[int, dict]:
    code, out, _ = run(native_build.build() / "bin" / "torchferry_verify", path, "--json", *arguments)
    return code, json.loads(out)


def test_the_harness_says_what_it_ran(archives):
    code, report = harness(archives["elastic"], "--latency", "--threads", "1")
    assert (code, report["passed"], report["foreign_objects"]) == (0, True, [])
    assert all(case["max_ulp"] == 0 for case in report["cases"])
    assert [point["batch"] for point in report["latency"]][:3] == [1, 10, 100]
    assert all(len(point["first_calls_ms"]) == 5 and point["p99_ms"] > 0 for point in report["latency"])
    code, _, text = run(native_build.build() / "bin" / "torchferry_verify", archives["elastic"])
    assert code == 0
    assert text.rstrip().endswith("verified")


def nan_in_an_output(cases):
    cases["batch_7/forward/out/2"][3] = float("nan")


def one_number(cases):
    cases["warmup/forward/out/0"].view(-1)[4] *= 1 + 1e-6


def swapped(cases):
    case = cases["batch_7/forward/out/0"]
    case.copy_(case.transpose(-1, -2).clone())


@pytest.mark.parametrize(
    ("change", "output"), [(one_number, "force"), (nan_in_an_output, "energy"), (swapped, "force")]
)
def test_the_harness_finds_a_changed_case(elastic, change, output):
    change_cases(elastic, change)
    code, report = harness(elastic)
    assert code == 5
    failed = [c for c in report["cases"] if not c["passed"]]
    assert {c["output"] for c in failed} == {output}
    assert failed[0]["worst"]
    assert set(failed[0]["inputs"]) == {"F", "v", "s"}
    report = collect_report(elastic, runners=[LibtorchRunner()])
    assert {c.check for c in report.checks if c.verdict == "failed"} >= {"native comparison", "stored cases"}
    with pytest.raises(MismatchError, match=r"force|energy"):
        verify(elastic, runners=[LibtorchRunner()])


def test_the_harness_finds_swapped_outputs_of_one_shape(tmp_path, neml2):
    path = tmp_path / "eq.pt"
    export_unverified(str(RATES), path, "eq")

    def exchange(cases):
        a, b = cases["batch_7/forward/out/0"], cases["batch_7/forward/out/1"]
        cases["batch_7/forward/out/0"], cases["batch_7/forward/out/1"] = b.clone(), a.clone()

    change_cases(path, exchange)
    code, report = harness(path)
    assert code == 5
    assert {c["output"] for c in report["cases"] if not c["passed"]} == {"a_rate", "b_rate"}


def wrong_shape(cases):
    cases["batch_7/forward/out/2"] = cases["batch_7/forward/out/2"].unsqueeze(-1)


def missing_output(cases):
    del cases["batch_7/forward/out/2"]


@pytest.mark.parametrize("change", [wrong_shape, missing_output])
def test_a_case_that_does_not_fit_is_damage(elastic, change):
    change_cases(elastic, change)
    code, report = harness(elastic)
    assert (code, report["status"]) == (4, "TF_ERROR_ARCHIVE")
    assert "batch_7" in report["error"]


def grown(result):
    result["extra/torchferry/graph.txt"] += b" "


def removed(result):
    del result["extra/torchferry/graph.txt"]


@pytest.mark.parametrize("change", [grown, removed])
def test_a_manifest_that_does_not_match_is_damage(elastic, change):
    rewrite(elastic, change, manifest=False)
    code, report = harness(elastic)
    assert (code, report["status"]) == (4, "TF_ERROR_ARCHIVE")
    assert "graph.txt" in report["error"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("methods", {}), ("inputs", 3), ("batch", {"ndim": 2, "sizes": [], "ranks": [], "limits": ""}), ("name", None)],
)
def test_a_broken_contract_names_its_field(elastic, field, value):
    change_contract(elastic, lambda c: c.update({field: value}))
    code, report = harness(elastic)
    assert code == 4
    assert field in report["error"]


def test_a_contract_of_other_inputs_than_the_graph_has(elastic):
    change_contract(elastic, lambda c: c["methods"]["forward"]["inputs"].pop())
    code, report = harness(elastic)
    assert code == 4
    assert "takes other inputs" in report["error"]


def nested_manifest(result):
    result["extra/torchferry/manifest.json"] = b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"


def nested_cases(result):
    with zipfile.ZipFile(io.BytesIO(result["extra/torchferry/cases.pt"])) as before:
        names = {name: before.read(name) for name in before.namelist()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as after:
        for name, data in names.items():
            deep = b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b"."
            after.writestr(name, deep if name.endswith("data.pkl") else data)
    result["extra/torchferry/cases.pt"] = buffer.getvalue()


@pytest.mark.parametrize(("change", "manifest"), [(nested_manifest, False), (nested_cases, True)])
def test_a_file_that_nests_without_end_is_damage_and_no_crash(elastic, change, manifest):
    rewrite(elastic, change, manifest=manifest)
    code, report = harness(elastic)
    assert (code, report["status"]) == (4, "TF_ERROR_ARCHIVE")


def test_a_path_that_is_no_text(tmp_path):
    code, out, _ = run(native_build.build() / "bin" / "torchferry_verify", os.fsdecode(b"no\xff.pt"), "--json")
    assert code == 4
    assert json.loads(out)["status"] == "TF_ERROR_FILE"


def test_a_parameter_that_the_file_does_not_have(elastic):
    change_contract(elastic, lambda c: c["parameters"].append({"name": "ghost", "shape": [], "dtype": "float64"}))
    code, report = harness(elastic)
    assert code == 4
    assert "parameter 'ghost'" in report["error"]


def test_a_parameter_that_the_contract_does_not_offer(elastic):
    """A constant of the trace: it stays in the file and cannot be set."""
    change_contract(elastic, lambda c: c.update(parameters=c["parameters"][:1]))
    assert harness(elastic)[0] == 0


def test_the_exit_codes_of_the_harness(tmp_path):
    program = native_build.build() / "bin" / "torchferry_verify"
    assert run(program, "nowhere.pt")[0] == 4
    assert run(program)[0] == 2
    assert run(program, "m.pt", "--threads", "-2")[0] == 2
    assert run(program, "m.pt", "--colour")[0] == 2
    assert run(program, "m.pt", "--device", "tpu")[0] == 2
    assert run(program, "m.pt", "--device", "cuda:77")[0] == 6
    assert run(program, "--help")[0] == 0


def test_one_report_for_all_runtimes(archives):
    runners = selection.select_runners(VerifyOptions("python,libtorch"))
    report = verify(archives["elastic"], runners=runners)
    assert [leg.name for leg in report.legs] == ["python, cpu", "libtorch, cpu"]
    isolation = [c.verdict for c in report.checks if c.check == "source library absent"]
    assert isolation == ["passed", "passed"]
    assert {o.comparison.max_ulp for o in report.outputs} <= {0, 1}


def test_a_python_in_the_harness_process_is_found(archives, monkeypatch):
    """The library that this test asks to be absent is one that the harness needs."""
    contract = pt_archive.read(archives["elastic"]).contract
    run = LibtorchRunner().run(archives["elastic"], contract, [])
    assert run.evidence["foreign_objects"] == []
    code, report = harness(archives["elastic"], "--absent=torch_cpu")
    assert code == 5
    assert any("torch_cpu" in name for name in report["foreign_objects"])
    # A part of a name is another name, and sources may be called as what every program has.
    code, report = harness(archives["elastic"], "--absent=orch_cpu", "--absent=torch_c", "--absent=m", "--absent=cpu")
    assert (code, report["foreign_objects"]) == (0, [])


def test_a_call_that_raises_is_that_calls_error(archives):
    contract = pt_archive.read(archives["picks"]).contract
    table = torch.rand(2, 3, dtype=torch.float64)
    calls = [Call("forward", (table, torch.tensor([0, index]))) for index in (1, 9, 2)]
    results = LibtorchRunner().run(archives["picks"], contract, calls).results
    assert [bool(r.error) for r in results] == [False, True, False]
    assert "out of bounds" in results[1].error
    assert torch.equal(results[2].outputs[0], table[[0, 1], [0, 2]])


def test_names_and_devices_that_are_none():
    with pytest.raises(UsageError, match="julia"):
        selection.select_runners(VerifyOptions("python,julia"))
    with pytest.raises(UsageError, match="tpu"):
        selection.select_runners(VerifyOptions("python", "tpu"))
    with pytest.raises(UsageError, match="no runtime"):
        selection.select_runners(VerifyOptions(",", "cpu"))
    with pytest.raises(UsageError, match="does not run"):
        selection.select_runners(VerifyOptions("python"), "onnx")
    assert [r.name for r in selection.select_runners(VerifyOptions("", "cpu"))] == ["python"]
    with pytest.raises(MissingRuntimeError, match="cuda:55"):
        selection.select_runners(VerifyOptions("python", "cuda:55"))
    assert selection.list_unchecked_devices(["cuda"]) == ()
    assert "not checked on this machine" in selection.list_unchecked_devices(["cpu"])[0]


def test_a_damaged_archive_is_damaged_for_libtorch_too(damaged):
    with pytest.raises(ArchiveError):
        verify(damaged / "flipped.pt", runners=[LibtorchRunner()])


@pytest.mark.thorough
def test_memory_that_is_kept_is_not_fetched_again():
    """By the pages that the system had to give."""
    faults = []
    for flags in ([], ["--keep-memory"]):
        command = [
            native_build.build() / "bin" / "torchferry_verify",
            ROOT / "artifacts" / "perzyna.pt",
            "--latency",
            *flags,
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        faults.append(used.ru_minflt)
    assert faults[1] + 10_000 < faults[0]
