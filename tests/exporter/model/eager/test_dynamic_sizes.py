"""Whole shapes with open sizes: in the signature, the draws, the file, and a C host."""

import ctypes

import pytest
import torch
from gate_specimens import load
from project import ROOT, mark_thorough_after, skip_checks
from torch import nn

import torchferry
from exporter.archive.tensor_spec import TensorSpec, fits_shape
from exporter.common.errors import CaptureError, UnsoundError, UnsupportedError, UsageError
from exporter.model.eager.input_sampling import InputSampler
from runtime_checks import native_build
from runtime_checks.runners.libtorch_runner import LibtorchRunner
from runtime_checks.verification import collect_report

F = torch.float64
PAIRS = torchferry.Signature.of({"x": ("n", 3), "y": ("m", 3), "w": ("n",)}, {"d": ("n", "m"), "energy": ()})


class Pairs(nn.Module):
    """Weighted distances between two clouds of points."""

    signature = PAIRS

    def forward(self, x, y, w):
        d = (x[:, None, :] - y).pow(2).sum(-1) * w[:, None]
        return d, d.mean()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("open") / "pairs.pt"
    with skip_checks():
        torchferry.export(Pairs(), output=path)
    return path


def make_inputs(n, m):
    generator = torch.Generator().manual_seed(n + m)
    return {
        name: torch.rand(shape, dtype=F, generator=generator)
        for name, shape in (("x", (n, 3)), ("y", (m, 3)), ("w", (n,)))
    }


@pytest.mark.parametrize("sizes", [(1, 1), (2, 9), (300, 4)])
def test_any_sizes(pairs, sizes):
    values = make_inputs(*sizes)
    loaded = torchferry.load(pairs)
    got = loaded.call("forward", values)
    for value, wanted in zip(got.values(), Pairs()(**values), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=0)
    assert loaded.contract.outputs[0].shape == ("n", "m")


def test_sizes_that_do_not_agree(pairs):
    values = make_inputs(4, 2) | {"w": torch.rand(5, dtype=F)}
    with pytest.raises(Exception, match=r"input 2 \(w\): got shape \[5\], expected \[n\]"):
        torchferry.load(pairs).call("forward", values)


def test_verified_natively(pairs):
    report = collect_report(pairs, runners=[LibtorchRunner()])
    assert report.passed
    assert {c.check for c in report.checks if c.verdict == "passed"} >= {"stored cases", "memory layouts"}


def test_the_c_interface(pairs):
    """Sizes by name, a call with memory of these sizes, and the texts where sizes do not agree."""
    library = ctypes.CDLL(str(native_build.build() / "lib" / "libtorchferry.so"))
    library.tf_last_error.restype = ctypes.c_char_p
    model = ctypes.c_void_p()
    assert library.tf_load(str(pairs).encode(), None, None, ctypes.byref(model)) == 0
    count, text = ctypes.c_int32(), ctypes.c_char_p()
    assert library.tf_size_count(model, ctypes.byref(count)) == 0
    names = []
    for i in range(count.value):
        assert library.tf_size_name(model, i, ctypes.byref(text)) == 0
        names.append((text.value or b"").decode())
    assert names == ["n", "m"]
    variable = Variable()
    assert library.tf_output(model, None, 0, ctypes.byref(variable)) == 0
    assert variable.shape[: variable.rank] == [-1, -2]

    def call(values, outputs):
        ins, outs = ((SOLVER.Tensor * len(side))(*map(described, side)) for side in (values, outputs))
        return library.tf_call(model, None, len(ins), ins, len(outs), outs)

    values = list(make_inputs(4, 2).values())
    outputs = [torch.zeros(4, 2, dtype=F), torch.zeros((), dtype=F)]
    assert call(values, outputs) == 0
    torch.testing.assert_close(outputs[0], Pairs()(*values)[0])
    assert call(values, [torch.zeros(4, 3, dtype=F), outputs[1]]) != 0
    assert b"[4, 2]" in library.tf_last_error(model)
    assert call([*values[:2], torch.rand(3, dtype=F)], outputs) != 0
    assert b"[n], n = 4, m = 2" in library.tf_last_error(model)
    library.tf_close(model)


SOLVER = load(ROOT / "examples" / "solvers" / "robertson_scipy.py")


