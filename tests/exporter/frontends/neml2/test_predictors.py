"""Loops of NEML2's coordinate descent predictors, which stay loops in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from project import load_module

import torchferry
from exporter.capture import newton_capture
from exporter.common.errors import CaptureError
from exporter.common.script_loading import iterate_nodes
from exporter.frontends.neml2.predictors import compile_when_called, install_descents
from exporter.model.implicit.coordinate_descent import CoordinateDescent, find_descents

pytestmark = pytest.mark.usefixtures("neml2")
SLIP = Path(__file__).parents[3] / "support" / "slip.i"
F = torch.float64


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F)


def make_predictor():
    import neml2

    return neml2.load_input(SLIP).get_model("guess")


def make_inputs(batch: int, count: int):
    """Coupling, force and strengths, in the order of the predictor's inputs."""
    from neml2.types import Scalar

    root = draw(batch, count, count, seed=1)
    coupling = root @ root.mT + torch.eye(count, dtype=F)
    force, strength = 4 * draw(batch, count, seed=2) - 2, 1 + draw(batch, count, seed=3)
    if count == 1:
        return Scalar(coupling[:, 0, 0]), Scalar(force[:, 0]), Scalar(strength[:, 0])
    return (
        Scalar(coupling, sub_batch_ndim=2),
        Scalar(force, sub_batch_ndim=1),
        Scalar(strength, sub_batch_ndim=1),
    )


def record(descent: CoordinateDescent, run):
    """What a call of the descent took and gave."""
    calls = []
    forward = descent.forward

    def recorded(*arguments):
        result = forward(*arguments)
        calls.append((arguments, result))
        return result

    descent.__dict__["forward"] = recorded
    run()
    del descent.__dict__["forward"]
    return calls[0]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_numbers_are_the_library_s_own(count):
    unrolled, looped = make_predictor(), make_predictor()
    (descent,) = install_descents(looped)
    with torch.no_grad():
        expected = unrolled(*make_inputs(7, count))
        result = looped(*make_inputs(7, count))
        call = record(descent, lambda: looped(*make_inputs(7, count)))
        compiled = newton_capture.compile_descent(descent, call)
        assert compiled is not descent.forward
        descent.__dict__["forward"] = compiled
        assert torch.equal(result.data, expected.data)
        assert result.sub_batch_ndim == expected.sub_batch_ndim
        for batch in (7, 1, 0, 30):
            inputs = make_inputs(batch, count)
            assert torch.equal(looped(*inputs).data, unrolled(*inputs).data)
        # The law's parameters are arguments of the compiled loop.
        for module in (unrolled, looped):
            dict(module.rate_law.named_parameters())["n"].fill_(2.5)
        assert not torch.equal(unrolled(*make_inputs(7, count)).data, expected.data)
        assert torch.equal(looped(*make_inputs(7, count)).data, unrolled(*make_inputs(7, count)).data)


def test_values_that_all_components_share():
    from neml2.types import Scalar

    unrolled, looped = make_predictor(), make_predictor()
    (descent,) = install_descents(looped)
    coupling, force, _ = make_inputs(7, 3)
    inputs = coupling, force, Scalar(1 + draw(7, seed=3))
    with torch.no_grad():
        assert torch.equal(looped(*inputs).data, unrolled(*inputs).data)
    assert descent.component_count == 0


def test_a_model_of_many_calls_compiles_its_loop_after_the_first(monkeypatch):
    unrolled, looped = make_predictor(), make_predictor()
    (descent,) = install_descents(looped)
    calls, rate = [], looped._phi_inv
    monkeypatch.setattr(looped, "_phi_inv", lambda *arguments: calls.append(arguments) or rate(*arguments))
    compile_when_called(descent, newton_capture.compile_descent)
    with torch.no_grad():
        assert torch.equal(looped(*make_inputs(7, 3)).data, unrolled(*make_inputs(7, 3)).data)
        first = len(calls)
        assert first > 50
        assert torch.equal(looped(*make_inputs(9, 3)).data, unrolled(*make_inputs(9, 3)).data)
    assert len(calls) == first


