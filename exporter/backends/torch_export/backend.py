"""The backends of torch.export: a package of code compiled for this machine, and one of programs for any machine."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from exporter.archive import pt_archive
from exporter.archive.contract import Contract
from exporter.archive.formats import FORMATS
from exporter.archive.pt_archive import Archive
from exporter.archive.target_machine import current_machine
from exporter.backends.backend import WriteOptions
from exporter.backends.torch_export import aot_inductor, program_package
from exporter.backends.torch_export.archive_programs import ArchivePrograms, export_programs
from exporter.backends.torch_export.program import Program
from exporter.common.atomic_files import atomic_write_path
from exporter.common.torch_hooks import ignore_deprecations


class CompiledBackend:
    """Programs compiled by AOTInductor, which need no compiler to run."""

    format = FORMATS["pt2"]

    def require(self) -> None:
        """Raise ``MissingRuntimeError`` if there is no C++ compiler."""
        aot_inductor.require()

    @contextlib.contextmanager
    def write(self, opened: Archive, output: Path, options: WriteOptions) -> Iterator[tuple[Path, Contract]]:
        """Compile and write the programs; see ``Backend.write``."""
        with atomic_write_path(output) as path, ignore_deprecations():
            exported = export_programs(opened)
            records = aot_inductor.compile_programs(exported.programs)
            machine = {pt_archive.MACHINE: current_machine(torch.__version__, "cpu").to_json()}
            write_package(path, opened, exported, records, machine)
            yield path, exported.contract


class ProgramBackend:
    """Programs as torch.export writes them, for Python on any machine."""

    format = FORMATS["program"]

    def require(self) -> None:
        """Require nothing: torch writes programs."""

    @contextlib.contextmanager
    def write(self, opened: Archive, output: Path, options: WriteOptions) -> Iterator[tuple[Path, Contract]]:
        """Write the programs; see ``Backend.write``."""
        with atomic_write_path(output) as path, ignore_deprecations():
            exported = export_programs(opened)
            write_package(path, opened, exported, program_package.package_programs(exported.programs), {})
            yield path, exported.contract


def pack_parameters(programs: Mapping[str, Program]) -> dict[str, bytes]:
    """Return the record of the parameters' values by method."""
    buffer = io.BytesIO()
    torch.save({name: dict(method_program.parameters) for name, method_program in programs.items()}, buffer)
    return {pt_archive.PARAMETERS: buffer.getvalue()}


def write_package(
    path: Path, opened: Archive, exported: ArchivePrograms, records: dict[str, bytes], more_records: dict[str, bytes]
) -> None:
    """Write one package with the same torchferry records as the archive."""
    more_records = pack_parameters(exported.programs) | more_records
    pt_archive.write(path, records, exported.contract, exported.cases, opened.graph, more_records)
