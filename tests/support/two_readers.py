"""Both readers of archives, in Python and in C++, over the same files."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torchferry
from exporter.archive import pt_archive
from exporter.common.errors import ArchiveError
from exporter.common.forking import run_in_fork
from exporter.common.plain_text import find_unsafe
from runtime_checks import native_build

TF_OK, TF_ERROR_ARCHIVE, TF_ERROR_MISMATCH = 0, 5, 17
# What changes a file in its place, and may rename it.
Forge = Callable[[Path], object]


def expect_taken(changes: Mapping[str, Forge]) -> dict[str, tuple[Forge, str]]:
    """Changes after which a file is unusual, and honest: no reader has a reason against it."""
    return {label: (forge, "") for label, forge in changes.items()}


def forge_all(honest: Path, forgeries: Mapping[str, Forge], folder: Path) -> dict[str, Path]:
    """Make a copy of an honest file for each forgery of it."""
    paths = {}
    for number, (label, forge) in enumerate(forgeries.items()):
        place = folder / str(number)
        place.mkdir()
        forge(Path(shutil.copy(honest, place / honest.name)))
        (paths[label],) = place.iterdir()
    return paths


def list_wrong_answers(honest: Path, forgeries: Mapping[str, tuple[Forge, str]], folder: Path) -> list[str]:
    """What either reader does wrong with forgeries of an honest file, each with a pattern of the reason.

    Both are to refuse each for its reason, as a damaged file, and to quote it in plain text. Without a reason both are
    to take it."""
    paths = forge_all(honest, {label: forge for label, (forge, _) in forgeries.items()}, folder)
    natively = dict(zip(paths, read_natively(list(paths.values())), strict=True))
    problems = []
    for label, path in paths.items():
        in_python, (status, native) = read_in_python(path), natively[label]
        expected = forgeries[label][1]
        is_right = all(re.search(expected, text) if expected else not text for text in (in_python, native))
        if not is_right or status != (TF_ERROR_ARCHIVE if expected else TF_OK):
            problems.append(f"{label}: {expected!r}\n  Python: {in_python}\n  C++, status {status}: {native}")
        problems += [f"{label}: unsafe: {text!r}" for text in (in_python, native) if find_unsafe(text, is_name=False)]
    return problems


def read_in_python(path: Path) -> str:
    """The error of loading an archive and its cases; empty where there is none. Errors of other types are ours."""
    try:
        pt_archive.read(path).cases()
        torchferry.load(path)
    except ArchiveError as error:
        return str(error)
    return ""


class Options(ctypes.Structure):
    """``tf_options`` of torchferry.h."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        *((f"option{i}", ctypes.c_int32) for i in range(8)),
        ("trust", ctypes.c_int32),
        ("public_key", ctypes.c_char_p),
    )


def read_natively(paths: Sequence[Path], *, trusts_native: bool = False) -> list[tuple[int, str]]:
    """The status and the message of loading each file and running its cases, in a process of its own."""
    library = native_build.build() / "lib" / "libtorchferry.so"
    return run_in_fork(_load_all, str(library), list(map(str, paths)), trusts_native, seconds=300 + 2 * len(paths))


def _load_all(library_path: str, paths: Sequence[str], trusts_native: bool) -> list[tuple[int, str]]:
    library, options = ctypes.CDLL(library_path), Options()
    library.tf_default_options(ctypes.byref(options))
    assert options.size == ctypes.sizeof(Options)
    options.trust = trusts_native
    library.tf_last_error.restype = ctypes.c_char_p
    library.tf_last_error.argtypes = [ctypes.c_void_p]
    results = []
    for path in paths:
        model, compared, failed = ctypes.c_void_p(), ctypes.c_int32(), ctypes.c_int32()
        status = library.tf_load(path.encode(), b"cpu", ctypes.byref(options), ctypes.byref(model))
        owner = ctypes.c_void_p()
        if status == TF_OK:
            status = library.tf_run_cases(model, ctypes.byref(compared), ctypes.byref(failed))
            owner = model
        results.append((status, (library.tf_last_error(owner) or b"").decode(errors="replace") if status else ""))
        if model:
            library.tf_close(model)
    return results
