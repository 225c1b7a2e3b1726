"""Compiled packages: verified, called as users call them, changed, made for another machine."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from project import ROOT
from tampering import Records, change_contract, change_json, rewrite, seal

import torchferry
from exporter.archive import pt_archive
from exporter.archive.pt_archive import MACHINE, PARAMETERS
from exporter.backends.torch_export import aot_inductor
from exporter.common.errors import ArchiveError, MismatchError, RunError, UsageError
from runtime_checks import native_build
from runtime_checks.engines.engines import AotInductorEngine, TorchScriptEngine
from runtime_checks.engines.selection import EngineWarning
from torchferry.cli.app import run

MODELS = ROOT / "tests" / "support" / "onnx_models.py"
ROBERTSON = ROOT / "artifacts" / "robertson.pt"
F = torch.float64
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.fixture(scope="module")
def robertson(compiled_robertson) -> Path:
    return compiled_robertson


@pytest.fixture
def copy(robertson, tmp_path) -> Path:
    return Path(shutil.copy(robertson, tmp_path / "robertson.pt2"))


def y(*batch: int) -> torch.Tensor:
    return torch.rand(*batch, 3, dtype=F, generator=torch.Generator().manual_seed(0))


def test_every_method_is_verified(robertson):
    report = torchferry.verify(robertson)
    assert {o.output for o in report.outputs} == {"rate", "d rate / d y", "d rate / d k"}
    assert {c.check for c in report.checks if c.verdict == "passed"} >= {"machine", "finite differences", "batch sizes"}
    assert pt_archive.read(robertson).contract.graph == pt_archive.read(ROBERTSON).contract.graph


@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3), (0,)])
def test_called_with_any_batch(robertson, batch):
    compiled, scripted = torchferry.load(robertson), torchferry.load(ROBERTSON)
    got, wanted = (model.call("jacobian", {"y": y(*batch)}) for model in (compiled, scripted))
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-14, atol=0.0)


def test_strided_inputs(robertson):
    wide = y(4, 5).transpose(0, 1)
    assert torch.equal(torchferry.load(robertson)(wide)[0], torchferry.load(ROBERTSON)(wide)[0])


def test_parameters_are_set(robertson):
    models = [torchferry.load(path) for path in (robertson, ROBERTSON)]
    for model in models:
        model.set_parameter("k", torch.tensor([1.0, 2.0, 3.0], dtype=F))
    assert torch.equal(models[0](y(4))[0], models[1](y(4))[0])
    with pytest.raises(UsageError, match="another shape"):
        models[0].set_parameter("k", torch.ones(2, dtype=F))


def test_what_compiled_code_would_read_beyond_is_refused(robertson):
    model = torchferry.load(robertson)
    with pytest.raises(UsageError, match="another shape"):
        model(torch.ones(4, 2, dtype=F))
    with pytest.raises(UsageError, match="another dtype"):
        model(torch.ones(4, 3))
    with pytest.raises(UsageError, match="takes 1 inputs"):
        model()
    with pytest.raises(UsageError, match="stays on the device"):
        model.to("cpu")
    with pytest.raises(UsageError, match="no TorchScript module"):
        _ = model.module


def machine(path: Path, change: Callable[[dict], object]) -> None:
    change_json(path, MACHINE, change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["instructions"].append("avx1024"), "without avx1024"),
        (lambda raw: raw.update(processor="riscv"), "processor riscv"),
        (lambda raw: raw.update(torch="2.9.1"), r"torch 2\.9\.1"),
        (lambda raw: raw.update(device="cuda"), "device cuda"),
    ],
)
def test_code_for_another_machine(copy, change, message):
    machine(copy, change)
    for use in (torchferry.load, torchferry.verify):
        with pytest.raises(RunError, match=f"(?s)another machine.*{message}"):
            use(copy, trust="native")


def test_a_damaged_record_of_the_machine(copy):
    machine(copy, lambda raw: raw.pop("torch"))
    with pytest.raises(ArchiveError, match="record of the machine"):
        torchferry.load(copy, trust="native")


@pytest.mark.parametrize("name", ["../evil.so", "archive/data/../../../evil.so", "/etc/evil.so", "..\\evil.so"])
def test_hostile_names_are_refused_before_anything_is_unpacked(copy, name, tmp_path):
    with zipfile.ZipFile(copy, "a") as file:
        file.writestr(name, b"x")
    seal(copy)
    for use in (torchferry.load, torchferry.verify):
        with pytest.raises(ArchiveError, match="leads out of the archive"):
            use(copy)
    assert run(["verify", str(copy)]) == 4
    assert [p.name for p in tmp_path.rglob("*")] == ["robertson.pt2"]


def test_changed_bytes(copy):
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"changed|damaged"):
        torchferry.load(copy, trust="native")


def test_one_methods_code_in_the_place_of_anothers(copy):
    """Both agree with the manifest: the numbers do not."""

    def swap(result: Records) -> None:
        start = "data/aotinductor/forward/", "data/aotinductor/jacobian/"
        moved = {n: d for n, d in result.items() if n.startswith(start)}
        for name in moved:
            del result[name]
        for name, data in moved.items():
            here, there = start if name.startswith(start[0]) else start[::-1]
            result[there + name.removeprefix(here)] = data

    rewrite(copy, swap, manifest=True)
    with pytest.raises((MismatchError, ArchiveError)):
        torchferry.verify(copy, trust="native")


def test_no_compiler(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(aot_inductor.shutil, "which", lambda name: None)
    assert run(["convert", str(ROBERTSON), "--to", "pt2", "-o", str(tmp_path / "m.pt2")]) == 6
    assert "no C++ compiler" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_torchs_own_loader_takes_it(robertson):
    """One batch dimension, then the parameters."""
    from torch._inductor.package.package import load_package

    parameters = pt_archive.read(robertson).parameters()["forward"]
    result = load_package(str(robertson), model_name="forward")(y(5), *parameters.values())
    assert torch.equal(result[0], torchferry.load(robertson)(y(5))[0])


def test_compiled_code_is_not_converted_further(copy):
    assert run(["convert", str(copy), "--to", "onnx"]) == 2


@pytest.mark.skipif(VERSION < (2, 13), reason="torch before 2.13 unpacks into /tmp, which is confined")
def test_in_the_native_harness(robertson):
    report = torchferry.verify(robertson, runtimes="libtorch")
    assert {c.check for c in report.checks if c.verdict == "passed"} >= {"native comparison", "settable parameters"}


def native(path: Path) -> tuple[int, str]:
    harness = native_build.build() / "bin" / "torchferry_verify"
    done = subprocess.run([str(harness), str(path), "--allow-native"], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_the_native_library_holds_the_machine(copy):
    machine(copy, lambda raw: raw["instructions"].append("avx1024"))
    code, message = native(copy)
    assert code == 4
    assert "for another machine" in message
    assert "without avx1024" in message


def test_the_native_library_unpacks_no_hostile_names(copy, tmp_path):
    with zipfile.ZipFile(copy, "a") as file:
        file.writestr("archive/data/../../../evil.so", b"x")
    seal(copy)
    code, message = native(copy)
    assert code == 4
    assert "leads out of the archive" in message
    assert [p.name for p in tmp_path.rglob("*")] == ["robertson.pt2"]


@pytest.fixture
def beside(copy) -> Path:
    """A ``.pt`` with its ``.pt2``."""
    return Path(shutil.copy(ROBERTSON, copy.with_suffix(".pt")))


def test_as_the_engine_of_the_archive(beside):
    model = torchferry.load(beside, engine="pt2")
    assert isinstance(model.engine, AotInductorEngine)
    torch.testing.assert_close(model(y(7))[0], torchferry.load(beside)(y(7))[0], rtol=1e-14, atol=0.0)


def absent(path: Path) -> None:
    path.unlink()


def of_other_numbers(path: Path) -> None:
    def change(result: Records) -> None:
        parameters = torch.load(io.BytesIO(result[f"data/{PARAMETERS}"]), weights_only=True)
        for name in parameters.values():
            name["k"] *= 1 + 1e-6
        buffer = io.BytesIO()
        torch.save(parameters, buffer)
        result[f"data/{PARAMETERS}"] = buffer.getvalue()

    rewrite(path, change, manifest=True)


def of_another_graph(path: Path) -> None:
    def change(result: Records) -> None:
        text = result["extra/torchferry/graph.txt"] + b"\n"
        result["extra/torchferry/graph.txt"] = text
        contract = json.loads(result["extra/torchferry/contract.json"])
        contract["graph"] = hashlib.sha256(text).hexdigest()
        result["extra/torchferry/contract.json"] = json.dumps(contract).encode()

    rewrite(path, change, manifest=True)


def damaged(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(bytes(whole))


def of_other_names(path: Path) -> None:
    def change(contract: dict) -> None:
        contract["outputs"][0]["name"] = "speed"
        for spec in contract["methods"].values():
            spec["outputs"] = [
                "speed" if o == "rate" else ["speed", o[1]] if isinstance(o, list) else o for o in spec["outputs"]
            ]

    change_contract(path, change)


def without_a_method(path: Path) -> None:
    rewrite(path, lambda result: [result.pop(n) for n in list(result) if "aotinductor/jacobian" in n], manifest=True)


def of_another_machine(path: Path) -> None:
    machine(path, lambda raw: raw["instructions"].append("avx1024"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (absent, "there is no robertson.pt2"),
        (of_other_numbers, "does not pass: forward"),
        (of_another_graph, "made of another graph"),
        (of_other_names, "other variables or methods"),
        (without_a_method, "KeyError|does not load"),
        (damaged, "damaged|changed"),
        (of_another_machine, "avx1024"),
    ],
)
def test_an_engine_that_is_not_fit_is_said_and_not_used(beside, change, message):
    change(beside.with_suffix(".pt2"))
    with pytest.warns(EngineWarning, match=message):
        model = torchferry.load(beside, engine="pt2", trust="native")
    assert isinstance(model.engine, TorchScriptEngine)
    with pytest.raises(UsageError, match="no such engine"):
        torchferry.load(beside, engine="pt3")
