"""Metadata from the author and from a file to whoever takes the archive: people, formats, hosts, results."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy
import onnx
import pytest
import torch
import xarray
from contracts import contract
from project import skip_gate

import torchferry
from exporter.archive import formats
from exporter.hosts.wrapping import TEMPLATES
from torchferry.cli.app import run

META = """
description = "Zweifeder nach Müller.\\nSecond line of 100 % */ honest text."
authors = ["Jürgen Müller <j@example.org>", "Ann Other"]
references = ["doi:10.1/2 \\"quoted\\" & <tagged>"]

[variables.force]
unit = "N"
description = "pull at the end"

[variables."*"]
quantity = "spring & damper"
"""

MODEL = """
import torch
import torchferry


class Spring(torch.nn.Module):
    signature = torchferry.Signature.of(
        {"x": torchferry.TensorSpec("x", unit="mm", description="from the signature")},
        {"force": torchferry.TensorSpec("force", description="replaced by the file")},
        metadata=torchferry.Metadata("replaced by the file", license="CC-BY-4.0"),
    )

    def __init__(self):
        super().__init__()
        self.k = torch.nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

    def forward(self, x):
        return self.k * x + x**3
"""


@pytest.fixture(scope="module")
def spring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metadata")
    (folder / "model.py").write_text(MODEL)
    (folder / "meta.toml").write_text(META)
    arguments = ["export", f"{folder / 'model.py'}:Spring", "-o", str(folder / "spring.pt"), "--format", "pt,onnx,c"]
    with skip_gate():
        assert run([*arguments, "--meta", str(folder / "meta.toml"), "--derivative", "force:x"]) == 0
    return folder / "spring.pt"


@pytest.mark.parametrize("format_name", ["pt", "onnx", "c"])
def test_every_format_has_them(spring, format_name):
    read = formats.FORMATS[format_name].read(formats.path_for_format(spring, format_name)).contract
    assert read.metadata == torchferry.Metadata(
        "Zweifeder nach Müller.\nSecond line of 100 % */ honest text.",
        ("Jürgen Müller <j@example.org>", "Ann Other"),
        "CC-BY-4.0",
        ('doi:10.1/2 "quoted" & <tagged>',),
    )
    notes = {s.name: (s.unit, s.note) for s in (*read.inputs, *read.outputs, *read.parameters)}
    expected = {
        "x": ("mm", "from the signature (spring & damper)"),
        "force": ("N", "pull at the end (spring & damper)"),
        "k": ("", "spring & damper"),
    }
    assert notes.items() <= expected.items()
    assert {"x", "force"} <= notes.keys()


def test_people_see_them(spring, capfd):
    assert run(["inspect", str(spring)]) == 0
    shown = capfd.readouterr().out
    for text in (
        "\nAuthor's words: Zweifeder nach Müller.\n              | Second line",
        "\n              | Author: Ann Other\n",
        "\n              | License: CC-BY-4.0\n",
        "k [] float64 (spring & damper)",
    ):
        assert text in shown
    assert "quantity" in shown
    assert run(["inspect", str(spring), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["contract"]["metadata"]["license"] == "CC-BY-4.0"


def test_the_header_has_them_as_comments(spring):
    header = next(p for p in spring.with_suffix("").glob("*.h") if "lanes" not in p.name).read_text()
    assert "   Zweifeder nach Muller.\n   Second line of 100 % * / honest text.\n" in header
    assert '   Reference: doi:10.1/2 "quoted" & <tagged>\n' in header
    assert "/* force, float64, N: pull at the end (spring & damper) */" in header
    # A block is none of its variables.
    assert "d_force___d_x = 1, /* d force / d x, float64, N/(mm) */" in header


def test_an_onnx_model_says_them(spring):
    model = onnx.load(spring.with_suffix(".onnx"))
    assert model.doc_string.startswith("Zweifeder nach Müller.\nSecond line")


@pytest.mark.parametrize("version", ["2.0", "3.0"])
def test_an_fmu_says_them(spring, tmp_path, version):
    folder = wrap(spring, "fmu", tmp_path, "--fmi", version)
    root = ElementTree.parse(folder / "modelDescription.xml").getroot()
    assert root.attrib["author"] == "Jürgen Müller <j@example.org>; Ann Other"
    assert root.attrib["license"] == "CC-BY-4.0"
    assert root.attrib["description"].endswith('honest text. Reference: doi:10.1/2 "quoted" & <tagged>')
    (force,) = (v for v in root.iter() if v.attrib.get("name") == "force")
    assert force.attrib["description"] == "pull at the end"
    assert [v.attrib["quantity"] for v in force.iter() if "quantity" in v.attrib] == ["spring & damper"]


def test_every_readme_of_a_host_ends_with_them(spring, tmp_path):
    for host in ("fmu", "r", "casadi"):
        readme = (wrap(spring, host, tmp_path / host) / "README.md").read_text()
        assert "Author: Jurgen Muller \\<j@example.org\\>\n" in readme, host
        assert "\n- force: N, pull at the end \\(spring \\& damper\\)\n" in readme, host


def test_a_readme_leaves_no_variable_out_and_makes_nothing_of_a_line():
    specs = [dataclasses.replace(torchferry.TensorSpec(name), description=note) for name, note in NOTES]
    told = contract(
        specs, [torchferry.TensorSpec("e", unit="J")], metadata=torchferry.Metadata("Bar\n===\n- a\n1. b\n# c")
    )
    text = TEMPLATES.get_template("metadata.md.jinja").render(contract=told)
    assert [line for line in text.splitlines() if line.startswith("- ")] == ["- E: modulus", "- T: K", "- e: J"]
    assert [line for line in text.splitlines() if line][:5] == ["Bar", "\\===", "\\- a", "1\\. b", "\\# c"]


NOTES = (("E", "modulus"), ("e", ""), ("T", "K"))


def wrap(path: Path, host: str, folder: Path, *options: str) -> Path:
    folder.mkdir(exist_ok=True)
    assert run(["wrap", host, str(path.with_suffix("")), "-o", str(folder / "host"), *options]) == 0
    return folder / "host"


def test_results_say_them(spring):
    results = torchferry.evaluate(
        spring, xarray.Dataset({"x": ("point", numpy.linspace(0.0, 1.0, 4), {"units": "mm"})})
    )
    assert results.force.attrs == {"units": "N", "description": "pull at the end (spring & damper)"}


def test_a_difference_is_named(spring, tmp_path, capfd):
    other = tmp_path / "other.pt"
    with skip_gate():
        torchferry.export(
            f"{spring.parent / 'model.py'}:Spring",
            output=other,
            derivatives="force:x",
            meta={"license": "MIT", "variables": {"k": {"description": "stiffness"}}},
        )
    capfd.readouterr()
    run(["diff", str(spring), str(other)])
    shown = capfd.readouterr().out
    assert "contract: metadata.license: 'MIT'; it was 'CC-BY-4.0'" in shown
    assert "stiffness" in shown


def test_composed_modules_keep_what_is_said_of_their_variables():
    def make(takes, gives):
        return torchferry.Part(torch.nn.Identity(), inputs=takes, outputs=gives)

    spec = torchferry.TensorSpec
    first = make({"x": spec("x", quantity="length")}, {"y": spec("y", description="middle")})
    second = make({"y": spec("y", description="not the giver's", quantity="force")}, {"z": spec("z", unit="N")})
    for modules in ([first, second], [second, first]):
        composed = torchferry.ComposedModel(modules, name="both", additional_outputs=["y"]).signature
        texts = {s.name: (s.unit, s.note) for s in (*composed.inputs, *composed.outputs)}
        assert texts == {"x": ("", "length"), "y": ("", "middle (force)"), "z": ("N", "")}


def test_what_is_not_in_the_contract_is_refused(spring, tmp_path, capfd):
    meta = tmp_path / "meta.toml"
    meta.write_text("[variables.forc]\nunit = 'N'")
    with skip_gate():
        code = run(
            ["export", f"{spring.parent / 'model.py'}:Spring", "-o", str(tmp_path / "s.pt"), "--meta", str(meta)]
        )
    assert code == 2
    shown = capfd.readouterr().err
    assert "did you mean 'force'" in shown
    assert f"{meta}: variables.forc" in shown
    assert not (tmp_path / "s.pt").exists()
