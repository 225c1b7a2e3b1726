"""Tensors of modules, read from bytes, are those that torch loads; what somebody changed is refused."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from project import ROOT

import torchferry
from exporter.archive import pt_archive
from exporter.archive.module_objects import MAX_REPEATED_BYTES, SavedMemory, SavedTensor, read_module_tensors
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError
from exporter.graph.loading import load_module

ROBERTSON = ROOT / "artifacts" / "robertson.pt"


class Layers(torch.nn.Module):
    """Parameters of submodules and lists; some are views of others, and not contiguous."""

    same: torch.Tensor
    signature = torchferry.Signature.of({"x": (3,)})

    def __init__(self) -> None:
        super().__init__()
        table = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3, dtype=torch.float64) for _ in range(2)])
        self.turned = torch.nn.Parameter(table.t()[:, 1:])
        self.part = torch.nn.Parameter(table[2:])
        self.register_buffer("same", torch.full((1,), 2.0, dtype=torch.float64).expand(3))
        self.coarse = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * torch.sum(self.turned) + torch.sum(self.part) * self.same
        return x + torch.sum(self.coarse).to(x.dtype)


@pytest.fixture(scope="module")
def layered(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("layers") / "layers.pt"
    torchferry.export(Layers(), output=path)
    return path


def list_tensors(path: Path) -> dict[str, torch.Tensor]:
    module = load_module(path)
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


@pytest.mark.parametrize("name", [*(path.name for path in sorted(ROBERTSON.parent.glob("*.pt"))), "layered"])
def test_they_are_those_that_torch_loads(name, request):
    path = request.getfixturevalue("layered") if name == "layered" else ROBERTSON.with_name(name)
    expected = list_tensors(path)
    read = read_module_tensors(pt_archive.read(path), [*expected, "no.such", "training"])
    assert read.keys() == expected.keys()
    for tensor_name, tensor in expected.items():
        assert (read[tensor_name].dtype, read[tensor_name].stride()) == (tensor.dtype, tensor.stride()), tensor_name
        assert torch.equal(read[tensor_name], tensor), tensor_name


class Changed(Archive):
    """An archive with another record of its module."""

    def record(self, name: str) -> bytes:
        data = super().record(name)
        return CHANGES[self.graph](data) if name == "data.pkl" else data


class Acts:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return print, ("acted",)


# The first tensor of the module has three elements behind an offset of 0: strides, shape, offset.
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "an offset behind the end": lambda data: data.replace(b"QK\x00(K\x03t", b"QK\x01(K\x03t", 1),
    "an offset before the begin": lambda data: data.replace(b"QK\x00(", b"QJ\xff\xff\xff\xff(", 1),
    "a shape beyond the end": lambda data: data.replace(b"QK\x00(K\x03t", b"QK\x00(K\x04t", 1),
    "a negative shape": lambda data: data.replace(b"QK\x00(K\x03t", b"QK\x00(J\xff\xff\xff\xfft", 1),
    "more elements than a file may have": lambda data: data.replace(
        b"QK\x00(K\x03t(K\x01t", b"QK\x00(\x8a\x06\x00\x00\x00\x00\x00\x01t(K\x00t", 1
    ),
    "a stride for each of two dimensions": lambda data: data.replace(b"QK\x00(K\x03t", b"QK\x00(K\x01K\x03t", 1),
    "elements of no type": lambda data: data.replace(b"DoubleStorage", b"DoudleStorage"),
    "a storage that is not there": lambda data: data.replace(b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x009", 1),
    "a storage above the folder": lambda data: data.replace(b"X\x01\x00\x00\x000", b"X\x05\x00\x00\x00../.0", 1),
    "half of a record": lambda data: data[:100],
    "a place for a value beyond all memory": lambda data: data.replace(b"q\x00", b"r\xff\xff\xff\x7f", 1),
    "more bytes than there are": lambda data: data[:2] + b"\x96" + (2**28).to_bytes(8, "little") + data[2:],
    "code of this process": lambda _: pickle.dumps(Acts(), 2),
}


@pytest.mark.parametrize("label", CHANGES)
def test_what_somebody_changed(label, capfd):
    whole = pt_archive.read(ROBERTSON)
    assert CHANGES[label](whole.record("data.pkl")) != whole.record("data.pkl")
    changed = Changed(whole.path, whole.contract, whole.records, label, whole.holds, whole.path)
    if label == "code of this process":
        assert read_module_tensors(changed, ["k"]) == {}
    else:
        tracemalloc.start()
        with pytest.raises(ArchiveError, match="tensors cannot be read"):
            read_module_tensors(changed, ["k"])
        # As much room as a pickle asks for is not made.
        assert tracemalloc.get_traced_memory()[1] < 2**26
        tracemalloc.stop()
    assert capfd.readouterr().out == ""
    # The control.
    assert pickle.loads(pickle.dumps(Acts())) is None
    assert capfd.readouterr().out == "acted\n"


def test_tensors_that_repeat_their_bytes():
    """Each is less than the limit; together they are not."""
    memory = SavedMemory(pt_archive.read(ROBERTSON), "data")
    half = SavedTensor("float64", "0", 0, (MAX_REPEATED_BYTES // 16,), (0,))
    assert memory.read_tensor(half).numel() == half.shape[0]
    memory.read_tensor(half)
    with pytest.raises(ArchiveError, match="beyond their records"):
        memory.read_tensor(half)
