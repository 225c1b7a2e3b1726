"""Files that something else wrote, as sources."""

from __future__ import annotations

import zipfile

import pytest
import torch
from foreign_files import Collecting, Counter, Nameless, Network, Potential, Printing, Structured
from project import ROOT
from torch import nn

from exporter.common.errors import ArchiveError, SourceError, TrustError, UnsoundError, UsageError
from exporter.common.torch_hooks import ignore_deprecations
from exporter.frontends import adopted_file
from exporter.frontends.model_request import AdoptedFile

F = torch.float64
X = torch.linspace(-1, 1, 12, dtype=F).reshape(4, 3)


def save(module, path, **extra):
    with ignore_deprecations():
        torch.jit.save(torch.jit.script(module.double()), str(path), **extra)
    return path


def save_program(path, *, is_open=True):
    module, batch = Network().double(), torch.export.Dim("batch")
    sizes = {"x": {0: batch}} if is_open else None
    torch.export.save(torch.export.export(module, (X,), dynamic_shapes=sizes), path)
    return module


def load(path, inputs=None, *, is_trusted=False):
    return adopted_file.load(AdoptedFile(path, is_trusted), inputs)


def test_what_is_known_of_a_file(tmp_path):
    source = load(save(Structured(), tmp_path / "my-net.v2.pt"), {"data": {"a": X, "b": X}, "extra": X})
    assert source.name == "my_net_v2"
    assert [spec.name for spec in source.inputs] == ["data.a", "data.b", "extra"]
    assert (source.origin.kind, source.origin.library) == ("torchscript", "torch")
    assert source.origin.files == {"my-net.v2.pt": source.origin.sha256}
    assert [f.check for f in source.findings] == ["train mode"]


def test_a_file_in_eval_mode_has_no_finding(tmp_path):
    assert load(save(Network().eval(), tmp_path / "net.pt"), {"x": X}).findings == ()


@pytest.mark.parametrize(
    ("module", "inputs", "error", "message"),
    [
        (Network(), None, SourceError, r"not known(.|\n)*forward\(x: Tensor\)(.|\n)*--inputs FILE"),
        (Network(), {"y": X}, UsageError, "do not match(.|\n)*'y'"),
        (Nameless(), {"x": X}, SourceError, "nothing to call(.|\n)*methods go"),
        (Counter(), {"x": X}, UnsoundError, "changes its own attributes(.|\n)*'count'"),
        (Printing(), {"x": X}, ArchiveError, "does not only compute(.|\n)*prim::Print"),
        (Collecting(), {"x": X}, UnsoundError, r"own attributes(.|\n)*foreign_files\.py:\d+(.|\n)*'kept'"),
        (nn.LSTM(3, 2), {"x": X}, SourceError, "several forms"),
    ],
    ids=["no-inputs", "other-inputs", "no-forward", "state", "prints", "list", "overloads"],
)
def test_what_is_refused(module, inputs, error, message, tmp_path):
    with pytest.raises(error, match=message):
        load(save(module, tmp_path / "file.pt"), inputs)


def test_files_that_are_none(tmp_path):
    torch.save({"w": X}, tmp_path / "weights.pt")
    (tmp_path / "text.pt").write_text("no zip file")
    (tmp_path / "empty.pt").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("other/readme", "text")
    for name, message in (
        ("weights.pt", "no graphs(.|\n)*tensors or pickled objects(.|\n)*jit.script"),
        ("text.pt", "damaged(.|\n)*mend: copy it again"),
        ("empty.pt", "damaged(.|\n)*mend: copy it again"),
        ("other.pt", "no graphs(.|\n)*other records"),
        ("absent.pt", "no such file"),
    ):
        with pytest.raises(ArchiveError, match=message):
            load(tmp_path / name, {"x": X})


def test_an_archive_is_no_foreign_file():
    with pytest.raises(UsageError, match=r"has a contract(.|\n)*contract\.json(.|\n)*torchferry verify"):
        load(ROOT / "artifacts" / "robertson.pt", {"y": X})


def test_records_of_others_in_the_file_are_left_alone(tmp_path):
    """Other programs note things of their own beside the graphs."""
    path = save(Network(), tmp_path / "net.pt", _extra_files={"metadata": "of another program"})
    assert load(path, {"x": X}).inputs[0].shape == (3,)


