"""A kernel for GPUs as the engine of its archive; the device is the CPU here, on which its threads take turns."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from kernel_host import edit, resealed, write_cuda_kernel

import torchferry
from exporter.archive import kernel_container, pt_archive
from exporter.common.errors import ArchiveError, MissingRuntimeError, RunError, UsageError
from runtime_checks.engines import selection
from runtime_checks.engines.cuda_kernel import CudaKernel
from runtime_checks.kernels import gpu_compilation
from runtime_checks.native_code import NATIVE, Trust

F = torch.float64


@pytest.fixture
def beside(carrying, tmp_path) -> Path:
    """An archive with its kernel for GPUs beside it."""
    write_cuda_kernel(carrying, tmp_path / "m")
    return carrying


def inputs(*batch: int) -> list[torch.Tensor]:
    strain = torch.randn(*batch, 6, dtype=F, generator=torch.Generator().manual_seed(1)) * 4e-3
    zeros = torch.zeros(*batch, 6, dtype=F)
    return [strain, zeros, zeros.clone(), torch.zeros(*batch, dtype=F)]


def load_engine(path: Path) -> CudaKernel:
    """Load it as ``torchferry.load`` does on a GPU."""
    opened = pt_archive.read(path)
    folder, reason = selection._open_folder_beside(opened)
    trust = Trust(NATIVE, NATIVE)
    engine, refused = selection._load_cuda_kernel(
        opened, folder, "cpu", lambda: dict(torch.jit.load(path).named_parameters()), trust
    )
    assert (engine is not None, reason, refused) == (True, "", "")
    assert engine is not None
    return engine


def test_it_runs_the_archive(beside):
    engine, plain = load_engine(beside), torchferry.load(beside)
    assert selection.self_test(pt_archive.read(beside), engine) == ""
    for parameters in (engine.parameters, plain.engine.parameters):
        with torch.no_grad():
            parameters["residual.yield_stress"].fill_(200.0)
    for batch in ((1,), (9,), (3, 40)):
        arguments = inputs(*batch)
        for method in ("forward", "jacobian"):
            got, wanted = engine.run(method, arguments), plain.engine.run(method, arguments)
            for value, expected in zip(got, wanted, strict=True):
                assert value.shape == expected.shape
                assert torch.allclose(value, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max())), method


def test_numbers_of_neighbours_side_by_side(beside):
    engine, arguments = load_engine(beside), inputs(50)
    apart = [a.t().contiguous().t() if a.dim() == 2 else a for a in arguments]
    assert not apart[0].is_contiguous()
    for got, expected in zip(engine.run("forward", apart), engine.run("forward", arguments), strict=True):
        assert torch.equal(got, expected)


def test_numbers_that_are_negated_when_they_are_read(beside):
    """Torch's negative bit says so; their memory has the other sign."""
    engine, arguments = load_engine(beside), inputs(5)
    negated = torch.complex(arguments[0], -arguments[0]).conj().imag
    assert negated.is_neg()
    for got, expected in zip(
        engine.run("forward", [negated, *arguments[1:]]), engine.run("forward", arguments), strict=True
    ):
        assert torch.equal(got, expected)


def test_a_kernel_of_other_variables(beside):
    """The hash of graphs says nothing of names."""
    opened = pt_archive.read(beside)
    folder, _ = selection._open_folder_beside(opened)
    assert folder is not None
    methods = {**folder.manifest["methods"], "forward": {"inputs": [], "outputs": []}}
    forged = dataclasses.replace(folder, manifest={**folder.manifest, "methods": methods})
    with pytest.raises(ArchiveError, match="other variables or methods"):
        selection._load_cuda_kernel(
            opened, forged, "cpu", lambda: dict(torch.jit.load(beside).named_parameters()), Trust(NATIVE, NATIVE)
        )


def test_inputs_of_another_device(beside):
    engine, arguments = load_engine(beside), inputs(5)
    with pytest.raises(UsageError, match="wrong device"):
        engine.run("forward", [arguments[0].to("meta"), *arguments[1:]])
    with pytest.raises(UsageError, match="stays on the device"):
        engine.to("cpu")


def test_what_the_device_refuses_is_an_error(beside, monkeypatch):
    engine = load_engine(beside)
    monkeypatch.setattr(engine, "_call", lambda *arguments: -4)
    with pytest.raises(RunError, match="refused memory or work: no error") as caught:
        engine.run("forward", inputs(5))
    assert "smaller batch" in str(caught.value)


def test_cases_that_do_not_pass(beside):
    folder = beside.with_suffix("")
    resealed(folder, edit("model.cu", r"data\[3\] \+ e", "data[3] + 0 * e", 9))
    assert "does not pass" in selection.self_test(pt_archive.read(beside), load_engine(beside))


def test_a_folder_without_them(solid, tmp_path):
    """The kernel in C is none for a GPU."""
    path = Path(shutil.copy(solid, tmp_path))
    shutil.copytree(solid.with_suffix(""), tmp_path / "m")
    opened = pt_archive.read(path)
    folder, _ = selection._open_folder_beside(opened)
    trust = Trust(NATIVE, NATIVE)
    engine, reason = selection._load_cuda_kernel(opened, folder, "cuda", dict, trust)
    assert engine is None
    assert "--format pt,cuda" in reason
    assert not kernel_container.read(tmp_path / "m").has_cuda


def test_without_nvcc(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDACXX", str(tmp_path / "none-such"))
    with pytest.raises(MissingRuntimeError, match="no compiler for the GPU"):
        gpu_compilation.find_nvcc()
