"""The folder of a kernel: sources, contract, cases, and the files to build and test it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch.jit._fuser import optimized_execution

from exporter import __version__
from exporter.archive import kernel_container, text_cases
from exporter.archive.cases import Cases, ReferenceCase, supports_case
from exporter.archive.contract import Contract, Finding
from exporter.archive.pt_archive import Archive
from exporter.archive.tensor_spec import name_dtype
from exporter.backends.backend import KernelOptions
from exporter.backends.c_kernel.c_source import CSource, generate_sources
from exporter.backends.c_kernel.frame_layout import TEMPLATES
from exporter.backends.c_kernel.newton_loop import TIGHT
from exporter.common.errors import RunError
from exporter.common.forking import DEFAULT_SECONDS, ForkFailedError, run_in_fork
from exporter.graph.loading import load_module
from exporter.model.implicit.newton_solver import NOT_CONVERGED, SINGULAR

# Draws of inputs that differ by rounding.
DRAWS = 5
# Bytes of one string literal in C.
PIECE = 2000
# Macros of gcc and clang for instruction sets beyond the baseline, and Linux's names for them.
INSTRUCTIONS = {
    f"__{name.upper()}__": name
    for name in ("avx", "avx2", "fma", "f16c", "bmi2", "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
} | {"__BMI__": "bmi1", "__ARM_FEATURE_SVE": "sve"}


def package_kernel(archive: Archive, options: KernelOptions | None = None) -> dict[str, bytes]:
    """Return every file by name. Raises ``UnsupportedError``, with model and line, where there can be no kernel."""
    module = load_module(archive.path)
    options = options or KernelOptions()
    stored = archive.cases()
    if any(not case.is_extreme and _has_unsolved(archive.contract, case) for case in stored):
        # A reduced system may solve what the file says is not.
        options = dataclasses.replace(options, reduce="none")
    sources = generate_sources(module, archive.contract, options)
    contract = kernel_container.derive_kernel_contract(archive.contract, sources.notes, sources.reductions)
    cases = [case for case in stored if supports_case(contract, case)]
    extreme = [case for case in cases if case.is_extreme]
    vague = find_vague_cases(module, contract, extreme, str(archive.path), is_reduced=bool(sources.reductions))
    left_out = list(dict.fromkeys(case.name for case in vague))
    if vague:
        what = f"cases left out: {', '.join(left_out)}"
        reason = "one ULP of their inputs, or smaller tolerances of the solver, change the outputs"
        finding = Finding("container", what, reason=reason)
        contract = dataclasses.replace(contract, findings=(*contract.findings, finding))
        cases = [case for case in cases if case not in vague]
    return build_files(sources, contract, cases, left_out)


def _has_unsolved(contract: Contract, case: ReferenceCase) -> bool:
    """Return whether a case says of an element that its Newton method has not found a solution."""
    if case.method != "newton_info":
        return False
    status = case.outputs[contract.methods[case.method].outputs.index("status")]
    return bool(((status == NOT_CONVERGED) | (status == SINGULAR)).any())


def find_vague_cases(
    module: torch.jit.ScriptModule, contract: Contract, cases: Cases, where: str, *, is_reduced: bool
) -> Cases:
    """Return the cases that are not well conditioned, or whose numbers change where the file's solvers stop later. The
    file runs in a forked process: what ends that ends none here.

    Raises ``RunError`` if the process does not finish."""

    def find() -> list[int]:
        # A kernel that solves for fewer numbers does not stop at what the solver would leave.
        relative, absolute = ({f"{s.path}.{n}" for s in contract.solvers if is_reduced} for n in ("rel_tol", "abs_tol"))
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                if name in relative:
                    value.clamp_(max=TIGHT)
                if name in absolute:
                    value.mul_(TIGHT)
        unsolved = {case.name for case in cases if is_reduced and _has_unsolved(contract, case)}
        return [
            i
            for i, case in enumerate(cases)
            if case.name in unsolved or not is_well_conditioned(module, contract, case)
        ]

    try:
        return [cases[i] for i in run_in_fork(find)] if cases else []
    except ForkFailedError as error:
        what, expected = "the file's own cases do not run", f"an end within {DEFAULT_SECONDS:g} s"
        raise RunError(what, where=where, got=str(error), expected=expected) from None


def is_well_conditioned(module: torch.jit.ScriptModule, contract: Contract, case: ReferenceCase) -> bool:
    """Return whether the archive itself reproduces a case, within the contract's tolerances, where its inputs change by
    rounding: otherwise the case says nothing of code that rounds in another order."""
    if not case.inputs:
        return True
    generator = torch.Generator().manual_seed(0)

    def perturb(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        return x * (1 + torch.randint(-1, 2, x.shape, generator=generator).to(x.dtype) * torch.finfo(x.dtype).eps)

    draws = [[perturb(x) for x in case.inputs] for _ in range(DRAWS)]
    # Elements are independent: one call for all draws, where there is a batch.
    calls = [[torch.cat(column) for column in zip(*draws, strict=True)]] if contract.batch.ndim else draws
    for inputs in calls:
        # A few calls: to optimise the graph first would take longer than to run it.
        with torch.no_grad(), optimized_execution(False):
            outputs = getattr(module, case.method)(*inputs)
        for name, value_got, stored in zip(contract.methods[case.method].outputs, outputs, case.outputs, strict=True):
            if not stored.is_floating_point():
                continue
            expected = torch.cat([stored] * DRAWS) if contract.batch.ndim else stored
            bounds = contract.tolerance.bounds(name, name_dtype(expected))
            finite = expected[expected.isfinite()]
            largest = float(finite.abs().max()) if finite.numel() else 0.0
            allowed = bounds.atol * largest + bounds.floor
            if not torch.allclose(value_got, expected, rtol=bounds.rtol, atol=allowed, equal_nan=True):
                return False
    return True


def build_files(sources: CSource, contract: Contract, cases: Cases, left_out: Sequence[str]) -> dict[str, bytes]:
    """Build the files of a kernel from its sources, contract and cases."""
    files = {name: text.encode() for name, text in sources.files.items()}
    has_cuda = not set(kernel_container.list_cuda_files(sources.name)).isdisjoint(files)
    context = {"contract": contract, "version": __version__, "name": sources.name, "upper": sources.name.upper()}
    methods = kernel_container.describe_methods(contract).items()
    context["methods"] = [{"method": m, "workspace": sources.workspace[m], **variables} for m, variables in methods]
    files[kernel_container.CONTRACT] = contract.to_json().encode()
    files[kernel_container.CASES] = text_cases.pack_cases(contract, cases, sources.parameters)
    context["contract_text"] = _split_literals(files[kernel_container.CONTRACT])
    context["cases_text"] = _split_literals(files[kernel_container.CASES])
    context["format"], context["instructions"] = kernel_container.FORMAT, INSTRUCTIONS
    for name, template in (
        (f"{sources.name}_shared.c", "shared.c.jinja"),
        (f"test_{sources.name}.c", "test_model.c.jinja"),
        ("CMakeLists.txt", "CMakeLists.txt.jinja"),
        (f"{sources.name}.pc.in", "model.pc.in.jinja"),
    ):
        files[name] = TEMPLATES.get_template(template).render(context, has_cuda=has_cuda).encode()
    name, manifest, workspace = sources.name, kernel_container.MANIFEST, sources.workspace
    files[manifest] = kernel_container.build_manifest(contract, name, files, workspace, left_out)
    return files


def _split_literals(text: bytes) -> list[str]:
    """Split a text into string literals of C99, which may have 4095 characters."""
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    return ["".join(_ESCAPES.get(byte) or chr(byte) for byte in piece) for piece in pieces]


_ESCAPES = {byte: f"\\{byte:03o}" for byte in (*range(32), *b'"\\?', *range(127, 256))} | {ord("\n"): "\\n"}
