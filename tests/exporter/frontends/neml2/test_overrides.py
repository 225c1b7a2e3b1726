"""Overrides behind an input file, and files that register types of NEML2: as its own commands take them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import torchferry
from exporter.archive import pt_archive
from exporter.common.errors import SourceError, UsageError
from exporter.frontends.model_request import ModelRequest
from torchferry.cli.app import run

# As NEML2's benchmarks leave their sizes open.
OPEN = """
[Tensors]
  [strain]
    type = Python
    expr = 'SR2(0.01 * torch.linspace(0, 1, ${nbatch} * 6).reshape(${nbatch}, 6))'
  []
[]
[Drivers]
  [unit]
    type = ModelUnitTest
    model = 'elasticity'
    input_SR2_names = 'strain'
    input_SR2_values = 'strain'
    check_second_derivatives = false
  []
[]
[Models]
  [elasticity]
    type = LinearIsotropicElasticity
    coefficients = '${E} 0.3'
    coefficient_types = 'YOUNGS_MODULUS POISSONS_RATIO'
    strain = 'strain'
    stress = 'stress'
  []
[]
"""
SPRING = """
from neml2.factory import register_neml2_object
from neml2.models.common.LinearCombination import ScalarLinearCombination
from names_of_{name} import NAME

@register_neml2_object(NAME)
class {name}(ScalarLinearCombination):
    pass
"""
WITH_SPRING = """
[Models]
  [sum]
    type = {type}
    from = 'a b'
    to = 'c'
    weights = '1 2'
  []
