import dataclasses
import sys

import pytest
import torch
from decay_input import format_decay
from project import RATES, ROOT, export_unverified, load_module
from typer.testing import CliRunner

import torchferry
from exporter.common.errors import CaptureError, MissingRuntimeError, SourceError, UnsupportedError, UsageError
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.frontends.neml2 import implicit_models
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.recorded_history import record_load_history
from exporter.model.eager.warmup import run_first, warm_up
from runtime_checks import load_history as histories
from torchferry.cli.app import app
from torchferry.soundness_check import show

pytestmark = pytest.mark.usefixtures("neml2")
F = torch.float64


def sources():
    from exporter.frontends.neml2 import input_file

    return input_file


def at(path: object) -> ModelRequest:
    return ModelRequest(str(path))


def write(tmp_path, text):
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "model.i"
    path.write_text(text)
    return path


def block(models: str, more: str = "") -> str:
    return f"[Models]\n{models}\n[]\n{more}"


RATE = "[rate]\ntype = ScalarVariableRate\nvariable = 'a'\n[]"
UNIT = """
[Drivers]
  [unit]
    type = ModelUnitTest
    model = '{model}'
    input_{kind}_names = '{names}'
    input_{kind}_values = '{values}'
  []
[]
"""
IMPLICIT = format_decay(1.0, 5)


def test_listing_shows_names_shapes_and_types():
    (listing,) = show(at(RATES), models=["eq"])
    assert listing.kind == "ComposedModel"
    assert [s.name for s in listing.inputs] == ["a", "a~1", "t", "t~1", "b", "b~1", "c", "c~1"]
    assert listing.outputs[0].describe() == "a_rate: Scalar[] float64"
    assert [x.name for x in show(at(RATES))] == ["rate_a", "rate_b", "rate_c", "eq"]


def test_rates_are_rates(eq_path):
    a, a1, t, t1, *rest = (torch.rand(7, dtype=F) for _ in range(8))
    outputs = load_module(eq_path)(a, a1, t, t1, *rest)
    torch.testing.assert_close(outputs[0], (a - a1) / (t - t1), rtol=1e-15, atol=0)


def test_slash_names_and_renames(tmp_path, without_verification):
    from exporter.archive import pt_archive

    torchferry.export(
        str(ROOT / "examples" / "rates" / "slash.i"),
        models=["eq"],
        output=tmp_path / "eq.pt",
        renames=["state/*~1:old_state/*", "forces/*~1:old_forces/*"],
    )
    contract = pt_archive.read(tmp_path / "eq.pt").contract
    assert [s.name for s in contract.inputs] == [
        "state/a",
        "old_state/a",
        "forces/t",
        "old_forces/t",
        "state/b",
        "old_state/b",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello world, this is not HIT", r"does not parse(.|\n)*model\.i:1:"),
        ("[Models]\n  [a]\n    type = X\n  []\n", r"does not parse(.|\n)*model\.i:\d"),
        ("", "no models"),
        ("[Tensors]\n[]\n", "no models"),
        (block("[a]\ntype = NoSuchType\n[]"), "cannot build model 'a'(.|\n)*NoSuchType"),
        (block("[a]\ntype = ScalarVariableRate\nvariabel = 'a'\n[]"), "cannot build model 'a'"),
    ],
)
def test_input_files_that_do_not_work(tmp_path, text, message):
    with pytest.raises(SourceError, match=message):
        sources().load(at(write(tmp_path, text)), "a", None)


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(SourceError, match="no file"):
        sources().list_model_names(at(tmp_path / "none.i"))
    with pytest.raises(SourceError, match="a folder"):
        sources().list_model_names(at(tmp_path))


def test_a_model_that_is_not_there():
    with pytest.raises(SourceError, match="did you mean 'rate_a'"):
        sources().load(at(RATES), "rate_aa", None)


def test_several_models_and_none_named():
    with pytest.raises(UsageError, match=r"several models(.|\n)*rate_a, rate_b, rate_c, eq"):
        resolve.choose_models(ModelRequest(str(RATES)), [])


