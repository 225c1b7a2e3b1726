"""Methods of archives as terms of one element, and what has no such form: named, with model and line."""

from __future__ import annotations

import pytest
import torch
from cubic_models import POINTS, update
from project import ROOT, export_unverified, skip_checks
from torch import nn

import torchferry
from exporter.archive import pt_archive
from exporter.backends.backend import KernelOptions
from exporter.backends.c_kernel.c_source import generate_sources
from exporter.backends.c_kernel.lowering import ArchiveLowering
from exporter.backends.c_kernel.schedule import reachable_nodes
from exporter.common.errors import UnsupportedError
from exporter.graph.loading import ScriptedModule, load_module
from torchferry.cli.app import run

ARTIFACTS = ROOT / "artifacts"
HEAD = """
import torch
from torch import nn
import torchferry

F = torch.float64


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=F))

    def forward(self, x):
        return {body}


@torchferry.declare(inputs={{"x": torchferry.TensorSpec("x", (3,), "float64")}})
def make():
    return Layer().double()
"""


def lowered(name: str, method: str = "forward"):
    path = ARTIFACTS / f"{name}.pt"
    result = ArchiveLowering(ScriptedModule(load_module(path)), pt_archive.read(path).contract)
    forward = result.lower_method("forward")
    return forward if method == "forward" else result.lower_method(method)


def count(function) -> int:
    return len(reachable_nodes(function.graph, [i for output in function.outputs for i in output], ()))


def written(tmp_path, body: str):
    path = tmp_path / "layer.py"
    path.write_text(
        HEAD.format(body=body).replace(
            '@torchferry.declare(inputs={"x": torchferry.TensorSpec("x", (3,), "float64")})\n', ""
        )
    )
    return path


@pytest.fixture
def export(tmp_path, without_the_gate):
    def run(body: str):
        file = written(tmp_path, body)
        example = torch.randn(4, 3, dtype=torch.float64)
        return export_unverified(f"{file}:make", tmp_path / "layer.pt", x=example)

    return run


def lower(opened):
    return generate_sources(ScriptedModule(load_module(opened.path)), opened.contract, KernelOptions())


def test_a_residual_and_its_derivatives():
    forward, jacobian = lowered("perzyna"), lowered("perzyna", "jacobian")
    assert [len(o) for o in forward.outputs] == [6]
    assert [len(o) for o in jacobian.outputs] == [6, 36]
    # Far fewer than one for each of 36 directions.
    assert count(jacobian) < 6 * count(forward)


def test_derivatives_are_of_whatever_costs_less():
    assert lowered("robertson", "jacobian").how == "forward mode"
    assert lowered("perzyna", "jacobian").how == "captured"


def test_parameters_are_arguments():
    function = lowered("robertson")
    leaves = {t.extra[0] for t in function.graph.nodes if t.op == "leaf"}
    assert "parameter:k" in leaves


@pytest.mark.parametrize(
    "body",
    [
        "x - x.mean(0)",
        "x.cumsum(0)",
        "x @ (x.transpose(0, 1) @ x)",
        "x + x.flip(0)",
        "torch.softmax(x, 0)",
        "x.flip(0) * 2",
        "x.roll(-1, 0)",
        "x[:1].expand(x.shape[0], 3) + 0 * x",
    ],
)
def test_operations_over_the_batch_are_refused(export, body):
    with pytest.raises(UnsupportedError, match=r"mixes elements|depends on the batch") as caught:
        lower(export(body))
    assert "layer.py:15" in caught.value.details["where"] or "method" in caught.value.details["where"]


@pytest.mark.parametrize("body", ["x / x.shape[0]", "x + torch.arange(x.shape[0], dtype=F).unsqueeze(-1)"])
def test_what_depends_on_size_or_place_is_refused(export, body):
    with pytest.raises(UnsupportedError, match="depends on the batch around it"):
        lower(export(body))


class Turned(nn.Module):
    """An update whose elements are turned round before it or after it, or nowhere."""

    signature = torchferry.Signature.of({"x~1": (), "dt": ()}, {"y": ()})

    def __init__(self, place: str) -> None:
        super().__init__()
        self.update, self.place = update(), place

    def forward(self, old, dt):
        (x,) = self.update(old.flip(0) if self.place == "before" else old, dt)
        return {"y": x.flip(0) if self.place == "after" else x}


def lower_turned(place: str, path):
    with skip_checks():
        torchferry.export(Turned(place), output=path, inputs=POINTS)
    result = ArchiveLowering(ScriptedModule(load_module(path)), pt_archive.read(path).contract)
    result.lower_method("forward")
    return result


@pytest.mark.parametrize(("place", "message"), [("before", "mixes elements"), ("after", "depends on the batch around")])
def test_solves_of_other_elements_are_refused(tmp_path, place, message):
    with pytest.raises(UnsupportedError, match=message):
        lower_turned(place, tmp_path / "turned.pt")


def test_only_the_solve_of_one_element_is_lowered(tmp_path):
    assert len(lower_turned("nowhere", tmp_path / "turned.pt").loops) == 1


def test_the_control_of_those(export):
    assert lower(export("x * x.sum(-1, keepdim=True) + self.weight")).operations["forward"] > 3


def test_open_sizes_are_refused():
    with pytest.raises(UnsupportedError, match="fixed shape"):
        lower(pt_archive.read(ARTIFACTS / "loss_and_grad.pt"))


def test_control_flow_on_data_is_refused_with_its_line(tmp_path, capfd):
    assert run(["convert", str(ARTIFACTS / "bar.pt"), "--to", "c", "-o", str(tmp_path / "bar")]) == 3
    message = capfd.readouterr().err
    assert "models.py:" in message
    assert "a branch depends on the data" in message
    assert not (tmp_path / "bar").exists()


def test_an_operator_without_a_row_keeps_nothing_half_written(export, tmp_path, capfd):
    opened = export("torch.topk(x, 1).values")
    assert run(["convert", str(opened.path), "--to", "c", "-o", str(tmp_path / "k")]) == 3
    message = capfd.readouterr().err
    assert "aten::topk" in message
    assert "layer.py:15" in message
    assert not (tmp_path / "k").exists()


@pytest.mark.thorough
def test_a_model_that_is_too_big(export):
    with pytest.raises(UnsupportedError, match="too big for a kernel") as caught:
        lower(export("torch.stack([(x.unsqueeze(-1) * torch.linspace(0, 1, 40000, dtype=F)).sin().sum(-1)], 0)[0]"))
    assert "operations" in caught.value.details["got"]


def test_the_archive_is_made_where_the_kernel_cannot_be(tmp_path, capfd):
    """And says so: exit code 3, with the file of the one and nothing of the other."""
    file = written(tmp_path, "torch.topk(x, 1).values")
    torch.save({"x": torch.randn(4, 3, dtype=torch.float64)}, tmp_path / "in.pt")
    asked = ["export", f"{file}:make", "--inputs", str(tmp_path / "in.pt"), "--format", "pt,c"]
    assert run([*asked, "-o", str(tmp_path / "layer.pt")]) == 3
    assert "aten::topk" in capfd.readouterr().err
    assert run(["verify", str(tmp_path / "layer.pt")]) == 0
    assert not (tmp_path / "layer").exists()
