"""Faults planted into files, each found by the check that is meant for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchferry
from exporter.archive import derivative_request, pt_archive
from exporter.archive.derivative_request import DerivativeRequest
from exporter.capture import constants, derivative_methods, jacobian_source, settable_parameters
from exporter.common.errors import MismatchError
from exporter.common.stopwatch import Stopwatch
from exporter.frontends import python_factory
from exporter.soundness.checked_capture import CaptureOptions
from runtime_checks.checks import derivative_consistency, finite_differences
from runtime_checks.runners.base import Call, CallResult
from runtime_checks.runners.libtorch_runner import LibtorchRunner
from runtime_checks.runners.python_runner import PythonRunner
from runtime_checks.verification import collect_report
from torchferry import Signature, TensorSpec
from torchferry.options import ExportOptions
from torchferry.pipeline import write_archive

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

F = torch.float64


class Square(nn.Module):
    """Two inputs and two outputs of one shape, a parameter."""

    signature = Signature.of({"x": (3,), "z": (3,)}, {"u": (3,), "v": (3,)})

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.l = nn.Linear(3, 3, dtype=F)
        self.E = nn.Parameter(torch.tensor(2.0, dtype=F))

    def forward(self, x, z):
        return torch.tanh(self.l(x)) * self.E + z**2, torch.sin(z) * x


def failed(path, asked=DerivativeRequest(("all",)), model=None, runners=()):  # noqa: B008
    source = python_factory.source_from_module(model or Square(), "m", None, "here")
    options = ExportOptions(capture=CaptureOptions(derivative_request=asked))
    write_archive(source, path, options, Stopwatch())
    return {c.check for c in collect_report(path, runners=runners).checks if c.verdict == "failed"}


def test_without_a_fault_nothing_fails(tmp_path):
    assert failed(tmp_path / "m.pt", DerivativeRequest(("all", "*:E"), jvp=True, vjp=True)) == set()


def edited(monkeypatch, edit):
    """The text of the method ``jacobian`` with something else in it."""
    written = jacobian_source.emit_jacobian_source
    monkeypatch.setattr(derivative_methods, "emit_jacobian_source", lambda *a, **k: edit(written(*a, **k)))


def first_block(text: str, change: str) -> str:
    """``change`` behind the first block that is returned."""
    shape = ".reshape([tf_rows, 3, 3])"
    head, returned = text.rsplit("return (", 1)
    return f"{head}return ({returned.replace(shape, shape + change, 1)}"


@pytest.mark.parametrize(
    "change",
    [".transpose(1, 2)", ".neg()", ".mul(1.0 + 1e-6)", ".float().double()", ".tril()"],
    ids=["transposed block", "wrong sign", "a factor of 1 + 1e-6", "float32 inside", "a term that is missing"],
)
def test_a_wrong_block(tmp_path, monkeypatch, change):
    edited(monkeypatch, lambda text: first_block(text, change))
    result = failed(tmp_path / "m.pt")
    assert {finite_differences.CHECK, "stored cases"} <= result


@pytest.mark.parametrize(
    ("off", "floor", "wrong"), [(1e-7, 0.0, True), (1e-7, 2e-7, False), (1e-6, 2e-7, True), (-1e-6, 2e-7, True)]
)
def test_what_is_closer_than_the_floor_of_the_contract_is_not_wrong(off, floor, wrong):
    """And nothing else: the slope of ``3 x`` at two points."""
    x = torch.tensor([0.5, 2.0], dtype=F)
    steps = torch.tensor([4.0**-j for j in range(2, 2 + finite_differences.STEPS)], dtype=F)
    table = torch.stack([torch.stack([3 * (x + h), 3 * (x - h)]) for h in steps])[None]
    ladder = finite_differences.Ladder("x", "float64", torch.tensor([0]), steps, ())
    block = torch.full((2, 1), 3.0, dtype=F)
    block[1] += off
    assert bool(finite_differences._judge_block(block, table, 3 * x, ladder, floor).worst) == wrong


@pytest.mark.parametrize(("slope", "wrong"), [(0.0, False), (1e-6, True), (0.1, True)])
def test_large_steps_over_many_kinks_do_not_overrule_the_smallest_one(slope, wrong):
    """A function that is flat as far as the smallest step leads, and beyond it grows by a quarter of each step."""
    steps = torch.tensor([4.0**-j for j in range(2, 2 + finite_differences.STEPS)], dtype=F)
    slopes = torch.tensor([0.25] * (finite_differences.STEPS - 1) + [0.0], dtype=F)
    table = torch.stack([slopes * steps, -slopes * steps], 1)[None, ..., None]
    ladder = finite_differences.Ladder("x", "float64", torch.tensor([0]), steps, ())
    # An entry with a size beside it.
    block = torch.tensor([[slope], [1.0]], dtype=F)
    table = torch.cat([table, torch.stack([steps, -steps], 1)[None, ..., None]], -1)
    assert bool(finite_differences._judge_block(block, table, torch.zeros(2, dtype=F), ladder).worst) == wrong


def test_a_step_below_the_rounding_of_the_output_says_nothing(tmp_path):
    """300 and a small step are 300 in float32, which agrees with the 0 of what is hidden from autograd."""

    def hide(x):
        return torch.stack([300.0 + x.detach()[0], 2 * x[0]])

    with pytest.raises(MismatchError, match="finite differences"):
        torchferry.export(
            hide, inputs={"x": torch.tensor([1.0])}, output=tmp_path / "m.pt", batch="no", derivatives="all"
        )


def test_blocks_in_the_wrong_order(tmp_path, monkeypatch):
    def swap(text: str) -> str:
        head, returned = text.rsplit("return (", 1)
        values = returned.removesuffix(",)\n").split(", tf_p0")
        values[-1], values[-2] = values[-2], values[-1]
        return f"{head}return ({', tf_p0'.join(values)},)\n"

    edited(monkeypatch, swap)
    assert finite_differences.CHECK in failed(tmp_path / "m.pt")


def test_a_block_that_is_declared_zero_and_is_not(tmp_path, monkeypatch):
    reached = derivative_request._explain_missing

    def forget(output, wrt, kinds, known):
        return "forgotten" if (output, wrt) == ("u", "z") else reached(output, wrt, kinds, known)

    monkeypatch.setattr(derivative_request, "_explain_missing", forget)
    assert failed(tmp_path / "m.pt") == {finite_differences.ZEROS}


def factor(x):
    return torch.linalg.lu(x)


def test_an_output_that_jumps_has_no_derivative_to_miss(tmp_path):
    """A permutation of pivots is constant piece by piece: steps that change the order of rows are no dependence."""
    torch.manual_seed(0)
    inputs = {"x": torch.rand(4, 3, 3, dtype=torch.float64)}
    (exported,) = torchferry.export(factor, inputs=inputs, output=tmp_path / "m.pt", derivatives="all")
    details = [c.detail for c in exported.report.checks if c.check == finite_differences.ZEROS]
    assert any(text.endswith("it jumps") for text in details)


def stale(monkeypatch):
    """The Jacobian reads a copy of the parameter that ``forward`` reads."""
    monkeypatch.setattr(settable_parameters, "_agree", lambda *_, **__: True)
    room = constants.Places.make_room

    def forget(self, value):
        self._paths = {key: path for key, path in self._paths.items() if path != "E"}
        room(self, value)

    monkeypatch.setattr(constants.Places, "make_room", forget)


def test_a_stale_parameter(tmp_path, monkeypatch):
    stale(monkeypatch)
    assert failed(tmp_path / "m.pt") == {finite_differences.PARAMETERS}


def test_libtorch_finds_them_too(tmp_path, monkeypatch):
    """A wrong sign, and a parameter that only ``forward`` reads; the harness sets parameters and puts them back."""
    edited(monkeypatch, lambda text: first_block(text, ".neg()"))
    assert finite_differences.CHECK in failed(tmp_path / "sign.pt", runners=[LibtorchRunner()])
    monkeypatch.undo()
    stale(monkeypatch)
    assert failed(tmp_path / "stale.pt", runners=[LibtorchRunner()]) == {finite_differences.PARAMETERS}


@pytest.mark.parametrize("runner", [PythonRunner(), LibtorchRunner()], ids=lambda r: r.name)
def test_a_call_with_other_parameters_leaves_none_behind(tmp_path, runner):
    path = tmp_path / "m.pt"
    source = python_factory.source_from_module(Square(), "m", None, "here")
    write_archive(source, path, ExportOptions(), Stopwatch())
    contract = pt_archive.read(path).contract
    inputs = (torch.rand(2, 3, dtype=F), torch.rand(2, 3, dtype=F))
    other = Call("forward", inputs, parameters={"E": torch.tensor(5.0, dtype=F)})
    before, changed, after = runner.run(
        path, contract, [Call("forward", inputs), other, Call("forward", inputs)]
    ).results
    assert not changed.error
    assert torch.equal(before.outputs[0], after.outputs[0])
    assert not torch.equal(before.outputs[0], changed.outputs[0])


def test_a_product_that_is_not_that_of_the_blocks(tmp_path, monkeypatch):
    edited(monkeypatch, lambda text: first_block(text, ".neg()"))
    assert derivative_consistency.PRODUCTS in failed(tmp_path / "m.pt", DerivativeRequest(("all",), jvp=True, vjp=True))


class Mixed(nn.Module):
    """An output of float64 that depends on inputs of both precisions, one of float32, and one of float64 alone."""

    signature = Signature(
        (TensorSpec("x", (3,)), TensorSpec("z", (3,), "float32")),
        (TensorSpec("u", (3,)), TensorSpec("v", (3,), "float32"), TensorSpec("w", (3,))),
    )

    def forward(self, x, z):
        return torch.tanh(x) * z, torch.sin(z), torch.cos(x)


def test_a_tangent_has_the_bounds_of_the_coarsest_input_it_comes_from(tmp_path):
    assert failed(tmp_path / "m.pt", DerivativeRequest(jvp=True), Mixed()) == set()
    tolerance = torchferry.load(tmp_path / "m.pt").contract.tolerance
    assert {*tolerance.outputs} == {"tangent:u"}
    assert tolerance.outputs["tangent:u"] == tolerance.dtypes["float32"]


@pytest.mark.parametrize(
    ("model", "fault", "verdict"),
    [
        (Mixed, 0.0, "passed"),
        (Mixed, 1e-8, "passed"),
        (Mixed, 1e-3, "failed"),
        (Square, 0.0, "passed"),
        (Square, 1e-8, "failed"),
    ],
)
def test_products_have_the_digits_of_the_coarsest_number(tmp_path, model, fault, verdict):
    assert failed(tmp_path / "m.pt", DerivativeRequest(jvp=True, vjp=True), model()) == set()
    archive, file = pt_archive.read(tmp_path / "m.pt"), torchferry.load(tmp_path / "m.pt")
    (probe,) = derivative_consistency.derivative_product_checks(archive.contract, archive.cases())
    results = []
    for call in probe.calls:
        spec = archive.contract.methods[call.method]
        outputs = file.call(call.method, dict(zip(spec.inputs, call.inputs, strict=True)))
        factor = 1 + fault if call.method == "vjp" else 1
        results.append(CallResult(tuple(outputs[str(name)] * factor for name in spec.outputs)))
    assert probe.judge(results).verdict == verdict


def test_newton_finds_a_wrong_jacobian(tmp_path, monkeypatch):
    edited(monkeypatch, lambda text: first_block(text, ".mul(1.1)"))
    assert derivative_consistency.NEWTON in failed(tmp_path / "m.pt")


class Jumping(nn.Module):
    """The identity with a thousand small jumps, of which a step passes some on its way to the root."""

    signature = Signature.of({"x": (3,)}, {"y": (3,)})

    def forward(self, x):
        return x + 1e-3 * torch.round(1e4 * x)


@pytest.mark.parametrize("is_near", [True, False])
def test_a_jump_on_the_way_is_no_fault_of_the_jacobian(tmp_path, monkeypatch, is_near):
    if not is_near:
        monkeypatch.setattr(derivative_consistency, "NEAREST", derivative_consistency.DISTANCES[-1])
    failures = failed(tmp_path / "m.pt", model=Jumping())
    assert (derivative_consistency.NEWTON in failures) is not is_near


class Yielding(nn.Module):
    """Five times as soft above one; every point lies so close above that a step begins below."""

    signature = Signature.of({"x": ()}, {"y": ()})

    def __init__(self):
        super().__init__()
        self.example_inputs = {"x": torch.full((6,), 1.0 + 1e-5, dtype=F)}

    def forward(self, x):
        return torch.where(x > 1.0, 1.0 + 0.2 * (x - 1.0), x)


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_newton_across_a_kink(tmp_path, monkeypatch, factor):
    """What the step leaves is what the block changes by on its way, and no more."""
    edited(monkeypatch, lambda text: text.replace(".reshape([tf_rows, ])", f".reshape([tf_rows]).mul({factor})"))
    result = newton_of(tmp_path / "m.pt", Yielding())
    assert result.verdict == ("passed" if factor == 1.0 else "failed"), result.detail


def test_a_kink_excuses_no_other_component(tmp_path, monkeypatch):
    class Beside(nn.Module):
        signature = Signature.of({"x": (2,)}, {"y": (2,)})

        def __init__(self):
            super().__init__()
            self.example_inputs = {"x": torch.full((6, 2), 1.0 + 1e-5, dtype=F)}

        def forward(self, x):
            a, b = x.unbind(-1)
            return torch.stack([torch.where(a > 1.0, 1.0 + 0.2 * (a - 1.0), a), 3.0 * b], -1)

    def edit(text):
        scaled = "torch.tensor([1.0, 1.5], dtype=torch.float64)"
        return text.replace(".reshape([tf_rows, 2, 2])", f".reshape([tf_rows, 2, 2]).mul({scaled})")

    assert newton_of(tmp_path / "good.pt", Beside()).verdict == "passed"
    edited(monkeypatch, edit)
    assert newton_of(tmp_path / "wrong.pt", Beside()).verdict == "failed"


class Potential(nn.Module):
    """The gradient of ``x.A.x / 2 + sum(x^4)``; its derivative is symmetric where A is."""

    signature = Signature.of({"x": (3,)}, {"g": (3,)})

    def __init__(self, skew: float):
        super().__init__()
        self.register_buffer("A", torch.tensor([[2.0, 1.0 + skew, 0.5], [1.0, 3.0, 0.0], [0.5, 0.0, 1.0]], dtype=F))

    def forward(self, x):
        return torch.einsum("ij,bj->bi", self.A, x) + 4 * x**3


def test_a_block_that_has_no_potential(tmp_path):
    asked = DerivativeRequest(("all",), symmetric=("g:x",))
    assert failed(tmp_path / "m.pt", asked, Potential(0.0)) == set()
    assert failed(tmp_path / "skew.pt", asked, Potential(1e-6)) == {derivative_consistency.SYMMETRY}


def test_a_model_in_float32_that_says_float64(tmp_path):
    class Rounded(nn.Module):
        signature = Signature.of({"x": (3,)}, {"y": (3,)})

        def forward(self, x):
            return (torch.sin(x.float()) * 3.0).to(x.dtype)

    result = {c.check: c for c in examine_of(tmp_path / "m.pt", Rounded()).checks}
    assert result[finite_differences.CHECK].verdict != "passed"


def examine_of(path, model):
    source = python_factory.source_from_module(model, "m", None, "here")
    options = ExportOptions(capture=CaptureOptions(derivative_request=DerivativeRequest(("all",))))
    write_archive(source, path, options, Stopwatch())
    return collect_report(path)


def newton_of(path, model):
    return next(c for c in examine_of(path, model).checks if c.check == derivative_consistency.NEWTON)
