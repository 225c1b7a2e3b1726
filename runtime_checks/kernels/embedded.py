"""The kernel of an archive, which carries it or has it beside itself: sources, and what the archive says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exporter.archive import kernel_container
from exporter.archive.cases import Case, admits
from exporter.archive.contract import Contract
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError, UsageError


@dataclass(frozen=True)
class Carried:
    """``files`` are the sources, the one to be compiled first, ``described`` their manifest; ``contract`` is what a
    kernel keeps of the archive's."""

    archive: Archive
    contract: Contract
    files: Mapping[str, bytes]
    described: Mapping[str, Any]

    def sources(self) -> dict[str, bytes]:
        return dict(self.files)

    def cases(self) -> tuple[Case, ...]:
        """The archive's, but for those in which rounding decides."""
        left_out = self.described["left_out"]
        return tuple(c for c in self.archive.cases() if c.name not in left_out and admits(self.contract, c))


def carried(opened: Archive) -> Carried:
    """Raises ``UsageError`` where the archive carries none, ``ArchiveError`` for one that is not the archive's."""
    files = opened.kernel()
    if not files:
        raise UsageError(
            "the archive carries no kernel",
            where=str(opened.path),
            mend="export it with --format pt,c, or name the folder of its kernel",
        )
    return kernel_of(opened, files)


def kernel_of(opened: Archive, files: Mapping[str, bytes]) -> Carried:
    """Raises ``ArchiveError`` where a file is missing, and for variables or methods that are not the archive's."""
    where = f"{opened.path}, its kernel"
    try:
        described = kernel_container.parsed(files[kernel_container.MANIFEST], opened.path)
        first = f"{described['name']}.c"
        ordered = {
            first: files[first],
            **{n: d for n, d in files.items() if n not in (first, kernel_container.MANIFEST)},
        }
    except KeyError as error:
        raise ArchiveError("a file of the kernel is missing", where=where, expected=str(error)) from None
    if described["methods"] != kernel_container.methods_of(opened.contract):
        raise ArchiveError(
            "the kernel has other variables or methods than the archive", where=where, mend="export it again"
        )
    return Carried(opened, kernel_container.contract_of(opened.contract), ordered, described)
