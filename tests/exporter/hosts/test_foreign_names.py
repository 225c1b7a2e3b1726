"""Whatever a model's variables are called and whatever is said of them, no file for a host becomes another program."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from language_structure import read_c, read_structure
from project import skip_checks
from torch import nn

import torchferry
from exporter.archive import kernel_container
from exporter.hosts.calculix import CalculixOptions
from exporter.hosts.fmu import FmuOptions
from exporter.hosts.registry import HOSTS, wrap_kernel
from exporter.hosts.small_strain import PointOptions
from exporter.hosts.umat import UmatOptions
from exporter.hosts.wrapping import TEMPLATES

F = torch.float64
# What ends a text or a comment of some language, or begins something in it.
PIECES = (
    *("*/ int evil(void);", "//", '"); evil("', "'); evil('", "<script>evil()</script>", "]]>", "-->", "&amp;", "<!--"),
    *("$(touch evil)", "${X}", "%s%n", "@X@", "`evil`", "#{1}", "# evil", "% evil", "{{7*7}}", "{% evil %}", "$$"),
    *("[x](javascript:evil)", "| a |", "\u00e9", "\u6f22", "??/", "\\"),
)


def join_from(start: int) -> str:
    """All pieces, from another one on: what is to end a text or a line stands last in one name."""
    return " ".join((*PIECES[start:], *PIECES[:start]))


HOSTILE = [join_from(start) for start in (0, 1, 2, 3, 9, 13, 15, 25, 5)]
# What is ASCII stands as it is in a text of C.
HOSTILE[5] = HOSTILE[5].encode("ascii", "ignore").decode()
PLAIN = [f"v{i}" for i in range(len(HOSTILE))]
# Kernels by the hosts that they fit; hosts of the last kind give no field variable, and ask for no energy.
KERNELS = {"fields": ("umat", "vumat"), "points": ("kratos", "calculix", "mgis")}


def export(folder: Path, names: list[str]) -> dict[str, Path]:
    """Kernels of a material with a state, of one with an energy and a field too, and of rates, which have these names
    as their variables do."""
    strain, stress, state, energy, wear, number, vector, text, title = names

    class Material(nn.Module):
        signature = torchferry.Signature.of({strain: (6,), f"{state}~1": (6,)}, {stress: (6,), state: (6,)})

        def __init__(self) -> None:
            super().__init__()
            self.modulus = nn.Parameter(torch.tensor(1.5e3, dtype=F))

        def forward(self, strain: torch.Tensor, old: torch.Tensor) -> tuple[torch.Tensor, ...]:
            new = old + 0.5 * (strain - old)
            return self.modulus * new, new

    class Worn(nn.Module):
        signature = torchferry.Signature.of(
            {strain: (6,), f"{state}~1": (6,), wear: ()}, {stress: (6,), state: (6,), energy: ()}
        )

        def __init__(self) -> None:
            super().__init__()
            self.material = Material()

        def forward(self, strain: torch.Tensor, old: torch.Tensor, wear: torch.Tensor) -> tuple[torch.Tensor, ...]:
            stress, new = self.material(strain, old)
            return stress * wear[:, None], new, (new * strain).sum(-1)

    class Rates(nn.Module):
        signature = torchferry.Signature.of({number: (), vector: (2,)}, {f"{number} out": (), f"{vector} out": (2,)})

        def __init__(self) -> None:
            super().__init__()
            self.k = nn.Parameter(torch.tensor(2.0, dtype=F))

        def forward(self, number: torch.Tensor, vector: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.k * number, self.k * vector

    notes = {"description": text, "quantity": text}
    meta = {"description": text, "authors": [text], "license": text, "references": [text], "variables": {"*": notes}}
    kernels = {}
    for name, model in (("points", Material()), ("fields", Worn()), ("arrays", Rates())):
        type(model).__name__ = title
        with skip_checks():
            (exported,) = torchferry.export(model, output=folder / name, formats="c", meta=meta, derivatives="all")
        kernels[name] = exported.path
    return kernels


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> dict[str, dict[str, Path]]:
    base = tmp_path_factory.mktemp("kernels")
    return {kind: export(base / kind, names) for kind, names in (("hostile", HOSTILE), ("plain", PLAIN))}


def make_options(host: str, names: list[str], version: str) -> Any:
    strain, stress, _, energy, wear, number, vector, *_ = names
    if host in KERNELS["fields"]:
        point = PointOptions(stress, strain, energy, (wear,))
        return UmatOptions(point) if host == "umat" else point
    if host in KERNELS["points"]:
        point = PointOptions(stress, strain)
        return CalculixOptions(point) if host == "calculix" else point
    return FmuOptions(version, ((number, f"{number} out"), (vector, f"{vector} out"))) if host == "fmu" else None


def list_structures(folder: Path, kernel: Path) -> dict[str, object]:
    """List the structures of the files in a folder, which are named as the kernel is."""
    name = kernel_container.read_manifest(kernel)["name"]
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)).replace(name, "model"): read_structure(path) for path in paths}


@pytest.mark.parametrize("kind", [*KERNELS, "arrays"])
def test_a_kernel(kind, kernels):
    hostile, plain = (list_structures(kernels[k][kind], kernels[k][kind]) for k in ("hostile", "plain"))
    assert hostile == plain


def list_differences(host: str, version: str, kernels: dict[str, dict[str, Path]], folder: Path) -> list[str]:
    """List the files for a host that hostile names make another program of."""
    structures, fitting = [], next((kind for kind, hosts in KERNELS.items() if host in hosts), "arrays")
    for kind, names in (("hostile", HOSTILE), ("plain", PLAIN)):
        kernel = kernels[kind][fitting]
        wrap_kernel(host, kernel, folder / kind, make_options(host, names, version))
        structures.append(list_structures(folder / kind, kernel))
    assert structures[0].keys() == structures[1].keys()
    return [name for name, structure in structures[0].items() if structure != structures[1][name]]


@pytest.mark.parametrize(("host", "version"), [*((host, "3.0") for host in HOSTS), ("fmu", "2.0")])
def test_a_host(host, version, kernels, tmp_path):
    assert list_differences(host, version, kernels, tmp_path) == []


QUOTES = {
    "comment": {*HOSTS} - {"torch", "jax"},
    "markdown": {*HOSTS},
    "markdown_line": {*HOSTS},
    "e": {"fmu"},
    "c_string": {"r", "octave"},
}


@pytest.mark.parametrize(
    ("quote", "host"), [(quote, host) for quote, hosts in QUOTES.items() for host in sorted(hosts)]
)
def test_what_is_not_quoted_is_seen(quote, host, kernels, tmp_path, monkeypatch):
    """The control: a filter of the templates that does nothing."""
    monkeypatch.setitem(TEMPLATES.filters, quote, str)
    with contextlib.suppress(ElementTree.ParseError):
        assert list_differences(host, "3.0", kernels, tmp_path)


def test_a_comment_that_ends_early_is_seen():
    """The control."""
    assert read_c("/* a* / b */ int x;") == read_c("/* c */ int y;")
    assert read_c("/* a*/ b */ int x;") != read_c("/* c */ int y;")
    assert read_c("// a??/\nint x;") != read_c("// a\nint y;")
    assert read_c('f("a\\"); g(");') == read_c('f("a");')
    assert read_c('f("a"); g("");') != read_c('f("a");')