def test_neml2_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "neml2", None)
    with pytest.raises(MissingRuntimeError, match=r'pip install "torchferry\[neml2\]"'):
        sources().list_model_names(at(RATES))


def test_a_unit_test_driver_gives_the_warmup_inputs(tmp_path):
    text = block(RATE, UNIT.format(model="rate", kind="Scalar", names="a a~1 t t~1", values="3 1 5 4"))
    source = sources().load(at(write(tmp_path, text)), "rate", None)
    assert [t.tolist() for t in source.calls[0]] == [[3.0], [1.0], [5.0], [4.0]]
    assert source.inputs[0].type == "Scalar"


def test_a_transient_driver_is_recorded_call_by_call(tmp_path):
    times = "[times]\ntype = Python\nexpr = 'Scalar(torch.linspace(0.0, 1.0, 6).reshape(6, 1))'\n[]"
    values = "[as]\ntype = Python\nexpr = 'Scalar(torch.linspace(1.0, 2.0, 6).reshape(6, 1) ** 2)'\n[]"
    values = values.replace("[as]", "[history]")
    driver = """
    [Drivers]
      [driver]
        type = TransientDriver
        model = 'rate'
        prescribed_time = 'times'
        prescribed_Scalar_names = 'a'
        prescribed_Scalar_values = 'history'
      []
    []
    """
    text = block(RATE, f"[Tensors]\n{times}\n{values}\n[]\n{driver}")
    source = sources().load(at(write(tmp_path, text)), "rate", None)
    assert len(source.calls) == 5
    assert [c[0].shape for c in source.calls] == [(1,)] * 5
    a = torch.linspace(1.0, 2.0, 6, dtype=F) ** 2
    torch.testing.assert_close(torch.cat([c[0] for c in source.calls]), a[1:])
    torch.testing.assert_close(torch.cat([c[1] for c in source.calls]), a[:-1])


def test_parts_are_recorded_inside_the_driven_model(tmp_path):
    models = RATE + "\n[whole]\ntype = ComposedModel\nmodels = 'rate'\n[]"
    text = block(models, UNIT.format(model="whole", kind="Scalar", names="a a~1 t t~1", values="3 1 5 4"))
    source = sources().load(at(write(tmp_path, text)), "rate", None)
    assert [t.item() for t in source.calls[0]] == [3.0, 1.0, 5.0, 4.0]


def test_sub_batch_dimensions_belong_to_the_variable(tmp_path):
    tensors = (
        "[Tensors]\n[r]\ntype = Python\nexpr = 'Scalar(torch.linspace(-1.0, 1.0, 12), sub_batch_ndim=1)'\n[]\n[]\n"
    )
    unit = UNIT.format(model="model", kind="Scalar", names="slip_rates", values="r")
    path = write(tmp_path, block("[model]\ntype = SumSlipRates\n[]", tensors + unit))
    opened = export_unverified(str(path), tmp_path / "m.pt")
    assert opened.contract.inputs[0].shape == (12,)
    x = torch.rand(2, 3, 12, dtype=F)
    torch.testing.assert_close(load_module(opened.path)(x)[0], x.abs().sum(-1))


def test_a_sum_over_the_batch_makes_the_dimension_the_variables_own(tmp_path):
    tensors = "[Tensors]\n[S]\ntype = Python\nexpr = 'SR2(torch.arange(72.0).reshape(4, 3, 6))'\n[]\n[]\n"
    unit = UNIT.format(model="model", kind="SR2", names="S", values="S")
    path = write(
        tmp_path, block("[model]\ntype = SR2DynamicSum\nfrom = 'S'\nto = 'total'\ndim = -1\n[]", tensors + unit)
    )
    opened = export_unverified(str(path), tmp_path / "m.pt")
    assert opened.contract.inputs[0].shape == (3, 6)
    assert opened.contract.outputs[0].shape == (6,)
    assert [f.check for f in opened.contract.findings][:1] == ["layout"]