class Variable(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("by", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


def described(value):
    shape = (ctypes.c_int64 * value.ndim)(*value.shape)
    return SOLVER.Tensor(value.data_ptr(), 1, value.ndim, shape, None, SOLVER.Device(1, 0))


class Baked(Pairs):
    def forward(self, x, y, w):
        d, _ = super().forward(x, y, w)
        return d, d.sum() / float(x.shape[0] * y.shape[0])


class Doubled(Pairs):
    def forward(self, x, y, w):
        d, energy = super().forward(x, y, w)
        return torch.cat([d, d]), energy


class Swapped(Pairs):
    """The sizes of the declared output in the other order."""

    signature = torchferry.Signature.of({"x": ("n", 3), "y": ("m", 3), "w": ("n",)}, {"d": ("m", "n"), "energy": ()})


def test_a_size_that_a_trace_would_keep(tmp_path):
    with pytest.raises(UnsoundError, match="open size is read into Python") as caught:
        torchferry.export(Baked(), output=tmp_path / "m.pt")
    assert "test_dynamic_sizes.py" in caught.value.details["where"]
    assert not (tmp_path / "m.pt").exists()


@pytest.mark.parametrize(
    ("model", "text"), [(Doubled, "neither fixed nor an input's"), (Swapped, "does not match its signature")]
)
def test_outputs_of_other_sizes(tmp_path, model, text):
    with pytest.raises(CaptureError, match=text):
        torchferry.export(model(), output=tmp_path / "m.pt")


def test_derivatives_have_no_shape(tmp_path):
    with pytest.raises(UsageError, match="open sizes"):
        torchferry.export(Pairs(), output=tmp_path / "m.pt", derivatives="all")
    with pytest.raises(UnsupportedError, match="a kernel is for tensors of fixed shape"):
        torchferry.export(Pairs(), output=tmp_path / "m", formats=["pt", "c"])


@pytest.mark.parametrize(
    ("inputs", "outputs", "ndim", "text"),
    [
        ({"x": ("n", 3)}, {"y": ("k",)}, None, "no input has"),
        ({"x": ("n", 3)}, {"y": ()}, 1, "open sizes and a batch"),
        ({"x": ("2n",)}, {}, None, "not an identifier"),
    ],
)
def test_signatures_that_say_nothing(inputs, outputs, ndim, text):
    with pytest.raises(UsageError, match=text):
        torchferry.Signature.of(inputs, outputs, batch_ndim=ndim)


def test_given_inputs_must_agree(tmp_path):
    with pytest.raises(UsageError, match="wrong shape") as caught:
        torchferry.export(Pairs(), output=tmp_path / "m.pt", inputs=make_inputs(4, 2) | {"w": torch.rand(5, dtype=F)})
    assert caught.value.details["expected"] == "[n], n = 4, m = 2"


def test_recorded_inputs_are_drawn_at_other_sizes():
    """Entries along an open size are picked for all variables alike."""
    rows = (torch.arange(4, dtype=F)[:, None].expand(4, 3), torch.arange(4, dtype=F))
    fixed = torchferry.Sampling("fixed")
    specs = (TensorSpec("x", ("n", 3), sampling=fixed), TensorSpec("w", ("n",), sampling=fixed))
    x, w = InputSampler(specs, 0, rows).draw(9, torch.Generator().manual_seed(0))
    assert x.shape == (9, 3)
    assert torch.equal(x[:, 0], w)
    assert len(w.unique()) > 1


def test_a_shape_learns_sizes():
    known = {}
    assert fits_shape((4, 3), ("n", 3), known)
    assert not fits_shape((5,), ("n",), known)
    assert known == {"n": 4}


TWO = torchferry.Signature.of({"x": ("n",), "y": ("m",)}, {"s": ()})


class Shorter(nn.Module):
    """As many numbers of both as the shorter one has."""

    signature = TWO

    def forward(self, x, y):
        k = min(x.shape[0], y.shape[0])
        return x[:k].sum() + y[:k].pow(2).sum()


class Ordered(nn.Module):
    signature = TWO

    def forward(self, x, y):
        if x.shape[0] < y.shape[0]:
            return x.sum() + y.sum()
        return x.sum() - y.sum()


class Emptied(nn.Module):
    signature = TWO

    def forward(self, x, y):
        return x.sum() if y.shape[0] == 0 else x.sum() + y.mean()


class Far(nn.Module):
    signature = TWO

    def forward(self, x, y):
        return x.sum() + (y.sum() if y.shape[0] < 300 else y.mean())


class ShorterGradient(Shorter):
    def forward(self, x, y):
        z = x.requires_grad_()
        return torch.autograd.grad(super().forward(z**2, y), z)[0].sum()


@pytest.mark.parametrize("model", mark_thorough_after(2, [Shorter, Ordered, Emptied, Far, ShorterGradient]))
def test_the_order_of_two_sizes_is_not_taken_for_granted(tmp_path, model):
    with pytest.raises(UnsoundError) as caught:
        torchferry.export(model(), output=tmp_path / "m.pt")
    assert caught.value.details["check"] == "batch size", caught.value


@pytest.mark.parametrize("declared", [{"s": ("m",)}, {}])
def test_one_more_than_a_size_is_no_other_size(tmp_path, declared):
    class Padded(nn.Module):
        signature = torchferry.Signature.of({"x": ("n",), "y": ("m",)}, declared)

        def forward(self, x, y):
            return torch.cat([x, x.new_zeros(1)]) + 0 * y.sum()

    with pytest.raises(CaptureError, match="size"):
        torchferry.export(Padded(), output=tmp_path / "m.pt")


def test_recorded_indices(tmp_path):
    """Edges that point at the last of many nodes are drawn where there are as many."""

    class Graph(nn.Module):
        signature = torchferry.Signature.of(
            {"x": ("n", 2), "edges": TensorSpec("edges", ("e", 2), "int64")}, {"energy": ()}
        )

        def forward(self, x, edges):
            return (x[edges[:, 0]] - x[edges[:, 1]]).pow(2).sum()

    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, 2, dtype=F, generator=generator)
    edges = torch.randint(0, 200, (300, 2), generator=generator)
    (exported,) = torchferry.export(Graph(), output=tmp_path / "m.pt", inputs={"x": x, "edges": edges})
    assert exported.contract.batch.limits


def test_modules_with_whole_shapes_are_not_composed():
    with pytest.raises(UsageError, match="whole shapes"):
        torchferry.ComposedModel([Shorter()], name="m")
