"""Cases as text: what is written is what is read, to the bit; damage is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from exporter.archive import kernel_container, text_cases
from exporter.archive.kernel_container import KernelFiles
from exporter.common.errors import ArchiveError


@pytest.fixture
def kernel(solid) -> KernelFiles:
    return kernel_container.read(solid.with_suffix(""))


def test_what_is_written_is_read(kernel):
    cases, parameters = kernel.cases(), kernel.parameters()
    data = text_cases.pack_cases(kernel.contract, cases, parameters)
    assert data == kernel.contents[kernel_container.CASES]
    again = text_cases.unpack_cases(data, kernel.contract, "here")
    for case, other in zip(cases, again, strict=True):
        assert (case.name, case.method) == (other.name, other.method)
        for a, b in zip((*case.inputs, *case.outputs), (*other.inputs, *other.outputs), strict=True):
            assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


def test_numbers_are_those_of_the_tensors(kernel):
    for case, numbers in zip(kernel.cases(), kernel.read_case_numbers(), strict=True):
        assert (case.name, case.method) == (numbers.name, numbers.method)
        for tensor, variable in zip((*case.inputs, *case.outputs), (*numbers.inputs, *numbers.outputs), strict=True):
            torch.testing.assert_close(
                torch.tensor(variable.values, dtype=tensor.dtype), tensor.reshape(-1), rtol=0, atol=0, equal_nan=True
            )
    assert {n: v.reshape(-1).tolist() for n, v in kernel.parameters().items()} == {
        n: list(v) for n, v in kernel.read_parameter_numbers().items()
    }


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("torchferry cases 1", "torchferry cases 2"),
        ("\nin float64", "\nat float64"),
        ("case 32 forward", "case 31 forward"),
        ("case 32 forward", "case 32 none"),
        ("in float64 192", "in float32 192"),
        ("in float64 192", "in float64 many"),
        ("0x1", "0y1"),
        ("\nend\n", "\n"),
    ],
)
def test_damage_is_refused(kernel, right, wrong):
    text = kernel.contents[kernel_container.CASES].decode()
    assert right in text
    damaged = text.replace(right, wrong, 1).encode()
    with pytest.raises(ArchiveError, match="the cases cannot be read"):
        text_cases.parse_cases(damaged, kernel.contract, "here")
    with pytest.raises(ArchiveError, match="the cases cannot be read"):
        text_cases.unpack_cases(damaged, kernel.contract, "here")


def test_numbers_are_read_without_torch(solid):
    script = (
        "import sys; from pathlib import Path; from exporter.archive import kernel_container\n"
        "kernel = kernel_container.read(Path(sys.argv[1]))\n"
        "assert kernel.read_case_numbers() and kernel.read_parameter_numbers()\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    folder = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", script, str(solid.with_suffix(""))], cwd=folder, check=True)
