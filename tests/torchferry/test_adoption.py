"""Archives of files that something else wrote: held against these files, and refused where they are not sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from foreign_files import (
    BranchingPotential,
    BufferWriter,
    Centred,
    FixedSize,
    Halving,
    InputWriter,
    MeanPotential,
    Network,
    Noise,
    NoneBelowBound,
    Partial,
    PartialPotential,
    Potential,
    Refusing,
    SizedPotential,
    Sometimes,
    Structured,
)
from torch import nn

import torchferry
from exporter.common.errors import WarmupError
from exporter.common.torch_hooks import ignore_deprecations
from exporter.frontends import compiled_parts
from exporter.model.compiled_model import wrap_compiled

F = torch.float64
X = torch.linspace(-1, 1, 15, dtype=F).reshape(5, 3)


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=F)


def script(module, path):
    with ignore_deprecations():
        torch.jit.script(module.double()).save(str(path))
    return path


def trace(module, path, example=X):
    with ignore_deprecations():
        traced: Any = torch.jit.trace(module.double(), example, check_trace=False)
    traced.save(str(path))
    return path


def reload(path):
    with ignore_deprecations():
        return torch.jit.load(str(path)).eval()


@pytest.mark.thorough
@pytest.mark.parametrize("save", [script, trace], ids=["scripted", "traced"])
def test_a_network_in_three_containers(save, tmp_path):
    """At sizes and values that nobody gave, with blocks by an input and a parameter, in C and in ONNX."""
    foreign = save(Network(), tmp_path / "foreign.pt")
    adopted = torchferry.adopt(
        foreign,
        inputs={"x": X},
        output=tmp_path / "net.pt",
        derivatives=["output:x", "output:last.bias"],
        formats=["pt", "c", "onnx"],
    )
    assert adopted.report.passed
    assert [c.report.passed for c in adopted.containers] == [True, True]
    x = 3 * draw(11, 3)
    expected = reload(foreign)(x)
    got = torchferry.load(adopted.path)(x)[0]
    assert torch.allclose(got, expected, rtol=1e-12, atol=1e-14)
    assert "first.weight" in {p.name for p in adopted.contract.parameters}


def test_structures_loops_and_constants(tmp_path):
    """What a foreign file has besides tensors: dicts, an optional argument, a number, attributes, a function."""
    foreign = script(Structured(), tmp_path / "foreign.pt")
    inputs = {"data": {"a": X, "b": X + 1}, "extra": X * 2, "times": 3.0}
    adopted = torchferry.adopt(foreign, inputs=inputs, output=tmp_path / "net.pt")
    assert [s.name for s in adopted.contract.outputs] == ["total", "scaled"]
    assert any(f.what == "'times' is fixed" for f in adopted.contract.findings)
    a, b, extra = draw(7, 3), draw(7, 3) - 1, draw(7, 3) / 3
    expected = reload(foreign)({"a": a, "b": b}, extra, 3.0)
    total, scaled = torchferry.load(adopted.path)(a, b, extra)
    assert torch.equal(total, expected.total)
    assert torch.equal(scaled, expected.scaled)


def test_outputs_that_may_be_none(tmp_path):
    foreign = script(Partial(), tmp_path / "foreign.pt")
    adopted = torchferry.adopt(foreign, inputs={"x": X, "with_square": True}, output=tmp_path / "net.pt")
    assert [s.name for s in adopted.contract.outputs] == ["double", "square"]
    x = draw(4, 3)
    assert torch.equal(torchferry.load(adopted.path)(x)[1], x * x)
    adopted = torchferry.adopt(foreign, inputs={"x": X}, output=tmp_path / "other.pt")
    assert [s.name for s in adopted.contract.outputs] == ["double"]
    result = torchferry.load(adopted.path).call_as_module(x)
    assert torch.equal(result.pop("double"), 2 * x)
    assert result == {"square": None}


def test_which_output_is_none_is_not_for_data_to_decide(tmp_path):
    foreign = script(NoneBelowBound(), tmp_path / "foreign.pt")
    with pytest.raises(torchferry.UnsoundError, match="2 outputs"):
        torchferry.adopt(foreign, inputs={"x": X.abs() / 10}, output=tmp_path / "net.pt")


def test_an_output_that_turns_out_to_be_none_is_an_error(tmp_path):
    foreign = script(Sometimes(), tmp_path / "foreign.pt")
    adopted = torchferry.adopt(foreign, inputs={"x": X}, output=tmp_path / "net.pt", batch="no")
    model = torchferry.load(adopted.path, envelope="off")
    assert torch.equal(model(X)[1], X * X)
    x = torch.zeros(5, 3, dtype=F)
    x[0, 0] = 12345.0
    with pytest.raises(Exception, match="null optional"):
        model(x)


def test_forces_beside_outputs_that_are_none(tmp_path):
    """As interatomic potentials return them: what was not asked for is None."""
    foreign = script(PartialPotential(), tmp_path / "foreign.pt")
    adopted = torchferry.adopt(foreign, inputs={"positions": X}, output=tmp_path / "net.pt")
    assert [s.name for s in adopted.contract.outputs] == ["forces"]
    x = draw(4, 3)
    assert torch.allclose(torchferry.load(adopted.path)(x)[0], -2 * x)


def test_a_loop_on_data_stays_a_loop(tmp_path):
    foreign = script(Halving(), tmp_path / "foreign.pt")
    adopted = torchferry.adopt(foreign, inputs={"x": X}, output=tmp_path / "net.pt")
    # More steps than any example took.
    x = 1e6 * draw(9, 3)
    assert torch.equal(torchferry.load(adopted.path)(x)[0], reload(foreign)(x))
    assert "prim::Loop" in adopted.contract.operators


def test_a_frozen_file_has_its_weights_as_constants(tmp_path):
    with ignore_deprecations():
        torch.jit.freeze(torch.jit.script(Network().double().eval())).save(str(tmp_path / "foreign.pt"))
    adopted = torchferry.adopt(
        tmp_path / "foreign.pt", inputs={"x": X}, output=tmp_path / "net.pt", formats=["pt", "c"]
    )
    assert adopted.contract.parameters == ()
    x = draw(4, 3)
    assert torch.allclose(torchferry.load(adopted.path)(x)[0], reload(tmp_path / "foreign.pt")(x), rtol=1e-12)


def test_forces_that_a_file_computes_by_a_gradient(tmp_path):
    """What torch's autograd did in the file is operations in the archive, and in its kernel."""
    foreign = script(Potential(), tmp_path / "foreign.pt")
    adopted = torchferry.adopt(foreign, inputs={"positions": X}, output=tmp_path / "net.pt", formats=["pt", "c"])
    x = 2 * draw(8, 3)
    _, forces = torchferry.load(adopted.path)(x)
    assert torch.allclose(forces, -(4.0 * x + 4 * x**3), rtol=1e-12)
    assert torch.allclose(forces, reload(foreign)(x.clone())["forces"], rtol=1e-12)
    assert "aten::grad" not in adopted.contract.operators


