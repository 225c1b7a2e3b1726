"""Warmup and capture on planted faults: each caught by the check that is meant for it, with file and line."""

import inspect
import re
from typing import Any

import planted_models
import pytest
import torch
from project import PLANTED, export_unverified, load_module
from torch import nn

import torchferry
from exporter.capture import constants
from exporter.capture.value_reads import ValueReadRecorder
from exporter.common.errors import CaptureError, MismatchError, OperatorError, UnsoundError, WarmupError
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.soundness.checked_capture import derive_seed

F = torch.float64


@pytest.fixture(autouse=True)
def _default_dtype():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def export(name: str, tmp_path, **arguments):
    return export_unverified(f"{PLANTED}:{name}", tmp_path / "m.pt", **arguments)


def lines_of(name: str) -> range:
    source, start = inspect.getsourcelines(getattr(planted_models, name))
    return range(start, start + len(source))


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("branch_on_data", UnsoundError, r"bool\(\) reads data into Python that depend on x"),
        ("branch_by_torch_equal", UnsoundError, "torch.equal reads data"),
        ("branch_inside_torch", UnsoundError, r"bool\(\) reads data(.|\n)*raises ValueError"),
        ("iterates_over_the_batch", UnsoundError, "iteration gave 5 at batch 5 and 7 at batch 7"),
        ("numpy_inside", UnsoundError, r"\.numpy\(\) reads data"),
        ("branch_on_batch", UnsoundError, r"bool\(\) gave False at batch 5 and True at batch 1"),
        ("batch_read_through_python", UnsoundError, r"int\(\) gave 5 at batch 5 and 7 at batch 7"),
        ("loop_over_batch", UnsoundError, "batch size is read into Python"),
        ("length_of_batch", UnsoundError, r"len\(\) gave 5"),
        ("constant_of_wrong_dtype", UnsoundError, "default dtype"),
        ("dropout", UnsoundError, "random numbers"),
        ("hidden_counter", UnsoundError, "hidden state"),
        ("counts_in_a_buffer", UnsoundError, "writes to buffer 'count'"),
        ("remembers_the_first_batch", UnsoundError, "hidden state"),
        ("relu_in_place", UnsoundError, "writes to input 'x'"),
        ("changes_its_input", UnsoundError, "writes to input 'x'"),
        ("changes_its_parameter", UnsoundError, "writes to parameter 'scale'"),
        ("unknown_operator", OperatorError, "planted::twice"),
        ("raises_in_forward", WarmupError, "KeyError"),
    ],
)
def test_what_a_trace_would_lose_is_refused_with_its_line(name, error, message, tmp_path):
    with pytest.raises(error, match=message) as caught:
        export(name, tmp_path)
    where = re.search(r"planted_models\.py:(\d+)", str(caught.value))
    assert where is not None, str(caught.value)
    assert int(where[1]) in lines_of(name)
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_inputs_is_a_function_of_its_parameters(tmp_path):
    export("without_inputs", tmp_path)
    module = load_module(tmp_path / "m.pt")
    assert module()[0].tolist() == [3.0, 6.0]
    with torch.no_grad():
        dict(module.named_parameters())["scale"].fill_(2.0)
    assert module()[0].tolist() == [6.0, 6.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("parameter_in_a_list", r"cannot be traced(.|\n)*ModuleList"),
        ("flag_over_the_batch", "'output_1'(.|\n)*does not carry the batch(.|\n)*computed from the inputs"),
        ("other_shape_than_declared", r"does not match its signature(.|\n)*\[2\](.|\n)*\[3\]"),
        ("reserved_name", "'layers.class' cannot be used as a name"),
        ("left_in_train_mode", "train mode(.|\n)*drop"),
        ("not_a_number", "NaN or infinity"),
        ("no_tensor", "not a tensor"),
        ("wrong_count", "does not return the outputs that it declares"),
        ("sum_over_batch", "does not carry the batch"),
    ],
)
def test_eager_mode_itself_is_held_to_account(name, message, tmp_path):
    with pytest.raises(CaptureError, match=message):
        export(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "sound",
        "fixed_dimension_read",
        "exact_constant_of_other_dtype",
        "shared_layer",
        "integers",
        "layer_called_many_times",
        "writes_to_its_own_constant",
        "size_as_a_constant",
        "item",
        "parameter_as_data",
    ],
)
def test_sound_models_pass(name, tmp_path):
    opened = export(name, tmp_path)
    module = load_module(opened.path)
    for case in opened.cases():
        for _ in range(2):
            for got, wanted in zip(module(*case.inputs), case.outputs, strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12 * float(wanted.abs().max()))


