"""Functions that differ in nothing but their rows: written once, with the numbers of as many."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_host import Direct, resealed
from project import skip_checks
from torch import nn

import torchferry
from exporter.archive import kernel_container
from exporter.backends.c_kernel import function_merging
from exporter.backends.c_kernel.function_merging import Part, merge_functions
from exporter.common.errors import MismatchError
from runtime_checks.report import FAILED

pytestmark = pytest.mark.thorough

F = torch.float64
SWEEPS = 8


class Swept(nn.Module):
    """Coordinate by coordinate, again and again, as predictors of crystals do."""

    signature = torchferry.Signature.of({"x": (4,), "n": ()}, {"y": (4,)})

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.Parameter(torch.tensor([1.5, 0.7, 1.1, 0.9], dtype=F))

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        own = list(x.unbind(-1))
        for _ in range(SWEEPS):
            for i in range(4):
                rest = torch.stack([own[j] * self.h[j] for j in range(4) if j != i]).sum(0)
                own[i] = 0.5 * own[i] + 0.1 * torch.sin(rest) * (1.0 + own[i] ** 2) ** n
        return torch.stack(own, -1)


def swept(rows: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {
        "x": torch.randn(rows, 4, generator=generator, dtype=F),
        "n": torch.rand(rows, generator=generator, dtype=F),
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("alike") / "swept.pt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function_merging, "WORTH", 50)
        with skip_checks():
            torchferry.export(Swept(), output=path, inputs=swept(12), formats="pt,c", derivatives="y:x")
    return path


def lanes(folder: Path) -> str:
    return (folder / f"{kernel_container.read(folder).name}_lanes.h").read_text()


@pytest.mark.thorough
def test_sweeps_are_written_once(exported, monkeypatch, tmp_path):
    once = exported.with_suffix("")
    monkeypatch.setattr(function_merging, "WORTH", 10**9)
    torchferry.convert(exported, tmp_path / "each", to="c")
    assert len(lanes(once)) < 0.4 * len(lanes(tmp_path / "each"))
    item, each = torchferry.load(once), torchferry.load(tmp_path / "each")
    for rows in (1, 7, 16, 50):
        arguments = {name: value.numpy() for name, value in swept(rows).items()}
        for method in ("forward", "jacobian"):
            wanted = each.call(method, arguments)
            assert all((item.call(method, arguments)[name] == value).all() for name, value in wanted.items())


def test_numbers_are_those_of_the_archive(exported):
    kernel, model = torchferry.load(exported.with_suffix("")), torchferry.load(exported)
    arguments = swept(33)
    result = kernel.call("forward", {name: value.numpy() for name, value in arguments.items()})["y"]
    torch.testing.assert_close(torch.from_numpy(result), model.call("forward", arguments)["y"], rtol=1e-12, atol=1e-14)


def test_a_wrong_row_is_caught(exported, tmp_path):
    """The control: one of the many calls reads and writes the rows of another."""
    shutil.copytree(exported.with_suffix(""), tmp_path / "kernel")

    def change(files: dict[str, bytes]) -> None:
        name = f"{kernel_container.read(tmp_path / 'kernel').name}_lanes.h"
        text, result = re.subn(r"(\w+_rows)\[5\]", r"\1[6]", files[name].decode(), count=1)
        assert result
        files[name] = text.encode()

    resealed(tmp_path / "kernel", change)
    with pytest.raises(MismatchError) as caught:
        torchferry.verify(tmp_path / "kernel", trust="native")
    assert "stored cases" in {c.check for c in caught.value.report.checks if c.verdict == FAILED}


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_other_kinds_of_numbers(kind, monkeypatch):
    monkeypatch.setattr(function_merging, "WORTH", 1)

    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        own = list((x * 3).unbind(-1))
        for _ in range(6):
            a, b, c = own
            own = [a * b - torch.where(a > b, a, c), b * c - torch.where(b > c, b, a), c * a - torch.where(c > a, c, b)]
            own = [torch.remainder(item, 7) for item in own]
        return (torch.stack(own, -1),)

    x = torch.randint(-9, 9, (21, 3), generator=torch.Generator().manual_seed(0)).to(kind)
    result = Direct(function, {"x": x})
    assert "_rows[" in "".join(text.decode() for name, text in result.files.items() if name.endswith("_lanes.h"))
    assert torch.equal(result(x)[0], function(x)[0])


BODIES = (
    "  /* {c} */\n  TF_SIMD\n  for (int l = 0; l < TF_NOW; l++) {{\n"
    "    const double v{v} = f->d[{a}][l] * f->d[{b}][l];\n    f->d[{c}][l] = v{v};\n  }}\n",
    "  for (int l = 0; l < TF_NOW; l++) f->d[{a}][l] = exp(f->d[{b}][l]) + g->d[{c}];\n",
    "  for (int l = 0; l < TF_NOW; l++) f->i[{a}][l] = f->b[{b}][l] ? f->i[{c}][l] : 0;\n",
)


@given(st.lists(st.tuples(st.sampled_from(BODIES), *[st.integers(0, 3)] * 4), min_size=1, max_size=30))
def test_every_call_does_what_its_function_did(drawn):
    """The law: rows put back in, each call is the function that it was."""
    parts = [Part("m", f"m_{k}", body.format(a=a, b=b, c=c, v=v)) for k, (body, a, b, c, v) in enumerate(drawn)]
    calls = "".join(f"  TF_({part.function})(f, g);\n" for part in parts)
    alike_before, function_merging.WORTH = function_merging.WORTH, 1
    try:
        whole = merge_functions([*parts, Part("m", "m_body", calls)])
    finally:
        function_merging.WORTH = alike_before
    texts = dict(
        re.findall(r"TF_PART void TF_\((\w+)\)\([^{]*\{\n(.*?)  \(void\)f;\n  \(void\)g;\n\}\n", whole.text, re.S)
    )
    tables = {
        name: [row.split(", ") for row in re.findall(r"  \{ (.*) \},", rows)]
        for name, rows in re.findall(r"TF_TABLE int (\w+)\[\]\[\d+\] = \{\n(.*?)\};\n", whole.tables, re.S)
    }
    message = re.findall(r"TF_\((\w+)\)\(f, g(?:, (\w+)\[(\d+)\])?\);", texts["m_body"])
    assert len(message) == len(parts)
    for part, (name, table, position) in zip(parts, message, strict=True):
        body = texts[name]
        if table:
            rows = tables[table][int(position)]
            body = re.sub(r"\[r\[(\d+)\]\]", lambda m, rows=rows: f"[{rows[int(m[1])]}]", body)
        assert _plain(body) == _plain(part.body)


def _plain(text: str) -> str:
    text = re.sub(r"/\*.*?\*/\s*", "", text).replace("TF_SIMD_APART", "TF_SIMD")
    return re.sub(r"\bv\d+\b", "v", text)


def test_loops_over_calls_are_written_once_too(monkeypatch):
    monkeypatch.setattr(function_merging, "WORTH", 1)
    loop = "    for (int k = 0; k < 9; k++) {\n      f->d[%d + k][l] = sin(f->d[%d + k][l]);\n    }\n"
    body = f"{loop}    f->d[%d][l] = 0.0;\n"
    merged = merge_functions([Part("m", f"p_{i}", body % rows) for i, rows in enumerate([(0, 20, 40), (9, 31, 41)])])
    assert merged.text.count("sin(") == 1
    assert "f->d[r[0] + k][l] = sin(f->d[r[1] + k][l]);" in merged.text
    assert "f->d[r[2]][l] = 0.0;" in merged.text
    assert "{ 0, 20, 40 }" in merged.tables
    assert "{ 9, 31, 41 }" in merged.tables
