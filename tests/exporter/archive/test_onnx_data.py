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
from exporter.archive.onnx_data import list_data_files
from exporter.archive.sealed_manifest import seal_manifest
from exporter.common.errors import ArchiveError
from exporter.common.file_digest import compute_file_digest

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
    assert list_data_files(place(kind, make_tensor("w.bin")).SerializeToString()) == {"w.bin"}
    inside = onnx.numpy_helper.from_array(numpy.arange(6.0), name="location")
    assert list_data_files(place(kind, inside).SerializeToString()) == set()


def test_numbers_that_are_longer_than_they_have_to_be():
    """An encoding that nobody writes, and every reader takes."""
    entry = b"\x0a\x88\x00location\x12\x85\x00w.bin"
    tensor = b"\x6a" + bytes([len(entry)]) + entry
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    data = b"\x3a" + bytes([len(graph)]) + graph
    assert onnx.load_from_string(data).graph.initializer[0].external_data[0].value == "w.bin"
    assert list_data_files(data) == {"w.bin"}


@pytest.mark.parametrize("data", [b"\x3a\x05a", b"\x3a", b"\x3b", b"\xff" * 11, b"\x09abc"])
def test_what_is_no_model(data):
    with pytest.raises(ValueError):  # noqa: PT011
        list_data_files(data)


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