@pytest.mark.parametrize("is_driven", [True, False])
def test_batched_parameters_are_by_element_if_a_driver_has_the_batch(tmp_path, is_driven):
    tensors = "[Tensors]\n[p]\ntype = Python\nexpr = 'Scalar([0.7, 0.3])'\n[]\n[]\n"
    unit = UNIT.format(model="model", kind="Scalar", names="x", values="0.5")
    model = "[model]\ntype = ScalarLinearCombination\nfrom = 'x'\nweights = 'p'\nto = 'y'\n[]"
    text = block(model, tensors + unit * is_driven)
    try:
        source = sources().load(at(write(tmp_path, text)), "model", None)
    except SourceError:
        pytest.skip("this neml2 takes no batched weights")
    assert source.inputs[0].shape == (() if is_driven else (2,))
    assert [s.name for s in source.inputs] == (["x", "weight_0"] if is_driven else ["x"])


def test_opaque_pow_is_rewritten(tmp_path):
    """The slip rule calls neml2::opaque_pow, which exists only where neml2 is imported."""
    tensors = (
        "[Tensors]\n[r]\ntype = Python\nexpr = 'Scalar(torch.linspace(-1.0, 1.0, 12), sub_batch_ndim=1)'\n[]\n"
        "[s]\ntype = Python\nexpr = 'Scalar(torch.linspace(1.0, 2.0, 12), sub_batch_ndim=1)'\n[]\n[]\n"
    )
    unit = UNIT.format(model="model", kind="Scalar", names="resolved_shears slip_strengths", values="r s")
    path = write(tmp_path, block("[model]\ntype = PowerLawSlipRule\nn = 4.1\ngamma0 = 1.2\n[]", tensors + unit))
    opened = export_unverified(str(path), tmp_path / "m.pt")
    assert "aten::pow" in opened.contract.operators
    assert all(o.startswith(("aten::", "prim::")) for o in opened.contract.operators)


def said_of_the_solver(source):
    (result,) = (f for f in source.findings if f.check == "solver")
    return result


def test_implicit_models(tmp_path, monkeypatch):
    """With neml2's own solver where that runs, and without it."""
    path = write(tmp_path, IMPLICIT)
    result = said_of_the_solver(sources().load(at(path), "model", None))
    assert (result.severity == "sound") == sources().check_neml2_abi()
    monkeypatch.setattr(sources(), "check_neml2_abi", lambda: False)
    result = said_of_the_solver(sources().load(at(path), "model", None))
    assert result.severity == "not run"
    assert "not built for torch" in result.reason
    opened = export_unverified(str(path), tmp_path / "m.pt", "model")
    names = [s.name for s in opened.contract.inputs]
    values = {"x~1": torch.rand(20, dtype=F), "t": torch.rand(20, dtype=F) + 1, "t~1": torch.ones(20, dtype=F)}
    values["x"] = values["x~1"]
    (x,) = load_module(opened.path)(*(values[n] for n in names))
    torch.testing.assert_close(x, values["x~1"] / (1 + values["t"] - values["t~1"]), rtol=1e-12, atol=0)
    assert [s.path for s in opened.contract.solvers] == ["newton"]


def test_a_solver_that_finds_something_else(tmp_path, monkeypatch):
    """The control of what holds the solution against the library's: its model is another one."""
    path = write(tmp_path, IMPLICIT)
    other = write(tmp_path / "other", IMPLICIT.replace("weights = '-1'", "weights = '-1.000001'"))
    built = sources()._build_model
    source = sources().load(at(path), "model", None)
    library = sources().Neml2Module(built(at(other), "model")[1].requires_grad_(False), {}).eval()
    if not sources().check_neml2_abi():
        implicit_models.install_solvers(library.model)
    with eager_context(source), pytest.raises(CaptureError, match="not solved as neml2 solves it"):
        implicit_models.compare_with_library(source, library.model, library, run_first(source, 0).inputs)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("type = Newton", "type = Newton\nmax_its = 1", UsageError, "max_its"),
        ("type = Newton", "type = Newton\nrel_tol = 2.0", UsageError, "rel_tol"),
        ("solver = 'newton'", "solver = 'newton'\nmax_substepping_level = 2", UnsupportedError, "no substeps"),
        ("unknowns = 'x'", "unknowns = 'y'", SourceError, "y"),
    ],
)
def test_implicit_models_that_cannot_be(tmp_path, old, new, error, message):
    with pytest.raises(error) as caught:
        sources().load(at(write(tmp_path, IMPLICIT.replace(old, new))), "model", None)
    assert message in str(caught.value)


