"""Differentiable hosts: operators of torch and functions of JAX, whose derivatives are the exported Jacobian."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from host_environments import need_environment
from material_hosts import export_function, make, plant
from project import ROOT, make_once, mark_rest_thorough, skip_checks

import torchferry
from exporter.hosts.registry import wrap_kernel
from torchferry.cli.app import run

JAX = "0.6.2"
F = torch.float64


@pytest.fixture(scope="module")
def identified(shared: Path) -> Path:
    """A kernel with all derivatives by inputs and by two parameters."""

    def export(folder: Path) -> None:
        source = f"{ROOT / 'examples' / 'return_map.py'}:make_model"
        blocks = ["all", "*:*yield_stress", "*:*hardening"]
        with skip_checks():
            torchferry.export(source, output=folder / "kernel", formats="c", derivatives=blocks)
        for host in ("torch", "jax"):
            wrap_kernel(host, folder / "kernel", folder / host, None)

    return make_once(shared / "identified", export)


def load(folder: Path) -> ModuleType:
    assert make(folder).returncode == 0
    (path,) = (p for p in folder.glob("*_torch.py") if not p.name.startswith("test_"))
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{abs(hash(str(folder)))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # torch.compile imports it by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def law(identified) -> Callable[..., Any]:
    return load(identified / "torch").make_model


def draw(count: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    strain = 3e-3 * (2 * torch.rand(count, 6, generator=generator, dtype=F) - 1)
    return strain, torch.zeros(count, 6, dtype=F), torch.zeros(count, 6, dtype=F), torch.zeros(count, dtype=F)


def test_the_self_test_passes(identified):
    result = make(identified / "torch", "test")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "12 rows of cases" in result.stdout


@pytest.mark.parametrize(
    ("right", "wrong"),
    mark_rest_thorough(
        [("pulled = pulled.sum(0)", "pulled = 0.5 * pulled.sum(0)")],
        [
            ('"bm,bmn->bn", grad.reshape(-1, m), block', '"bn,bmn->bm", grad.reshape(-1, n), block'),
            ("results[a] + pulled", "results[a] - pulled"),
            ("v.expand((*batch, *shape)).contiguous()", "v.expand((*batch, *shape)).flip(-1).contiguous()"),
        ],
    ),
)
def test_a_planted_fault_is_seen(identified, tmp_path, right, wrong):
    wrap_kernel("torch", identified / "kernel", tmp_path / "torch", None)
    plant(tmp_path / "torch" / "make_model_torch.py", right, wrong)
    assert make(tmp_path / "torch", "test").returncode == 2


def test_numbers_and_gradients_are_those_of_the_archive(law, identified):
    inputs = [x.requires_grad_() for x in draw(50)]
    model = torchferry.load(identified / "kernel")
    wanted = model(*(x.detach().numpy() for x in inputs))
    outputs = law(*inputs)
    for got, value in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(got.detach(), torch.from_numpy(value), rtol=1e-12, atol=1e-12)
    parameters = [torch.tensor(v, dtype=F, requires_grad=True) for v in (250.0, 2000.0)]
    # Elements well inside one regime: a difference does not cross the point of yield.
    ep = outputs[1].detach()
    calm = [x.detach()[(ep == 0) | (ep > 1e-4)] for x in inputs]
    strain = calm[0].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s, a, b: law(s, *calm[1:], 250.0 * a, 2000.0 * b),
        (strain * 1.0, *(torch.ones((), dtype=F, requires_grad=True) for _ in parameters)),
        eps=1e-7,
        atol=1e-1,
        rtol=1e-3,
    )


def test_batches_are_broadcast(law):
    strain, *rest = draw(6)
    together = law(strain.reshape(2, 3, 6), *(r[0] for r in rest))
    alone = law(strain, *rest)
    for got, wanted in zip(together, alone, strict=True):
        assert torch.equal(got.reshape(wanted.shape), wanted)
    for count in (0, 1):
        assert law(strain[:count], *(r[:count] for r in rest))[0].shape == (count, 6)


def test_torch_compile_goes_through_it(law):
    strain, *rest = draw(8)
    strain.requires_grad_()
    compiled = torch.compile(lambda s: law(s, *rest)[0].square().sum(), fullgraph=True, backend="aot_eager")
    (got,) = torch.autograd.grad(compiled(strain), strain)
    (wanted,) = torch.autograd.grad(law(strain, *rest)[0].square().sum(), strain)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=0)


def test_training_through_it_finds_the_parameters(law):
    """Gauss-Newton's cousin of torch, L-BFGS, from a curve with other parameters."""
    strain, *rest = draw(40)
    measured = law(strain, *rest, torch.tensor(300.0, dtype=F), torch.tensor(5000.0, dtype=F))[0]
    scales = torch.ones(2, dtype=F, requires_grad=True)
    optimizer = torch.optim.LBFGS([scales], max_iter=60, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def evaluate() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((law(strain, *rest, 250 * scales[0], 2000 * scales[1])[0] - measured) / 100).square().sum()
        loss.backward()
        return loss

    optimizer.step(evaluate)
    torch.testing.assert_close(scales.detach(), torch.tensor([300 / 250, 5000 / 2000], dtype=F), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: x.float(), TypeError, "expected torch.float64"),
        (lambda x: x[:, :5], ValueError, "expected \\*batch, \\(6,\\)"),
        (lambda x: x.to("meta"), TypeError, "expected cpu"),
    ],
)
def test_wrong_arguments_are_refused(law, change, error, message):
    strain, *rest = draw(3)
    with pytest.raises(error, match=message):
        law(change(strain), *rest)


