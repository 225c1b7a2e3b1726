"""Forms of operators for ONNX: what torch gives."""

from __future__ import annotations

import pytest
import torch

from exporter.backends.onnx.operator_forms import (
    _unroll,
    aminmax,
    aten_div,
    cdist,
    cholesky_inverse,
    cholesky_solve,
    copysign,
    cumprod,
    cumulate,
    det,
    det_and_factors,
    diagonal_scatter,
    einsum,
    extremum_of_two,
    linspace,
    median,
    pad,
    run_in_dtype,
    searchsorted,
    shift_bits,
    vector_norm,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_whole_numbers_beyond_float32_are_divided_as_whole_numbers(mode: str):
    a = torch.tensor([16777217, 100000001, 33554435, 123456789012345, -7, 7, -8, -33554435])
    b = torch.tensor([1, 3, 7, 7, 2, -2, -3, 7])
    assert torch.equal(aten_div(a, b, mode), torch.div(a, b, rounding_mode=mode))
    assert torch.equal(aten_div(a, 7, mode), torch.div(a, 7, rounding_mode=mode))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right: bool):
    edges = torch.tensor([0.0, 1.0, 1.0, 2.5], dtype=torch.float64)
    values = torch.tensor([[-1.0, 0.0, 1.0], [2.0, 2.5, NAN], [INF, -INF, 0.5]], dtype=torch.float64)
    assert torch.equal(searchsorted(edges, values, right=right), torch.searchsorted(edges, values, right=right))
    rows = edges.expand(3, 4).contiguous()
    got = searchsorted(rows, values, True, right)
    assert torch.equal(got, torch.searchsorted(rows, values, right=right, out_int32=True))
    assert got.dtype == torch.int32


def test_det_of_exchanged_rows_and_of_a_singular_matrix():
    a = torch.randn(60, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(det(a), torch.linalg.det(a), rtol=1e-12, atol=1e-13)
    assert torch.equal(det(torch.zeros(2, 3, 3, dtype=torch.float64)), torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("right", [False, True])
def test_searches_among_bounds_that_are_not_sorted(right: bool):
    generator = torch.Generator().manual_seed(0)
    for count in (0, 1, 2, 3, 7, 8, 30):
        bounds = torch.randn(5, count, generator=generator)
        values = torch.randn(5, 40, generator=generator)
        assert torch.equal(searchsorted(bounds, values, right=right), torch.searchsorted(bounds, values, right=right))
        order = torch.argsort(bounds)
        got = searchsorted(bounds, values, right=right, sorter=order)
        assert torch.equal(got, torch.searchsorted(bounds, values, right=right, sorter=order))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("...ik, ...j -> ij", [(1, 2, 3), (3,)]),
        ("...ij,...jk->...ik", [(2, 5, 3, 4), (5, 4, 2)]),
        ("...i,i...", [(2, 3), (3, 2)]),
        ("b...,...b->...", [(2, 3), (3, 2)]),
        ("Ab,cb", [(2, 3), (4, 3)]),
        ("...ij,...kj->...ik", [(1, 2, 4), (3, 5, 4)]),
        ("ij, kj -> ik", [(2, 1), (4, 3)]),
        ("ii->i", [(3, 3)]),
    ],
)
def test_an_ellipsis_of_other_lengths(equation, shapes, monkeypatch):
    operands = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    wanted, asked = torch.einsum(equation, *operands), []
    run = torch.ops.aten.einsum.default
    # torch reads all of its operators where numbers are compared for the first time.
    with monkeypatch.context() as patch:
        patch.setattr(torch.ops.aten.einsum, "default", lambda *given, **more: asked.append(given) or run(*given))
        got = einsum(equation, operands)
    torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-13)
    assert "..." not in asked[0][0]
    terms = asked[0][0].partition("->")[0].replace(" ", "").split(",")
    pairs = {
        pair for term, operand in zip(terms, asked[0][1], strict=True) for pair in zip(term, operand.shape, strict=True)
    }
    assert len(pairs) == len({letter for letter, _ in pairs})


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5, 4), (4, 9), (2, 70)])
def test_products_of_the_first_numbers(shape):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for dim in range(-1, max(len(shape), 1)):
        torch.testing.assert_close(cumprod(x, dim), torch.cumprod(x, dim), rtol=1e-14, atol=1e-15)
    assert torch.equal(cumprod((4 * x).long(), 0), torch.cumprod((4 * x).long(), 0))
    far = torch.tensor([1e200, 1e200, 1e-300], dtype=torch.float64)
    assert torch.equal(cumprod(far, 0), torch.cumprod(far, 0))
    assert cumprod(x > 0, 0).dtype == torch.int64


