"""Packages of torch.export's programs: verified, called, changed, and refused where they do not run."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from project import ROOT, mark_thorough_after
from tampering import Records, rewrite

import torchferry
from exporter.archive import pt_archive
from exporter.archive.pt_archive import PARAMETERS
from exporter.common.errors import ArchiveError, MismatchError, RunError, UsageError
from runtime_checks import native_build
from runtime_checks.report import FAILED
from runtime_checks.runners.children import package_loading
from torchferry.cli.app import run

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

ROBERTSON = ROOT / "artifacts" / "robertson.pt"
F = torch.float64


@pytest.fixture(scope="module")
def robertson(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("program") / "robertson.program.pt2"
    assert run(["convert", str(ROBERTSON), "--to", "program", "-o", str(path)]) == 0
    return path


@pytest.fixture
def copy(robertson, tmp_path) -> Path:
    return Path(shutil.copy(robertson, tmp_path))


def y(*batch: int) -> torch.Tensor:
    return torch.rand(*batch, 3, dtype=F, generator=torch.Generator().manual_seed(0))


def test_every_method_is_verified(robertson):
    report = torchferry.verify(robertson)
    assert [leg.name for leg in report.legs] == ["program, cpu"]
    assert {o.output for o in report.outputs} == {"rate", "d rate / d y", "d rate / d k"}
    assert {c.check for c in report.checks if c.verdict == "passed"} >= {
        *("source library absent", "batch sizes", "finite differences", "settable parameters"),
    }


@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3), (0,)])
def test_called_with_any_batch(robertson, batch):
    model, scripted = torchferry.load(robertson), torchferry.load(ROBERTSON)
    for item in (model, scripted):
        item.set_parameter("k", torch.tensor([1.0, 2.0, 3.0], dtype=F))
    got, wanted = (item.call("jacobian", {"y": y(*batch)}) for item in (model, scripted))
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-14, atol=0.0)


@pytest.mark.thorough
def test_an_implicit_model_with_its_tangent(tmp_path):
    """A Newton loop, as one while_loop."""
    result = torchferry.convert(ROOT / "artifacts" / "return_map.pt", tmp_path / "m.program.pt2", to="program")
    assert result.report.passed
    assert {o.output for o in result.report.outputs} >= {"status", "iterations"}


def choose(x):
    kept = x[x[:, 0] > 0.5]
    repeated = x.repeat_interleave((3 * x[:, 1]).long().clamp(0, 3), 0)
    return {"kept": kept.sum(0), "repeated": (repeated * repeated).sum(0)}


@pytest.mark.parametrize("name", mark_thorough_after(1, ["m.program.pt2", "m.onnx"]))
def test_sizes_that_depend_on_data(name, tmp_path):
    generator = torch.Generator().manual_seed(0)
    inputs = {"x": torch.rand(6, 3, dtype=F, generator=generator)}
    torchferry.export(choose, inputs=inputs, output=tmp_path / name, batch="no")
    model = torchferry.load(tmp_path / name)
    for x in (torch.zeros(6, 3, dtype=F), torch.rand(6, 3, dtype=F, generator=generator), torch.ones(6, 3, dtype=F)):
        for key, value in choose(x).items():
            torch.testing.assert_close(
                torch.as_tensor(model.call("forward", {"x": x})[key]), value, rtol=1e-14, atol=1e-14
            )


def test_torchs_own_loader_takes_it(robertson):
    from torch.export.pt2_archive._package import load_pt2

    parameters = pt_archive.read(robertson).parameters()["forward"]
    (result,) = load_pt2(str(robertson)).exported_programs["forward"].module()(y(5), *parameters.values())
    assert torch.equal(result, torchferry.load(ROBERTSON)(y(5))[0])


def test_it_says_nothing_of_this_machine_and_is_the_same_again(robertson, tmp_path):
    again = torchferry.convert(ROBERTSON, tmp_path / "again.program.pt2", to="program").path
    assert again.read_bytes() == robertson.read_bytes()
    with zipfile.ZipFile(robertson) as file:
        for name in file.namelist():
            assert str(ROOT).encode() not in file.read(name)
            assert b"site-packages" not in file.read(name)


def other_operator(result: Records) -> None:
    """As a faulty writer would have written it: the manifest agrees."""
    text = result["models/forward.json"].decode()
    assert "torch.ops.aten.neg.default" in text
    result["models/forward.json"] = text.replace("torch.ops.aten.neg.default", "torch.ops.aten.abs.default").encode()


def other_parameters(result: Records) -> None:
    parameters = torch.load(io.BytesIO(result[f"data/{PARAMETERS}"]), weights_only=True)
    parameters["forward"]["k"] *= 1 + 1e-6
    buffer = io.BytesIO()
    torch.save(parameters, buffer)
    result[f"data/{PARAMETERS}"] = buffer.getvalue()


@pytest.mark.parametrize("change", [other_operator, other_parameters])
def test_planted_faults(copy, change):
    rewrite(copy, change, manifest=True)
    with pytest.raises(MismatchError) as caught:
        torchferry.verify(copy)
    assert "stored cases" in {c.check for c in caught.value.report.checks if c.verdict == FAILED}


def test_changed_bytes_and_missing_programs(copy):
    rewrite(copy, lambda result: result.pop("models/jacobian.json"), manifest=True)
    with pytest.raises(torchferry.TorchferryError, match="jacobian"):
        torchferry.verify(copy)
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"changed|damaged"):
        torchferry.load(copy)


def test_where_it_does_not_run(copy, capfd):
    harness = native_build.build() / "bin" / "torchferry_verify"
    done = subprocess.run([str(harness), str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, "run in Python" in done.stderr) == (4, True)
    with pytest.raises(UsageError, match="loaded on the CPU"):
        torchferry.load(copy, "cuda")
    with pytest.raises(UsageError, match="stays on the device"):
        torchferry.load(copy).to("cpu")
    renamed = copy.with_name("robertson.pt2")
    copy.rename(renamed)
    assert run(["verify", str(renamed)]) == 4
    assert "that of another kind of file" in capfd.readouterr().err
    assert run(["graph", str(renamed)]) == 4
    assert run(["convert", str(renamed), "--to", "onnx"]) == 4
    renamed.rename(copy)
    assert run(["convert", str(copy), "--to", "onnx"]) == 2


class Runs:
    """A pickle that runs something."""

    def __reduce__(self):
        return (Path.touch, (Path("it_ran"),))


def pickled_inputs(result: Records) -> None:
    buffer = io.BytesIO()
    torch.save(Runs(), buffer)
    result["data/sample_inputs/forward.pt"] = buffer.getvalue()


def pickled_weights(result: Records) -> None:
    name = "data/weights/jacobian_weights_config.json"
    whole = json.loads(result[name])
    for item in whole["config"].values():
        item["use_pickle"] = True
    buffer = io.BytesIO()
    torch.save(Runs(), buffer)
    result[name] = json.dumps(whole).encode()
    result |= dict.fromkeys((n for n in result if "/weight_" in n), buffer.getvalue())


def legacy_weights(result: Records) -> None:
    buffer = io.BytesIO()
    torch.save(Runs(), buffer)
    result["data/weights/jacobian.pt"] = buffer.getvalue()


def an_object(result: Records) -> None:
    name = "data/constants/jacobian_constants_config.json"
    whole = json.loads(result[name])
    item = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
    whole["config"]["held"] = item
    result[name] = json.dumps(whole).encode()
    result["data/constants/opaque_obj_0"] = pickle.dumps(Runs())


@pytest.mark.parametrize("change", [pickled_inputs, pickled_weights, legacy_weights, an_object])
def test_no_pickle_is_run(copy, change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rewrite(copy, change, manifest=True)
    for use in (torchferry.load, torchferry.verify):
        with pytest.raises(torchferry.TorchferryError, match=r"pickle|WeightsUnpickler|Weights only"):
            use(copy)
    assert [p.name for p in tmp_path.iterdir()] == [copy.name]


WRITES = "__import__('pathlib').Path('it_ran').touch()"


def put_everywhere(key: str, value: object):
    """A change of all fields of this name in the program of ``forward``."""

    def apply(result: Records) -> None:
        whole = json.loads(result["models/forward.json"])
        for owner in list(package_loading.iterate_objects(whole)):
            owner.update({key: value} if key in owner else {})
        result["models/forward.json"] = json.dumps(whole).encode()

    return apply


QUOTED = f"L['x'].dim() == 1 or L['\"+str({WRITES})+\"'].dim() == 1"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put_everywhere("expr_str", f"({WRITES}, Symbol('s48', positive=True, integer=True))[1]"), "place of a size"),
        (put_everywhere("expr_str", f"Symbol('s48') + {WRITES}"), "place of a size"),
        (put_everywhere("guards_code", [f"{WRITES} or L['values'][0].size()[0] > 0"]), "place of a guard"),
        (put_everywhere("guards_code", ["L['values'][0].register_hook(print)"]), "place of a guard"),
        (put_everywhere("target", "torch.utils.cpp_extension.load"), "no operator"),
        (put_everywhere("target", "torch.ops.aten.from_file.default"), "no operator"),
        (put_everywhere("target", "torch.ops.aten.manual_seed.default"), "no operator"),
        (put_everywhere("target", "torch.ops.aten._reshape_alias.default"), "no operator"),
        (put_everywhere("target", "torch.ops.aten._print.default"), "no operator"),
        (put_everywhere("target", "torch.ops.prims.empty_strided.default"), "no operator"),
        (put_everywhere("target", "torch.ops.higher_order.call_torchbind"), "no operator"),
        (put_everywhere("target", "_operator.methodcaller"), "no operator"),
        (put_everywhere("name", f"x={WRITES}"), "place of a name"),
        (put_everywhere("forward_arg_names", [f"x={WRITES}"]), "place of a name"),
        (put_everywhere("guards_code", [QUOTED]), "place of a guard"),
        (put_everywhere("expr_str", "Pow(Integer(9), Pow(Integer(9), Integer(9)))"), "place of a size"),
        (put_everywhere("expr_str", "Pow(Integer(9), e=Pow(Integer(9), Integer(9)))"), "place of a size"),
        (put_everywhere("expr_str", "9**9**9"), "place of a size"),
        (put_everywhere("in_spec", json.dumps([1, {"type": "collections.defaultdict"}])), "imports a type"),
    ],
)
def test_no_python_is_run(copy, change, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rewrite(copy, change, manifest=True)
    for use in (torchferry.load, torchferry.verify):
        with pytest.raises(RunError, match=message):
            use(copy)
    assert [p.name for p in tmp_path.iterdir()] == [copy.name]


def test_a_name_that_says_another_container(tmp_path, capfd):
    assert run(["convert", str(ROBERTSON), "--to", "program", "-o", str(tmp_path / "m.pt2")]) == 2
    assert ".program.pt2" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_beside_the_archive(robertson):
    assert run(["bench", str(ROBERTSON), str(robertson), "--batch", "1,10"]) == 0
