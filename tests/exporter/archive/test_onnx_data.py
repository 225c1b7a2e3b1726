"""The files of an ONNX model's tensors, as the package onnx sees them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy
import pytest
from project import ARTIFACTS

import torchferry
from exporter.archive import onnx_container, onnx_data
from exporter.archive.onnx_data import find_references
from exporter.archive.sealed_manifest import seal_manifest
from exporter.common.errors import ArchiveError, RunError
from exporter.common.file_digest import compute_file_digest
from torchferry.cli.app import run

onnx = pytest.importorskip("onnx")
MESSAGES = {"training": "TrainingInfoProto", "sparse tensor": "SparseTensorProto"}


def find_message(kind: str):
    return getattr(onnx, MESSAGES.get(kind, f"{kind.title()}Proto"))


def test_the_numbers_are_those_of_onnx():
    """Each field that may lead to a tensor, and no other, for every kind of message."""
    by_name = {find_message(kind).DESCRIPTOR.full_name: kind for kind in onnx_data._INNER}
    for kind, inner in onnx_data._INNER.items():
        fields = find_message(kind).DESCRIPTOR.fields
        types = {f.number: f.message_type.full_name for f in fields if f.message_type}
        known = {number: by_name[name] for number, name in types.items() if name in by_name}
        if kind == "tensor":
            known = {f.number: "entry" for f in fields if f.name == "external_data"}
        assert inner == known, kind


def make_tensor(location: str):
    tensor = onnx.numpy_helper.from_array(numpy.arange(6.0), name="w")
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    return tensor


def place(kind: str, tensor):
    """A model with a tensor in one of the places where one can be."""
    model, graph = onnx.ModelProto(), onnx.GraphProto()
    node = onnx.NodeProto(op_type="Constant", attribute=[onnx.AttributeProto(name="value", t=tensor)])
    if kind == "initializer":
        model.graph.initializer.append(tensor)
    elif kind == "attribute":
        model.graph.node.append(node)
    elif kind == "subgraph":
        graph.initializer.append(tensor)
        model.graph.node.append(onnx.NodeProto(op_type="If", attribute=[onnx.AttributeProto(name="then", g=graph)]))
    elif kind == "function":
        model.functions.append(onnx.FunctionProto(name="f", node=[node]))
    elif kind == "sparse":
        model.graph.sparse_initializer.append(onnx.SparseTensorProto(values=tensor))
    else:
        graph.initializer.append(tensor)
        model.training_info.append(onnx.TrainingInfoProto(initialization=graph))
    return model


@pytest.mark.parametrize("kind", ["initializer", "attribute", "subgraph", "function", "sparse", "training"])
def test_every_place_of_a_tensor(kind):
    assert find_references(place(kind, make_tensor("w.bin")).SerializeToString()).files == {"w.bin"}
    inside = onnx.numpy_helper.from_array(numpy.arange(6.0), name="location")
    assert find_references(place(kind, inside).SerializeToString()).files == set()


def test_numbers_that_are_longer_than_they_have_to_be():
    """An encoding that nobody writes, and every reader takes."""
    entry = b"\x0a\x88\x00location\x12\x85\x00w.bin"
    tensor = b"\x6a" + bytes([len(entry)]) + entry
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    data = b"\x3a" + bytes([len(graph)]) + graph
    assert onnx.load_from_string(data).graph.initializer[0].external_data[0].value == "w.bin"
    assert find_references(data).files == {"w.bin"}


@pytest.mark.parametrize("data", [b"\x3a\x05a", b"\x3a", b"\x3b", b"\xff" * 11, b"\x09abc"])
def test_what_is_no_model(data):
    with pytest.raises(ValueError):  # noqa: PT011
        find_references(data)


def test_the_numbers_of_names_are_those_of_onnx():
    names = {f.name: f.number for f in onnx.NodeProto.DESCRIPTOR.fields}
    assert (names["op_type"], names["domain"]) == (onnx_data._OPERATOR, onnx_data._DOMAIN)
    assert onnx.FunctionProto.DESCRIPTOR.fields_by_name["domain"].number == onnx_data._FUNCTION_DOMAIN


def make_graph(*nodes):
    return onnx.GraphProto(node=nodes)


ADD = onnx.NodeProto(op_type="Add")
RANDOM = onnx.NodeProto(op_type="RandomNormalLike")
CALL = onnx.NodeProto(op_type="twice", domain="pkg.torch_lib")
BRANCH = onnx.NodeProto(op_type="If", attribute=[onnx.AttributeProto(name="then", g=make_graph(ADD, RANDOM))])


@pytest.mark.parametrize(
    ("model", "strange"),
    [
        (onnx.ModelProto(graph=make_graph(ADD, CALL)), set()),
        (onnx.ModelProto(graph=make_graph(ADD, RANDOM)), {"operator 'RandomNormalLike'"}),
        (onnx.ModelProto(graph=make_graph(BRANCH)), {"operator 'RandomNormalLike'"}),
        (onnx.ModelProto(graph=make_graph(onnx.NodeProto(op_type="A", domain="ai.onnx"))), {"operator 'A'"}),
        (
            onnx.ModelProto(graph=make_graph(onnx.NodeProto(op_type="Add", domain="com.microsoft"))),
            {"domain 'com.microsoft'"},
        ),
        (onnx.ModelProto(functions=[onnx.FunctionProto(name="twice", domain="pkg.torch_lib", node=[ADD])]), set()),
        (
            onnx.ModelProto(functions=[onnx.FunctionProto(name="Add", node=[RANDOM])]),
            {"a function of domain ''", "operator 'RandomNormalLike'"},
        ),
    ],
)
def test_what_is_no_operator_of_the_list(model, strange):
    assert find_references(model.SerializeToString()).strange == strange


def test_a_name_that_is_there_twice():
    """The package onnx takes the last one; another reader might take the first."""
    names = [b"\x22\x10RandomNormalLike", b"\x22\x03Add"]
    for first, last in (names, names[::-1]):
        node = first + last
        graph = b"\x0a" + bytes([len(node)]) + node
        data = b"\x3a" + bytes([len(graph)]) + graph
        assert onnx.load_from_string(data).graph.node[0].op_type in ("Add", "RandomNormalLike")
        assert find_references(data).strange == {"operator 'RandomNormalLike'"}


def test_a_number_that_other_readers_cut_short():
    """Protocol buffers take 32 bits of it: the field would be an operator's name."""
    node = b"\xa2\x80\x80\x80\x10\x10RandomNormalLike"
    graph = b"\x0a" + bytes([len(node)]) + node
    data = b"\x3a" + bytes([len(graph)]) + graph
    with pytest.raises(ValueError, match="a field of the number"):
        find_references(data)


