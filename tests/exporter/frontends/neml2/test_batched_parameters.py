"""Parameters that have a batch, in a NEML2 input file or by request, against NEML2's own solver."""

from __future__ import annotations

import pytest
import torch
from decay_input import format_decay
from native_build import verify_natively

import torchferry
from exporter.common.errors import UsageError
from exporter.common.torch_hooks import swap_parameters
from exporter.frontends.model_request import ModelRequest
from exporter.frontends.neml2 import input_file
from exporter.model.eager.recorded_history import record_load_history
from torchferry.cli.app import run

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

F = torch.float64
RATES = """
[Tensors]
  [rates]
    type = Python
    expr = 'Scalar(torch.linspace(-2.0, -0.5, 10).reshape({shape}))'
  []
[]
"""


def write_decay(path, shape="10"):
    """Write a file in which ten elements decay at rates of their own."""
    text = format_decay(2.0, 9).replace("weights = '-1'", "weights = 'rates'")
    path.write_text(text + RATES.format(shape=shape))
    return path


@pytest.fixture(scope="module")
def batched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batched")
    path = write_decay(folder / "batched.i")
    torchferry.export(str(path), models=["model"], output=folder / "b.pt", formats="pt,c", derivatives="x:*")
    return path, folder / "b.pt"


def test_a_batch_in_the_file_is_by_element(batched):
    path, archive = batched
    model = torchferry.load(archive)
    assert model.contract.per_element == ("residual.rate.weight_0",)
    solver = [f for f in model.contract.findings if f.check == "solver"]
    assert "compared with neml2's own" in solver[0].what
    assert float(solver[0].reason.split()[2]) <= 1.0
    # What the driver gave the model next is what NEML2's own solver found.
    source = input_file.load(ModelRequest(str(path)), "model", None)
    names = [s.name for s in source.inputs]
    assert source.calls[0][0].shape == (10,)
    assert len(source.calls) == 8
    for call, following in zip(source.calls, source.calls[1:], strict=False):
        (x,) = model(*call)
        assert torch.allclose(x, following[names.index("x~1")], rtol=1e-9)
    rates = dict(zip(names, source.calls[0], strict=True))["residual.rate.weight_0"]
    assert torch.equal(rates, torch.linspace(-2.0, -0.5, 10, dtype=F))


def test_its_history_runs_in_the_file(batched, tmp_path, capfd):
    path, archive = batched
    assert run(["history", str(path), "--model", "model", "-o", str(tmp_path / "h.pt")]) == 0
    assert run(["run", str(archive), "--history", str(tmp_path / "h.pt")]) == 0
    code, report = verify_natively(archive, "--history", tmp_path / "h.pt")
    assert code == 0, report
    history = torch.load(tmp_path / "h.pt", weights_only=True)
    history["prescribed/residual.rate.weight_0"] = history["prescribed/residual.rate.weight_0"].roll(1, 1)
    torch.save(history, tmp_path / "wrong.pt")
    capfd.readouterr()
    assert run(["run", str(archive), "--history", str(tmp_path / "wrong.pt")]) == 5


@pytest.mark.parametrize("shape", ["10, 1", "1, 10"])
def test_a_batch_of_two_dimensions_is_flattened(tmp_path, shape):
    source = input_file.load(ModelRequest(str(write_decay(tmp_path / "two.i", shape))), "model", None)
    assert source.per_element == ("residual.rate.weight_0",)
    assert source.calls[0][-1].shape == (10,)


@pytest.mark.thorough
def test_a_batch_is_asked_for(tmp_path):
    (tmp_path / "decay.i").write_text(format_decay(2.0, 9))
    path = str(tmp_path / "decay.i")
    torchferry.export(path, models=["model"], output=tmp_path / "d.pt", per_element="*.weight_0", derivatives="x:*")
    model = torchferry.load(tmp_path / "d.pt")
    rates = -0.1 - 3 * torch.rand(23, dtype=F)
    before, old_time, time = torch.rand(23, dtype=F), torch.rand(23, dtype=F), 1 + torch.rand(23, dtype=F)
    values = {"x": before, "x~1": before, "t": time, "t~1": old_time, "residual.rate.weight_0": rates}
    # NEML2's own model, with its own solver, and parameters of its own that have a batch.
    with input_file._use_float64(), torch.no_grad():
        library = input_file._build_model(ModelRequest(path), "model")[1].requires_grad_(False)
        typed = [kind(values[name]) for name, kind in library.input_spec.items()]
        with swap_parameters(library, {"residual.rate.weight_0": rates}):
            result = library(*typed)
    wanted = (result[0] if isinstance(result, tuple) else result).data
    ours = model.call("jacobian", {s.name: values[s.name] for s in model.contract.inputs})
    assert torch.allclose(ours["x"], wanted, rtol=1e-9)
    step = time - old_time
    slope = before * step / (1 - rates * step) ** 2
    assert torch.allclose(ours["d x / d residual.rate.weight_0"], slope, rtol=1e-8)


def test_a_history_varies_the_values_of_elements(tmp_path):
    source = input_file.load(ModelRequest(str(write_decay(tmp_path / "b.i"))), "model", None)
    history = record_load_history(source, rows=20, seed=1)
    rates = history.prescribed["residual.rate.weight_0"]
    assert rates.shape == (8, 20)
    assert torch.equal(rates[0], rates[-1])


@pytest.mark.thorough
def test_values_of_ones_own(tmp_path):
    path = str(write_decay(tmp_path / "b.i"))
    x = torch.linspace(0.5, 1.0, 4, dtype=F)
    inputs = {"x": x, "x~1": x, "t": torch.ones(4, dtype=F), "t~1": torch.zeros(4, dtype=F)}
    with pytest.raises(UsageError, match="another batch than the inputs"):
        torchferry.export(path, models=["model"], output=tmp_path / "m.pt", inputs=inputs)
    inputs["residual.rate.weight_0"] = -x
    torchferry.export(path, models=["model"], output=tmp_path / "m.pt", inputs=inputs)
    model = torchferry.load(tmp_path / "m.pt")
    assert torch.allclose(model.call("forward", inputs)["x"], x / (1 + x), rtol=1e-9)