def test_the_parts_of_an_implicit_model_are_exported(tmp_path):
    opened = export_unverified(str(write(tmp_path, IMPLICIT)), tmp_path / "m.pt", "residual")
    assert [s.name for s in opened.contract.outputs] == ["x_residual"]
    assert opened.contract.inputs[0].sampling.kind == "recorded"


def test_parameters_are_settable_by_their_dotted_name(tmp_path):
    models = (
        "[elasticity]\ntype = LinearIsotropicElasticity\ncoefficients = '100 0.3'\n"
        "coefficient_types = 'YOUNGS_MODULUS POISSONS_RATIO'\n[]\n"
        "[whole]\ntype = ComposedModel\nmodels = 'elasticity'\n[]"
    )
    opened = export_unverified(str(write(tmp_path, block(models))), tmp_path / "m.pt", "whole")
    assert [p.name for p in opened.contract.parameters] == ["elasticity.E", "elasticity.nu"]
    module = load_module(opened.path)
    strain = torch.rand(3, 6, dtype=F)
    before = module(strain)[0]
    with torch.no_grad():
        dict(module.named_parameters())["elasticity.E"].mul_(2)
    torch.testing.assert_close(module(strain)[0], 2 * before)


def test_given_inputs_for_a_neml2_model():
    arguments = {n: [1.0, 2.0] for n in ("a", "a~1", "t", "b", "b~1", "c", "c~1")} | {"t~1": [0.0, 0.5]}
    source = sources().load(at(RATES), "eq", arguments)
    assert warm_up(run_first(source, 0), 0).inputs[3].tolist() == [0.0, 0.5]
    with pytest.raises(UsageError, match="missing: 't~1'"):
        sources().load(at(RATES), "eq", {k: v for k, v in arguments.items() if k != "t~1"})
    with pytest.raises(UsageError, match="wrong dtype"):
        sources().load(at(RATES), "eq", arguments | {"a": torch.tensor([1, 2])})


def test_the_history_of_a_driver(tmp_path):
    """Every element decays in its own time; an archive follows."""
    path = write(tmp_path, IMPLICIT)
    message = CliRunner().invoke(
        app, ["history", str(path), "--model", "model", "--batch", "3", "-o", str(tmp_path / "h.pt")]
    )
    assert message.exit_code == 0, message.output
    assert "4 steps of t" in message.output
    history = torch.load(tmp_path / "h.pt", weights_only=True)
    t = history["prescribed/t"]
    assert t[:, 0].tolist() == [0.25, 0.5, 0.75, 1.0]
    assert len(set(t[-1].tolist())) == 3
    factors = 1 + torch.cat([t[:1] - history["initial/t~1"], t.diff(dim=0)])
    torch.testing.assert_close(history["expected/x"], history["initial/x~1"] / factors.cumprod(0), rtol=1e-10, atol=0)
    opened = export_unverified(str(path), tmp_path / "m.pt", "model")
    history = histories.read(tmp_path / "h.pt", opened.contract)
    histories.check_history(opened.contract, history, histories.run(torchferry.load(opened.path), history))


def test_calls_that_are_no_history(tmp_path):
    source = sources().load(at(write(tmp_path, IMPLICIT)), "model", None)
    with pytest.raises(UsageError, match=r"not one history(.|\n)*step 2(.|\n)*'t~1'"):
        record_load_history(dataclasses.replace(source, calls=(*source.calls[:2], *source.calls[:2])))
    with pytest.raises(UsageError, match="1 recorded steps"):
        record_load_history(dataclasses.replace(source, calls=source.calls[:1]))
