"""Linear systems in kernels: with pivots, transposed, singular."""

from __future__ import annotations

import numpy
import pytest
import torch
from kernel_host import Direct
from torch import nn

import torchferry
from exporter.backends.c_kernel import forward_mode
from exporter.common.errors import TorchferryError, UnsupportedError
from exporter.common.torch_hooks import ignore_deprecations

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

F = torch.float64
# With a thousand more, pivots of which `x * (1 / x)` is not 1.
AWKWARD = torch.tensor([2.0, 3.0, 5.0, 6.0, 12.0, 13.0], dtype=F)


def matrices(n: int, rows: int = 19) -> torch.Tensor:
    """Such as need pivots: zeros and small numbers on the diagonal."""
    result = torch.randn(rows, n, n, dtype=F, generator=torch.Generator().manual_seed(n))
    result[::2].diagonal(dim1=-2, dim2=-1).mul_(1e-12)
    if n > 1:
        result[3, 0, 0] = 0.0
    return result


def solved(a: torch.Tensor, b: torch.Tensor):
    return (torch.linalg.solve_ex(a, b)[0], torch.linalg.solve_ex(a.mT, b)[0], torch.linalg.inv_ex(a)[0])


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
def test_solutions(n):
    a, b = matrices(n), torch.randn(19, n, dtype=F, generator=torch.Generator().manual_seed(0))
    for got, wanted in zip(Direct(solved, {"a": a[:1], "b": b[:1]})(a, b), solved(a, b), strict=True):
        scale = wanted.abs().amax()
        assert (got - wanted).abs().amax() <= 1e-11 * scale


@pytest.mark.parametrize("n", [1, 2, 3])
def test_determinants_and_their_derivatives(n):
    a = matrices(n)

    def function(a):
        return (torch.linalg.det(a), *torch.linalg.slogdet(a))

    for got, wanted in zip(Direct(function, {"a": a[:1]})(a), function(a), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)
    (derivative,) = Direct(lambda a: (torch.linalg.det(a)[:, None],), {"a": a[:1]}, jacobian=True)(a)
    leaf = a.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(torch.linalg.det(leaf).sum(), leaf)
    torch.testing.assert_close(derivative.reshape(a.shape), wanted, rtol=1e-9, atol=1e-10)


def test_a_singular_matrix_has_a_determinant_with_a_derivative():
    a = torch.ones(2, 3, 3, dtype=F)
    (got,) = Direct(lambda a: (torch.linalg.det(a)[:, None],), {"a": a[:1]}, jacobian=True)(a)
    assert torch.equal(got, torch.zeros_like(got))


def test_a_large_determinant_is_refused():
    a = matrices(4)
    with pytest.raises(UnsupportedError, match="no form in a kernel") as caught:
        Direct(lambda a: (torch.linalg.det(a),), {"a": a[:1]})
    assert "at most 3 rows" in str(caught.value)


@pytest.mark.parametrize("is_upper", [False, True])
def test_systems_by_a_cholesky_factor(is_upper):
    a = matrices(3)
    factor = torch.linalg.cholesky(a @ a.mT + torch.eye(3, dtype=F), upper=is_upper)
    # One whose square is nearly singular.
    factor[0] = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1e-6, 0.0], [0.5, 0.25, 1.0]], dtype=F)
    factor[0] = factor[0].mT.clone() if is_upper else factor[0]
    b = torch.randn(19, 3, 2, dtype=F, generator=torch.Generator().manual_seed(0))

    def function(factor, b):
        return (torch.cholesky_solve(b, factor, is_upper),)

    (got,) = Direct(function, {"factor": factor[:1], "b": b[:1]})(factor, b)
    torch.testing.assert_close(got, function(factor, b)[0], rtol=1e-10, atol=1e-11)


def test_without_pivots_they_would_not_be():
    """The control: the rows are not exchanged."""

    def change(files):
        files["direct_lanes.h"] = files["direct_lanes.h"].replace(b"row[l] = larger ? (double)i : row[l];", b"")

    n = 7
    a, b = matrices(n), torch.ones(19, n, dtype=F)
    got = Direct(lambda a, b: (torch.linalg.solve_ex(a, b)[0],), {"a": a[:1], "b": b[:1]}, change=change)(a, b)[0]
    wanted = torch.linalg.solve_ex(a, b)[0]
    assert not torch.allclose(got, wanted, rtol=1e-9)


def test_a_singular_system_is_said_to_be():
    a = torch.stack([torch.eye(3, dtype=F), torch.ones(3, 3, dtype=F), torch.zeros(3, 3, dtype=F)])
    b = torch.ones(3, 3, dtype=F)
    kernel = Direct(lambda a, b: (torch.linalg.solve_ex(a, b)[1].bool(),), {"a": a[:1], "b": b[:1]})
    assert kernel(a, b)[0].tolist() == [False, True, True]


