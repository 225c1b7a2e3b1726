"""Each operator's row against torch, value and derivative, on ordinary and on extreme numbers."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_host import Direct
from torch import nn

import torchferry
from exporter.archive.contract import Bounds
from exporter.backends.c_kernel.rules.derivatives import NoRuleError
from exporter.common.errors import UnsupportedError
from runtime_checks.comparison import compare_tensors

F = torch.float64


def _written(x: torch.Tensor) -> torch.Tensor:
    result = torch.zeros_like(x)
    result[:, 1:3] = x[:, :2] * 2
    result[:, 0] += x[:, 3]
    return result


def _copied(x: torch.Tensor) -> torch.Tensor:
    other = x.to(F, copy=True)
    other += 1
    return x + other


# Named, of one tensor (batch, 4) of any numbers.
ANY = {
    "neg": lambda x: -x,
    "abs": torch.abs,
    "add": lambda x: x + 2.5,
    "add alpha": lambda x: torch.add(x, x.flip(-1), alpha=3),
    "rsub": lambda x: 1.5 - x,
    "mul": lambda x: x * x.flip(-1),
    "div": lambda x: x / x.flip(-1),
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "atan": torch.atan,
    "asinh": torch.asinh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "floor divide": lambda x: torch.div(x, x.flip(-1), rounding_mode="floor"),
    "remainder": lambda x: torch.remainder(x, 1.5),
    "fmod": lambda x: torch.fmod(x, 1.5),
    "square": torch.square,
    "pow 2": lambda x: x**2,
    "pow 3": lambda x: x**3,
    "pow -1": lambda x: x**-1,
    "pow -2": lambda x: x**-2,
    "pow 4": lambda x: x**4,
    "pow of two": lambda x: 2.0**x,
    "atan2": lambda x: torch.atan2(x, x.flip(-1)),
    "hypot": lambda x: torch.hypot(x, x.flip(-1)),
    "maximum": lambda x: torch.maximum(x, x.flip(-1)),
    "minimum": lambda x: torch.minimum(x, x.flip(-1)),
    "clamp": lambda x: x.clamp(-1.0, 2.0),
    "clamp min": lambda x: x.clamp_min(0.25),
    "where": lambda x: torch.where(x > 0, x, 2 * x),
    "masked fill": lambda x: x.masked_fill(x < 0, 3.0),
    "heaviside by comparison": lambda x: (x >= 0).to(F) * x,
    "logic": lambda x: ((x > 0) & ~(x > 2) | (x == -1)).to(F),
    "isnan": lambda x: torch.isnan(x).to(F) + torch.isinf(x).to(F),
    "sum": lambda x: x.sum(-1, keepdim=True).expand(-1, 4),
    "mean": lambda x: x.mean(-1),
    "prod": lambda x: x.prod(-1),
    "amax": lambda x: x.amax(-1),
    "any": lambda x: (x > 2).any(-1).to(F),
    "cumsum": lambda x: x.cumsum(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "stack": lambda x: torch.stack([x[:, 0], x[:, 3], x[:, 1] * 2, x[:, 2]], -1),
    "cat": lambda x: torch.cat([x[:, 2:], x[:, :2]], -1),
    "gather": lambda x: x.gather(-1, torch.tensor([[3, 0, 0, 1]]).expand(x.shape[0], 4)),
    "index": lambda x: x[:, [2, 2, 0, 1]],
    "matmul": lambda x: (x.reshape(-1, 2, 2) @ x.reshape(-1, 2, 2)).reshape(-1, 4),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x.reshape(-1, 2, 2), x.reshape(-1, 2, 2)).reshape(-1, 4),
    "cross": lambda x: torch.linalg.cross(x[:, :3], x[:, 1:]),
    "diag": lambda x: torch.diag_embed(x[:, :2]).reshape(-1, 4),
    "in place": lambda x: x.clone().mul_(2.0).add_(1.0),
    "written slice": _written,
    "put": lambda x: torch.zeros_like(x).index_put((torch.arange(x.shape[0]), torch.tensor([1])), x[:, 0]),
    "searched": lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 1.5], dtype=F), x).to(F),
    "looked up": lambda x: torch.tensor([5.0, 7.0, 8.0], dtype=F)[(x > 0).long() + (x > 1).long()],
    "tril": lambda x: x.reshape(-1, 2, 2).tril().reshape(-1, 4),
    "bool sum": lambda x: ((x > 0) + (x > 0.3)).to(F) + ((x > 0) * (x > 1)).to(F),
    "copied": _copied,
    "padded": lambda x: torch.nn.functional.pad(x, (1, 1)),
    "padded by a number": lambda x: torch.nn.functional.pad(x, (1, 1), value=0.1),
    "vector by matrix": lambda x: torch.stack([r @ torch.arange(12.0, dtype=F).reshape(4, 3) for r in x]),
    "squeezed in place": lambda x: x[:, None].clone().squeeze_(1).mul_(2.0),
    "bisected": lambda x: torch.searchsorted(x, x.flip(-1) + 0.1).to(F),
    "bisected from the right": lambda x: torch.searchsorted(x.sort().values, x, right=True).to(F),
    "bisected in an order": lambda x: torch.searchsorted(x, x * 2, sorter=x.sort(stable=True, dim=-1)[1]).to(F),
    "max": lambda x: x.max(-1).values,
    "min": lambda x: x.min(-1).values,
    "distances": lambda x: torch.cdist(x.reshape(-1, 2, 2), x.flip(-1).reshape(-1, 2, 2)).reshape(-1, 4),
    "clone in order": lambda x: x.reshape(-1, 2, 2).mT.clone(memory_format=torch.contiguous_format).view(-1, 4),
    "max of all": lambda x: torch.stack([r.max() + 2 * r.min() for r in x]),
    "largest so far": lambda x: torch.cat([v.to(F) for v in (*x.cummax(1), *x.round().cummin(-1))], 1),
    "sum of one": lambda x: torch.stack([row[0].cumsum(0) for row in x]),
    "argmax": lambda x: (x.argmax(-1) + 10 * x.argmin(-1, keepdim=True).squeeze(-1) + 100 * x.max(-1)[1]).to(F),
    "argmax of all": lambda x: torch.stack([10 * r.reshape(2, 2).argmax() + r.min(-1)[1] for r in x]).to(F),
    "sorted": lambda x: x.sort(-1).values,
    "sorted down": lambda x: torch.cat(
        [x.sort(-1, descending=True)[0], x.sort(stable=True, dim=-1, descending=True)[1]], 1
    ),
    "sorted places": lambda x: x.sort(stable=True, dim=-1)[1].to(F),
    "sorted columns": lambda x: x.reshape(-1, 2, 2).sort(stable=True, dim=1)[0].reshape(-1, 4),
    "max of no rows": lambda x: torch.cat([x, x[:, :0].reshape(x.shape[0], 0, 4).max(-1)[0]], -1),
    "of a norm": lambda x: x / (1 + torch.linalg.vector_norm(x, dim=-1, keepdim=True)),
    "roll": lambda x: x.roll(1, -1),
    "cast": lambda x: x.float().double(),
}
POSITIVE = {
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "pow 0.5": lambda x: x**0.5,
    "pow -0.5": lambda x: x**-0.5,
    "pow 2.3": lambda x: x**2.3,
    "pow of tensors": lambda x: torch.pow(x, x.flip(-1)),
    "acosh": lambda x: torch.acosh(x + 1),
}
# What torch itself computes with vectorised functions of one or two ULP.
ULPS = 8
EXTREME = torch.tensor(
    [
        [0.0, -0.0, 1.0, -1.0],
        [float("nan"), 2.0, float("inf"), 0.5],
        [-float("inf"), 3.0, float("nan"), 1.0],
        [1e-300, -1e300, 5e-324, 1e16],
        [0.5, 1.5, 2.5, -0.5],
        [1.0, 1.0, 1.0, 1.0],
    ],
    dtype=F,
)


def numbers(rows: int) -> torch.Tensor:
    return torch.randn(rows, 4, dtype=F, generator=torch.Generator().manual_seed(0)) * 1.7


def agree(got, wanted, names) -> list[str]:
    # torch's functions know no denormals.
    bounds = Bounds(ULPS * 2.3e-16, 0.0, 1e-320)
    verdicts = {n: compare_tensors(g, w, bounds) for n, g, w in zip(names, got, wanted, strict=True)}
    return [f"{n}: {c.reason}: got {c.got}, expected {c.expected}" for n, c in verdicts.items() if not c.passed]


def together(functions):
    return lambda x: tuple(function(x) for function in functions.values())


def test_values_are_torchs():
    kernel = Direct(together(ANY), {"x": numbers(1)})
    for rows in (1, 2, 8, 13):
        assert agree(kernel(numbers(rows)), together(ANY)(numbers(rows)), ANY) == []


def test_extreme_numbers():
    """NaN, infinities, signed zeros and denormals. A sum of infinities, in whatever order, is left out."""
    kernel = Direct(together(ANY), {"x": numbers(1)})
    assert agree(kernel(EXTREME), together(ANY)(EXTREME), ANY) == []


def test_of_positive_numbers():
    kernel = Direct(together(POSITIVE), {"x": numbers(1)})
    for x in (numbers(13).abs() + 0.01, EXTREME.abs()):
        assert agree(kernel(x), together(POSITIVE)(x), POSITIVE) == []


def test_a_swapped_operand_is_seen():
    """The control of the tests above."""
    kernel = Direct(lambda x: (x.flip(-1) / x,), {"x": numbers(1)})
    assert agree(kernel(numbers(3)), [ANY["div"](numbers(3))], ["div"])


# Forward mode has no rule for them: the captured derivative is taken.
WITHOUT = ("remainder", "fmod", "hypot", "asinh", "acosh", "sigmoid", "silu", "amax", "max of all")


def test_derivatives_are_autograds():
    for functions, x in ((ANY, numbers(5)), (POSITIVE, numbers(5).abs() + 0.1)):
        kept = {n: f for n, f in functions.items() if n not in WITHOUT}
        kernel = Direct(together(kept), {"x": x[:1]}, jacobian=True)

        def of_one(row: torch.Tensor, kept=kept) -> tuple[torch.Tensor, ...]:
            return tuple(f(row[None])[0] for f in kept.values())

        each = [torch.autograd.functional.jacobian(of_one, row) for row in x]
        wanted = [torch.stack(parts) for parts in zip(*each, strict=True)]
        bounds = Bounds(1e-13, 1e-14)
        for name, got, right in zip(kept, kernel(x), wanted, strict=True):
            assert compare_tensors(got, right, bounds).passed, name


def test_whole_numbers():
    x = torch.tensor([[7, -7, 3, 0], [-8, 5, -2, 9]], dtype=torch.int64)
    functions = {
        "arithmetic": lambda v: v * 3 - v.flip(-1) + 2,
        "floor": lambda v: torch.div(v, 3, rounding_mode="floor"),
        "trunc": lambda v: torch.div(v, -3, rounding_mode="trunc"),
        "remainder": lambda v: torch.remainder(v, 4),
        "true": lambda v: v / 4,
        "pow": lambda v: v**3,
        "bits": lambda v: (v & 6) | (v ^ 1),
        "wrap": lambda v: v * (2**62),
        "chosen": lambda v: torch.where(v > 2, v, -v),
        "bool": lambda v: v > 2,
    }
    kernel = Direct(together(functions), {"x": x[:1]})
    for name, got, wanted in zip(functions, kernel(x), together(functions)(x), strict=True):
        assert got.dtype == wanted.dtype, name
        assert torch.equal(got, wanted), name


def test_single_precision():
    x = numbers(9).float()
    functions = {n: ANY[n] for n in ("add", "div", "exp", "tanh", "clamp", "sum", "matmul")}
    kernel = Direct(together(functions), {"x": x[:1]})
    for name, got, wanted in zip(functions, kernel(x), together(functions)(x), strict=True):
        assert compare_tensors(got, wanted, Bounds(1e-6, 1e-7)).passed, name


def test_the_side_that_is_not_taken_does_not_leak():
    def function(x):
        return (torch.where(x > 0, torch.log(x), torch.where(x < 0, 1 / x, x)),)

    x = torch.tensor([[0.0, -0.0, -1.0, 2.0]], dtype=F)
    assert torch.equal(Direct(function, {"x": x})(x)[0], function(x)[0])


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: (torch.linalg.eigvalsh(x.reshape(-1, 2, 2)),), "linalg_eigh"),
        (lambda x: (torch.sort(x[:, [0] * 33]).values,), "along 33 numbers"),
        (lambda x: (torch.special.i0(x),), "i0"),
        (lambda x: (torch.topk(x, 2)[0],), "topk"),
        (lambda x: (torch.view_as_real(torch.complex(x, x)),), "complex"),
        (lambda x: (x[x > 0],), "by a mask"),
        (lambda x: (torch.round(x, decimals=1),), "decimals=1"),
        (lambda x: (torch.linalg.solve_ex(x.float().reshape(-1, 2, 2), x.float()[:, :2])[0],), "system in float32"),
        (lambda x: (x * float(x[0, 0]),), "read while the model runs"),
    ],
)
def test_what_has_no_row_is_named(function, name):
    with pytest.raises(UnsupportedError, match=r"(?s)no form in a kernel|no numbers of this type") as caught:
        Direct(function, {"x": numbers(1)})
    assert name in str(caught.value)


def test_variables_of_no_numbers():
    example = {"x": numbers(3), "h": torch.zeros(3, 0, dtype=torch.float32)}
    kernel = Direct(lambda x, h: (2 * x + h.sum(-1, keepdim=True), h, x[:, :0]), example)
    for rows in (1, 5, 32):
        x = numbers(rows)
        got = kernel(x, torch.zeros(rows, 0, dtype=torch.float32))
        assert torch.equal(got[0], 2 * x)
        assert [tuple(item.shape) for item in got[1:]] == [(rows, 0), (rows, 0)]


UNARY = [ANY[n] for n in ("neg", "abs", "exp", "sin", "tanh", "square", "clamp", "where", "relu", "floor", "atan")]
BINARY = [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, lambda a, b: a / (1 + b * b), torch.atan2]


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_graphs(data):
    """Whatever they are made of, and at every place of the batch."""
    plan = data.draw(
        st.lists(st.tuples(st.integers(0, 17), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=3, max_size=25)
    )

    def function(x):
        values = [x, x.flip(-1) + 0.5]
        for which, a, b in plan:
            item, other = values[a % len(values)], values[b % len(values)]
            values.append(UNARY[which](item) if which < len(UNARY) else BINARY[which - len(UNARY)](item, other))
        return tuple(values[2:])

    x = numbers(11) / 2
    got, wanted = Direct(function, {"x": x[:1]})(x), function(x)
    # Errors of functions are carried on by what follows.
    for g, w in zip(got, wanted, strict=True):
        assert compare_tensors(g, w, Bounds(1e-9, 1e-11)).passed


def test_derivatives_at_kinks():
    """A norm at zero, the exponent 0 at a base of 0, equal numbers, bounds of a clamp."""
    functions = {
        "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
        "powers": lambda x: x ** torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=F),
        "maximum": lambda x: torch.maximum(x, x.flip(-1)),
        "clamp": lambda x: x.clamp(0.0, 1.0),
        "abs": torch.abs,
        "relu": torch.relu,
    }
    for x in (torch.zeros(1, 4, dtype=F), torch.ones(1, 4, dtype=F)):
        got = Direct(together(functions), {"x": x}, jacobian=True)(x)
        for (name, function), value in zip(functions.items(), got, strict=True):
            wanted = torch.autograd.functional.jacobian(lambda row, f=function: f(row[None])[0], x[0])
            assert torch.equal(value[0], wanted), name


@pytest.mark.parametrize("name", ["min", "max"])
def test_derivatives_where_a_number_meets_a_bound_that_is_a_tensor(name):
    """By the number, and by the bound."""
    x = torch.tensor([[0.0, 1.0, 2.0, 2.0, 1.0, 0.0]], dtype=F)

    def function(x):
        return (torch.clamp(x[..., :3], **{name: x[..., 3:]}),)

    (got,) = Direct(function, {"x": x}, jacobian=True)(x)
    assert torch.equal(got[0], torch.autograd.functional.jacobian(lambda row: function(row[None])[0][0], x[0]))


@pytest.mark.parametrize("function", [torch.sigmoid, lambda x: x.amax(-1), lambda x: x.clamp(x - 1, x + 1)])
def test_what_forward_mode_has_no_rule_for(function):
    with pytest.raises(NoRuleError):
        Direct(lambda x: (function(x),), {"x": numbers(1)}, jacobian=True)


def test_single_precision_of_a_wider_number():
    x = torch.tensor([[0.1, 0.2]], dtype=torch.float32)
    functions = (
        lambda v: torch.tensor(0.1, dtype=F) < v,
        lambda v: torch.where(v > 0.15, torch.tensor(0.1, dtype=F), v),
    )
    kernel = Direct(lambda v: tuple(f(v) for f in functions), {"x": x})
    for got, wanted in zip(kernel(x), (f(x) for f in functions), strict=True):
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)


def test_derivatives_in_single_precision():
    x = torch.tensor([[0.5, 2.0, 3.0]], dtype=torch.float32)
    kernel = Direct(lambda v: (v + 0.5,), {"x": x}, jacobian=True)
    assert torch.equal(kernel(x)[0][0], torch.eye(3))


class Power(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(2.5, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**self.exponent


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_powers_with_an_exponent_that_is_set(dtype, tmp_path):
    """Some exponents make a product of a power: the same number, within 2 ULP, whatever is raised."""
    x = torch.rand(33, generator=torch.Generator().manual_seed(4), dtype=dtype) * 20 - 10
    x[:8] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-30, -1e30, 1.0], dtype=dtype)
    torchferry.export(Power(dtype), output=tmp_path / "power", inputs={"x": x[20:].abs()}, formats="c")
    kernel = torchferry.load(tmp_path / "power")
    for exponent in (2.5, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, -1.0, -2.0, 0.5):
        kernel.set_parameter("exponent", exponent)
        for base in (x, x[20:21]):
            (got,) = kernel.call("forward", {"x": base.numpy()}).values()
            wanted = (base ** torch.tensor(exponent, dtype=dtype)).numpy()
            assert numpy.array_equal(numpy.isnan(got), numpy.isnan(wanted)), exponent
            there = numpy.isfinite(wanted)
            assert numpy.array_equal(got[~there], wanted[~there], equal_nan=True), exponent
            apart = numpy.abs(got[there] - wanted[there]) / numpy.spacing(numpy.abs(wanted[there]))
            assert (apart <= 2).all(), (exponent, apart.max())
