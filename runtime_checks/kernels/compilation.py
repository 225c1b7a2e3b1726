"""Kernels as shared objects: built once by the machine's C compiler, kept in the cache.

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
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock

from exporter.archive import target_machine
from exporter.common.errors import ArchiveError, MissingRuntimeError
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.cache import make_cache_error, make_private_folder

# No flag may change a result: no contraction, no fast math.
FLAGS = ("-std=c99", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
NATIVE = "-march=native"
# Seconds that compiling a kernel may take; those of the most operations that are written take some minutes.
LIMIT = 3600
INSTALL = "install one (apt-get install gcc), or name it with the variable CC"


def find_compiler() -> list[str]:
    """Return ``$CC``, else the first of cc, gcc and clang. Raise ``MissingRuntimeError`` if there is none."""
    setting = os.environ.get("CC")
    if setting:
        words = shlex.split(setting)
        if not words or shutil.which(words[0]) is None:
            raise MissingRuntimeError("the C compiler is not there", where="CC", got=setting, mend=INSTALL)
        return words
    name_on_path = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if name_on_path is None:
        raise MissingRuntimeError("there is no C compiler", expected="cc, gcc or clang on the PATH", mend=INSTALL)
    return [name_on_path]


def read_compiler_version(command: list[str]) -> str:
    """Return the first line of the compiler's ``--version``. Raise ``MissingRuntimeError`` if it does not start."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingRuntimeError("the C compiler does not start", got=str(error), mend=INSTALL) from None
    if done.returncode != 0:
        raise MissingRuntimeError("the C compiler does not start", got=_extract_errors(done.stderr), mend=INSTALL)
    return done.stdout.splitlines()[0] if done.stdout else ""


def compile_kernel(files: Mapping[str, bytes]) -> Path:
    """Compile the first of these C files to a cached shared object. Raise ``MissingRuntimeError`` if it cannot be
    compiled or stored, ``ArchiveError`` if the cached one was changed."""
    command = find_compiler()
    digest = hashlib.sha256()
    instruction_sets = target_machine.read_instruction_sets()
    machine = (read_compiler_version(command), platform.machine(), *instruction_sets)
    for part in (shlex.join(command), *machine, *FLAGS):
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
                    _run_compiler(command, files, place)
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


def _run_compiler(command: list[str], files: Mapping[str, bytes], place: Path) -> None:
    main = next(iter(files))
    with temporary_folder() as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        library = place / "kernel.so"
        for native in ([NATIVE], []):
            arguments = [*command, *FLAGS, *native, "-o", str(library), str(folder / main), "-lm"]
            done = _run_within_limit(arguments)
            # Not every compiler supports -march=native here.
            if done.returncode == 0 or NATIVE not in done.stderr:
                break
        if "No space left on device" in done.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if done.returncode != 0:
            what, where = "the C compiler fails on the kernel", shlex.join([*command, *FLAGS, main])
            mend = "set CC to a compiler of C99"
            raise MissingRuntimeError(what, where=where, got=_extract_errors(done.stderr), mend=mend)
    (place / "kernel.sha256").write_text(hashlib.sha256(library.read_bytes()).hexdigest())


def _run_within_limit(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the compiler. Raises ``MissingRuntimeError`` if it takes too long."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        what, got = "the C compiler does not end on the kernel", f"more than {LIMIT} s"
        raise MissingRuntimeError(
            what, where=command[0], got=got, mend="load the archive, which runs as it is"
        ) from None


def _extract_errors(text: str) -> str:
    """Return the compiler's message from its first error on."""
    lines = text.strip().splitlines()
    start = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[start : start + 5])
