"""Kernels as shared objects: built once by one of the machine's compilers, kept in the cache.

A build is keyed by the sources, the compiler and the processor; a cached object is checked against its own digest
before it is loaded."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from exporter.archive import target_machine
from exporter.common.errors import ArchiveError, MissingRuntimeError, UsageError
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.cache import make_cache_error, make_private_folder
from runtime_checks.runners.subprocesses import MOST_SECONDS

# No flag may change a result: no contraction, no fast math.
FLAGS = ("-std=c99", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
NATIVE = "-march=native"
# The sources for a GPU as C++, one thread after the other: the C compiler's flags, and a fraction of its time.
CXX_FLAGS = ("-x", "c++", "-std=c++14", "-O1", *FLAGS[2:])
# Seconds that compiling a kernel may take, and the variable that says otherwise; those of the most operations that are
# written take some minutes.
LIMIT, LIMIT_VARIABLE = "3600", "TORCHFERRY_COMPILE_SECONDS"


@dataclass(frozen=True)
class Toolchain:
    """A compiler of shared objects: its ``name``, ``find``, which gives its command, ``flags``, and the flag ``native``
    for the processor at hand, which not every compiler has; ``mend`` is what to do if it fails."""

    name: str
    find: Callable[[], list[str]]
    flags: tuple[str, ...]
    native: str | None
    mend: str
    # The line of its version that tells one from another.
    version_line: int = 0


def _find_command(language: str, variable: str, package: str, names: tuple[str, ...]) -> list[str]:
    """Return the command that a variable has, else the first of these names on the PATH."""
    setting = os.environ.get(variable)
    mend = f"install one (apt-get install {package}), or name it with the variable {variable}"
    if setting:
        words = shlex.split(setting)
        if not words or shutil.which(words[0]) is None:
            raise MissingRuntimeError(f"the {language} compiler is not there", where=variable, got=setting, mend=mend)
        return words
    name_on_path = next((name for name in names if shutil.which(name)), None)
    if name_on_path is None:
        expected = f"{', '.join(names[:-1])} or {names[-1]} on the PATH"
        raise MissingRuntimeError(f"there is no {language} compiler", expected=expected, mend=mend)
    return [name_on_path]


def find_compiler() -> list[str]:
    """Return ``$CC``, else the first of cc, gcc and clang. Raise ``MissingRuntimeError`` if there is none."""
    return _find_command("C", "CC", "gcc", ("cc", "gcc", "clang"))


def _find_cxx_compiler() -> list[str]:
    return _find_command("C++", "CXX", "g++", ("g++", "c++", "clang++"))


C_COMPILER = Toolchain("C compiler", find_compiler, FLAGS, NATIVE, "set CC to a compiler of C99")
CXX_COMPILER = Toolchain("C++ compiler", _find_cxx_compiler, CXX_FLAGS, NATIVE, "set CXX to a compiler of C++14")


def _read_version(command: list[str], toolchain: Toolchain) -> str:
    """Return a line of the compiler's ``--version``. Raise ``MissingRuntimeError`` if it does not start."""
    what = f"the {toolchain.name} does not start"
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingRuntimeError(what, got=str(error), mend=toolchain.mend) from None
    if done.returncode != 0:
        raise MissingRuntimeError(what, got=extract_errors(done.stderr), mend=toolchain.mend)
    lines = done.stdout.splitlines()
    return lines[toolchain.version_line] if lines else ""


def compile_kernel(files: Mapping[str, bytes], toolchain: Toolchain = C_COMPILER) -> Path:
    """Compile the first of these files to a cached shared object. Raise ``MissingRuntimeError`` if it cannot be
    compiled or stored, ``ArchiveError`` if the cached one was changed."""
    command = toolchain.find()
    digest = hashlib.sha256()
    instruction_sets = target_machine.read_instruction_sets()
    machine = (_read_version(command, toolchain), platform.machine(), *instruction_sets)
    for part in (shlex.join(command), *machine, *toolchain.flags):
        digest.update(part.encode() + b"\0")
    for name, data in sorted(files.items()):
        digest.update(name.encode() + b"\0" + data + b"\0")
    target = make_private_folder("kernels") / digest.hexdigest()[:32]
    library, seal = target / "kernel.so", target / "kernel.sha256"
    try:
        with FileLock(f"{target}.lock"):
            if not target.exists():
                with temporary_folder(".build-", target.parent) as folder:
                    place = folder / "made"
                    place.mkdir(mode=0o700)
                    _run_compiler(command, toolchain, files, place)
                    place.rename(target)
    except OSError as error:
        raise make_cache_error("the kernel has no place to be built", target.parent, error) from None
    try:
        good = hashlib.sha256(library.read_bytes()).hexdigest() == seal.read_text()
    except (OSError, ValueError):
        good = False
    if not good:
        expected, mend = "what was built there", "remove that folder: it is built anew"
        raise ArchiveError("the kernel in the cache was changed", where=str(target), expected=expected, mend=mend)
    return library


def _run_compiler(command: list[str], toolchain: Toolchain, files: Mapping[str, bytes], place: Path) -> None:
    main = next(iter(files))
    with temporary_folder() as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        library = place / "kernel.so"
        for native in ([toolchain.native] if toolchain.native else [], []):
            arguments = [*command, *toolchain.flags, *native, "-o", str(library), str(folder / main), "-lm"]
            done = run_within_limit(arguments, toolchain.name)
            # Not every compiler supports -march=native here.
            if done.returncode == 0 or not toolchain.native or toolchain.native not in done.stderr:
                break
        if "No space left on device" in done.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if done.returncode != 0:
            what, where = f"the {toolchain.name} fails on the kernel", shlex.join([*command, *toolchain.flags, main])
            raise MissingRuntimeError(what, where=where, got=extract_errors(done.stderr), mend=toolchain.mend)
    (place / "kernel.sha256").write_text(hashlib.sha256(library.read_bytes()).hexdigest())


def run_within_limit(command: list[str], name: str) -> subprocess.CompletedProcess[str]:
    """Run the compiler. Raises ``MissingRuntimeError`` if it takes too long."""
    limit = os.environ.get(LIMIT_VARIABLE) or LIMIT
    try:
        seconds = float(limit)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_SECONDS:
        what, expected = "a limit is not a positive number", f"seconds, to {MOST_SECONDS:g}"
        raise UsageError(what, where=LIMIT_VARIABLE, got=limit, expected=expected, mend="leave it out: it is 3600")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        what, got, mend = f"the {name} does not end on the kernel", f"more than {limit} s", "load the archive instead"
        raise MissingRuntimeError(what, where=command[0], got=got, expected=LIMIT_VARIABLE, mend=mend) from None


def extract_errors(text: str) -> str:
    """Return the compiler's message from its first error on."""
    lines = text.strip().splitlines()
    start = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[start : start + 5])
