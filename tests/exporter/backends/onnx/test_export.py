"""ONNX containers as their users have them: written, verified without torch, changed, damaged."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import numpy_helper
from project import ROOT, export_unverified, mark_rest_thorough, mark_thorough_after

import torchferry
from exporter.archive import onnx_container
from exporter.archive.sealed_manifest import seal_manifest
from exporter.backends.backend import OPSET
from exporter.backends.onnx import backend as onnx_backend
from exporter.backends.onnx import export as writer
from exporter.common.errors import ArchiveError, MismatchError, MissingRuntimeError, UnsupportedError, UsageError
from runtime_checks.report import FAILED
from torchferry.cli.app import run

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

MODELS = ROOT / "tests" / "support" / "onnx_models.py"


def converted(factory: str, folder: Path) -> Path:
    export_unverified(f"{MODELS}:{factory}", folder / f"{factory}.pt")
    return torchferry.convert(folder / f"{factory}.pt").path


@pytest.fixture(scope="module")
def rounded(tmp_path_factory) -> Path:
    return converted("rounded", tmp_path_factory.mktemp("rounded"))


@pytest.fixture
def copy(rounded: Path, tmp_path: Path) -> Path:
    for file in rounded.parent.glob("rounded.onnx*"):
        shutil.copy(file, tmp_path)
    return tmp_path / "rounded.onnx"


def changed(path: Path, change: Callable[[Any], object]) -> Path:
    """The model changed as a faulty writer would have written it: its digest agrees."""
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    resealed(path)
    return path


def resealed(path: Path, change: Callable[[dict], object] = lambda whole: None) -> None:
    place = onnx_container.manifest_path(path)
    whole = json.loads(place.read_text())
    whole.pop("sha256")
    whole["files"] = {name: hashlib.sha256(path.with_name(name).read_bytes()).hexdigest() for name in whole["files"]}
    change(whole)
    place.write_bytes(seal_manifest(whole))


def failed_checks(path: Path) -> set[str]:
    with pytest.raises(MismatchError) as caught:
        torchferry.verify(path)
    return {check.check for check in caught.value.report.checks if check.verdict == FAILED}


@pytest.mark.parametrize("factory", mark_rest_thorough(["small"], ["digits", "functions", "solves"]))
def test_every_digit_of_float64(factory: str, tmp_path):
    result = torchferry.convert(_archive(factory, tmp_path))
    assert result.report.passed
    assert result.report.outputs
    # A model may agree to the last digits everywhere on one processor, and not on another.
    assert all(o.comparison.max_rel < 1e-12 for o in result.report.outputs if o.comparison.max_abs > 1e-14)


def _archive(factory: str, folder: Path) -> Path:
    export_unverified(f"{MODELS}:{factory}", folder / f"{factory}.pt")
    return folder / f"{factory}.pt"


def test_without_the_care_for_digits_they_are_lost_and_it_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(writer.float64_precision, "make_translations", dict)
    monkeypatch.setattr(writer.float64_precision, "restore_constants", lambda *_: None)
    with pytest.raises(MismatchError, match="does not agree"):
        torchferry.convert(_archive("digits", tmp_path))
    assert not list(tmp_path.glob("*.onnx*"))


def test_the_file_is_of_its_users(rounded):
    model = onnx.load(rounded)
    assert [i.name for i in model.graph.input] == ["halves", "count", "x"]
    assert [o.name for o in model.graph.output] == ["rounded", "quotient", "gate", "difference"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [(o.domain, o.version) for o in model.opset_import] == [("", OPSET)]
    message = {p.key: p.value for p in model.metadata_props}
    assert json.loads(message[writer.CONTRACT])["name"] == "rounded"
    places = {p.value for node in model.graph.node for p in node.metadata_props}
    assert places
    assert all("onnx_models.py:" in place and str(ROOT) not in place for place in places)


def test_cases_are_read_without_torch(rounded):
    import numpy

    with numpy.load(onnx_container.cases_path(rounded)) as arrays:
        assert arrays["warmup/forward/out/0"].tolist() == [-2.0, -2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 2.0]


def perturb(model) -> None:
    first = next(i for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT)
    first.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(first) * 1.001, first.name))


def half_away_from_zero(model) -> None:
    """As Round was in runtimes before it had to round to even."""
    node = next(n for n in model.graph.node if n.op_type == "Round")
    half = numpy_helper.from_array(torch.tensor(0.5).numpy(), "half")
    model.graph.initializer.append(half)
    position = list(model.graph.node).index(node)
    model.graph.node.insert(position, onnx.helper.make_node("Add", [node.input[0], "half"], ["shifted"]))
    node.op_type, node.input[0] = "Floor", "shifted"


def by_tanh(model) -> None:
    """Gelu by its other formula."""
    node = next(n for n in model.graph.node if n.op_type == "Erf")
    scaled = numpy_helper.from_array(torch.tensor(1.1283792).numpy(), "two over root pi")
    model.graph.initializer.append(scaled)
    position = list(model.graph.node).index(node)
    model.graph.node.insert(position, onnx.helper.make_node("Mul", [node.input[0], scaled.name], ["argument"]))
    node.op_type, node.input[0] = "Tanh", "argument"


def swap(model) -> None:
    a, b = (next(i for i in model.graph.input if i.name == name) for name in ("halves", "x"))
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = {"halves": "x", "x": "halves"}.get(name, name)
    assert a.type == b.type


def truncate(model) -> None:
    """Division of integers in ONNX rounds towards zero."""
    last = next(n for n in reversed(model.graph.node) if "quotient" in n.output)
    three = numpy_helper.from_array(torch.tensor(3).numpy(), "three")
    model.graph.initializer.append(three)
    model.graph.node.append(onnx.helper.make_node("Div", ["count", "three"], ["quotient"]))
    last.output[list(last.output).index("quotient")] = "unused"


def fix_the_batch(model) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 9
    del model.graph.value_info[:]


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (perturb, "stored cases"),
        (half_away_from_zero, "stored cases"),
        (by_tanh, "stored cases"),
        (swap, "stored cases"),
        (truncate, "stored cases"),
        (fix_the_batch, "batch sizes"),
    ],
)
def test_planted_faults(copy, fault, check):
    assert check in failed_checks(changed(copy, fault))


def test_what_was_copied_is_as_good_as_what_was_written(copy):
    assert torchferry.verify(copy).passed


def test_another_opset_than_the_manifest_says(copy):
    resealed(copy, lambda whole: whole.update(opset=20))
    assert failed_checks(copy) == {"opset"}


def test_renamed_inputs(copy):
    def rename(model) -> None:
        model.graph.input[0].name = "other"
        for node in model.graph.node:
            for i, name in enumerate(node.input):
                node.input[i] = "other" if name == "halves" else name

    assert "names and types" in failed_checks(changed(copy, rename))


def test_a_model_that_the_standards_checker_refuses(copy):
    def cut(model) -> None:
        model.graph.node[0].op_type = "Gemm"

    with pytest.raises(ArchiveError, match="onnxruntime does not accept the model"):
        torchferry.verify(changed(copy, cut))


@pytest.mark.parametrize("end", ["", ".npz", ".json"])
def test_changed_bytes(copy, end):
    file = copy.with_name(copy.name + end)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArchiveError):
        torchferry.verify(copy)


@pytest.mark.parametrize("end", ["", ".npz", ".json"])
def test_a_missing_file(copy, end, capfd):
    copy.with_name(copy.name + end).unlink()
    assert run(["verify", str(copy)]) == 4
    assert "no such file" in capfd.readouterr().err or end == ".json"


def test_a_manifest_cannot_speak_of_other_folders(copy):
    def outside(whole: dict) -> None:
        whole["files"]["../rounded.pt"] = "0" * 64

    resealed(copy, outside)
    with pytest.raises(ArchiveError, match="manifest"):
        torchferry.verify(copy)


@pytest.mark.thorough
def test_large_tensors_stand_beside_and_are_pinned(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_backend, "LARGEST_INSIDE", 40)
    path = converted("digits", tmp_path)
    data = onnx_container.data_path(path)
    assert data.exists()
    assert data.name in onnx_container.read(path).files
    data.write_bytes(data.read_bytes()[:-8] + b"\0" * 8)
    with pytest.raises(ArchiveError, match="changed"):
        torchferry.verify(path)
    data.unlink()
    with pytest.raises(ArchiveError, match="missing"):
        torchferry.verify(path)


@pytest.mark.thorough
def test_a_new_container_leaves_nothing_of_the_old(tmp_path):
    robertson = ROOT / "artifacts" / "robertson.pt"
    torchferry.convert(robertson, tmp_path / "m.onnx")
    assert (tmp_path / "m.jacobian.onnx").exists()
    torchferry.convert(_archive("rounded", tmp_path), tmp_path / "m.onnx")
    assert {p.name for p in tmp_path.glob("m.*")} == {"m.onnx", "m.onnx.json", "m.onnx.npz"}


def test_parameters_are_set_by_their_names(tmp_path):
    import onnxruntime

    path = converted("digits", tmp_path)
    session: Any = onnxruntime.InferenceSession(str(path))
    x = torch.ones(2, 3, dtype=torch.float64).numpy()
    once = session.run(["scaled"], {"x": x})[0]
    weight = 2 * torch.tensor([[0.3, 0.1], [0.7, -0.2], [0.11, 0.13]], dtype=torch.float64).numpy()
    twice = session.run(["scaled"], {"x": x, "weight": weight})[0]
    assert abs(twice - 2 * once).max() < 1e-15


@pytest.mark.parametrize(
    ("factory", "got", "where"),
    [("eigen", "eigh", "onnx_models.py"), ("spectrum", "complex128", "'y'")],
)
def test_what_has_no_form_is_named_with_its_place(factory, got, where, tmp_path):
    with pytest.raises(UnsupportedError) as caught:
        torchferry.convert(_archive(factory, tmp_path))
    assert got in caught.value.details["got"]
    assert where in caught.value.details["where"]
    assert not list(tmp_path.glob("*.onnx*"))


def test_small_terms_stay_in_the_running_model(tmp_path):
    path = converted("small", tmp_path)
    x = torch.tensor([0.0, 1.0], dtype=torch.float64)
    result = torchferry.load(path).call("forward", {"x": x, "count": torch.tensor([33554435, -33554435])})
    assert result["held"][0] == 1 / 1e-300
    assert result["third"].tolist() == [11184811, -11184811]
    plain = torchferry.load(tmp_path / "small.pt").call("forward", {"x": x, "count": torch.tensor([1, 2])})
    torch.testing.assert_close(result["nearly"], plain["nearly"], rtol=1e-15, atol=0.0)


@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_a_branch_on_the_size_of_the_batch_is_refused(tmp_path, to):
    with pytest.raises(UnsupportedError, match="depends on the size of the batch"):
        torchferry.convert(_archive("branches", tmp_path), to=to)


@pytest.mark.thorough
def test_a_singular_matrix_is_named_in_the_findings(tmp_path):
    contract = onnx_container.read(converted("solves", tmp_path)).contract
    assert any("a singular matrix gives infinities or NaN" in finding.what for finding in contract.findings)


@pytest.mark.parametrize("output", mark_thorough_after(1, ["m.onnx", "m.pt"]))
def test_formats_do_not_take_each_others_place(tmp_path, output):
    torchferry.export(f"{MODELS}:rounded", output=tmp_path / output, formats="pt,onnx")
    assert torchferry.verify(tmp_path / "m.onnx").passed
    assert torchferry.load(tmp_path / "m.pt").contract.name == "rounded"


@pytest.mark.parametrize(
    ("formats_asked", "output"), [("onnx", "m.pt2"), ("pt", "m.onnx"), ("onnx", "m"), ("pt,onnx", "m.pt2")]
)
def test_a_name_of_another_format(tmp_path, formats_asked, output):
    with pytest.raises(UsageError, match="does not fit the format"):
        torchferry.export(f"{MODELS}:rounded", output=tmp_path / output, formats=formats_asked)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", ["m", "m.pt", "m.pt2", "rates.pt"])
def test_a_conversion_to_a_name_of_another_format(tmp_path, output):
    archive = Path(shutil.copy(ROOT / "artifacts" / "rates.pt", tmp_path))
    before = archive.read_bytes()
    assert run(["convert", str(archive), "--to", "onnx", "-o", str(tmp_path / output)]) == 2
    assert archive.read_bytes() == before


def test_unbatched_scalars_are_loaded(tmp_path):
    path = torchferry.convert(ROOT / "artifacts" / "rates.pt", tmp_path / "rates.onnx").path
    names = onnx_container.read(path).contract.methods["forward"].inputs
    arguments = {name: torch.tensor(float(i) ** 2, dtype=torch.float64) for i, name in enumerate(names)}
    got, wanted = (torchferry.load(p).call("forward", arguments) for p in (path, ROOT / "artifacts" / "rates.pt"))
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[name], value) for name, value in wanted.items())


def test_other_commands_say_what_it_is(rounded, capfd):
    assert run(["graph", str(rounded)]) == 4
    assert "an ONNX container is not an archive" in capfd.readouterr().err


def test_a_branch_on_data_is_refused_with_its_line(tmp_path):
    with pytest.raises(UnsupportedError) as caught:
        torchferry.convert(ROOT / "artifacts" / "bar.pt", tmp_path / "bar.onnx")
    assert "law, at models.py" in caught.value.details["where"].removeprefix("in ")


def test_a_missing_package_is_exit_code_6(monkeypatch, tmp_path, capfd):
    def absent() -> None:
        raise MissingRuntimeError("a package that writes ONNX is missing", mend='pip install "torchferry[onnx]"')

    monkeypatch.setattr(writer, "require", absent)
    assert run(["convert", str(ROOT / "artifacts" / "rates.pt"), "--to", "onnx", "-o", str(tmp_path / "a.onnx")]) == 6
    assert "torchferry[onnx]" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "rates.pt", "--to", "tflite"],
        ["convert", "rates.pt", "--to", "pt"],
        ["convert", "rates.pt", "--to", "onnx", "--opset", "7"],
        ["verify", "rates.pt", "--runtime", "onnxruntime"],
    ],
)
def test_bad_usage(arguments, monkeypatch):
    monkeypatch.chdir(ROOT / "artifacts")
    assert run(arguments) == 2


def test_several_formats_in_one_call(tmp_path):
    (exported,) = torchferry.export(f"{MODELS}:rounded", output=tmp_path / "m.pt", formats="pt,onnx")
    assert {p.name for p in tmp_path.iterdir()} == {"m.pt", "m.onnx", "m.onnx.json", "m.onnx.npz"}
    assert exported.path == tmp_path / "m.pt"
    assert [c.path for c in exported.containers] == [tmp_path / "m.onnx"]
    fresh = next(c for c in exported.containers[0].report.checks if c.check == "fresh inputs")
    assert fresh.calls > 4


def test_the_suffix_says_the_format(tmp_path):
    (exported,) = torchferry.export(f"{MODELS}:rounded", output=tmp_path / "m.onnx")
    assert exported.path == tmp_path / "m.onnx"
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "m.onnx.json", "m.onnx.npz"}


def test_nothing_is_left_where_a_format_fails(tmp_path):
    with pytest.raises(UnsupportedError):
        torchferry.export(f"{MODELS}:eigen", output=tmp_path / "new" / "m.pt", formats="pt,onnx")
    assert not (tmp_path / "new").exists()


def test_an_unknown_format(tmp_path):
    with pytest.raises(UsageError, match="no format"):
        torchferry.export(f"{MODELS}:rounded", output=tmp_path / "m.pt", formats="ptt")