@pytest.fixture
def container(tmp_path) -> Path:
    path = Path(shutil.copy(ARTIFACTS / "robertson.pt", tmp_path))
    return torchferry.convert(path, tmp_path / "m.onnx", to="onnx").path


def test_a_model_that_reads_a_file_without_a_digest(container):
    """The manifest is right, and says nothing of the file that the numbers are in."""
    model = onnx.load(container)
    model.graph.initializer.append(make_tensor("w.bin"))
    onnx.save(model, container)
    (container.parent / "w.bin").write_bytes(numpy.arange(6.0).tobytes())
    manifest = onnx_container.manifest_path(container)
    content = json.loads(manifest.read_bytes())
    del content["sha256"]
    content["files"][container.name] = compute_file_digest(container)
    manifest.write_bytes(seal_manifest(content))
    with pytest.raises(ArchiveError, match=r"(?s)does not name.*w\.bin"):
        onnx_container.read(container)
    content["files"]["w.bin"] = compute_file_digest(container.parent / "w.bin")
    manifest.write_bytes(seal_manifest(content))
    onnx_container.read(container)


def reseal(container: Path) -> None:
    manifest = onnx_container.manifest_path(container)
    content = json.loads(manifest.read_bytes())
    del content["sha256"]
    content["files"][container.name] = compute_file_digest(container)
    manifest.write_bytes(seal_manifest(content))


@pytest.mark.parametrize("command", ["load", "verify"])
def test_a_forged_model_that_draws_numbers(container, command):
    """Its digests are right."""
    model = onnx.load(container)
    result = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["before" if name == result else name for name in node.output]
    for operator, inputs, output in (("RandomNormalLike", ["before"], "drawn"), ("Add", ["before", "drawn"], result)):
        model.graph.node.append(onnx.helper.make_node(operator, inputs, [output]))
    onnx.save(model, container)
    reseal(container)
    with pytest.raises(ArchiveError, match="operator 'RandomNormalLike'"):
        getattr(torchferry, command)(container)


def test_a_model_that_onnxruntime_does_not_load(container, capfd):
    """Its error is one of ours."""
    model = onnx.load(container)
    model.graph.node[0].op_type = "Gemm"
    onnx.save(model, container)
    reseal(container)
    with pytest.raises(RunError, match="the ONNX container does not load"):
        torchferry.load(container)
    assert run(["bench", str(container)]) == RunError.exit_code
    assert "Traceback" not in capfd.readouterr().err
