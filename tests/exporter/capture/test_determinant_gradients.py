"""Gradients of determinants by cofactors, against torch's own at matrices that are regular."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, hessian, jacrev, vmap

from exporter.capture.batch_recording import trace_batch_program
from exporter.capture.determinant_gradients import SmallDeterminants, compute_cofactors
from exporter.capture.fx_tracing import trace_to_fx

F = torch.float64


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=F)


def differentiate(matrix, det=torch.linalg.det):
    """The gradient of a power of the determinant, as a model takes it itself."""
    leaf = matrix if matrix.requires_grad else matrix.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((det(leaf) ** 2).sum(), leaf, create_graph=True)
    return (gradient.detach(),)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_cofactors_are_the_gradient_of_the_determinant(n):
    matrix = draw(4, 5, n, n).requires_grad_()
    (expected,) = torch.autograd.grad(torch.linalg.det(matrix).sum(), matrix)
    torch.testing.assert_close(compute_cofactors(matrix), expected, rtol=1e-12, atol=1e-13)


@given(st.lists(st.integers(-9, 9), min_size=9, max_size=9))
@settings(max_examples=50, deadline=None)
def test_a_matrix_times_its_cofactors_is_its_determinant(numbers):
    """Whole numbers have no rounding; singular matrices are among them."""
    matrix = torch.tensor(numbers, dtype=F).reshape(3, 3)
    product = matrix @ compute_cofactors(matrix).T
    assert torch.equal(product, product[0, 0] * torch.eye(3, dtype=F))
    assert abs(float(product[0, 0] - torch.linalg.det(matrix))) < 1e-9


@pytest.mark.parametrize("det", [torch.det, torch.linalg.det, torch.Tensor.det])
def test_values_and_second_derivatives(det):
    matrix = draw(3, 3)
    with SmallDeterminants():
        assert torch.equal(det(matrix.clone().requires_grad_()), det(matrix))
        second = torch.autograd.functional.hessian(lambda x: det(x) ** 2, matrix)
    assert isinstance(second, torch.Tensor)
    torch.testing.assert_close(second, hessian(lambda x: torch.linalg.det(x) ** 2)(matrix), rtol=1e-10, atol=1e-11)


def test_what_is_not_small_stays_torchs():
    for matrix in (draw(4, 4), torch.zeros(0, 0, dtype=F), draw(2, 2).to(torch.complex128)):
        with SmallDeterminants():
            value = torch.linalg.det(matrix.requires_grad_())
        assert "LinalgDet" in type(value.grad_fn).__name__
    with SmallDeterminants():
        assert "SmallDeterminant" in type(torch.linalg.det(draw(3, 3).requires_grad_()).grad_fn).__name__
        # Where nothing is differentiated there is nothing to replace.
        assert torch.linalg.det(draw(3, 3)).grad_fn is None
        with pytest.raises(RuntimeError):
            torch.linalg.det(draw(2, 3).requires_grad_())


@pytest.mark.parametrize("transform", [grad, lambda f: jacrev(grad(f))])
def test_transforms_of_functions(transform):
    function = vmap(transform(lambda matrix: torch.linalg.det(A=matrix) ** 2))
    program = trace_to_fx(lambda x: (function(x),), [draw(4, 3, 3)])
    assert not any("svd" in str(node.target) for node in program.graph.graph.nodes)
    torch.testing.assert_close(program.graph(draw(6, 3, 3))[0], function(draw(6, 3, 3)), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("how", ["sizes", "runs"])
def test_captured_gradients_need_no_singular_values(how):
    """At values that are not finite the algorithm for singular values raises an error."""
    matrix = draw(5, 3, 3)
    if how == "sizes":
        program = trace_to_fx(differentiate, [matrix])
    else:
        program = trace_batch_program(differentiate, [matrix], [0], model=torch.nn.Module())
    names = {str(node.target) for node in program.graph.graph.nodes}
    assert any("linalg_det" in name for name in names)
    assert not any("svd" in name for name in names)
    others = torch.cat([draw(7, 3, 3), torch.full((1, 3, 3), torch.nan, dtype=F), torch.zeros(1, 3, 3, dtype=F)])
    (got,) = program.graph(others)
    torch.testing.assert_close(got[:7], differentiate(others[:7])[0], rtol=1e-11, atol=1e-12)
    assert bool(got[7].isnan().all())
    assert not bool(got[8].any())