def test_a_derivative_that_was_not_exported_is_refused(point_kernels, tmp_path):
    wrap_kernel("torch", point_kernels["solid"], tmp_path / "torch", None)
    law = load(tmp_path / "torch").make_model
    strain, *rest = draw(3)
    strain.requires_grad_()
    law(strain, *rest)[0].sum().backward()
    assert strain.grad is not None
    with pytest.raises(RuntimeError, match="no derivative of ep wrt strain was exported"):
        law(strain, *rest)[1].sum().backward()


def test_ways_to_differentiate_that_torch_would_answer_with_zeros(law):
    strain, *rest = draw(3)
    ones = torch.ones_like(strain)

    def find_stress(s: torch.Tensor) -> torch.Tensor:
        return law(s, *rest)[0]

    for call in (
        lambda: torch.func.jvp(find_stress, (strain,), (ones,)),
        lambda: torch.func.jacfwd(find_stress)(strain),
        lambda: torch.func.vmap(lambda s: law(s, *(r[0] for r in rest))[0])(strain),
        lambda: torch.func.grad(lambda s: find_stress(s).sum())(strain),
    ):
        with pytest.raises(NotImplementedError, match="do not go through this operator"):
            call()
    compiled = torch.compile(lambda s: torch.func.jvp(find_stress, (s,), (ones,)), backend="aot_eager")
    with pytest.raises(Exception, match="do not go through this operator"):
        compiled(strain)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(strain, ones)
        with pytest.raises(NotImplementedError, match="forward mode"):
            find_stress(dual)


def test_derivatives_of_derivatives_are_refused(law):
    strain, *rest = draw(3)
    strain.requires_grad_()
    (gradient,) = torch.autograd.grad(law(strain, *rest)[0].sum(), strain, create_graph=True)
    with pytest.raises(RuntimeError, match="derivatives of its derivatives"):
        gradient.sum().backward()


def test_an_operator_without_derivatives_says_so(tmp_path):
    wrap_kernel("torch", export_function(tmp_path, "Double", "x * 2", shape="(3,)"), tmp_path / "torch", None)
    assert make(tmp_path / "torch", "test").returncode == 0
    double = load(tmp_path / "torch").Double
    x = torch.ones(3, dtype=F, requires_grad=True)
    with pytest.raises(RuntimeError, match="no derivatives were exported: export the model with --derivative all"):
        double(x).sum().backward()


