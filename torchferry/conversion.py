"""Conversion of an archive to another format: written to a temporary place, verified, and only then moved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exporter.archive import pt_archive
from exporter.archive.cases import Cases, supports_case
from exporter.archive.contract import Contract
from exporter.archive.formats import check_suffix
from exporter.backends.backend import Backend, WriteOptions
from exporter.common.errors import UsageError
from runtime_checks.file_verifier import FileVerifier
from runtime_checks.native_code import record_own_code
from runtime_checks.report import Report


@dataclass(frozen=True)
class Converted:
    """A container that was written and verified.

    Attributes:
        path: The container.
        contract: What it promises; less than the archive where the format holds less.
        report: The report of its verification.
    """

    path: Path
    contract: Contract
    report: Report


def convert(
    source: Path,
    output: Path,
    backend: Backend,
    options: WriteOptions,
    verifier: FileVerifier,
    fresh: Cases = (),
) -> Converted:
    """Convert the archive ``source`` to the backend's format, and verify it with its own and ``fresh`` cases.

    Raises ``UnsupportedError``, with the model and line in the way, if there is no such form, ``MismatchError`` if the
    numbers differ; a failure leaves or changes no file."""
    check_suffix(output, [backend.format.name])
    if output.resolve() == source.resolve():
        raise UsageError("the output is the archive itself", where=str(output), mend="name another output with -o")
    opened = pt_archive.read(source)
    if opened.holds != "graphs":
        raise UsageError("only an archive is convertible", where=str(source), expected="the .pt that it was made from")
    with backend.write(opened, output, options) as (path, contract):
        supported = [case for case in fresh if supports_case(contract, case)]
        report = verifier.verify(path, backend.format.name, fresh=supported, shown_as=output)
    record_own_code(backend.format.read(output))
    return Converted(output, contract, report)
