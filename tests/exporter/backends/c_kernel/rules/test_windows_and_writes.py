"""Windows, writes along a dimension, variances and norms: values and derivatives are torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from kernel_host import Direct

import torchferry
from exporter.archive.contract import Bounds
from exporter.common.errors import UnsupportedError
from runtime_checks.comparison import compare_tensors

D = torch.float64


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def place(x: torch.Tensor) -> torch.Tensor:
    """Return places that depend on the data, of four."""
    return (x.abs() * 2).long().clamp(max=3)


CONSTANT = torch.tensor([[3, 0, 3, 1]])


# Named, of a batch of twelve numbers; each keeps the batch.
def put_at_data(row):
    """Through one index and two, negative ones, behind a whole dimension, and by masks; equal ones where they add.

    Of equal ones that take the same place autograd gives each one the derivative, and the last one counts."""
    places = (row[:3].abs() * 10).long() % 12
    values, matrix = row.clone(), row.reshape(4, 3)
    values[places % 4 * 3 + torch.arange(3) - 12] = 2 * row[3:6]
    added = matrix.index_put((places % 2, torch.tensor([0, 1, 0])), row[3:6], accumulate=True)
    rows = row.reshape(2, 2, 3).clone()
    rows[:, torch.stack([places[0] % 2, 1 - places[0] % 2])] = row[:3]
    masked = row.clone()
    masked[row > 0.2] = 0.5
    by_row = matrix.index_put((row[:4] > 0.1,), row[6:9], accumulate=True)
    return torch.cat([t.flatten() for t in (values, added, rows, masked, by_row)])


def put_equal(x):
    rows = []
    for row in x:
        values = row.clone()
        values[place(row)] = 2 * row
        rows.append(values)
    return torch.stack(rows)


def put_apart(x):
    y = x.reshape(1, 3, 4).clone()
    y[place(x)[0, :2] % 1, :, place(x)[0, :2]] = x[0, :3]
    return y


def write_columns(x):
    """Through indices behind a dimension that stays whole: numbers, rows, a mask."""
    y = x.clone()
    y[:, :, [2, 0]] = x[:, :, :2] * 3
    y[:, [1, 3], 1] = 0.25
    y[:, torch.tensor([True, False, False, True])] += x[:, 1:2]
    # An index without a dimension is one, and no slice: what it picks stands in front.
    places = [None, torch.tensor(0), None] if y.ndim < 3 else [torch.tensor(0), None, torch.tensor([0, 1])]
    return torch.stack([torch.ops.aten.index_put(row[:3, None].expand(3, 2, 3), places, row[:2, :2]) for row in y])


WINDOWS = {
    "convolution": lambda x: F.conv2d(x.reshape(-1, 1, 3, 4), draw(2, 1, 2, 2), draw(2), padding=1, stride=(1, 2)),
    "dilated": lambda x: F.conv1d(x.reshape(-1, 2, 6), draw(4, 1, 2), dilation=3, groups=2),
    "in three dimensions": lambda x: F.conv3d(x.reshape(-1, 1, 3, 2, 2), draw(1, 1, 2, 2, 1), padding=(0, 1, 0)),
    "transposed": lambda x: F.conv_transpose1d(
        x.reshape(-1, 4, 3), draw(4, 3, 3), draw(6), stride=2, padding=1, output_padding=1, groups=2, dilation=2
    ),
    "transposed in two": lambda x: F.conv_transpose2d(x.reshape(-1, 1, 3, 4), draw(1, 2, 2, 3), stride=(2, 3)),
    "mean of windows": lambda x: F.avg_pool2d(x.reshape(-1, 1, 3, 4), 2, stride=1, padding=1),
    "mean of what is there": lambda x: F.avg_pool2d(
        x.reshape(-1, 1, 3, 4), (2, 3), padding=1, ceil_mode=True, count_include_pad=False
    ),
    "mean to the end": lambda x: F.avg_pool2d(x.reshape(-1, 1, 3, 4), (2, 3), padding=1, ceil_mode=True),
    "divided": lambda x: F.avg_pool3d(x.reshape(-1, 1, 3, 2, 2), 2, stride=1, divisor_override=3),
    "mean in one dimension": lambda x: F.avg_pool1d(x.reshape(-1, 2, 6), 4, stride=3, padding=2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x.reshape(-1, 1, 3, 4), (2, 2)),
    "largest": lambda x: F.max_pool2d(x.reshape(-1, 1, 3, 4), (2, 3), stride=1, padding=1),
    "largest to the end": lambda x: F.max_pool1d(x.reshape(-1, 2, 6), 4, ceil_mode=True, dilation=1),
    "group norm": lambda x: F.group_norm(x.reshape(-1, 4, 3), 2, draw(4), draw(4)),
}
WRITES = {
    "added at": lambda x: draw(1, 4).expand(x.shape[0], 4).scatter_add(1, CONSTANT.expand(x.shape[0], 4), x[:, :4]),
    "added": lambda x: x[:, :4].scatter_add(1, place(x[:, 4:10]), x[:, 6:]),
    "written": lambda x: x[:, :4].scatter(1, place(x[:, 4:5]), x[:, 6:7]),
    "a number": lambda x: x[:, :4].scatter(1, place(x[:, 4:5]), 2.5),
    "product": lambda x: x[:, :4].scatter_reduce(1, place(x[:, 4:8]), x[:, 8:], "prod", include_self=False),
    "written largest": lambda x: x[:, :4].scatter_reduce(1, place(x[:, 4:8]), x[:, 8:], "amax", include_self=False),
    "mean": lambda x: x[:, :4].scatter_reduce(1, place(x[:, 4:8]), x[:, 8:], "mean"),
    "mean of others": lambda x: x[:, :4].scatter_reduce(1, place(x[:, 4:8]), x[:, 8:], "mean", include_self=False),
    "slices": lambda x: x.reshape(-1, 4, 3).index_add(1, torch.tensor([2, 0, 2]), x[:, :9].reshape(-1, 3, 3), alpha=2),
    "copied slices": lambda x: x.reshape(-1, 4, 3).index_copy(2, torch.tensor([1]), x[:, :4, None]),
    "put in each row": lambda x: x.index_put((torch.arange(x.shape[0]), place(x)[:, 0]), 3 * x[:, 5]),
    "put at data": lambda x: torch.stack([put_at_data(row) for row in x]),
    "written columns": lambda x: write_columns(x.reshape(-1, 4, 3)),
    "in place": lambda x: x[:, :4].clone().scatter_add_(1, CONSTANT[:, :2].expand(x.shape[0], 2), x[:, 4:6]),
}
NUMBERS = {
    "variance": lambda x: x.reshape(-1, 4, 3).var((1, 2)),
    "of all, biased": lambda x: x.reshape(-1, 4, 3).var(-1, correction=0, keepdim=True),
    "deviation": lambda x: torch.cat([v[:, None] for v in torch.std_mean(x, 1)], 1),
    "sum of products": lambda x: torch.stack(
        [torch.addbmm(r[:4].reshape(2, 2), r[4:].reshape(2, 2, 2), r[:8].reshape(2, 2, 2), alpha=2, beta=3) for r in x]
    ),
    "one number": lambda x: x[:, :1].std(1, correction=0),
    "median": lambda x: torch.stack([row.median() + row[:7].median() for row in x]),
    "medians": lambda x: torch.cat(
        [
            x.reshape(-1, 3, 4).median(1, keepdim=True)[0].flatten(1),
            x.reshape(-1, 3, 4).median(-1)[0],
            x.median(1)[0][:, None],
        ],
        1,
    ),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "norm 3": lambda x: torch.linalg.vector_norm(x.reshape(-1, 4, 3), 3, dim=1),
    "norm inf": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1),
    "norm -inf": lambda x: torch.linalg.vector_norm(x, -float("inf"), dim=1),
    "norm 0": lambda x: torch.linalg.vector_norm(x.clamp(min=0.0), 0, dim=1),
    "distances of order 3": lambda x: torch.cdist(x.reshape(-1, 4, 3), x.reshape(-1, 4, 3), p=3.0),
    "norm 3 in float64": lambda x: torch.linalg.vector_norm(x.float(), 3, dim=1, dtype=D),
    "distances": lambda x: torch.cdist(x.reshape(-1, 4, 3), x.flip(-1).reshape(-1, 4, 3) + 0.1, p=1.0),
}
# Forward mode has no rule for them, and the captured derivative is taken; float32 has other derivatives.
WITHOUT = ("norm inf", "norm -inf", "median", "written largest", "norm 3 in float64")
ALL = {"windows": WINDOWS, "writes": WRITES, "numbers": NUMBERS}


@pytest.mark.parametrize("kind", ALL)
def test_values_are_torchs(kind):
    functions = ALL[kind]
    kernel = Direct(lambda x: tuple(f(x) for f in functions.values()), {"x": draw(1, 12)})
    for rows in (1, 2, 9):
        x = draw(rows, 12, seed=rows)
        for (name, function), got in zip(functions.items(), kernel(x), strict=True):
            compared = compare_tensors(got, function(x), Bounds(1e-13, 1e-14))
            assert compared.passed, f"{name}: {compared.reason}"


@pytest.mark.parametrize("kind", ALL)
def test_derivatives_are_autograds(kind):
    functions = {n: f for n, f in ALL[kind].items() if n not in WITHOUT}
    kernel = Direct(lambda x: tuple(f(x) for f in functions.values()), {"x": draw(1, 12)}, jacobian=True)
    x = draw(3, 12, seed=5)
    for (name, function), got in zip(functions.items(), kernel(x), strict=True):
        each = [torch.autograd.functional.jacobian(lambda row, f=function: f(row[None])[0], row) for row in x]
        compared = compare_tensors(got, torch.stack(each), Bounds(1e-12, 1e-13))
        assert compared.passed, f"{name}: {compared.reason}"


def test_windows_of_another_place_are_seen():
    """The control of the tests above."""
    kernel = Direct(lambda x: (WINDOWS["dilated"](x.flip(-1)),), {"x": draw(1, 12)})
    x = draw(2, 12)
    assert not compare_tensors(kernel(x)[0], WINDOWS["dilated"](x), Bounds(1e-13, 1e-14)).passed


def find_places(x):
    return F.max_pool2d(x.reshape(-1, 1, 3, 4), 2, stride=1, return_indices=True)[1]


def find_median_places(x):
    return x.reshape(-1, 3, 4).median(-1)[1] + 4 * x.reshape(-1, 3, 4).median(1, keepdim=True)[1].flatten(1)[:, :3]


def test_nan_is_kept():
    x = draw(2, 12)
    x[0, 3:6] = float("nan")
    functions = (WINDOWS["largest"], NUMBERS["median"], NUMBERS["medians"], find_places, find_median_places)
    kernel = Direct(lambda x: tuple(f(x) for f in functions), {"x": draw(1, 12)})
    for got, function in zip(kernel(x), functions, strict=True):
        torch.testing.assert_close(got, function(x), rtol=1e-14, atol=0.0, equal_nan=True)


EQUAL = torch.tensor([[1.0, 2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 2.0, 5.0, 0.0, 1.0, 0.0]], dtype=D)
AT_KINKS = {
    "orders": lambda x: torch.cat(
        [torch.linalg.vector_norm(x[:, :4], p, dim=1, keepdim=True) for p in (3.0, 1.5, 1)], 1
    ),
    "order below 1": lambda x: torch.linalg.vector_norm(x[:, 1:6], 0.5, dim=1),
    "of zeros": lambda x: torch.linalg.vector_norm(x[:, 3:6], 3, dim=1),
    "negative": lambda x: torch.linalg.vector_norm(x[:, 1:6], -1, dim=1),
    "to itself": lambda x: torch.cdist(x.reshape(-1, 4, 3), x.reshape(-1, 4, 3), p=3.0),
    "deviation of equal numbers": lambda x: x[:, 3:6].std(1),
    "largest of windows": WINDOWS["largest"],
}


def test_derivatives_at_zeros():
    kernel = Direct(lambda x: tuple(f(x) for f in AT_KINKS.values()), {"x": EQUAL}, jacobian=True)
    for (name, function), got in zip(AT_KINKS.items(), kernel(EQUAL), strict=True):
        wanted = torch.autograd.functional.jacobian(lambda row, f=function: f(row[None])[0], EQUAL[0])
        compared = compare_tensors(got[0], wanted, Bounds(1e-13, 1e-14))
        assert compared.passed, f"{name}: {compared.reason}"


def share(x):
    places = torch.tensor([1, 1, 0, 1])
    return {
        "median": x[:7].median(),
        "largest": x[:2].scatter_reduce(0, places, x[5:9], "amax"),
        "least of others": x[:2].scatter_reduce(0, places, x[3:7], "amin", include_self=False),
    }


def test_equal_numbers_share_a_derivative(tmp_path):
    """The captured derivatives know how many there are."""
    torchferry.export(share, inputs={"x": draw(12)}, output=tmp_path / "m.pt", batch="no", derivatives="all")
    kernel = torchferry.load(torchferry.convert(tmp_path / "m.pt", to="c").path)
    got = kernel.call("jacobian", {"x": EQUAL[0].numpy()})
    for name in share(EQUAL[0]):
        wanted = torch.autograd.functional.jacobian(lambda x, n=name: share(x)[n], EQUAL[0])
        torch.testing.assert_close(torch.as_tensor(got[f"d {name} / d x"]), wanted, rtol=1e-14, atol=0.0)


def test_other_shapes():
    """Numbers without a dimension, rows that are not there, slices without theirs."""
    functions = {
        "variance of one": lambda x: torch.stack(
            [row[0].var(0, correction=0) + row[1].std(-1, correction=0) for row in x]
        ),
        "written number": lambda x: torch.stack([row.scatter(0, torch.tensor(2), 5.0) for row in x]),
        "added to a number": lambda x: torch.stack([row[0].scatter_add(0, torch.tensor([0]), row[1:2]) for row in x]),
        "nothing written": lambda x: x.scatter_add(1, torch.zeros(x.shape[0], 0, dtype=torch.int64), x),
        "nothing by nothing": lambda x: F.conv1d(x.reshape(-1, 2, 6)[:0], draw(2, 2, 3)).sum() + x,
        "sum of products alone": lambda x: torch.stack(
            [
                torch.addbmm(r[:4].reshape(2, 2) * torch.inf, r[:4].reshape(1, 2, 2), r[4:8].reshape(1, 2, 2), beta=0)
                for r in x
            ]
        ),
        "equal places": put_equal,
        "median of nothing": lambda x: torch.stack([row[:0].median() for row in x]),
        "median of one": lambda x: torch.stack([row[0].median(0)[0] for row in x]),
        "whole numbers": lambda x: F.avg_pool2d(place(x).reshape(-1, 1, 3, 4).double(), 2),
    }
    kernel = Direct(lambda x: tuple(f(x) for f in functions.values()), {"x": draw(1, 12)})
    x = draw(3, 12)
    for (name, function), got in zip(functions.items(), kernel(x), strict=True):
        assert compare_tensors(got, function(x), Bounds(1e-13, 1e-14)).passed, name


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x.index_put((x > 0,), x[0, :5]), "several numbers by a mask"),
        (put_apart, "adjacent"),
        (lambda x: x.repeat(1, 30).index_put((torch.arange(1), place(x).repeat(1, 30)), x), "comparisons"),
        (lambda x: x.repeat(1, 3)[:, :33].median(1)[0], "aten::median along 33 numbers"),
        (lambda x: torch.zeros(x.shape[0], 600, dtype=D).scatter_add(1, place(x), x), "comparisons"),
        (lambda x: F.max_pool1d(x[:, None, :1], 2, stride=1, padding=1, dilation=2), "no numbers"),
        (lambda x: place(x).index_reduce(1, torch.tensor([0]), place(x)[:, :1], "mean"), "whole numbers"),
        (lambda x: place(x).scatter_reduce(1, place(x), place(x), "mean"), "whole numbers"),
    ],
)
def test_what_has_no_form_is_named(function, name):
    with pytest.raises(UnsupportedError, match="no form in a kernel") as caught:
        Direct(lambda x: (function(x),), {"x": draw(1, 12)})
    assert name in str(caught.value)