def test_numbers_of_python_are_taken(law):
    strain, *rest = draw(3)
    wanted = law(strain, *rest[:2], torch.zeros((), dtype=F), torch.tensor(300.0, dtype=F))
    for got, value in zip(law(strain, *rest[:2], 0.0, 300), wanted, strict=True):
        assert torch.equal(got, value)


def test_an_element_that_does_not_converge_is_no_number(law):
    strain, *rest = draw(3)
    strain[1] = 1e200
    stress = law(strain, *rest)[0]
    assert torch.isfinite(stress[[0, 2]]).all()
    assert not torch.isfinite(stress[1]).any()


def test_models_that_do_not_fit(tmp_path, capfd):
    source = tmp_path / "single.py"
    source.write_text(
        "from torch import nn\nfrom torchferry import Signature, TensorSpec\n\n\nclass Single(nn.Module):\n"
        "    signature = Signature(*((TensorSpec(n, (3,), 'float32'),) for n in 'xy'), 1)\n\n"
        "    def forward(self, x):\n        return x * 2\n"
    )
    with skip_checks():
        torchferry.export(f"{source}:Single", output=tmp_path / "kernel", formats="c")
    for host in ("torch", "jax"):
        assert run(["wrap", host, str(tmp_path / "kernel")]) == 2
        assert "in double precision" in capfd.readouterr().err
        assert not (tmp_path / "kernel" / host).exists()


@pytest.mark.thorough
def test_jax(identified, point_kernels, tmp_path):
    python = need_environment("jax", f"jax=={JAX}")
    wrap_kernel("jax", point_kernels["solid"], tmp_path / "partial", None)
    for folder in (identified / "jax", tmp_path / "partial"):
        result = make(folder, "test", python=python)
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
        assert "12 rows of cases" in result.stdout
    script = (
        "import jax, jax.numpy as jnp; jax.config.update('jax_enable_x64', True)\n"
        "from make_model_jax import make_model as law\n"
        "zero, strain = jnp.zeros(6), jnp.array([4e-3, 0, 0, 0, 1e-3, 0.0])\n"
        "ours = jax.jit(jax.grad(lambda e: law(e, zero, zero, 0.0)[0][0]))(strain)\n"
        "assert bool(jnp.isfinite(ours).all()), ours\n"
        "missing = jax.grad(lambda s: law(strain, zero, s, 0.0)[0][0])(zero)\n"
        "assert bool(jnp.isnan(missing).all()), missing\n"
    )
    done = subprocess.run(
        [str(python), "-c", script], cwd=tmp_path / "partial", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    script = (
        "import jax, jax.numpy as jnp; jax.config.update('jax_enable_x64', True)\n"
        "from make_model_jax import make_model as law\n"
        "zeros, strains = jnp.zeros((3, 6)), 4e-3 * jnp.arange(1, 19).reshape(3, 6) / 18\n"
        "both = jax.vmap(lambda k: law(strains, zeros, zeros, jnp.zeros(3), 250.0 * k)[0])(jnp.array([1.0, 2.0]))\n"
        "for k in (0, 1):\n"
        "    one = law(strains, zeros, zeros, jnp.zeros(3), jnp.float64(250.0 * (k + 1)))[0]\n"
        "    assert bool(jnp.allclose(both[k], one, rtol=1e-12)), (both[k], one)\n"
        "assert not bool(jnp.allclose(both[0], both[1]))\n"
    )
    folder = identified / "jax"
    done = subprocess.run([str(python), "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wrap_kernel("jax", identified / "kernel", tmp_path / "wrong", None)
    plant(tmp_path / "wrong" / "make_model_jax.py", '"...mn,...n->...m"', '"...nm,...n->...m"')
    assert make(tmp_path / "wrong", "test", python=python).returncode == 2
