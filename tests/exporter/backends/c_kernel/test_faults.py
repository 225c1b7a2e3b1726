"""Faults that are planted in a kernel's sources: each is caught by a check that has a name."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from cubic_models import unordered
from kernel_host import edit, resealed
from project import mark_thorough_after
from torch import nn

import torchferry
from exporter.archive import target_machine
from exporter.common.errors import MismatchError
from runtime_checks.report import FAILED


@pytest.fixture(scope="module")
def faulty(folders, tmp_path_factory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("faults") / "pivots"
    arguments = {"b": torch.randn(9, 3, dtype=torch.float64), "e": torch.rand(9, dtype=torch.float64) * 1e-14}
    torchferry.export(Pivots().double(), output=path, inputs=arguments, formats="c")
    rows = path.with_name("rows")
    torchferry.export(unordered(3), output=rows, formats="c")
    return {**folders, "pivots": path, "rows": rows}


class Pivots(nn.Module):
    """A system that cannot be solved without pivots: a diagonal that is nearly zero."""

    def forward(self, b: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        off = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, 3.0], [2.0, 1.0, 0.0]], dtype=torch.float64)
        unit = torch.eye(3, dtype=torch.float64)
        return torch.linalg.solve_ex(off + unit * e[:, None, None], b.unsqueeze(-1))[0].squeeze(-1)


def last_bits(match: re.Match[str]) -> str:
    return repr(float(match.group(0)) * (1 + 1e-9))


def take_everything(files: dict[str, bytes]) -> None:
    """What a reduced system finds, off by one in a million, is not held to the whole residual."""
    edit("_lanes.h", r"good\[l\] = settled\[l\] & small & [^;]*;", "good[l] = settled[l] | (small & 0);", 9)(files)
    edit("_lanes.h", r"(= )(tears\[k\]\[l\] \+ change\[k\]\[l\])", r"\1(1.0 + 1e-6) * (\2)", 9)(files)
    edit("_lanes.h", r"<= 1e-09 \*", "<= 1e-03 *", 9)(files)


FAULTS = {
    "a reduced system that is not held to the whole residual": ("return_map", take_everything, {"stored cases"}),
    "a constant": ("perzyna", edit("_lanes.h", r"0\.8164\d+", last_bits), {"stored cases"}),
    "swapped operands": (
        "perzyna",
        edit("_lanes.h", r"(= )(\S+) - (\S+);", r"\1\3 - \2;"),
        {"stored cases"},
    ),
    "a choice with its sides exchanged": (
        "return_map",
        edit("_lanes.h", r"(const double v\d+ = \S+ \? )(\S+) : (\S+);", r"\1\3 : \2;", 999),
        {"stored cases"},
    ),
    "a pivot left out": (
        "pivots",
        edit("_lanes.h", r"row\[l\] = larger \? \(double\)i : row\[l\];", "", 9),
        {"stored cases"},
    ),
    "a row of a Newton loop that is not exchanged": (
        "rows",
        edit("_lanes.h", r"size > before \?", "size < 0.0 ?", 999),
        {"stored cases"},
    ),
    "a matches that is taken for another power": (
        "perzyna",
        edit("_lanes.h", r"== 2\.0\)", "== 3.0)", 99),
        {"stored cases"},
    ),
    "numbers that are read one behind their place": (
        "robertson",
        edit(".c", r"= from\[l \* (\d+) \+ i\]", r"= from[l * \1 + (i + 1) % \1]", 9),
        {"stored cases", "batch sizes"},
    ),
    "a status that is never set": (
        "return_map",
        edit("_lanes.h", r"status\[l\] = good\[l\] \?[^;]*;", "status[l] = 0;", 99),
        {"stopped early"},
    ),
    "a status that half of the lanes never set": (
        "return_map",
        edit("_lanes.h", r"status\[l\] = good\[l\] \?", "status[l] = l % 2 ? 0 : good[l] ?", 99),
        {"stopped early"},
    ),
    "a stride that is ignored": (
        "robertson",
        edit(
            ".c", r"rows\[i\]\[l\] = from\[l \* row \+ offsets\[i\]\]", "rows[i][l] = from[l * numbers + offsets[i]]", 9
        ),
        {"memory layouts"},
    ),
    "a parameter folded": (
        "robertson",
        edit(".c", r"parameters && parameters\[0\] \? parameters\[0\] : ", ""),
        {"settable parameters"},
    ),
    "a lane that reads its neighbour": (
        "robertson",
        edit(".c", r"from\[\(l < valid \? l : valid - 1\) \* row", "from[0 * row", 9),
        {"permutation", "concatenation", "stored cases", "batch sizes"},
    ),
    "a transposed block": (
        "robertson",
        edit(
            ".c",
            r"offset \+= at\[d\] \* tf_stride\(v, array, d \+ 1\)",
            "offset += at[v->rank - 1 - d] * tf_stride(v, array, d + 1)",
        ),
        {"memory layouts"},
    ),
}


@pytest.mark.parametrize("fault", mark_thorough_after(5, list(FAULTS)))
def test_it_is_caught(faulty, fault, tmp_path):
    name, change, checks = FAULTS[fault]
    folder = Path(shutil.copytree(faulty[name], tmp_path / name))
    resealed(folder, change)
    with pytest.raises(MismatchError) as caught:
        torchferry.verify(folder, trust="native")
    failed = {c.check for c in caught.value.report.checks if c.verdict == FAILED}
    assert failed & checks, failed


@pytest.mark.skipif("avx" not in target_machine.read_instruction_sets(), reason="gcc has other code for this processor")
def test_numbers_that_change_their_places_wrongly(faulty, tmp_path):
    folder = Path(shutil.copytree(faulty["perzyna"], tmp_path / "perzyna"))
    resealed(folder, edit(".c", r"low = \{0, 1, 4, 5\}", "low = {0, 1, 5, 4}"))
    with pytest.raises(MismatchError) as caught:
        torchferry.verify(folder, trust="native")
    assert {"stored cases", "batch sizes"} & {c.check for c in caught.value.report.checks if c.verdict == FAILED}


def test_without_a_fault(faulty, tmp_path):
    for name, folder in faulty.items():
        copy = Path(shutil.copytree(folder, tmp_path / name))
        resealed(copy, lambda files: None)
        assert torchferry.verify(copy, trust="native").passed


def test_a_kernel_that_brings_a_library_along(folders, tmp_path):
    """Not libm alone: it opens another library when it is loaded."""
    (tmp_path / "foreign.c").write_text("int foreign(void) { return 1; }\n")
    other = tmp_path / "libforeign.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(tmp_path / "foreign.c"), "-o", str(other)], check=True)
    folder = Path(shutil.copytree(folders["robertson"], tmp_path / "robertson"))
    opened = f'dlopen("{other}", RTLD_NOW);'
    start = f"\n#include <dlfcn.h>\n__attribute__((constructor)) static void brought(void) {{ {opened} }}\n"

    def change(files: dict[str, bytes]) -> None:
        (name,) = (n for n in files if n.endswith(".c") and not n.startswith("test_") and not n.endswith("_shared.c"))
        files[name] += start.encode()

    resealed(folder, change)
    with pytest.raises(MismatchError) as caught:
        torchferry.verify(folder, trust="native")
    assert {c.check for c in caught.value.report.checks if c.verdict == FAILED} == {"libm alone"}
