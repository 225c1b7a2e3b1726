"""A kernel as the engine of its archive: used once it has passed the archive's cases, and else not, and said so."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from kernel_host import Difference, resealed
from project import ARTIFACTS, ROOT
from tampering import rewrite

import torchferry
from exporter.archive import kernel_container, pt_archive
from exporter.archive.sealed_manifest import seal_manifest
from exporter.common.errors import UsageError
from runtime_checks.engines.engines import Kernel, TorchScriptEngine
from torchferry.cli.app import run

F = torch.float64


@pytest.fixture
def beside(solid, tmp_path) -> Path:
    """An archive that carries none, with the folder beside it."""
    shutil.copytree(solid.with_suffix(""), tmp_path / "m")
    path = Path(shutil.copy(solid, tmp_path))
    rewrite(path, lambda result: [result.pop(n) for n in list(result) if pt_archive.KERNEL in n], manifest=True)
    return path


def inputs(rows: int = 9) -> list[torch.Tensor]:
    strain = torch.randn(rows, 6, dtype=F, generator=torch.Generator().manual_seed(1)) * 4e-3
    return [strain, torch.zeros(rows, 6, dtype=F), torch.zeros(rows, 6, dtype=F), torch.zeros(rows, dtype=F)]


def says(path: Path, text: str) -> None:
    with pytest.warns(torchferry.EngineWarning, match=text):
        model = torchferry.load(path, engine="kernel", trust="native")
    assert isinstance(model.engine, TorchScriptEngine)
    model(*inputs())


@pytest.mark.parametrize("where", ["carrying", "beside"])
def test_it_runs_the_archive(where, request):
    path = request.getfixturevalue(where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = torchferry.load(path, engine="kernel")
    assert isinstance(model.engine, Kernel)
    plain = torchferry.load(path)
    for item in (model, plain):
        item.set_parameter("residual.yield_stress", torch.tensor(200.0, dtype=F))
    for batch in (1, 9, 20):
        arguments = dict(zip(plain.contract.methods["jacobian"].inputs, inputs(batch), strict=True))
        got, wanted = (item.call("jacobian", arguments) for item in (model, plain))
        for name, value in got.items():
            assert torch.allclose(value, wanted[name], rtol=1e-9, atol=1e-9 * float(wanted[name].abs().max())), name
    with pytest.raises(UsageError, match="runs on the CPU"):
        model.to("cpu")


def test_the_default_stays_torchscript(carrying):
    assert isinstance(torchferry.load(carrying).engine, TorchScriptEngine)


def test_without_a_kernel(tmp_path):
    path = Path(shutil.copy(ARTIFACTS / "return_map.pt", tmp_path))
    says(path, "it carries no kernel")


def test_without_a_compiler(carrying, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "none-such")
    says(carrying, "none-such")


def test_cases_that_do_not_pass(beside):
    def change(files):
        files["make_model_lanes.h"] = files["make_model_lanes.h"].replace(b" - ", b" + ", 3)

    resealed(beside.with_suffix(""), change)
    says(beside, r"case '\w+' does not pass")


def test_of_another_model(beside, tmp_path):
    shutil.rmtree(beside.with_suffix(""))
    assert run(["convert", str(ARTIFACTS / "robertson.pt"), "--to", "c", "-o", str(tmp_path / "m")]) == 0
    says(beside, "made of another graph")


def test_with_other_variables(carrying):
    def change(result):
        (name,) = (n for n in result if n.endswith("kernel/manifest.json"))
        whole = json.loads(result[name])
        whole.pop("sha256")
        whole["methods"]["forward"]["inputs"].reverse()
        result[name] = seal_manifest(whole)

    rewrite(carrying, change, manifest=True)
    says(carrying, "other variables or methods")


def test_a_folder_that_was_changed(beside):
    file = next(beside.with_suffix("").glob("*.c"))
    file.write_text(file.read_text() + "\n")
    says(beside, "was changed")


def test_the_archive_is_whole_without_them(carrying):
    with zipfile.ZipFile(carrying) as file:
        assert sum(pt_archive.KERNEL in n for n in file.namelist()) == 4
    report = torchferry.verify(carrying, runtimes="python,libtorch")
    assert report.passed


def test_cases_in_which_rounding_decides_are_left_out(tmp_path):
    path = tmp_path / "m.pt"
    torchferry.export(Difference().double(), output=path, inputs={"x": torch.randn(8, 3, dtype=F)}, formats="pt,c")
    whole = kernel_container.read(tmp_path / "m")
    names = {case.name for case in whole.cases()}
    left_out = {case.name for case in pt_archive.read(path).cases()} - names
    assert left_out
    assert all(name.startswith("large") for name in left_out)
    assert any("cases left out" in f.what for f in whole.contract.findings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(torchferry.load(path, engine="kernel").engine, Kernel)


def begin_from_a_sum(result: dict[str, bytes]) -> str:
    """Begin a step from the sum of two strains, and not from their difference; return the record that says so."""
    (place,) = [name for name in result if pt_archive.KERNEL in name and name.endswith("_lanes.h")]
    # Behind the loop, which would find its way from another start.
    loop, head, text = result[place].decode().partition("/* forward: ")
    changed = re.sub(r"(= f->\w+\[\d+\]\[l\]) - (f->)", r"\1 + \2", text, count=1)
    assert changed != text
    result[place] = f"{loop}{head}{changed}".encode()
    return place


def test_a_kernel_that_leaves_out_every_case_is_not_taken(carrying):
    names = [case.name for case in pt_archive.read(carrying).cases()]

    def forge(result: dict[str, bytes]) -> None:
        source = begin_from_a_sum(result)
        place = f"extra/{pt_archive.KERNEL}{kernel_container.MANIFEST}"
        manifest = json.loads(result[place])
        manifest["files"][source.rpartition("/")[2]] = hashlib.sha256(result[source]).hexdigest()
        content = {**manifest, "left_out": names}
        del content["sha256"]
        result[place] = seal_manifest(content)

    rewrite(carrying, forge, manifest=True)
    says(carrying, "does not pass")
    with pytest.raises(torchferry.MismatchError, match="stored cases"):
        torchferry.verify(carrying, runtimes="c", trust="native")


def test_verified_as_the_archive_carries_it(carrying, solid, capfd):
    """By every check, as the folder of a kernel is."""
    report = torchferry.verify(carrying, runtimes="python,c")
    assert [leg.runtime for leg in report.legs] == ["python", "c"]
    alone = torchferry.verify(solid.with_suffix(""))
    checks = [[(c.check, c.verdict, c.calls) for c in leg.checks] for leg in (report.legs[1], alone.legs[0])]
    assert checks[0] == checks[1]
    assert run(["verify", str(carrying), "--runtime", "c", "--device", "cuda"]) == 2
    assert "runs on the CPU" in capfd.readouterr().err


def test_a_fault_in_what_it_carries_is_found(carrying):
    rewrite(carrying, begin_from_a_sum, manifest=True)
    with pytest.raises(torchferry.MismatchError):
        torchferry.verify(carrying, runtimes="c", trust="native")
    assert torchferry.verify(carrying).passed


def test_nothing_to_verify(carrying, tmp_path, capfd):
    plain = shutil.copy(ARTIFACTS / "return_map.pt", tmp_path)
    assert run(["verify", str(plain), "--runtime", "c"]) == 2
    assert "carries no kernel" in capfd.readouterr().err
    rewrite(carrying, lambda result: [result.pop(n) for n in list(result) if n.endswith("_lanes.h")], manifest=True)
    assert run(["verify", str(carrying), "--runtime", "c", "--allow-native"]) in (4, 6)
    example = f"{ROOT / 'examples' / 'radial_return.py'}:make_model"
    assert run(["export", example, "-o", str(tmp_path / "new.pt"), "--runtime", "c"]) == 2
    assert "--format pt,c" in capfd.readouterr().err
    assert not (tmp_path / "new.pt").exists()