def test_code_that_runs_at_load_is_refused(tmp_path):
    class Restored(torch.nn.Module):
        @torch.jit.export
        def __getstate__(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
            return 1

        @torch.jit.export
        def __setstate__(self, state: int) -> None:
            self.training = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(ArchiveError, match="runs while it is loaded"):
        load(save(Restored(), tmp_path / "file.pt"), {"x": X})


def rename_in(path, old, new):
    """Write another name into the bytes of a file, as torch's own front end does not."""
    with zipfile.ZipFile(path) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records.items():
            is_text = name.endswith((".py", "data.pkl"))
            archive.writestr(name, data.replace(old.encode(), new.encode()) if is_text else data)
    return path


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qqqq = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, zzzz: torch.Tensor) -> torch.Tensor:
        return zzzz * self.qqqq


@pytest.mark.parametrize("name", ["type", "half"])
def test_tensors_named_like_attributes_of_modules(name, tmp_path):
    path = rename_in(save(Weighted(), tmp_path / "file.pt"), "qqqq", name)
    with pytest.raises(SourceError, match=f"cannot be written in Python(.|\n)*'{name}'"):
        load(path, {"zzzz": X})


@pytest.mark.parametrize("name", ["lambda", "_model", "async"])
def test_arguments_that_python_cannot_name(name, tmp_path):
    path = rename_in(save(Weighted(), tmp_path / "file.pt"), "zzzz", name)
    with pytest.raises(SourceError, match=f"cannot be written in Python(.|\n)*'{name}'"):
        load(path, {name: X})


def test_an_argument_that_is_called_self(tmp_path):
    path = save(Weighted(), tmp_path / "file.pt")
    rename_in(rename_in(path, "self", "this"), "zzzz", "self")
    assert torch.equal(load(path, {"self": X}).module(X), 2 * X)


def test_a_program_needs_trust_and_brings_its_examples(tmp_path):
    module = save_program(tmp_path / "net.pt2")
    with pytest.raises(TrustError, match=r"code of its own(.|\n)*--allow-native"):
        load(tmp_path / "net.pt2")
    source = load(tmp_path / "net.pt2", is_trusted=True)
    assert source.origin.kind == "torch.export"
    assert torch.equal(source.calls[0][0], X)
    assert torch.equal(source.module(X[:2]), module(X[:2]))
    assert load(tmp_path / "net.pt2", {"x": X[:3]}, is_trusted=True).calls[0][0].shape == (3, 3)


def test_a_program_with_keywords(tmp_path):
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            return x * factor

    torch.export.save(torch.export.export(Scaled(), (X,), {"factor": X[:, :1]}), tmp_path / "scaled.pt2")
    source = load(tmp_path / "scaled.pt2", is_trusted=True)
    assert [s.name for s in source.inputs] == ["x", "factor"]
    assert torch.equal(source.module(X, X[:, :1]), X * X[:, :1])


def test_a_file_of_two_kinds_is_none(tmp_path):
    """What one reader checks would not be what another runs."""
    path = save(Network(), tmp_path / "net.pt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("net/models/model.json", "{}")
    with pytest.raises(ArchiveError, match=r"no graphs(.|\n)*other records"):
        load(path, {"x": X}, is_trusted=True)


def test_machine_code_alone_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/data/aotinductor/model/code.so", "")
    with pytest.raises(ArchiveError, match=r"no graphs(.|\n)*got: machine code"):
        load(tmp_path / "net.pt2", is_trusted=True)


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_file_that_was_cut(keep, tmp_path):
    path = save(Network(), tmp_path / "net.pt")
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(ArchiveError, match="damaged"):
        load(path, {"x": X})


def test_a_list_of_records_that_is_broken(tmp_path):
    """The end of the zip file is there, what it tells of is not."""
    path = save(Network(), tmp_path / "net.pt")
    data = path.read_bytes()
    place = data.rindex(b"PK\1\2")
    path.write_bytes(data[:place] + b"XXXX" + data[place + 4 :])
    with pytest.raises(ArchiveError, match="damaged"):
        load(path, {"x": X})


def test_a_damaged_program(tmp_path):
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/models/model.json", "{}")
    with pytest.raises(ArchiveError, match="the program does not load"):
        load(tmp_path / "net.pt2", is_trusted=True)


def test_potentials_are_known_to_take_gradients(tmp_path):
    from exporter.capture.autograd_detection import detect_inner_autograd

    for module, inputs, expected in ((Potential(), {"positions": X}, True), (Network(), {"x": X}, False)):
        source = load(save(module, tmp_path / "file.pt"), inputs)
        assert detect_inner_autograd(source, 0).uses_autograd is expected
