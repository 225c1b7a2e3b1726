"""The kernel of an archive, carried in it or stored beside it: its sources and its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exporter.archive import kernel_container
from exporter.archive.cases import ReferenceCase, supports_case
from exporter.archive.contract import Contract
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError, UsageError


@dataclass(frozen=True)
class EmbeddedKernel:
    """A kernel that belongs to an archive. ``files`` are the sources, the one to compile first; ``manifest`` is their
    manifest; ``contract`` is the part of the archive's contract that a kernel keeps."""

    archive: Archive
    contract: Contract
    files: Mapping[str, bytes]
    manifest: Mapping[str, Any]

    def sources(self) -> dict[str, bytes]:
        """Return the source files by name, the one to compile first."""
        return dict(self.files)

    def cases(self) -> tuple[ReferenceCase, ...]:
        """Return the archive's cases, except those of extreme magnitude in which rounding decides."""
        cases = [case for case in self.archive.cases() if supports_case(self.contract, case)]
        return tuple(c for c in cases if not (c.name in self.manifest["left_out"] and c.is_extreme))


def embedded_kernel(opened: Archive) -> EmbeddedKernel:
    """Return the archive's kernel. Raise ``UsageError`` if it has none, ``ArchiveError`` if it is another archive's."""
    files = opened.kernel()
    if not files:
        mend = "export it with --format pt,c, or name the folder of its kernel"
        raise UsageError("the archive carries no kernel", where=str(opened.path), mend=mend)
    return build_embedded_kernel(opened, files)


def build_embedded_kernel(opened: Archive, files: Mapping[str, bytes]) -> EmbeddedKernel:
    """Build the kernel. Raise ``ArchiveError`` for a missing file, or for variables or methods of another archive."""
    where = f"{opened.path}, its kernel"
    try:
        described = kernel_container.parse_manifest(files[kernel_container.MANIFEST], opened.path)
        first = f"{described['name']}.c"
        others = {n: d for n, d in files.items() if n not in (first, kernel_container.MANIFEST)}
        ordered = {first: files[first], **others}
    except KeyError as error:
        raise ArchiveError("a file of the kernel is missing", where=where, expected=str(error)) from None
    kernel_container.check_description(described, opened.contract, where)
    return EmbeddedKernel(opened, kernel_container.derive_kernel_contract(opened.contract), ordered, described)
