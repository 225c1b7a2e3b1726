"""Both readers of archives, in Python and in C++, over the same files."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torchferry
from exporter.archive import pt_archive
from exporter.common.errors import ArchiveError
from exporter.common.forking import run_in_fork
from runtime_checks import native_build

TF_OK, TF_ERROR_ARCHIVE = 0, 5


def read_in_python(path: Path) -> str:
    """The error of loading an archive and its cases; empty where there is none. Errors of other types are ours."""
    try:
        pt_archive.read(path).cases()
        torchferry.load(path)
    except ArchiveError as error:
        return str(error)
    return ""


def read_natively(paths: Sequence[Path]) -> list[tuple[int, str]]:
    """The status and the message of loading each file and running its cases, in a process of its own."""
    return run_in_fork(_load_all, str(native_build.build() / "lib" / "libtorchferry.so"), list(map(str, paths)))


def _load_all(library_path: str, paths: Sequence[str]) -> list[tuple[int, str]]:
    library = ctypes.CDLL(library_path)
    library.tf_last_error.restype = ctypes.c_char_p
    library.tf_last_error.argtypes = [ctypes.c_void_p]
    results = []
    for path in paths:
        model, compared, failed = ctypes.c_void_p(), ctypes.c_int32(), ctypes.c_int32()
        status = library.tf_load(path.encode(), b"cpu", None, ctypes.byref(model))
        owner = ctypes.c_void_p()
        if status == TF_OK:
            status = library.tf_run_cases(model, ctypes.byref(compared), ctypes.byref(failed))
            owner = model
        results.append((status, (library.tf_last_error(owner) or b"").decode(errors="replace") if status else ""))
        if model:
            library.tf_close(model)
    return results