@pytest.mark.parametrize("n", [2, 9])
def test_rows_that_are_equal_leave_a_pivot_of_zero(n):
    a = AWKWARD[:, None, None] * torch.ones(n, n, dtype=F) + 1e3 * torch.eye(n, dtype=F)
    a[:, -1] = a[:, 0]
    kernel = Direct(lambda a: (torch.linalg.inv_ex(a)[1].bool(), *torch.linalg.inv_ex(a)[:1]), {"a": a[:1]})
    singular, inverse = kernel(a)
    assert singular.all()
    assert not inverse.isfinite().all((-1, -2)).any()
    # The control: the last row as it was.
    a[:, -1, -1] += 1.0
    assert not kernel(a)[0].any()


@pytest.mark.parametrize("which", [0, 1], ids=["factors", "pivots"])
def test_factors_are_no_numbers(which):
    def function(a: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.linalg.lu_factor_ex(a)[which].to(F).reshape(a.shape[0], -1).sum(-1),)

    with pytest.raises(UnsupportedError, match="factors of a matrix, or of its pivots"):
        Direct(function, {"a": matrices(2)[:1]})


class Solved(nn.Module):
    """What raises an error of a singular matrix."""

    signature = torchferry.Signature.of({"a": (3, 3), "b": (3,)}, {"x": (3,), "i": (3, 3), "y": (3,)})

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        factors, pivots = torch.linalg.lu_factor(a)
        again = torch.linalg.lu_solve(factors, pivots, b.unsqueeze(-1)).squeeze(-1)
        return torch.linalg.solve(a, b), torch.linalg.inv(a), again


def test_no_error_of_a_singular_matrix(tmp_path):
    a, b = matrices(3), torch.ones(19, 3, dtype=F)
    torchferry.export(Solved(), output=tmp_path / "k.pt", inputs={"a": a, "b": b}, formats="pt,c")
    kernel, model = torchferry.load(tmp_path / "k"), torchferry.load(tmp_path / "k.pt")
    assert any("singular matrix" in result.what for result in kernel.contract.findings)
    a = matrices(3, 40)
    b = torch.randn(40, 3, dtype=F, generator=torch.Generator().manual_seed(2))
    got = kernel.call("forward", {"a": a.numpy(), "b": b.numpy()})
    for name, value in model.call("forward", {"a": a, "b": b}).items():
        assert numpy.allclose(got[name], value.numpy(), rtol=1e-11, atol=1e-11 * float(value.abs().max())), name
    a[7] = 1.0
    for name, value in kernel.call("forward", {"a": a.numpy(), "b": b.numpy()}).items():
        finite = numpy.isfinite(value).reshape(40, -1).all(1)
        assert numpy.flatnonzero(~finite).tolist() == [7], name