@pytest.mark.parametrize("module", [SizedPotential(), MeanPotential()], ids=["loop", "numbers"])
def test_sizes_that_are_read_before_a_gradient(module, tmp_path):
    """With whole shapes, sizes are numbers: what TorchScript reads of them may stay in the file."""
    foreign = script(module, tmp_path / "foreign.pt")
    adopted = torchferry.adopt(foreign, inputs={"x": X}, output=tmp_path / "net.pt", batch="no")
    x = draw(5, 3)
    assert torch.allclose(torchferry.load(adopted.path)(x)[0], reload(foreign)(x.clone()), rtol=1e-12)


def test_a_program_of_torch_export(tmp_path):
    module, batch = Network().double(), torch.export.Dim("batch")
    torch.export.save(torch.export.export(module, (X,), dynamic_shapes={"x": {0: batch}}), tmp_path / "foreign.pt2")
    adopted = torchferry.adopt(tmp_path / "foreign.pt2", allow_native=True, output=tmp_path / "net.pt", formats="pt")
    x = draw(6, 3)
    assert torch.allclose(torchferry.load(adopted.path)(x)[0], module(x), rtol=1e-12)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Noise(), r"random numbers(.|\n)*foreign\.pt"),
        (BufferWriter(), "buffer 'count'"),
        (InputWriter(), "input 'x'"),
        (BranchingPotential(), r"branch that depends on data(.|\n)*foreign_files\.py:\d+"),
        (SizedPotential(), "keeps the batch size"),
        (Centred(), "rows of a batch(.|\n)*depend on each other"),
    ],
    ids=["random", "state", "input", "branch", "size", "batch"],
)
def test_what_is_not_sound_is_refused(module, message, tmp_path):
    foreign = script(module, tmp_path / "foreign.pt")
    with pytest.raises(torchferry.TorchferryError, match=message):
        torchferry.adopt(foreign, inputs={"x": X}, output=tmp_path / "net.pt", batch="yes")
    assert not (tmp_path / "net.pt").exists()


def test_a_size_that_a_trace_has_kept(tmp_path):
    """Such a file computes at one size: with whole shapes it is adopted as it is."""
    foreign = trace(FixedSize(), tmp_path / "foreign.pt")
    with pytest.raises(WarmupError, match=r"foreign_files\.py:\d+(.|\n)*shape '\[5, 3\]' is invalid(.|\n)*--batch no"):
        torchferry.adopt(foreign, inputs={"x": X}, output=tmp_path / "net.pt")
    adopted = torchferry.adopt(foreign, inputs={"x": X}, output=tmp_path / "net.pt", batch="no")
    assert adopted.contract.batch.ndim == 0


def test_a_file_that_fails_on_its_inputs(tmp_path):
    foreign = script(Refusing(), tmp_path / "foreign.pt")
    with pytest.raises(WarmupError, match=r"foreign_files\.py:\d+\n  got: builtins\.ValueError: five, please"):
        torchferry.adopt(foreign, inputs={"x": X}, output=tmp_path / "net.pt")


def test_another_function_in_place_of_the_file_is_found(tmp_path, monkeypatch):
    """The control of all above: what is written is held against the file itself."""

    class Other(Network):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.sin(self.first(x)))

    def wrap(compiled: torch.jit.ScriptModule) -> nn.Module:
        model = wrap_compiled(compiled)
        other = Other().double()
        other.load_state_dict(dict(compiled.state_dict()))
        with ignore_deprecations():
            stand_in = wrap_compiled(torch.jit.script(other))
        model.__dict__["_torchferry_code"].function = stand_in.__dict__["_torchferry_code"].function
        return model

    monkeypatch.setattr(compiled_parts, "wrap_compiled", wrap)
    foreign = script(Network(), tmp_path / "foreign.pt")
    with pytest.raises((torchferry.UnsoundError, torchferry.MismatchError)):
        torchferry.adopt(foreign, inputs={"x": X}, output=tmp_path / "net.pt")
    assert not (tmp_path / "net.pt").exists()


def test_a_wrong_argument(tmp_path):
    with pytest.raises(TypeError, match="tolerence"):
        torchferry.adopt(tmp_path / "none.pt", inputs={"x": X}, tolerence=1e-3)
