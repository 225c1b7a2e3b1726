import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exporter.archive.contract import Bounds, Tolerance
from runtime_checks.comparison import compare_tensors, find_scale

BOUNDS = Bounds(1e-10, 1e-12)
EXACT = Bounds(0.0, 0.0)
F = torch.float64
numbers = st.floats(width=64)


@given(st.lists(numbers, min_size=1, max_size=6))
def test_equal_tensors_pass_with_nan_and_infinity(values):
    value = torch.tensor(values, dtype=F)
    result = compare_tensors(value.clone(), value, EXACT)
    assert result.passed
    assert (result.max_abs, result.max_ulp) == (0.0, 0)


@given(st.lists(numbers, min_size=1, max_size=6), st.data())
def test_nan_in_one_place_never_passes(values, data):
    expected = torch.tensor(values, dtype=F).nan_to_num()
    got = expected.clone()
    position = data.draw(st.integers(0, len(values) - 1))
    got[position] = math.nan
    for a, b in ((got, expected), (expected, got)):
        result = compare_tensors(a, b, Bounds(1.0, 1e300))
        assert not result.passed
        assert result.worst == (position,)


@pytest.mark.parametrize("other", [-math.inf, 1.0, math.nan])
def test_infinity_must_agree_in_place_and_sign(other):
    got, expected = torch.tensor([other], dtype=F), torch.tensor([math.inf], dtype=F)
    assert not compare_tensors(got, expected, Bounds(1.0, 1.0)).passed


def test_the_bound_is_absolute_plus_relative():
    expected = torch.tensor([0.0, 1.0, -1e6], dtype=F)
    inside = expected + torch.tensor([9e-7, 9e-7, 1e-4], dtype=F)
    outside = expected + torch.tensor([0.0, 0.0, 1.1e-4], dtype=F)
    assert compare_tensors(inside, expected, BOUNDS).passed
    result = compare_tensors(outside, expected, BOUNDS)
    assert not result.passed
    assert result.worst == (2,)
    assert result.reason == "1 of 3 elements differ"


@pytest.mark.parametrize("magnitude", [1.0, 1e9, 1e-13, 1e-200])
def test_a_millionth_is_found(magnitude):
    expected = (torch.rand(50, 6, dtype=F) + 1) * magnitude
    got = expected.clone()
    got[17, 3] *= 1 + 1e-6
    result = compare_tensors(got, expected, BOUNDS)
    assert not result.passed
    assert result.worst == (17, 3)
    assert result.max_rel == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        (torch.zeros(3, dtype=F), "shape"),
        (torch.zeros(2, dtype=torch.float32), "dtype"),
        (torch.zeros(2, dtype=F, device="meta"), "device"),
        (None, "NoneType"),
    ],
)
def test_shape_dtype_and_device_must_agree(got, reason):
    result = compare_tensors(got, torch.zeros(2, dtype=F), BOUNDS)
    assert not result.passed
    assert reason in result.reason


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 40))
def test_ulps_count_representable_numbers(start, steps):
    value = start
    for _ in range(steps):
        value = math.nextafter(value, math.inf)
    if math.isinf(value):
        return
    result = compare_tensors(torch.tensor([value], dtype=F), torch.tensor([start], dtype=F), EXACT)
    # Both zeros count as one number.
    assert result.max_ulp == steps


def test_float32_and_integers():
    item = torch.tensor([1.0])
    assert compare_tensors(torch.nextafter(item, item + 1), item, Bounds(1e-5, 1e-6)).max_ulp == 1
    assert compare_tensors(torch.tensor([1, 2]), torch.tensor([1, 2]), EXACT).passed
    assert not compare_tensors(torch.tensor([1, 3]), torch.tensor([1, 2]), EXACT).passed
    assert compare_tensors(torch.tensor([True]), torch.tensor([True]), EXACT).passed


def test_a_count_may_differ_and_a_status_may_not():
    """Whole numbers are exact where nothing else is said, and what a contract says of a status is not heard."""
    counts = torch.tensor([3, 7])
    assert not compare_tensors(counts + 1, counts, Bounds(0.0, 0.0)).passed
    assert compare_tensors(counts + 2, counts, Bounds(0.0, 0.0, 2.0)).passed
    assert not compare_tensors(counts + 3, counts, Bounds(0.0, 0.0, 2.0)).passed
    wide = Bounds(0.0, 0.0, 9.0)
    tolerance = Tolerance({}, outputs={"iterations": wide, "status": wide, "found": wide})
    assert tolerance.bounds("iterations", "int64") == wide
    assert tolerance.bounds("status", "int64") == tolerance.bounds("found", "bool") == Bounds(0.0, 0.0)
    assert tolerance.bounds("found", "float64") == wide


def test_an_output_that_is_zero_has_the_scale_of_one():
    zero = torch.zeros(3, dtype=F)
    assert compare_tensors(zero + 1e-13, zero, BOUNDS).passed
    assert not compare_tensors(zero + 1e-11, zero, BOUNDS).passed


def test_nothing_to_compare_passes_only_with_the_right_shape():
    empty = torch.zeros(0, 6, dtype=F)
    assert compare_tensors(empty.clone(), empty, BOUNDS).passed
    assert not compare_tensors(torch.zeros(0, 5, dtype=F), empty, BOUNDS).passed


def test_a_nan_in_the_real_part_is_none_in_the_imaginary_part():
    nan = float("nan")
    a, b = torch.tensor([complex(nan, 5)]), torch.tensor([complex(1, nan)])
    bounds = Bounds(1e-5, 1e-6)
    assert not compare_tensors(a, b, bounds).passed
    assert compare_tensors(a, a.clone(), bounds).passed


def test_lazily_negated_numbers_are_compared_as_what_they_stand_for():
    z = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex128)
    lazy = z.conj().imag
    assert lazy.is_neg()
    assert compare_tensors(lazy, torch.tensor([-2.0, 4.0], dtype=torch.float64), Bounds(1e-10, 1e-12)).passed
    assert compare_tensors(
        z.conj(), torch.tensor([1 - 2j, 3 + 4j], dtype=torch.complex128), Bounds(1e-10, 1e-12)
    ).passed


def test_a_few_rows_are_held_to_the_scale_of_all():
    """Numbers that are rounding alone, beside others of the same output that are not here."""
    got, expected = torch.tensor([0.0, -1.5e-36], dtype=F), torch.tensor([7.5e-38, 0.0], dtype=F)
    assert not compare_tensors(got, expected, BOUNDS).passed
    assert compare_tensors(got, expected, BOUNDS, least_scale=1e-3).passed
    assert not compare_tensors(got + 1e-3, expected, BOUNDS, least_scale=1e-3).passed


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([], 0.0),
        ([math.nan, math.inf], 0.0),
        ([-3.0, 2.0, -math.inf], 3.0),
        ([3 + 4j], 5.0),
        ([True], 1.0),
        ([-7], 7.0),
    ],
)
def test_the_scale_is_the_largest_finite_magnitude(values, scale):
    assert find_scale(torch.tensor(values)) == scale


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.complex128])
def test_equal_tensors_have_the_figures_of_all_others(dtype, monkeypatch):
    value = torch.tensor([[0.5, -0.0], [math.inf, 3.0]], dtype=dtype)
    short = compare_tensors(value.clone(), value, BOUNDS)
    monkeypatch.setattr(torch, "equal", lambda *_: False)
    assert compare_tensors(value.clone(), value, BOUNDS) == short
