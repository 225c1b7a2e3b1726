"""Archives byte for byte: whatever the process did before, wherever the sources stand."""

import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from project import ROOT, export_unverified
from torch import nn
from torch.jit import _recursive, _state

import torchferry
from exporter.archive.zip_records import write_zip
from exporter.capture.serialization import serialize_module
from exporter.common.source_paths import importable_path, strip_local_paths

X = torch.linspace(-1, 1, 5, dtype=torch.float64)


class Law(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() > 3:
            return x
        return torch.nn.functional.softplus(x)


class Holder(nn.Module):
    """Submodules of one class, a function of torch's, a compiled branch: what classes and functions a file has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.law = Law()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.law(self.second(self.first(x)))


def holder() -> Holder:
    torch.manual_seed(0)
    return Holder().double().eval()


def test_scripted_modules_are_packed_alike_whatever_came_before():
    first = serialize_module(torch.jit.script(holder()))
    torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    # Compiled anew: every class is one that TorchScript has met.
    _state._clear_class_state()
    _recursive.concrete_type_store = _recursive.ConcreteTypeStore()
    again = torch.jit.script(holder())
    assert "mangle" in again._c._type().qualified_name()  # pyright: ignore[reportAttributeAccessIssue]
    assert serialize_module(again) == first


def test_what_is_packed_computes_the_same_and_knows_its_lines():
    module = torch.jit.script(holder())
    loaded = torch.jit.load(io.BytesIO(write_zip(serialize_module(module))))
    assert torch.equal(loaded(X), module(X))
    assert torch.equal(loaded(-X), module(-X))
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "if x.dim() > 3:" in text)
    (branch,) = loaded.law.graph.findAllNodes("prim::If")
    assert f'File "{importable_path(__file__)}", line {line}' in branch.sourceRange()
    with pytest.raises(RuntimeError, match=r"test_serialization\.py"):
        loaded(torch.ones(3, dtype=torch.float64))


class Underscores(nn.Module):
    """Names that look like torch's own, and texts that look like names."""

    def __init__(self) -> None:
        super().__init__()
        self._0 = nn.Parameter(torch.full((5,), 2.0, dtype=torch.float64))
        self._3 = nn.Linear(5, 5).double()
        self.names = {"_0": 1.0, "_1": 2.0, "__torch__.test_serialization.Law": 3.0}

    def forward(self, _1: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        _2 = torch.where(_1 > 0, _1, x)
        if x.dim() > 3:
            raise ValueError('_1 and __torch__.test_serialization.Law it\'s "_4"')
        return self._3(_2) * self._0 + self.names["_1"] + self.names["__torch__.test_serialization.Law"]


def test_names_and_texts_of_the_user_stay():
    module = torch.jit.script(Underscores().eval())
    loaded = torch.jit.load(io.BytesIO(write_zip(serialize_module(module))))
    assert torch.equal(loaded(X, x=-X), module(X, x=-X))
    assert torch.equal(loaded(_1=-X, x=X), module(_1=-X, x=X))
    with pytest.raises(Exception, match=r"_1 and __torch__\.test_serialization\.Law it's \"_4\""):
        loaded(X, X.reshape(1, 1, 1, 5))
    assert serialize_module(loaded) == serialize_module(module)


def test_tensors_stand_on_boundaries():
    data = write_zip(serialize_module(torch.jit.script(holder())))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        tensors = [i for i in archive.infolist() if "/data/" in i.filename]
        assert len(tensors) == 4
        for info in tensors:
            name, extra = (int.from_bytes(data[info.header_offset + position :][:2], "little") for position in (26, 28))
            assert (info.header_offset + 30 + name + extra) % 64 == 0
        assert {i.date_time for i in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def marked() -> Holder:
    model = holder()
    torchferry.mark(model.law, jit="script")
    return model


def test_exports_of_one_process_are_equal_to_the_byte(tmp_path, without_the_gate):
    x = torch.stack([X, 2 * X])
    for i in range(2):
        export_unverified(f"{__file__}:marked", tmp_path / f"{i}.pt", x=x)
    assert (tmp_path / "0.pt").read_bytes() == (tmp_path / "1.pt").read_bytes()


@pytest.mark.thorough
def test_processes_callers_clocks_and_folders_leave_no_trace(tmp_path):
    """From the command line in another folder, time zone and hash seed, and from Python here."""
    for name in ("one", "other"):
        shutil.copytree(ROOT / "examples" / "rates", tmp_path / name)
        shutil.copy(ROOT / "examples" / "train_step.py", tmp_path / name)
    subprocess.run(
        [sys.executable, "-m", "exporter", "export", "train_step.py:loss_and_grad", "-o", "m.pt"],
        cwd=tmp_path / "one",
        env=os.environ | {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    # Here another file of this name has been loaded already.
    shutil.copytree(tmp_path / "other", tmp_path / "before")
    before = tmp_path / "before" / "train_step.py"
    before.write_text(before.read_text() + "\n# before\n")
    torchferry.check(f"{before}:momentum_step")
    # The command line says what it was asked for.
    command = "torchferry export train_step.py:loss_and_grad -o m.pt"
    source = f"{tmp_path}/other/train_step.py:loss_and_grad"
    torchferry.export(source, output=tmp_path / "other" / "m.pt", command=command)
    item, other = (tmp_path / name / "m.pt" for name in ("one", "other"))
    assert item.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(item) as archive:
        assert not [name for name in archive.namelist() if str(tmp_path).encode() in archive.read(name)]


def test_no_folder_of_this_machine_is_in_an_archive(tmp_path):
    """Nor of the environment: stacks and findings name files as they are imported."""
    (exported,) = torchferry.export(
        holder(), inputs={"x": torch.stack([X, 2 * X])}, output=tmp_path / "m.pt", allow=["data read:known"]
    )
    with zipfile.ZipFile(exported.path) as archive:
        for name in archive.namelist():
            assert str(ROOT).encode() not in archive.read(name), name
            assert str(Path(torch.__file__).parent).encode() not in archive.read(name), name


def test_places():
    assert importable_path(torch.nn.modules.linear.__file__) == "torch/nn/modules/linear.py"
    assert importable_path("/nowhere/at/all.py") == "all.py"
    assert importable_path("model.py") == "model.py"
    assert strip_local_paths("in /nowhere/at/all.py:12, and b.py:3") == "in all.py:12, and b.py:3"


def test_classes_of_ours_have_a_namespace_that_hangs_on_no_file(tmp_path, without_the_gate):
    """Class paths are in the code's records and in the pickle: what moves in the source must not change a file."""
    x = torch.stack([X, 2 * X])
    export_unverified(f"{__file__}:marked", tmp_path / "m.pt", x=x)
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        whole = b"".join(archive.read(name) for name in archive.namelist()) + "".join(archive.namelist()).encode()
    paths = {match.decode() for match in re.findall(rb"__torch__[./]\w+", whole)}
    assert {path.replace("/", ".") for path in paths} == {"__torch__.torchferry", "__torch__.test_serialization"}


@pytest.mark.thorough
def test_loops_of_ours_have_it_too(tmp_path, neml2, without_the_gate):
    """A Newton solver, a predictor, and the graphs that they call."""
    rows = {name: torch.linspace(0.5, 1.5, 5, dtype=torch.float64) for name in ("A", "b", "strength")}
    source = Path(__file__).parents[2] / "support" / "slip.i"
    torchferry.export(str(source), models=["slip"], inputs=rows, output=tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        code = [name for name in archive.namelist() if "/code/" in name]
        whole = b"".join(archive.read(name) for name in [*code, *(n for n in archive.namelist() if n.endswith(".pkl"))])
    paths = {match.decode() for match in re.findall(rb"__torch__[./]\w+", whole + "".join(code).encode())}
    assert {path.replace("/", ".") for path in paths} == {"__torch__.torchferry"}
    for kind in (b"NewtonSolver", b"CoordinateDescent", b"Graph"):
        assert kind in whole
    assert b"exporter/" not in whole
    assert b"torchferry/newton_solver.py" in whole


@pytest.mark.parametrize("name", ["class_paths_of_sources.pt"])
def test_older_files_load(name):
    """An archive written when classes stood under the paths of their sources: ``__torch__.exporter.capture.boxes``."""
    path = Path(__file__).with_name("data") / name
    assert torchferry.verify(path).passed
    model = torchferry.load(path)
    assert model.contract.name
