"""Elementary functions against torch's own, in ULPs, over the whole range of float64."""

from __future__ import annotations

import math

import pytest
import torch

from exporter.backends.onnx import elementary_functions

INF, NAN = math.inf, math.nan


def ulps(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of the finite values; infinities and NaN must be the same. Below the smallest normal number nothing is asked."""
    assert torch.equal(torch.isnan(got), torch.isnan(wanted))
    finite = torch.isfinite(wanted)
    infinite = torch.isinf(wanted)
    assert torch.equal(got[infinite], wanted[infinite])
    size = wanted.abs().clamp(min=torch.finfo(torch.float64).tiny)
    unit = torch.nextafter(size, torch.full_like(size, INF)) - size
    return float(((got - wanted).abs() / unit)[finite].max())


def everywhere() -> torch.Tensor:
    sizes = torch.cat(
        [
            torch.logspace(-300, 2.8, 5001, dtype=torch.float64),
            torch.linspace(0, 12, 5001, dtype=torch.float64),
            torch.tensor([0.0, INF, NAN, 1e300, 1.0, 709.0, 711.0], dtype=torch.float64),
        ]
    )
    return torch.cat([sizes, -sizes])


def near_one() -> torch.Tensor:
    near = torch.logspace(-16, 0, 1001, dtype=torch.float64)
    return torch.cat([torch.linspace(-0.999, 0.999, 5001, dtype=torch.float64), 1 - near, near - 1])


@pytest.mark.parametrize(
    "name", ["log1p", "log10", "log2", "deg2rad", "rad2deg", "expm1", "sinh", "cosh", "tan", "asinh", "atan"]
)
def test_everywhere(name: str):
    x = everywhere()
    assert ulps(getattr(elementary_functions, name)(x), getattr(torch, name)(x)) <= 3


def test_where_the_exponential_overflows_and_half_of_it_does_not():
    # torch's own is infinite there.
    x = torch.tensor([709.9, 710.4], dtype=torch.float64)
    wanted = torch.tensor([math.sinh(v) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(elementary_functions.sinh(x), wanted, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(elementary_functions.cosh(x), wanted, rtol=1e-14, atol=0.0)


def test_erf():
    assert ulps(elementary_functions.erf(everywhere()), torch.erf(everywhere())) <= 20


@pytest.mark.parametrize("name", ["asin", "acos", "atanh"])
def test_up_to_one(name: str):
    x = near_one()
    assert ulps(getattr(elementary_functions, name)(x), getattr(torch, name)(x)) <= 4


def test_acosh():
    x = 1 + torch.logspace(-15, 300, 3001, dtype=torch.float64)
    assert ulps(elementary_functions.acosh(x), torch.acosh(x)) <= 3


def test_atan2_in_all_quadrants_and_at_infinity():
    ends = torch.tensor([0.0, -0.0, 1, -1, 2, 1e-300, -1e-300, 1e300, -1e300, INF, -INF], dtype=torch.float64)
    y, x = torch.meshgrid(ends, ends, indexing="ij")
    torch.testing.assert_close(elementary_functions.atan2(y, x), torch.atan2(y, x), rtol=1e-15, atol=1e-300)
    y, x = torch.randn(2, 4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert ulps(elementary_functions.atan2(y, x), torch.atan2(y, x)) <= 3


def test_the_sign_of_zero_is_a_direction():
    zeros = torch.tensor([-0.0, 0.0], dtype=torch.float64)
    assert torch.equal(elementary_functions.acos(zeros), torch.acos(zeros))
    assert torch.equal(elementary_functions.atan2(zeros, -zeros.abs()), torch.atan2(zeros, -zeros.abs()))


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus", "mish", "elu", "celu", "selu", "log_sigmoid"])
def test_tails_of_activations(name: str):
    x = torch.linspace(-50, 50, 2001, dtype=torch.float64)
    plain = torch.sigmoid if name == "sigmoid" else getattr(torch.nn.functional, name.replace("log_s", "logs"))
    torch.testing.assert_close(getattr(elementary_functions, name)(x), plain(x), rtol=2e-15, atol=0.0)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str):
    x = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    wanted = torch.nn.functional.gelu(x, approximate=approximate)
    torch.testing.assert_close(elementary_functions.gelu(x, approximate), wanted, rtol=1e-12, atol=1e-14)


def test_a_naive_formula_is_seen():
    x = everywhere()
    assert ulps(torch.log(1 + x), torch.log1p(x)) > 1e6


def test_other_dtypes_keep_the_operator():
    x = torch.randn(7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(elementary_functions.build_function_table()["aten::tan"](x), torch.tan(x))


@pytest.mark.parametrize("name", ["elu", "celu", "selu", "log1p", "expm1"])
def test_small_numbers_in_single_precision(name: str):
    """As torch.onnx writes them they are 0 there."""
    x = torch.tensor([1e-12, -1e-12, -1e-5, 3e-8, -0.5, 2.0], dtype=torch.float32)
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    got = elementary_functions.build_function_table()[f"aten::{name}"](x)
    torch.testing.assert_close(got, function(x), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_sums_of_exponentials_of_large_numbers(name: str):
    numbers = torch.tensor([0.0, 1.5, -800.0, 800.0, 1e12, -1e12, float("inf"), -float("inf")], dtype=torch.float64)
    x, y = (v.flatten() for v in torch.meshgrid(numbers, numbers, indexing="ij"))
    got, wanted = getattr(elementary_functions, name)(x, y), getattr(torch, name)(x, y)
    torch.testing.assert_close(got, wanted, rtol=1e-13, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lengths_of_sides_whose_squares_are_no_numbers(dtype: torch.dtype):
    inf, nan = float("inf"), float("nan")
    numbers = torch.tensor([0.0, -0.0, 3.0, -4.0, 1e-30, 1e30, -1e-20, inf, -inf, nan], dtype=dtype)
    x, y = (v.flatten() for v in torch.meshgrid(numbers, numbers, indexing="ij"))
    wanted = torch.hypot(x, y)
    rtol = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(elementary_functions.hypot(x, y), wanted, rtol=rtol, atol=0.0, equal_nan=True)
    assert torch.isinf(wanted[torch.isinf(x) | torch.isinf(y)]).all()
    assert wanted.isnan().any()