def test_which_pivot_is_zero():
    a = torch.eye(3, dtype=F).repeat(4, 1, 1)
    for k in range(3):
        a[k, k, k] = 0.0

    def infos(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        right = a[..., 0]
        return torch.linalg.inv_ex(a)[1], torch.linalg.solve_ex(a, right)[1], torch.linalg.lu_factor_ex(a)[2]

    for got, wanted in zip(Direct(infos, {"a": a[:1]})(a), infos(a), strict=True):
        assert got.tolist() == wanted.tolist() == [1, 2, 3, 0]


def test_a_matrix_at_the_right():
    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        factors, pivots, _ = torch.linalg.lu_factor_ex(a)
        solved = [torch.linalg.lu_solve(factors, pivots, b, left=False, adjoint=turned) for turned in (False, True)]
        return torch.linalg.solve_ex(a, b, left=False)[0], *solved, torch.linalg.lu_solve(factors, pivots, b.mT)

    a, b = matrices(3), torch.randn(19, 2, 3, dtype=F, generator=torch.Generator().manual_seed(3))
    for got, wanted in zip(Direct(function, {"a": a[:1], "b": b[:1]})(a, b), function(a, b), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-10, atol=1e-12 * float(wanted.abs().max()))


class Constant(nn.Module):
    """Systems of a matrix that is a constant, and of constants alone."""

    signature = torchferry.Signature.of({"b": (4,)}, {"x": (4,), "y": (4,)})
    matrix: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", matrices(4)[5])

    def forward(self, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        factors, pivots = torch.linalg.lu_factor(self.matrix)
        own = torch.linalg.lu_solve(factors, pivots, torch.ones(4, 1, dtype=F)).squeeze(-1)
        return torch.linalg.lu_solve(factors, pivots, b.unsqueeze(-1)).squeeze(-1), own + b


def test_factors_of_a_constant(tmp_path):
    b = torch.randn(19, 4, dtype=F, generator=torch.Generator().manual_seed(4))
    torchferry.export(Constant(), output=tmp_path / "k.pt", inputs={"b": b[:5]}, formats="pt,c")
    got = torchferry.load(tmp_path / "k").call("forward", {"b": b.numpy()})
    for name, value in torchferry.load(tmp_path / "k.pt").call("forward", {"b": b}).items():
        assert numpy.allclose(got[name], value.numpy(), rtol=1e-11, atol=1e-12), name


@pytest.mark.parametrize("which", ["right side", "pivots"])
def test_factors_of_another_matrix(which):
    def function(a: torch.Tensor) -> tuple[torch.Tensor]:
        factors, pivots, _ = torch.linalg.lu_factor_ex(a)
        other, others, _ = torch.linalg.lu_factor_ex(2 * a)
        if which == "pivots":
            return (torch.linalg.lu_solve(factors, others, a),)
        return (torch.linalg.lu_solve(factors, pivots, other),)

    with pytest.raises(UnsupportedError, match="linalg_lu_solve"):
        Direct(function, {"a": matrices(2)[:1]})


class Factored(nn.Module):
    """Solved by factors: torch's own derivative unpacks them."""

    signature = torchferry.Signature.of({"a": (3, 3), "b": (3,)}, {"x": (3,)})

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        factors, pivots = torch.linalg.lu_factor(a)
        return torch.linalg.lu_solve(factors, pivots, b.unsqueeze(-1)).squeeze(-1)


def test_derivatives_that_are_captured_with_no_form_of_their_own(tmp_path):
    a = matrices(3, 12) + 3 * torch.eye(3, dtype=F)
    arguments = {"a": a, "b": torch.randn(12, 3, dtype=F, generator=torch.Generator().manual_seed(5))}
    torchferry.export(
        Factored(), output=tmp_path / "k.pt", inputs=arguments, derivatives=("x:a",), jvp=True, formats="pt,c"
    )
    got = torchferry.load(tmp_path / "k").call("jacobian", {name: v.numpy() for name, v in arguments.items()})
    for name, value in torchferry.load(tmp_path / "k.pt").call("jacobian", arguments).items():
        assert numpy.allclose(got[name], value.numpy(), rtol=1e-10, atol=1e-11), name


def test_derivative_of_a_solution():
    a, b = matrices(4, 5), torch.randn(5, 4, dtype=F, generator=torch.Generator().manual_seed(1))
    a = a + 4 * torch.eye(4, dtype=F)

    def function(b, a):
        return (torch.linalg.solve_ex(a * b.unsqueeze(-1).cos(), b)[0],)

    got = Direct(function, {"b": b[:1], "a": a[:1]}, jacobian=True)(b, a)[0]
    wanted = torch.stack(
        [
            torch.autograd.functional.jacobian(lambda v, m=m: function(v[None], m[None])[0][0], row)
            for row, m in zip(b, a, strict=True)
        ]
    )
    assert torch.allclose(got, wanted, rtol=1e-10, atol=1e-12)


def compute_volume(F: torch.Tensor) -> torch.Tensor:
    return torch.linalg.det(F)


class Hyperelastic(nn.Module):
    def forward(self, F):
        volume = compute_volume(F)
        return (F * F).sum((-1, -2)) - 2 * torch.log(volume) + torch.linalg.slogdet(F)[1] ** 2


def export_products(archive):
    example = {"F": torch.eye(3, dtype=F) + 0.1 * torch.rand(4, 3, 3, dtype=F)}
    torchferry.export(Hyperelastic(), inputs=example, output=archive, derivatives=["all"], jvp=True, vjp=True)


def test_gradients_of_determinants_solve_with_the_factors_of_the_transpose(tmp_path):
    """Captured products of the logarithm do; none of the matrices is symmetric."""
    export_products(tmp_path / "energy.pt")
    assert torchferry.convert(tmp_path / "energy.pt", to="c").report.passed


@pytest.mark.parametrize("is_planted", [False, True])
def test_products_with_the_derivative_of_a_determinant(tmp_path, monkeypatch, is_planted):
    """In TorchScript a determinant has torch's own backward formula, which reads numbers that a kernel has not: the
    products are by forward mode. One that leaves out an output's cotangent is found."""
    with ignore_deprecations():
        monkeypatch.setitem(globals(), "compute_volume", torch.jit.script(compute_volume))
    if is_planted:
        monkeypatch.setattr(forward_mode, "COTANGENT", "cotangent: of none")
    archive = tmp_path / "energy.pt"
    export_products(archive)
    if is_planted:
        with pytest.raises(TorchferryError):
            torchferry.convert(archive, to="c")
        return
    assert torchferry.convert(archive, to="c").report.passed