def test_a_loop_that_cannot_be_compiled_stays_as_it_is_and_is_not_tried_again(monkeypatch):
    tried = []

    def fail(*_):
        tried.append(True)
        raise CaptureError("no")

    monkeypatch.setattr(newton_capture, "capture_descent", fail)
    unrolled, looped = make_predictor(), make_predictor()
    (descent,) = install_descents(looped)
    compile_when_called(descent, newton_capture.compile_descent)
    with torch.no_grad():
        for batch in (7, 9):
            assert torch.equal(looped(*make_inputs(batch, 3)).data, unrolled(*make_inputs(batch, 3)).data)
    assert tried == [True]


def export_slip(tmp_path: Path, sweeps: int):
    source = tmp_path / f"slip_{sweeps}.i"
    source.write_text(SLIP.read_text().replace("sweeps = 2", f"sweeps = {sweeps}"))
    inputs = {"A": 1 + draw(8, seed=4), "b": 4 * draw(8, seed=5) - 2, "strength": 1 + draw(8, seed=6)}
    path = tmp_path / f"slip_{sweeps}.pt"
    return torchferry.export(str(source), models=["slip"], inputs=inputs, output=path, derivatives="g:b")[0]


@pytest.mark.thorough
@pytest.mark.usefixtures("without_the_gate")
def test_the_file_has_the_loop_once(tmp_path):
    counts = []
    for sweeps in (2, 9):
        module = load_module(export_slip(tmp_path, sweeps).path)
        graph = module._c._get_method("forward").graph.copy()
        torch._C._jit_pass_inline(graph)
        counts.append(sum(1 for _ in iterate_nodes(graph)))
    assert counts[0] == counts[1]


@pytest.mark.thorough
def test_a_file_with_a_loop_is_verified(tmp_path):
    exported = export_slip(tmp_path, 2)
    assert exported.report.passed
    module = load_module(exported.path)
    A, b, strength = 1 + draw(5, seed=7), 4 * draw(5, seed=8) - 2, 1 + draw(5, seed=9)
    g = module(A, b, strength)[0]
    ratio = (b - A * g) / strength
    assert torch.allclose(g, 0.1 * ratio.abs() ** 3.1 * ratio, rtol=1e-10)


def test_a_loop_that_computes_something_else_is_refused(monkeypatch):
    predictor = make_predictor()
    (descent,) = install_descents(predictor)
    with torch.no_grad():
        arguments, result = record(descent, lambda: predictor(*make_inputs(7, 3)))
        newton_capture.capture_descent("guess", descent, (arguments, result))
        with pytest.raises(CaptureError, match="does not compute in the file"):
            newton_capture.capture_descent("guess", descent, (arguments, result + 1e-6))
    assert list(find_descents(predictor)) == ["descent"]


@pytest.mark.thorough
@pytest.mark.usefixtures("without_the_gate")
def test_a_loop_that_cannot_be_captured_is_unrolled_and_said(tmp_path, monkeypatch):
    def fail(*_):
        raise CaptureError("it has no graph", got="a reason")

    monkeypatch.setattr(newton_capture, "capture_descent", fail)
    exported = export_slip(tmp_path, 1)
    assert exported.report.passed
    (finding,) = (f for f in exported.contract.findings if "unrolled" in f.what)
    assert finding.what == "the loops of the predictor 'predictor.descent' are unrolled"
    assert finding.reason == "it has no graph: a reason"


def test_values_that_are_stored_once_are_left_to_the_library():
    from neml2.types import Scalar

    unrolled, looped = make_predictor(), make_predictor()
    (descent,) = install_descents(looped)
    coupling, force, strength = make_inputs(7, 3)
    once = Scalar(strength.data[:, :1], sub_batch_ndim=1, sub_batch_state=("broadcast",), sub_batch_meta=(3,))
    # It cannot take them either.
    descent.__dict__["forward"] = None
    for predictor in (unrolled, looped):
        with torch.no_grad(), pytest.raises(IndexError, match="out of bounds"):
            predictor(coupling, force, once)
