"""Hessians of an energy: in the file, against torch's own of the model, and in other formats."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian

import torchferry
from exporter.capture import determinant_gradients
from exporter.common.errors import TorchferryError

F = torch.float64
# Neither a traced batch nor a traced value.
COUNT = 6


class NeoHooke(nn.Module):
    """A compressible solid with thermal expansion; ``h`` is the displacement gradient."""

    signature = torchferry.Signature.of({"h": (3, 3), "theta": ()}, {"energy": ()})

    def __init__(self) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.tensor(0.8, dtype=F))
        self.kappa = nn.Parameter(torch.tensor(2.0, dtype=F))

    def forward(self, h, theta):
        f = torch.eye(3, dtype=h.dtype) + 0.1 * h
        volume = torch.linalg.det(f)
        shape = (f * f).sum((-1, -2)) * volume ** (-2 / 3) - 3
        return {"energy": self.mu / 2 * shape + self.kappa / 2 * (volume - 1 - 0.01 * theta) ** 2}


def draw_point():
    generator = torch.Generator().manual_seed(5)
    h = torch.rand(COUNT, 3, 3, generator=generator, dtype=F) - 0.5
    # Undeformed: all singular values are equal.
    h[0] = 0.0
    return h, torch.rand(COUNT, generator=generator, dtype=F)


def compute_hessians(h, theta):
    """Each element's second derivatives in eager mode: by h and h, and by h and theta."""

    def compute_energy(h, theta):
        return NeoHooke()(h, theta)["energy"]

    blocks = [hessian(compute_energy, point)[0] for point in zip(h, theta, strict=True)]
    return torch.stack([by_h for by_h, _ in blocks]), torch.stack([by_theta for _, by_theta in blocks])


def export(folder, *formats, **options):
    blocks = ["energy:h,h", "energy:h,theta", "energy:h,mu"]
    return torchferry.export(NeoHooke(), output=folder / "solid.pt", formats=formats, derivatives=blocks, **options)[0]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory.mktemp("solid"), "pt", "c", jvp=True)


@pytest.fixture(scope="module")
def solid(exported):
    return torchferry.load(exported.path)


def test_the_hessian_is_that_of_the_model(solid):
    h, theta = draw_point()
    got = solid.call("jacobian", {"h": h, "theta": theta})
    by_h, by_theta = compute_hessians(h, theta)
    assert got["d d_energy_d_h / d h"].shape == (COUNT, 3, 3, 3, 3)
    torch.testing.assert_close(got["d d_energy_d_h / d h"], by_h, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(got["d d_energy_d_h / d theta"], by_theta, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(got["energy"], NeoHooke()(h, theta)["energy"], rtol=1e-12, atol=1e-14)


def test_the_hessian_of_an_undeformed_body_is_that_of_linear_elasticity(solid):
    """Shear modulus mu, and bulk modulus kappa, at the scale of 0.1 of the displacement gradient."""
    stiffness = solid.call("jacobian", {"h": torch.zeros(1, 3, 3, dtype=F), "theta": torch.zeros(1, dtype=F)})
    identity = torch.eye(3, dtype=F)
    symmetric = torch.einsum("ik,jl->ijkl", identity, identity) + torch.einsum("il,jk->ijkl", identity, identity)
    volumetric = torch.einsum("ij,kl->ijkl", identity, identity)
    expected = 0.01 * (0.8 * (symmetric - 2 / 3 * volumetric) + 2.0 * volumetric)
    torch.testing.assert_close(stiffness["d d_energy_d_h / d h"][0], expected, rtol=1e-12, atol=1e-15)


def test_the_hessian_is_the_derivative_of_the_files_gradient(solid):
    h, theta = draw_point()
    block = solid.call("jacobian", {"h": h, "theta": theta})["d d_energy_d_h / d h"]
    step = 1e-5
    for i in range(9):
        shift = step * torch.eye(9, dtype=F)[i].reshape(3, 3)
        ahead, behind = (solid.call("forward", {"h": h + s * shift, "theta": theta})["d_energy_d_h"] for s in (1, -1))
        column = (ahead - behind) / (2 * step)
        torch.testing.assert_close(block[..., i // 3, i % 3], column, rtol=1e-6, atol=1e-9)
        # Another column is another derivative.
        assert not torch.allclose(block[..., (i + 1) // 3 % 3, (i + 1) % 3], column, rtol=1e-6, atol=1e-9)


def test_products_with_the_hessian_need_no_hessian(solid):
    h, theta = draw_point()
    along = torch.linspace(-1, 1, h.numel(), dtype=F).reshape(h.shape)
    inputs = {"h": h, "theta": theta, "tangent:h": along, "tangent:theta": torch.zeros_like(theta)}
    got = solid.call("jvp", inputs)["tangent:d_energy_d_h"]
    expected = torch.einsum("bijkl,bkl->bij", compute_hessians(h, theta)[0], along)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


def test_the_contract_and_the_report_say_what_it_is(exported):
    method = exported.contract.methods["jacobian"]
    assert method.symmetric == (("d_energy_d_h", "h"),)
    assert ("d_energy_d_h", "mu") in method.outputs
    verdicts = {check.check: check.verdict for check in exported.report.checks}
    assert verdicts["symmetry"] == "passed"
    assert verdicts["finite differences"] == "passed"
    bounds = exported.contract.tolerance.bounds("d_energy_d_h", "float64")
    # The rounding of terms of a tenth, and no more.
    assert 0 < bounds.floor < 1e-14
    assert exported.contract.tolerance.bounds(("d_energy_d_h", "h"), "float64").floor == 0


def test_the_kernel_has_it(exported):
    kernel = torchferry.load(exported.path.with_suffix(""))
    h, theta = draw_point()
    got = kernel.call("jacobian", {"h": h.numpy(), "theta": theta.numpy()})["d d_energy_d_h / d h"]
    torch.testing.assert_close(torch.as_tensor(got), compute_hessians(h, theta)[0], rtol=1e-9, atol=1e-11)


@pytest.mark.thorough
def test_other_formats_have_it(tmp_path):
    assert {c.path.suffix for c in export(tmp_path, "pt", "onnx", "pt2", "program").containers} == {".onnx", ".pt2"}


@pytest.mark.parametrize(
    "change",
    [
        lambda cofactors: cofactors.mT,
        lambda cofactors: cofactors * (1 + 1e-7),
        # Where the terms cancel, it is more than their rounding.
        lambda cofactors: cofactors + 1e-12,
    ],
)
def test_a_wrong_gradient_is_not_exported(tmp_path, monkeypatch, change):
    right = determinant_gradients.compute_cofactors
    monkeypatch.setattr(determinant_gradients, "compute_cofactors", lambda matrix: change(right(matrix)))
    with pytest.raises(TorchferryError, match="d_energy_d_h"):
        export(tmp_path, "pt")
    assert not list(tmp_path.iterdir())
