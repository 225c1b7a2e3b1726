"""``jacobian``, ``jvp`` and ``vjp`` of exported files against eager mode, and what the contract says of them."""

from __future__ import annotations

import itertools

import derivative_models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from project import RATES

import torchferry
from exporter.archive import pt_archive
from exporter.archive.cases import ReferenceCase
from exporter.common.errors import CaptureError, MismatchError
from exporter.model.implicit.newton_solver import SLICE
from runtime_checks.checks import autograd, finite_differences
from runtime_checks.runners.base import CallResult

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

F = torch.float64


def exported(model, path, **asked):
    torchferry.export(model, output=path, **asked)
    return torchferry.load(path)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / "m.pt"
    return exported(
        derivative_models.Mixed(),
        path,
        derivatives=["all", "*:E", "h:l.bias"],
        jvp=True,
        vjp=True,
        parameters=["E", "l.*"],
    )


def reference(model, x, y, k, name):
    """Row by row, by ``torch.func``: other code than ours."""

    def run_row(x, y, k):
        return model(x[None], y[None], k[None])[name][0]

    return torch.func.vmap(torch.func.jacrev(run_row, argnums=(0, 1)))(x, y, k)


def test_blocks_in_the_order_of_the_contract(mixed):
    spec = mixed.contract.methods["jacobian"]
    blocks = (("h", "x"), ("e", "x"), ("e", "y"), ("c", "y"), ("h", "E"), ("h", "l.bias"), ("e", "E"))
    assert spec.outputs == ("h", "e", "c", "n", *blocks)
    assert {("h", "y"), ("c", "x")} <= set(spec.zeros)
    assert [p.name for p in mixed.contract.parameters] == ["E", "l.weight", "l.bias"]
    assert "operations" in spec.how


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 40), st.integers(0, 2**31))
def test_blocks_are_those_of_eager_mode_at_any_batch(mixed, rows, seed):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(rows, 3, generator=g, dtype=F), torch.randn(rows, generator=g, dtype=F)
    k = torch.randint(0, 3, (rows,), generator=g)
    model = derivative_models.Mixed().requires_grad_(False)
    with torch.inference_mode():
        got = mixed.call("jacobian", {"x": x, "y": y, "k": k})
    for index, name in ((0, "h"), (1, "e"), (2, "c")):
        by_x, by_y = reference(model, x, y, k, index)
        for wrt, wanted in (("x", by_x), ("y", by_y)):
            if (name, wrt) in mixed.contract.methods["jacobian"].zeros:
                assert not wanted.any()
            else:
                assert got[f"d {name} / d {wrt}"].shape == wanted.shape
                assert torch.allclose(got[f"d {name} / d {wrt}"], wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("rows", [SLICE, SLICE + 1, 2 * SLICE, 2 * SLICE + 17])
def test_slices_of_a_large_batch(mixed, rows):
    g = torch.Generator().manual_seed(rows)
    x, y = torch.randn(rows, 3, generator=g, dtype=F), torch.randn(rows, generator=g, dtype=F)
    values = {"x": x, "y": y, "k": torch.randint(0, 3, (rows,), generator=g)}
    picked = torch.tensor([0, SLICE - 1, rows // 2, rows - 1])
    with torch.inference_mode():
        whole = mixed.call("jacobian", values)
        some = mixed.call("jacobian", {name: value[picked] for name, value in values.items()})
    for name, value in some.items():
        assert whole[name].shape[0] == rows
        torch.testing.assert_close(whole[name][picked], value, rtol=1e-13, atol=1e-14)


def test_any_number_of_batch_dimensions_and_broadcasting(mixed):
    x, y, k = torch.randn(2, 3, 3, dtype=F), torch.randn(3, dtype=F), torch.tensor(1)
    got = mixed.call("jacobian", {"x": x, "y": y, "k": k})
    flat = mixed.call("jacobian", {"x": x.reshape(6, 3), "y": y.repeat(2), "k": k.expand(6)})
    assert got["d h / d x"].shape == (2, 3, 4, 3)
    assert torch.equal(got["d h / d x"].reshape(6, 4, 3), flat["d h / d x"])


def test_outputs_and_blocks_after_setting_a_parameter_are_those_of_a_fresh_export(tmp_path):
    path = tmp_path / "m.pt"
    loaded = exported(derivative_models.Mixed(), path, derivatives=["all", "*:E"])
    model = derivative_models.Mixed()
    model.E.data.fill_(3.5)
    fresh = exported(model, tmp_path / "fresh.pt", derivatives=["all", "*:E"])
    loaded.set_parameter("E", torch.tensor(3.5, dtype=F))
    inputs = {"x": torch.randn(5, 3, dtype=F), "y": torch.randn(5, dtype=F), "k": torch.arange(5)}
    got, wanted = loaded.call("jacobian", inputs), fresh.call("jacobian", inputs)
    assert all(torch.equal(got[name], value) for name, value in wanted.items())


def test_the_product_with_fewer_operations_is_taken(tmp_path, mixed):
    fan = exported(derivative_models.Fan(), tmp_path / "fan.pt", derivatives="all")
    assert fan.contract.methods["jacobian"].how.startswith("reverse mode")
    assert mixed.contract.methods["jacobian"].how.startswith("forward mode")
    x = torch.randn(4, 12, dtype=F)
    model = derivative_models.Fan()
    wanted = torch.func.vmap(torch.func.jacfwd(lambda v: model(v[None])[0]))(x)
    assert torch.allclose(fan.call("jacobian", {"x": x})["d e / d x"], wanted, rtol=1e-12)


def test_whole_shapes(tmp_path):
    loaded = exported(derivative_models.Whole(), tmp_path / "w.pt", derivatives="all", jvp=True, vjp=True)
    x, A = torch.randn(4, dtype=F), torch.randn(4, 4, dtype=F)
    by_x, by_A = torch.func.jacrev(derivative_models.Whole(), argnums=(0, 1))(x, A)
    got = loaded.call("jacobian", {"x": x, "A": A})
    assert torch.allclose(got["d y / d x"], by_x, rtol=1e-10)
    assert torch.allclose(got["d y / d A"], by_A, rtol=1e-10)


def test_constant_blocks_are_given_and_outputs_that_depend_on_nothing_are_said(tmp_path):
    loaded = exported(derivative_models.Constant(), tmp_path / "c.pt", derivatives="all")
    got = loaded.call("jacobian", {"x": torch.randn(3, 2, dtype=F)})
    assert torch.equal(got["d y / d x"], torch.tensor([[2.0, 1.0], [0.0, 3.0]], dtype=F).expand(3, 2, 2))
    assert loaded.contract.methods["jacobian"].zeros == (("one", "x"),)
    assert any("does not depend" in f.reason for f in loaded.contract.findings)


def test_a_kink_is_said_and_no_error(tmp_path):
    (item,) = torchferry.export(derivative_models.Kinked(), output=tmp_path / "k.pt", derivatives="all")
    (result,) = (c for c in item.report.checks if c.check == finite_differences.CHECK)
    assert result.verdict == "passed"
    assert "not differentiable at 1 of them" in result.detail
    (sides,) = (c for c in item.report.checks if c.check == finite_differences.SIDES)
    assert sides.verdict == "passed"
    assert "components 0 of 1 with a kink" in sides.detail


@pytest.mark.parametrize("left", [-1.0, 1.0])
def test_a_block_that_is_wrong_on_one_side_of_a_kink(tmp_path, left):
    """All points of the cases lie on the kink itself, where any number may stand in the block."""
    torchferry.export(derivative_models.Kinked(), output=tmp_path / "k.pt", derivatives="all")
    contract, zeros = pt_archive.read(tmp_path / "k.pt").contract, torch.zeros(3, 2, dtype=F)
    (probe,) = finite_differences.plan_difference_probes(
        contract, [ReferenceCase("warmup", "forward", (zeros,), (zeros[:, 0],))], {}
    )

    def answer(call):
        (x,) = call.inputs
        y = x.abs().sum(-1)
        block = torch.where(x > 0, 1.0, torch.where(x < 0, left, 0.0)).to(F)
        return CallResult((y, block) if call.method == "jacobian" else (y,))

    results = [answer(call) for call in probe.calls]
    assert probe.judge(results).verdict == "passed"
    further = probe.further(results)
    assert further is not None
    result = further.judge([answer(call) for call in further.calls])
    assert (result.check, result.verdict) == (finite_differences.SIDES, "passed" if left < 0 else "failed")


def test_a_custom_function_has_the_derivative_that_it_says(tmp_path):
    loaded = exported(derivative_models.Cube(), tmp_path / "c.pt", derivatives="all", jvp=True, vjp=True)
    x = torch.randn(3, 3, dtype=F)
    assert torch.allclose(loaded.call("jacobian", {"x": x})["d y / d x"], torch.diag_embed(3 * x**2))


def test_a_backward_that_lacks_a_term_is_found(tmp_path):
    """Eager autograd says the same wrong thing, so that only differences of the file's own forward can tell."""
    with pytest.raises(MismatchError) as caught:
        torchferry.export(derivative_models.Forgetful(), output=tmp_path / "f.pt", derivatives="all")
    failed = [c.check for c in caught.value.report.checks if c.verdict == "failed"]
    assert finite_differences.CHECK in failed
    assert "stored cases" not in failed
    assert not (tmp_path / "f.pt").exists()


def test_autograd_through_the_file(tmp_path):
    path = tmp_path / "m.pt"
    (item,) = torchferry.export(derivative_models.Mixed(), output=path, differentiable=True)
    checks = [(c.check, c.verdict) for c in item.report.checks]
    assert (autograd.CHECK, "passed") in checks
    assert checks.count((autograd.PARAMETERS, "passed")) == len(item.contract.parameters) == 5
    module, model = torch.jit.load(path), derivative_models.Mixed().requires_grad_(False)
    x, y, k = torch.randn(9, 3, dtype=F), torch.randn(9, dtype=F), torch.zeros(9, dtype=torch.int64)
    result = []
    for f in (module, model):
        arguments = (x.clone().requires_grad_(), y.clone().requires_grad_())
        h, e, c, _ = f(*arguments, k)
        result.append(torch.autograd.grad((h**2).sum() + e.sum() * c.sum(), arguments))
    for got, wanted in zip(*result, strict=True):
        assert torch.allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize("runtime", ["python", "libtorch"])
def test_a_parameter_that_autograd_does_not_reach(tmp_path, runtime):
    torchferry.export(derivative_models.HalfDetached(), output=tmp_path / "f.pt", runtimes=runtime)
    with pytest.raises(MismatchError) as caught:
        torchferry.export(
            derivative_models.HalfDetached(), output=tmp_path / "d.pt", differentiable=True, runtimes=runtime
        )
    (failed,) = (c for c in caught.value.report.checks if c.verdict == "failed")
    assert failed.check == autograd.PARAMETERS
    assert "by E" in failed.detail


def test_a_backward_that_autograd_cannot_know_is_found(tmp_path):
    """The file's graph holds what forward computes; ``vjp`` holds the backward that the model says."""
    torchferry.export(derivative_models.Straight(), output=tmp_path / "s.pt", vjp=True)
    with pytest.raises(MismatchError) as caught:
        torchferry.export(derivative_models.Straight(), output=tmp_path / "d.pt", differentiable=True)
    assert [c.check for c in caught.value.report.checks if c.verdict == "failed"] == [autograd.CHECK]


def test_what_has_no_derivative(tmp_path):
    with pytest.raises(torchferry.UsageError, match="does not depend on 'x'"):
        torchferry.export(derivative_models.Searched(), output=tmp_path / "s.pt", derivatives="y:x")
    with pytest.raises(CaptureError, match="igamma") as caught:
        torchferry.export(derivative_models.Lookup(), output=tmp_path / "l.pt", derivatives="all")
    assert caught.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_float32(tmp_path):
    (item,) = torchferry.export(
        derivative_models.Single(), output=tmp_path / "s.pt", derivatives="all", jvp=True, vjp=True
    )
    assert item.report.passed
    loaded = torchferry.load(tmp_path / "s.pt")
    assert loaded.call("jacobian", {"x": torch.randn(2, 3)})["d y / d x"].dtype == torch.float32


def test_differences_of_a_dtype_that_is_too_coarse_are_not_run(tmp_path):
    model = derivative_models.Single().to(torch.bfloat16)
    model.signature = torchferry.Signature.of({"x": (3,)}, {"y": (3,)}, dtype="bfloat16")
    (item,) = torchferry.export(model, output=tmp_path / "b.pt", derivatives="all")
    assert {c.check: c.verdict for c in item.report.checks}[finite_differences.CHECK] == "not run"


def test_a_rename_leaves_parameters_where_they_are(tmp_path):
    """The output that is renamed is called like the parameter of a block."""
    model = derivative_models.Constant()
    model.signature = torchferry.Signature.of({"x": (2,)}, {"k": (2,), "one": ()})
    model.k = torch.nn.Parameter(torch.ones((), dtype=F))
    model.forward = lambda x: (model.k * x, torch.ones((), dtype=F))
    loaded = exported(model, tmp_path / "m.pt", derivatives=["all", "k:k"], renames=["k:product"])
    assert loaded.contract.methods["jacobian"].outputs[2:] == (("product", "x"), ("product", "k"))


def test_newton_converges_quadratically(tmp_path):
    """In a loop, with the file alone."""
    loaded = exported(derivative_models.Oscillator(), tmp_path / "o.pt", derivatives="r:x")
    x, p = torch.tensor([0.9, 0.4], dtype=F), torch.tensor(0.0, dtype=F)
    errors = []
    for _ in range(7):
        got = loaded.call("jacobian", {"x": x, "p": p})
        errors.append(float(got["r"].abs().max()))
        x = x - torch.linalg.solve(got["d r / d x"], got["r"])
    assert errors[-1] < 1e-14
    steep = [(a, b) for a, b in itertools.pairwise(errors) if a < 0.3 and b > 1e-13]
    assert steep
    assert all(b < 2 * a**2 for a, b in steep)


def test_a_neml2_model_by_its_own_chain_rule(tmp_path, neml2):
    path = tmp_path / "eq.pt"
    (item,) = torchferry.export(
        str(RATES), models=["eq"], output=path, derivatives=["a_rate:a", "*_rate:t*"], jvp=True, vjp=True
    )
    spec = item.contract.methods["jacobian"]
    assert spec.how == "the chain rule of neml2"
    assert ("a_rate", "a") in spec.outputs
    verdicts = {c.check: c.verdict for c in item.report.checks}
    assert verdicts[finite_differences.CHECK] == verdicts["products"] == "passed"


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**31))
def test_the_error_of_differences_falls_with_the_step(mixed, seed):
    g = torch.Generator().manual_seed(seed)
    x, y, k = torch.randn(1, 3, generator=g, dtype=F), torch.rand(1, generator=g, dtype=F) + 0.5, torch.tensor([0])
    block = mixed.call("jacobian", {"x": x, "y": y, "k": k})["d h / d x"][0]
    errors = []
    for step in (2.0**-4, 2.0**-6, 2.0**-8):
        columns = []
        for i in range(3):
            e = torch.zeros(1, 3, dtype=F)
            e[0, i] = step
            columns.append((mixed(x + e, y, k)[0] - mixed(x - e, y, k)[0])[0] / (2 * step))
        errors.append(float((torch.stack(columns, -1) - block).abs().max()))
    assert 10 < errors[0] / errors[1] < 20
    assert 10 < errors[1] / errors[2] < 20
