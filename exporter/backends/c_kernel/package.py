"""The folder of a kernel: sources, contract, cases, and the files to build and test it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from exporter import __version__
from exporter.archive import kernel_container, text_cases
from exporter.archive.cases import Cases, supports_case
from exporter.archive.contract import Contract
from exporter.archive.pt_archive import Archive
from exporter.backends.backend import KernelOptions
from exporter.backends.c_kernel.c_source import CSource, generate_sources
from exporter.backends.c_kernel.frame_layout import TEMPLATES
from exporter.backends.c_kernel.newton_loop import TIGHT
from exporter.backends.case_conditions import has_unsolved, leave_out_vague_cases
from exporter.graph.loading import open_module

# Bytes of one string literal in C.
PIECE = 2000
# Macros of gcc and clang for instruction sets beyond the baseline, and Linux's names for them.
INSTRUCTIONS = {
    f"__{name.upper()}__": name
    for name in ("avx", "avx2", "fma", "f16c", "bmi2", "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
} | {"__BMI__": "bmi1", "__ARM_FEATURE_SVE": "sve"}


def package_kernel(archive: Archive, options: KernelOptions | None = None) -> dict[str, bytes]:
    """Return every file by name. Raises ``UnsupportedError``, with model and line, where there can be no kernel."""
    module = open_module(archive)
    options = options or KernelOptions()
    stored = archive.cases()
    if any(not case.is_extreme and has_unsolved(archive.contract, case) for case in stored):
        # A reduced system may solve what the file says is not.
        options = dataclasses.replace(options, reduce="none")
    sources = generate_sources(module, archive.contract, options)
    contract = kernel_container.derive_kernel_contract(archive.contract, sources.notes, sources.reductions)
    cases = [case for case in stored if supports_case(contract, case)]
    # A kernel that solves for fewer numbers does not stop at what the solver would leave.
    tight = TIGHT if sources.reductions else 0.0
    contract, cases, left_out = leave_out_vague_cases(module, contract, cases, str(archive.path), tight=tight)
    return build_files(sources, contract, cases, left_out)


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
