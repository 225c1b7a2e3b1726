"""The folder of a kernel: sources, contract, cases, and what builds and tests it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from exporter import __version__
from exporter.archive import kernel_container
from exporter.archive.cases import EXTREMES, Case, admits
from exporter.archive.contract import Contract, Finding
from exporter.archive.pt_archive import Archive
from exporter.backends.c_kernel.c_source import Source, source
from exporter.backends.c_kernel.frame_layout import TEMPLATES
from exporter.graph.loading import loaded

# Of inputs that differ by rounding.
DRAWS = 5
# Bytes of a string in C.
PIECE = 2000
# Macros of gcc and clang for what their code needs beyond the usual, and Linux's names for it.
INSTRUCTIONS = {
    f"__{name.upper()}__": name
    for name in ("avx", "avx2", "fma", "f16c", "bmi2", "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
} | {"__BMI__": "bmi1", "__ARM_FEATURE_SVE": "sve"}


def package(opened: Archive, *, finite_math: bool = False) -> dict[str, bytes]:
    """Every file, by name. Raises ``UnsupportedError``, with model and line, for what has no form as a kernel."""
    module = loaded(opened.path)
    made = source(module, opened.contract, finite_math=finite_math)
    contract = kernel_container.contract_of(opened.contract, made.notes)
    cases = [case for case in opened.cases() if admits(contract, case)]
    vague = [case for case in cases if case.name.startswith(EXTREMES) and not determined(module, contract, case)]
    left_out = list(dict.fromkeys(case.name for case in vague))
    if vague:
        what = f"cases left out: {', '.join(left_out)}"
        finding = Finding("container", what, reason="one ULP of their inputs changes the outputs")
        contract = dataclasses.replace(contract, findings=(*contract.findings, finding))
        cases = [case for case in cases if case not in vague]
    return files_of(made, contract, cases, left_out)


def determined(module: torch.jit.ScriptModule, contract: Contract, case: Case) -> bool:
    """Whether the archive itself gives the outputs of a case, in the contract's tolerances, where its inputs change by
    rounding: else they say nothing of code that rounds in another order."""
    if not case.inputs:
        return True
    generator = torch.Generator().manual_seed(0)

    def near(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        return x * (1 + torch.randint(-1, 2, x.shape, generator=generator).to(x.dtype) * torch.finfo(x.dtype).eps)

    draws = [[near(x) for x in case.inputs] for _ in range(DRAWS)]
    # Elements do not see each other: one call for all draws, where there is a batch.
    calls = [[torch.cat(column) for column in zip(*draws, strict=True)]] if contract.batch.ndim else draws
    for given in calls:
        with torch.no_grad():
            found = getattr(module, case.method)(*given)
        for name, got, value in zip(contract.methods[case.method].outputs, found, case.outputs, strict=True):
            if not value.is_floating_point():
                continue
            wanted = torch.cat([value] * DRAWS) if contract.batch.ndim else value
            bounds = contract.tolerance.bounds(name, str(wanted.dtype).removeprefix("torch."))
            finite = wanted[wanted.isfinite()]
            largest = float(finite.abs().max()) if finite.numel() else 0.0
            allowed = bounds.atol * largest + bounds.floor
            if not torch.allclose(got, wanted, rtol=bounds.rtol, atol=allowed, equal_nan=True):
                return False
    return True


def files_of(
    made: Source,
    contract: Contract,
    cases: Sequence[Case],
    left_out: Sequence[str],
) -> dict[str, bytes]:
    files = {name: text.encode() for name, text in made.files.items()}
    given = {"contract": contract, "version": __version__, "name": made.name, "upper": made.name.upper()}
    methods = kernel_container.methods_of(contract).items()
    given["methods"] = [{"method": m, "workspace": made.workspace[m], **of} for m, of in methods]
    files[kernel_container.CONTRACT] = contract.to_json().encode()
    files[kernel_container.CASES] = kernel_container.pack(contract, cases, made.parameters)
    given["contract_text"] = _pieces(files[kernel_container.CONTRACT])
    given["cases_text"] = _pieces(files[kernel_container.CASES])
    given["format"], given["instructions"] = kernel_container.FORMAT, INSTRUCTIONS
    for name, template in (
        (f"{made.name}_shared.c", "shared.c.jinja"),
        (f"test_{made.name}.c", "test_model.c.jinja"),
        ("CMakeLists.txt", "CMakeLists.txt.jinja"),
        (f"{made.name}.pc.in", "model.pc.in.jinja"),
    ):
        files[name] = TEMPLATES.get_template(template).render(given).encode()
    files[kernel_container.MANIFEST] = kernel_container.manifest(contract, made.name, files, made.workspace, left_out)
    return files


def _pieces(text: bytes) -> list[str]:
    """As string literals of C99, which may have 4095 characters."""
    return [
        "".join(_ESCAPED.get(byte) or chr(byte) for byte in text[i : i + PIECE]) for i in range(0, len(text), PIECE)
    ]


_ESCAPED = {byte: f"\\{byte:03o}" for byte in (*range(32), *b'"\\?', *range(127, 256))} | {ord("\n"): "\\n"}
