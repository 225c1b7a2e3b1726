"""Names of a model in the languages of hosts: no text of a contract stands there as code, no name is taken twice."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt
from torch import nn

import torchferry
from exporter.common.errors import CaptureError
from exporter.hosts.registry import wrap_kernel
from exporter.hosts.wrapping import name_for_languages, name_function

F = torch.float64
# Variables, whose names may have any character that shows.
NAMES = (
    "a*/b",
    '"); x("',
    "<script>",
    "$(touch it_ran)",
    "${X} %s%n @X@",
    "back\\",
    "`#{1}`",
    "??/",
    "\u00e9",
    "\u6f22",
)


def export(folder: Path, name: str, variables: tuple[str, ...], parameters: tuple[str, ...] = ("k",)) -> Path:
    """The kernel of a model of this name, whose inputs and outputs have these names, each times the parameters."""

    class Model(nn.Module):
        signature = torchferry.Signature.of(dict.fromkeys(variables, (3,)), {f"{v} out": (3,) for v in variables})

        def __init__(self) -> None:
            super().__init__()
            for i, parameter in enumerate(parameters):
                self.register_parameter(parameter, nn.Parameter(torch.tensor(2.0 + i, dtype=F)))

        def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            factor = torch.stack([*self.parameters()]).prod()
            return tuple(value * factor for value in values)

    Model.__name__ = name
    (exported,) = torchferry.export(Model(), output=folder / "kernel", formats="c")
    assert exported.report.passed
    return exported.path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """Also the names of what the files have themselves."""
    return export(
        tmp_path_factory.mktemp("hostile"), "call", NAMES, ("OK", "PARAMETERS", "FORWARD_INPUTS", "ERROR_MEMORY")
    )


def compile_c(path: Path, *options: str) -> str:
    command = ["cc", "-std=c99", "-Wall", "-Werror", "-fsyntax-only", *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_c_of_a_host(hostile, tmp_path):
    wrap_kernel("casadi", hostile, tmp_path / "w", None)
    source = tmp_path / "w" / "call_casadi.c"
    assert compile_c(source, "-Wno-unused-function") == ""
    # The control: unescaped, a name ends its comment.
    source.write_text(source.read_text().replace("a* /b", "a*/b"))
    assert compile_c(source)


def test_python_of_a_host(hostile, tmp_path):
    """Names are in comments and texts: the tree is that of a model with plain ones."""
    trees = []
    for name, kernel in (("hostile", hostile), ("plain", export(tmp_path, "call", tuple("abcdefghij"), tuple("klmn")))):
        wrap_kernel("torch", kernel, tmp_path / name, None)
        (source,) = (path for path in (tmp_path / name).glob("*.py") if not path.name.startswith("test_"))
        trees.append([type(node) for node in ast.walk(ast.parse(source.read_text()))])
    assert trees[0] == trees[1]


@pytest.mark.parametrize("host", ["casadi", "torch", "jax", "r", "octave"])
def test_a_page_of_a_host(host, hostile, tmp_path):
    wrap_kernel(host, hostile, tmp_path / "w", None)
    page = MarkdownIt("commonmark", {"html": True}).render((tmp_path / "w" / "README.md").read_text())
    assert "<script" not in page
    assert not list(tmp_path.rglob("it_ran"))


def test_results_have_names_of_their_own(hostile, tmp_path):
    """What is not ASCII could become the same text."""
    wrap_kernel("r", hostile, tmp_path / "w", None)
    text = (tmp_path / "w" / "call_r.c").read_text()
    line = next(line for line in text.splitlines() if "forward_names[]" in line)
    assert "\\?" not in line.replace("\\?\\?/", "")
    assert line.count('"') // 2 >= len(NAMES)


@pytest.mark.parametrize("name", ["m", "math"])
def test_a_model_named_as_what_a_build_needs(name, tmp_path):
    """The library of mathematics, and its header."""
    kernel = export(tmp_path, name, ("x",))
    assert not (kernel / "math.h").exists()
    build = (kernel / "CMakeLists.txt").read_text()
    assert "PUBLIC -lm)" in build
    assert "PUBLIC m)" not in build


def test_a_model_of_capitals(tmp_path):
    """What the header has for its parameters, and for its functions, begins with the same word."""
    header = (export(tmp_path, "A", ("x",), ("array", "forward_prepare")) / "A.h").read_text()
    assert "A_array_ = 0" in header


@pytest.mark.parametrize("name", ["max", "len", "list", "lapply", "elseif", "catch", "unwind_protect", "NA_real_"])
def test_functions_of_the_languages(name):
    assert name_function(name) == f"{name}_"
    # The control.
    assert name_function(f"{name}1") == f"{name}1"


def test_a_variable_may_be_named_as_a_function():
    assert name_for_languages(["max", "elseif", "_x", "x", "x"]) == ["max", "elseif_", "x_x", "x", "x_"]


@pytest.mark.parametrize("name", ['a"b', "q\\x30", 'q0") * getattr(self, "q1'])
def test_a_parameter_that_torch_script_does_not_quote(name, tmp_path):
    with pytest.raises(CaptureError, match="no quote or backslash"):
        export(tmp_path, "Model", ("x",), (name,))
    assert list(tmp_path.iterdir()) == []