[]
"""
BOTH = ("nbatch=4", "E=200")


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("open.i").write_text(OPEN)
    return Path("open.i")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "modulus"),
    [(BOTH, 200.0), ((*BOTH[:1], "E = 300"), 300.0), ((*BOTH, "Models/elasticity/coefficients:=400\t0.3"), 400.0)],
    ids=["left open", "spaces", "a value that is there"],
)
def test_a_file_is_exported_with_them(overrides, modulus, path):
    assert run(["export", str(path), *overrides, "-o", "m.pt"]) == 0
    contract = pt_archive.read(Path("m.pt")).contract
    assert all(override in contract.created_with.command for override in overrides)
    # Of the batch that the file's driver makes.
    assert contract.batch.ndim == 1
    strain = torch.eye(6, dtype=torch.float64)
    (stress,) = torchferry.load("m.pt")(strain)
    # Of uniaxial strain: E (1 - nu) / ((1 + nu) (1 - 2 nu)).
    assert stress[0, 0].item() == pytest.approx(modulus * 0.7 / (1.3 * 0.4))
    # An override of a value is that value in the file, to the bit.
    Path("whole.i").write_text(OPEN.replace("${nbatch}", "4").replace("${E}", f"{modulus:g}"))
    (result,) = torchferry.export("whole.i", output="whole.pt")
    assert result.contract.graph == contract.graph
    assert torch.equal(torchferry.load("whole.pt")(strain)[0], stress)


@pytest.mark.thorough
def test_every_command_takes_them(path, capfd):
    assert run(["show", str(path), *BOTH, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["name"] == "elasticity"
    assert run(["check", str(path), *BOTH]) == 0
    assert torchferry.check(str(path), overrides=BOTH)[0].name == "elasticity"
    (result,) = torchferry.export(str(path), overrides=BOTH, output="m.pt")
    assert result.report.passed
    # An override may stand behind an option, and begin as no option does.
    assert run(["export", str(path), "nbatch=2", "--model", "elasticity", "E=100", "-o", "n.pt"]) == 0


def test_an_override_of_other_files(path):
    """One list of overrides may serve a folder of files: what this one does not read is in its report."""
    (result,) = torchferry.export(str(path), overrides=(*BOTH, "device=cpu"), output="m.pt")
    (finding,) = [f for f in result.contract.findings if f.check == "overrides"]
    assert (finding.what, finding.severity) == ("the input file does not read 'device'", "sound")


def test_what_a_file_leaves_open_is_said(path, capfd):
    assert run(["export", str(path), "nbatch=4"]) == 2
    assert "give what the file leaves open behind it: E=VALUE" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (("nbach=4", "E=200"), SourceError, "there is no 'nbach'(.|\n)*did you mean 'nbatch'"),
        ((*BOTH, "Models/elastic/strain:=e"), SourceError, "did you mean 'Models/elasticity/strain'"),
        ((*BOTH, "Models/elasticity/strian:=e"), SourceError, "did you mean 'Models/elasticity/strain'"),
        ((*BOTH, "Models/nobody/strain=e"), SourceError, "there is no 'Models/nobody/strain'"),
        ((*BOTH, "Models/elasticity/nothing=e"), SourceError, "unknown option"),
        ((*BOTH, "Models/elasticity/strain=e"), UsageError, "has a value(.|\n)*Models/elasticity/strain:=e"),
        ((*BOTH, "nbatch=5"), UsageError, "'nbatch' is overridden twice(.|\n)*nbatch=4, nbatch=5"),
        ((*BOTH, "nonsense"), UsageError, "no override of an input file(.|\n)*nonsense"),
        ((*BOTH, "nbatch="), UsageError, "no override of an input file"),
        ((*BOTH, "!include /etc/passwd"), UsageError, "no override of an input file"),
        ((*BOTH, "[Models] [x] type=A [] []"), UsageError, "no override of an input file"),
        (("nbatch=four", "E=200"), SourceError, "four"),
        (("nbatch=4", "E='2"), SourceError, "does not parse"),
    ],
)
def test_bad_overrides(overrides, error, message, path):
    with pytest.raises(error, match=message):
        torchferry.export(str(path), overrides=overrides, output="m.pt")
    assert not Path("m.pt").exists()


def test_they_are_of_input_files():
    for source in ("examples/decay.py:make_model", torch.nn.Tanh()):
        with pytest.raises(UsageError, match="are for input files"):
            torchferry.export(source, overrides=["a=1"])
        with pytest.raises(UsageError, match="are for input files"):
            torchferry.check(source, extensions=["a.py"])


def write_extension(folder: Path, kind: str, name: str) -> Path:
    """A file that registers a type, and takes its name from a neighbour."""
    (folder / f"names_of_{name}.py").write_text(f"NAME = {kind!r}\n")
    (folder / f"{name}.py").write_text(SPRING.format(name=name))
    (folder / "model.i").write_text(WITH_SPRING.format(type=kind))
    return folder / f"{name}.py"


def test_a_type_of_the_users_own(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write_extension(tmp_path, "SpringOfTests", "springs_of_tests")
    assert run(["export", "model.i", "-o", "m.pt"]) == 2
    assert "--load FILE" in capfd.readouterr().err
    assert run(["export", "model.i", "--load", "springs_of_tests.py", "-o", "m.pt"]) == 0
    origin = pt_archive.read(Path("m.pt")).contract.source
    assert set(origin.files) == {"model.i", "names_of_springs_of_tests.py", "springs_of_tests.py"}
    # The file runs without it.
    assert "springs_of_tests" in origin.refused_imports
    assert run(["show", "model.i", "--load", "springs_of_tests"]) == 0


def test_a_package_and_an_edited_file(tmp_path, monkeypatch):
    """Modules of a package find each other; a file that was edited registers its types anew."""
    monkeypatch.chdir(tmp_path)
    path = write_extension(tmp_path, "PackedSpring", "packed")
    Path("pack_of_tests").mkdir()
    path.rename("pack_of_tests/packed.py")
    Path("names_of_packed.py").rename("pack_of_tests/names_of_packed.py")
    text = Path("pack_of_tests/packed.py").read_text()
    Path("pack_of_tests/packed.py").write_text(text.replace("from names_of", "from .names_of"))
    Path("pack_of_tests/__init__.py").write_text("from . import packed\n")
    (result,) = torchferry.export("model.i", extensions=["pack_of_tests"], output="m.pt")
    assert "pack_of_tests" in result.contract.source.refused_imports
    assert "pack_of_tests/packed.py" in result.contract.source.files
    path = write_extension(tmp_path, "EditedSpring", "edited_of_tests")
    for edit in ("", "# edited"):
        path.write_text(path.read_text() + edit)
        assert torchferry.export("model.i", extensions=[str(path)], output="m.pt")[0].report.passed


def test_bad_extensions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_extension(tmp_path, "ScalarLinearCombination", "taken_of_tests")
    registry = pytest.importorskip("neml2.factory")._registry
    was = registry["ScalarLinearCombination"]
    for end, message in (("", r"registers types that are there(.|\n)*ScalarLinearCombination"), ("1 / 0", "division")):
        path.write_text(path.read_text() + end)
        with pytest.raises(SourceError, match=message):
            torchferry.export("model.i", extensions=[str(path)], output="m.pt")
        # What was there is there again.
        assert registry["ScalarLinearCombination"] is was
    for name, text, message in (
        ("fails_of_tests.py", "raise ValueError('as planned')", "as planned"),
        ("nowhere.py", None, "there is no such file"),
        ("nowhere_of_tests", None, "does not exist"),
        (".", None, "this folder is no package"),
    ):
        if text is not None:
            Path(name).write_text(text)
        with pytest.raises(SourceError, match=message):
            torchferry.export("model.i", extensions=[name], output="m.pt")


def test_a_request_is_a_value():
    assert ModelRequest("a.i", ("b=1",)) == ModelRequest("a.i", ("b=1",)) != ModelRequest("a.i")
