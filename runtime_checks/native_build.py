"""The native library and harness: the package ``torchferry-native``, where it is installed for this torch; otherwise
built once from the sources in ``native/``, and kept in the cache.

A build is keyed by everything that changes it: the linked torch, the compiler, the sources, the sanitizers.

python -m runtime_checks.native_build: what a build is made of, as the package records it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock

from exporter.common.errors import MissingRuntimeError
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.cache import cache_folder, make_private_folder

# Its folder in the cache.
NATIVE = "native"
# The package that brings it built, and what that package records.
PACKAGE, RECORD = "torchferry-native", "build.json"
SOURCES = Path(__file__).with_name("native")
_FOLDERS = ("cmake", "fortran", "harness", "include", "src", "third_party")
INSTALL = (
    'pip install "torchferry[native]", and a compiler of C++17, of C++20 from torch 2.14 (apt-get install g++); '
    f"or {PACKAGE}, built for this torch elsewhere"
)


def compute_build_prefix(sanitize: str = "") -> Path:
    """Return the folder of the build for this torch and compiler. Raise ``MissingRuntimeError`` without a compiler."""
    compiler = _find_compiler()
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    version = (done.stdout or "?").splitlines()[0]
    digest = hashlib.sha256()
    for part in (_torch_version(), str(torch_folder()), compiler, version, sanitize):
        digest.update(part.encode() + b"\0")
    digest.update(_compute_sources_digest().encode())
    name = f"torch-{_torch_version()}{'-' + sanitize.replace(',', '-') if sanitize else ''}-{digest.hexdigest()[:16]}"
    return cache_folder() / NATIVE / name


def build(*, sanitize: str = "", force: bool = False, announce: Callable[[str], None] = lambda text: None) -> Path:
    """Return a finished build's prefix: ``bin/torchferry_verify``, ``lib/``, ``include/``, ``lib/cmake/torchferry``.

    The package ``torchferry-native`` is one, unless ``force`` asks for a new one. Concurrent processes wait for the one
    that builds. ``announce`` is told that a build starts, and why the package that is installed does not serve.
    Raise ``MissingRuntimeError`` if CMake or a compiler is missing, or if the build fails."""
    if not sanitize and not force and (installed := find_installed_build(announce)):
        return installed
    target = compute_build_prefix(sanitize)
    make_private_folder(NATIVE)
    with FileLock(f"{target}.lock"):
        if force and target.exists():
            shutil.rmtree(target)
        if not target.exists():
            announce(f"building the native library for torch {_torch_version()} (once, about a minute)")
            with temporary_folder(".build-", target.parent) as folder:
                _build(folder, sanitize)
                # Renamed as a whole: a folder under that name is always finished.
                (folder / "prefix").rename(target)
    return target


def find_installed_build(announce: Callable[[str], None] = lambda text: None) -> Path | None:
    """Return the folder of the package ``torchferry-native``; None where it is not installed, or was built of other
    sources or for another torch, which ``announce`` is told."""
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    folder = Path(str(distribution.locate_file(PACKAGE.replace("-", "_")))).resolve()
    if reason := _explain_unfit(folder):
        announce(f"{PACKAGE} in {folder} does not serve: {reason}")
        return None
    return folder


def _explain_unfit(folder: Path) -> str:
    """Return why the package in a folder does not serve here; an empty text if it does."""
    try:
        recorded = dict(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        return f"it has no record of its build: {error}"
    for name, value in describe_build().items():
        if recorded.get(name) != value:
            return f"it was built with {name} {recorded.get(name)}, this is {value}"
    if missing := [name for name in ("bin/torchferry_verify", "lib/libtorchferry.so") if not (folder / name).is_file()]:
        return f"it has no {missing[0]}"
    # The library finds torch beside its own folder.
    place = folder.parent / "torch"
    is_beside = place.exists() and place.samefile(torch_folder())
    return "" if is_beside else f"torch is in {torch_folder()}, not beside it"


def describe_build() -> dict[str, str]:
    """Return what a build for this torch is made of."""
    import torch

    commit, sources = str(torch.version.git_version), _compute_sources_digest()
    return {"torch": _torch_version(), "commit of torch": commit, "machine": platform.machine(), "sources": sources}


def _compute_sources_digest() -> str:
    digest = hashlib.sha256()
    # A folder of somebody's build beside them is none of them.
    files = [SOURCES / "CMakeLists.txt", *(p for name in _FOLDERS for p in (SOURCES / name).rglob("*") if p.is_file())]
    for file in sorted(files):
        digest.update(file.relative_to(SOURCES).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _build(folder: Path, sanitize: str) -> None:
    cmake = find_tool("cmake")
    ninja = find_tool("ninja", needed=False)
    configure = [
        cmake,
        *("-S", str(SOURCES), "-B", str(folder / "build")),
        f"-DTORCHFERRY_TORCH={torch_folder()}",
        f"-DCMAKE_INSTALL_PREFIX={folder / 'prefix'}",
        f"-DCMAKE_CXX_COMPILER={_find_compiler()}",
        f"-DTORCHFERRY_SANITIZE={sanitize}",
        f"-DTORCHFERRY_HARNESS={'OFF' if sanitize else 'ON'}",
        *(["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []),
    ]
    run_tool(configure)
    run_tool([cmake, "--build", str(folder / "build"), "--target", "install", "--parallel"])


def run_tool(command: Sequence[str], **options: object) -> str:
    """Return a command's standard output. Raise ``MissingRuntimeError`` with the compiler's errors if it fails."""
    done = subprocess.run([*command], capture_output=True, text=True, check=False, **options)  # pyright: ignore
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        what, where = "the native library could not be built", " ".join(command[:2]) + " ..."
        got = "; ".join(lines[:4]) or (done.stderr or done.stdout).strip()[-400:]
        mend = f"look at the compiler's message; what it needs: {INSTALL}"
        raise MissingRuntimeError(what, where=where, got=got, mend=mend)
    return done.stdout


def find_tool(name: str, needed: bool = True) -> str:
    """Return the path of a build tool: the one that pip put beside this Python, else the one on PATH."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.is_file() else shutil.which(name)
    if path or not needed:
        return path or ""
    raise MissingRuntimeError(f"{name} was not found; it is needed to build the native library", mend=INSTALL)


def torch_folder() -> Path:
    """Return the folder of the installed torch."""
    import torch

    return Path(torch.__path__[0])


def _torch_version() -> str:
    import torch

    return torch.__version__


def _find_compiler() -> str:
    setting = os.environ.get("CXX", "")
    path = shutil.which(setting) if setting else (shutil.which("g++") or shutil.which("c++") or shutil.which("clang++"))
    if not path:
        got = f"CXX={setting}" if setting else "no g++, c++ or clang++ on PATH"
        what = "there is no C++ compiler to build the native library"
        raise MissingRuntimeError(what, got=got, mend=INSTALL)
    return path


if __name__ == "__main__":
    print(json.dumps(describe_build()))