def test_distances_of_near_points():
    x = torch.randn(2, 20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cdist(x, x[:, :7] + 1e-9), torch.cdist(x, x[:, :7] + 1e-9), rtol=1e-6, atol=1e-14)
    torch.testing.assert_close(cdist(x, x[:, :7], 1.0), torch.cdist(x, x[:, :7], 1.0), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("is_upper", [False, True])
def test_systems_by_a_cholesky_factor(is_upper):
    a = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    b = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    factor = torch.linalg.cholesky(a @ a.mT + torch.eye(4), upper=is_upper) + a.triu(1).mT * is_upper
    # One whose square is nearly singular.
    factor[0, :2, :2] = torch.tensor([[1.0, 1.0], [1.0, 1e-6]])
    wanted = torch.cholesky_solve(b, factor, is_upper)
    torch.testing.assert_close(cholesky_solve(b, factor, is_upper), wanted, rtol=1e-11, atol=1e-12)


def test_a_softmax_in_another_dtype():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)) * 3
    for function in (torch.softmax, torch.log_softmax):
        assert torch.equal(run_in_dtype(function, x, 1, torch.float64), function(x, 1, dtype=torch.float64))
        assert torch.equal(run_in_dtype(function, x, 0), function(x, 0))


def test_norms_of_every_order():
    x = torch.randn(4, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for order in (0.0, 1.0, 2.0, 2.5, 3.0, -1.5, INF, -INF):
        for dim, keepdim in ((None, False), (1, True), ([0, 2], False)):
            wanted = torch.linalg.vector_norm(x, order, dim, keepdim)
            torch.testing.assert_close(vector_norm(x, order, dim, keepdim), wanted, rtol=1e-13, atol=0.0)


def test_pairs_of_numbers_with_nan_and_signed_zeros():
    numbers = torch.tensor([0.0, -0.0, 1.5, -2.0, NAN, INF, -INF], dtype=torch.float64)
    x, y = (v.flatten() for v in torch.meshgrid(numbers, numbers, indexing="ij"))
    for name in ("fmax", "fmin"):
        wanted = getattr(torch, name)(x, y)
        torch.testing.assert_close(extremum_of_two(name, x, y), wanted, rtol=0.0, atol=0.0, equal_nan=True)
    finite = ~torch.isnan(y)
    got, wanted = (f(x[finite], y[finite]) for f in (copysign, torch.copysign))
    torch.testing.assert_close(got, wanted, rtol=0.0, atol=0.0, equal_nan=True)
    is_number = ~torch.isnan(wanted)
    assert torch.equal(torch.signbit(got)[is_number], torch.signbit(wanted)[is_number])


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_shifted_bits(name, dtype):
    x, y = torch.tensor([0, 1, 5, 16, 100, 255]).to(dtype), torch.tensor([3, 1, 7, 4, 2, 0]).to(dtype)
    got, wanted = shift_bits(name, x, y), getattr(torch, name)(x, y)
    assert got.dtype == wanted.dtype
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("first", [torch.float64, torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("second", [torch.float64, torch.float32, torch.int64])
def test_pairs_of_other_dtypes(first, second):
    x, y = torch.tensor([1, -2, 0, 3]).to(first), torch.tensor([-1.5, 2.0, -0.0, 0.0]).to(second)
    pairs = [(copysign(x, y), torch.copysign(x, y))]
    pairs += [(extremum_of_two(name, x, y), getattr(torch, name)(x, y)) for name in ("fmax", "fmin")]
    for mine, own in pairs:
        assert mine.dtype == own.dtype
        assert torch.equal(mine, own)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_extrema_of_the_first_numbers(name):
    x = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[0, 2], x[1, 3], x[1, 5], x[2, 4] = NAN, NAN, NAN, x[2, 1]
    for value in (x, x.nan_to_num().mul(2).long(), x[:, :1], x[0, 3]):
        for dim in range(-1, max(value.ndim, 1)):
            for mine, own in zip(cumulate(name, value, dim), getattr(torch, name)(value, dim), strict=True):
                torch.testing.assert_close(mine, own, rtol=0.0, atol=0.0, equal_nan=True)


def test_numbers_in_a_diagonal():
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    for offset, dims in ((0, (1, 2)), (1, (2, 1)), (-2, (1, 2)), (0, (0, -1))):
        source = torch.diagonal(x, offset, *dims) * 10
        wanted = torch.diagonal_scatter(x, source, offset, *dims)
        assert torch.equal(diagonal_scatter(x, source, offset, *dims), wanted)


def test_numbers_around_in_a_circle():
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    for sizes in ((2, 0, 1, 3), (-1, 2, 0, -2), (0, 0, 1, -1)):
        assert torch.equal(pad(x, sizes, "circular"), torch.nn.functional.pad(x, sizes, "circular"))
    assert pad(x[:0], (1, 1, 1, 1), "circular").shape == (0, 3, 6, 7)
    assert torch.equal(pad(x, (1, 2), "constant", 3.0), torch.nn.functional.pad(x, (1, 2), value=3.0))


@pytest.mark.parametrize("is_upper", [False, True])
def test_the_inverse_by_a_cholesky_factor(is_upper):
    a = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    factor = torch.linalg.cholesky(a @ a.mT + torch.eye(4), upper=is_upper)
    wanted = torch.cholesky_inverse(factor, is_upper)
    torch.testing.assert_close(cholesky_inverse(factor, is_upper), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, None])
def test_numbers_at_equal_distances(dtype):
    start, end = torch.tensor(-2.25, dtype=torch.float64), torch.tensor(7.5, dtype=torch.float64)
    for steps in (0, 1, 2, 7, 8):
        for pair in ((start, end), (start, 7.5), (-2.25, end), (-2.25, 7.5)):
            wanted = torch.linspace(*pair, steps, dtype=dtype)  # pyright: ignore[reportCallIssue, reportArgumentType]
            torch.testing.assert_close(linspace(*pair, steps, dtype), wanted)
    far = (torch.tensor(62785), torch.tensor(-53527786), 11, torch.int64)
    assert torch.equal(linspace(*far), torch.linspace(*far[:3], dtype=torch.int64))


def test_smallest_and_largest_numbers():
    for shape, dim in (((), None), ((), 0), ((4, 3), None), ((4, 3), 1), ((4, 3), -2)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        pair = (aminmax(x > 0, dim), torch.aminmax(x > 0, dim=dim))
        assert all(map(torch.equal, *pair))
        for keepdim in (False, True):
            for mine, own in zip(aminmax(x, dim, keepdim), torch.aminmax(x, dim=dim, keepdim=keepdim), strict=True):
                assert torch.equal(mine, own)
                assert mine.shape == own.shape


@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 3), (2, 6, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("has_nan", [False, True])
def test_medians_and_their_places(shape, dtype, has_nan):
    count = torch.Size(shape).numel()
    x = torch.randperm(count, generator=torch.Generator().manual_seed(3)).reshape(shape).to(dtype)
    if has_nan and dtype == torch.float64:
        x.view(-1)[0] = NAN
    torch.testing.assert_close(median(x), x.median(), rtol=0.0, atol=0.0, equal_nan=True)
    for dim in range(-max(x.ndim, 1), max(x.ndim, 1)):
        for keepdim in (False, True):
            got, expected = median(x, dim, keepdim), x.median(dim, keepdim)
            torch.testing.assert_close(got[0], expected[0], rtol=0.0, atol=0.0, equal_nan=True)
            assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(("name", "kind"), [("gru", torch.nn.GRU), ("lstm", torch.nn.LSTM), ("rnn_tanh", torch.nn.RNN)])
def test_recurrent_networks(name, kind, is_packed, monkeypatch):
    torch.manual_seed(0)
    network = kind(3, 4, num_layers=2, bidirectional=True, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    sequence = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3])) if is_packed else x
    with torch.no_grad():
        wanted = network(sequence)[0]
        # torch's own function, called with the arguments that a file has.
        monkeypatch.setattr(f"torch._VF.{name}", lambda first, *rest: _unroll(name, first, *rest))
        got = network(sequence)[0]
    pairs = [(got.data, wanted.data)] if is_packed else [(got, wanted)]
    for mine, own in pairs:
        torch.testing.assert_close(mine, own, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("is_contiguous", [True, False])
def test_the_factors_of_a_determinant_are_those_of_torch(is_contiguous):
    """Captured gradients of determinants solve with them."""
    matrix = torch.rand(5, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    matrix = matrix if is_contiguous else matrix.mT
    got, expected = det_and_factors(matrix), torch.ops.aten._linalg_det(matrix)
    for value, expected_value in zip(got, expected, strict=True):
        torch.testing.assert_close(value.to(expected_value.dtype), expected_value, rtol=1e-12, atol=1e-14)
