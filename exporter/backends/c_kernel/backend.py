"""The backend of kernels: a folder of C sources, in which other files stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from exporter.archive import kernel_container
from exporter.archive.contract import Contract
from exporter.archive.formats import CUDA, FORMATS, KERNEL, Format
from exporter.archive.pt_archive import Archive
from exporter.backends.backend import WriteOptions
from exporter.backends.c_kernel.package import package_kernel
from exporter.common.atomic_files import atomic_write_folder, make_write_error
from exporter.common.errors import OutputError
from exporter.common.torch_hooks import ignore_deprecations


class KernelBackend:
    """Kernels in C, which need libm alone."""

    format: Format = FORMATS[KERNEL]

    def require(self) -> None:
        """Require nothing: sources are text."""

    @contextlib.contextmanager
    def write(self, opened: Archive, output: Path, options: WriteOptions) -> Iterator[tuple[Path, Contract]]:
        """Write the sources; see ``Backend.write``."""
        if options.kernel_files is not None:
            files = options.kernel_files
        else:
            with ignore_deprecations():
                files = package_kernel(opened, replace(options.kernel, has_cuda=self.format.name == CUDA))
        if output.exists() and not output.is_dir():
            raise OutputError("a kernel is a folder", where=str(output), got="a file", mend="name a folder with -o")
        output = output.resolve()
        with atomic_write_folder(output, kernel_container.MANIFEST, lambda: _list_old_files(output)) as folder:
            old_files = _list_old_files(output)
            foreign_files = [name for name in files if (output / name).exists() and name not in old_files]
            if foreign_files:
                what, where = "a file that is not part of a kernel is in the way", str(output / foreign_files[0])
                expected, mend = "a new folder, or that of an earlier kernel", "name another folder with -o"
                raise OutputError(what, where=where, expected=expected, mend=mend)
            try:
                for name, data in files.items():
                    (folder / name).write_bytes(data)
            except OSError as error:
                raise make_write_error(output, error) from None
            yield folder, kernel_container.read(folder).contract


class CudaBackend(KernelBackend):
    """Kernels in C, and in CUDA for GPUs."""

    format = FORMATS[CUDA]


def _list_old_files(output: Path) -> set[str]:
    try:
        return {*kernel_container.read_manifest(output)["files"], kernel_container.MANIFEST}
    except Exception:
        return set()