def test_parameters_keep_their_names_and_work(tmp_path):
    opened = export("shared_layer", tmp_path)
    module = load_module(opened.path)
    assert [p.name for p in opened.contract.parameters] == ["scale", "first.weight", "first.bias"]
    parameters = dict(module.named_parameters())
    # The outputs do not depend on `scale`; it is a parameter of the model all the same.
    assert set(parameters) == {"scale", "first.weight", "first.bias"}
    model = planted_models.shared_layer()
    x = torch.rand(4, 3, dtype=F)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.rand_like(value))
            parameters[name].copy_(value)
    torch.testing.assert_close(module(x)[0], model(x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", ["item", "parameter_as_data"])
def test_a_parameter_that_is_a_constant_of_the_trace_is_not_offered_to_be_set(name, tmp_path):
    contract = export(name, tmp_path).contract
    assert contract.parameters == ()
    assert "parameter 'scale' is a constant in the file" in "".join(f.what for f in contract.findings)


def test_constants_move_with_the_archive(tmp_path):
    opened = export("double_constants", tmp_path)
    module = load_module(opened.path)
    assert len(list(module.buffers())) == 2
    x = torch.rand(4, 3)
    assert module(x.to(F))[0].dtype == F
    assert module.to(torch.float32)(x)[0].dtype == torch.float32


def test_what_forward_makes_follows_the_inputs(tmp_path):
    opened = export("makes_tensors", tmp_path)
    module = load_module(opened.path)
    assert module.to(torch.float32)(torch.rand(2, 3))[0].dtype == torch.float32
    assert 'value="cpu"' not in opened.graph


def test_another_device_without_one(tmp_path):
    """meta is a device like any other: a constant that stayed on the CPU would be refused there."""
    opened = export("double_constants", tmp_path)
    module = torch.jit.load(str(opened.path), map_location="meta")
    x = torch.rand(2, 3, dtype=F, device="meta")
    assert module(x)[0].device.type == "meta"
    result = torch.jit.load(str(export("makes_tensors", tmp_path).path), map_location="meta")
    assert result(x)[0].device.type == "meta"


def test_what_is_made_without_an_input_moves_with_the_archive(tmp_path):
    opened = export("MakesTensorsAlone", tmp_path)
    module = torch.jit.load(str(opened.path), map_location="meta")
    assert module(torch.rand(2, 3, dtype=F, device="meta"))[0].device.type == "meta"
    x = torch.rand(2, 3, dtype=F)
    assert torch.equal(load_module(opened.path)(x)[0], x @ (3 * torch.eye(3, dtype=F)))
    single = load_module(opened.path).to(torch.float32)(x.float())[0]
    assert torch.equal(single, x.float() @ (3 * torch.eye(3)))


@pytest.mark.parametrize(
    ("name", "stand_in"), [("find_boxes_without_device", lambda module: {}), ("_insert_tensor_read", lambda *_: None)]
)
def test_what_is_made_without_an_input_and_stays_is_refused(tmp_path, monkeypatch, name, stand_in):
    monkeypatch.setattr(constants, name, stand_in)
    with pytest.raises(UnsoundError, match="fixed in the graph and does not move") as raised:
        export("MakesTensorsAlone", tmp_path)
    assert "planted_models.py" in raised.value.details["where"]


def test_a_constant_that_stays_on_the_cpu_is_found_without_a_gpu(tmp_path):
    with pytest.raises(UnsoundError, match="a device is fixed in the code") as raised:
        export("StaysOnTheCpu", tmp_path)
    assert "planted_models.py" in raised.value.details["where"]
    assert not list(tmp_path.iterdir())


def test_strided_inputs_of_a_model_that_views_them(tmp_path):
    opened = export("views_its_input", tmp_path)
    assert [f.check for f in opened.contract.findings] == ["memory layout", "unbatched inputs"]
    x = torch.rand(3, 2, 4, dtype=F).permute(2, 1, 0)
    torch.testing.assert_close(load_module(opened.path)(x)[0], 2 * x.reshape(4, 6))


def test_parameters_in_the_file_ask_for_no_gradient(tmp_path):
    module = load_module(export("sound", tmp_path).path)
    assert not any(p.requires_grad for p in module.parameters())
    assert not module(torch.rand(1, 3, dtype=F))[0].requires_grad


def test_mixed_rows_are_said_to_be_mixed(tmp_path):
    with pytest.raises(MismatchError, match=r"rows of a batch(.|\n)*batch_ndim=0"):
        torchferry.export(f"{PLANTED}:rows_of_one_batch_mixed", output=tmp_path / "m.pt")
    assert list(tmp_path.iterdir()) == []


def test_default_dtype_of_the_loader_does_not_matter(tmp_path):
    opened = export("default_dtype_at_import", tmp_path)
    torch.set_default_dtype(torch.float32)
    module = load_module(opened.path)
    case = opened.cases()[0]
    torch.testing.assert_close(module(*case.inputs), case.outputs, rtol=1e-14, atol=0)


def test_a_layer_that_is_called_many_times_is_inlined(tmp_path):
    module = load_module(export("layer_called_many_times", tmp_path).path)
    layer = dict(module.named_modules())["layer"]
    assert list(layer._c._method_names()) == []  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    x = torch.rand(2, 3, dtype=F)
    before = module(x)[0].clone()
    with torch.no_grad():
        dict(module.named_parameters())["layer.bias"].add_(1.0)
    assert not torch.equal(module(x)[0], before)


def test_an_output_that_depends_on_no_input_gets_the_batch(tmp_path):
    opened = export("constant_output", tmp_path)
    module = load_module(opened.path)
    for batch in ((), (4,), (2, 3), (0,)):
        assert module(torch.rand(*batch, 3, dtype=F))[1].shape == batch


def test_fixed_shapes(tmp_path):
    opened = export("fixed_shapes", tmp_path)
    assert opened.contract.batch.ndim == 0
    module = load_module(opened.path)
    x = torch.rand(4, 3, dtype=F)
    torch.testing.assert_close(module(x)[0], x - x.mean(0))
    with pytest.raises(torch.jit.Error, match=r"expected \[4, 3\]"):
        module(x[:2])


def test_integer_inputs(tmp_path):
    x = torch.tensor([1, 5, 9])
    opened = export("integers", tmp_path, x=x)
    assert opened.contract.inputs[0].dtype == "int64"
    assert load_module(opened.path)(x)[0].tolist() == planted_models.integers()(x).tolist()


def test_traced_inputs_stay_out_of_the_file(tmp_path):
    opened = export("sound", tmp_path)
    assert not [name for name in opened.records if "traced_inputs" in name]


def test_gradient_flags_and_modes_are_put_back(tmp_path):
    model = planted_models.sound()
    source = resolve.load(ModelRequest(f"{PLANTED}:sound"), "sound", None)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    from exporter.model.eager.warmup import run_first, warm_up

    warm_up(run_first(source, 0), 0)
    assert all(p.requires_grad for p in source.parameter_module.parameters())
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (dtype, threads)
    assert model.scale.requires_grad


def test_stages_draw_from_seeds_of_their_own():
    seeds = {derive_seed(s, stage) for s in (0, 1) for stage in ("warmup", "capture", "fresh cases")}
    assert len(seeds) == 6


def test_the_same_seed_gives_the_same_cases(tmp_path):
    first = export("sound", tmp_path).read_case_bytes()
    assert export("sound", tmp_path).read_case_bytes() == first


def test_recorder_sees_data_reads_only_in_eager_mode():
    with ValueReadRecorder() as recorder:
        x = torch.ones(3)
        _ = [x.shape[0], len(x), float(x[0]), bool(x[1] > 0), x.tolist()]
    assert [r.kind for r in recorder.reads] == ["float()", "bool()", ".tolist()"]
    assert all(r.where.startswith(__file__) for r in recorder.reads)


class Repeats(torch.nn.Module):
    """The same twice, as a chain rule writes it; and twice what is not the same, after a write in between."""

    def forward(self, x):
        first = torch.sin(x) * torch.tensor(0.1, dtype=x.dtype)
        second = torch.sin(x) * torch.tensor(0.1, dtype=x.dtype)
        y = torch.cos(x)
        once = y.exp()
        y.add_(1.0)
        return {"same": first + second, "other": once + y.exp()}


def test_what_is_computed_twice_is_saved_once(tmp_path):
    x = torch.linspace(0, 1, 6, dtype=F).reshape(3, 2)
    torchferry.export(Repeats(), inputs={"x": x}, output=tmp_path / "m.pt")
    module = load_module(tmp_path / "m.pt")
    kinds = [node.kind() for node in module._c._get_method("forward_batch").graph.nodes()]
    assert [kinds.count(f"aten::{name}") for name in ("sin", "cos", "exp")] == [1, 1, 2]
    for got, wanted in zip(module(x), Repeats()(x).values(), strict=True):
        assert torch.equal(got, wanted)


COUNTED = torch.tensor([1.0, 2.0, 3.0])


class Writes(torch.nn.Module):
    """Reads a constant, makes zeros of an open dtype, and writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(f"{constants.BUFFER}0", COUNTED.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.add_(COUNTED)
        return y + torch.zeros(3)


@pytest.mark.parametrize("change", ["lift_constants", "pin_dtypes"])
def test_where_a_graph_is_written_to_stays_in_it(change):
    """At a node that is destroyed, it would end the process in a later pass of torch's."""
    traced: Any = torch.jit.trace(Writes(), torch.ones(3), check_trace=False)
    before = str(traced.graph)
    getattr(constants, change)(traced)
    assert str(traced.graph) != before
    assert traced.graph.insertPoint().kind() == "prim::Return"


def test_ranges_for_a_profiler_are_left_out(tmp_path):
    class Marked(nn.Module):
        def forward(self, x):
            with torch.profiler.record_function("law"):
                return {"y": x * 2}

    x = torch.rand(3, 2, dtype=torch.float64)
    (exported,) = torchferry.export(Marked(), inputs={"x": x}, output=tmp_path / "m.pt")
    assert not any(name.startswith("profiler::") for name in exported.contract.operators)
    assert torch.equal(torchferry.load(exported.path).call("forward", {"x": x})["y"], 2 * x)


def test_outputs_that_are_missing_at_size_0_are_a_limit(tmp_path):
    """torch's attention has no weights for no rows."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)

        def forward(self, x):
            return self.attention(x, x, x)

    x = torch.rand(3, 5, 8, dtype=torch.float64)
    (exported,) = torchferry.export(Attention(), inputs={"x": x}, output=tmp_path / "m.pt")
    assert len(exported.contract.outputs) == 2
    assert 0 not in exported.contract.batch.sizes
    assert exported.contract.batch.limits.startswith("batch 0: other outputs")
