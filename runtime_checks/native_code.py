"""Native code in files: it runs where its reader asks for it, or made it here. Imports no torch.

What this user made is known by its sha256: an empty file of that name in the folder ``own`` of the cache, where nobody
else may write. The native library looks there too."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.archive.container_kinds import CODE
from exporter.archive.file_signature import FileSignature, check_signature
from exporter.archive.identity_signature import Identity, Signer, check_identity
from exporter.archive.kernel_container import KernelFiles
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError, MissingRuntimeError, TrustError, UsageError, suggest_names
from exporter.common.file_digest import compute_file_digest
from runtime_checks.cache import cache_folder, check_private_folder, make_private_folder
from runtime_checks.kernels.embedded import EmbeddedKernel

# What of a file may run: graphs of operators, or native code too.
GRAPHS, NATIVE = "graphs", "native"
TRUST_MODES = (GRAPHS, NATIVE)


@dataclass(frozen=True)
class Trust:
    """What may run of a ``file``, with what it carries, and of files ``beside`` it, a mode each. ``signature`` is that
    of the file, or whose it is, if it had to be signed."""

    file: str
    beside: str
    signature: FileSignature | Identity | None = None


def check_trust_mode(trust: str) -> None:
    """Raise ``UsageError`` if there is no such trust."""
    if trust not in TRUST_MODES:
        raise UsageError("there is no such trust", got=repr(trust), expected=suggest_names(trust, TRUST_MODES))


def resolve_trust(path: Path, trust: str, signer: Signer | None, content: os.PathLike[str] | None = None) -> Trust:
    """Return what may run of a file: native code too, if it has to be signed with a key or by an identity, and is.

    ``content`` is where the bytes of a single file are, if not at ``path``.

    Raises ``UsageError`` if there is no such trust, and the errors of ``check_signature`` and ``check_identity``."""
    check_trust_mode(trust)
    if signer is None:
        return Trust(trust, trust)
    if isinstance(signer, Identity):
        check_identity(path, signer, content)
        return Trust(NATIVE, trust, signer)
    return Trust(NATIVE, trust, check_signature(path, signer, content))


def record_own_code(opened: object) -> None:
    """Record what was written here as this user's own, if it is native code; an archive may carry the same kernel.

    Where there is no place for the record it is left out: a reader then has to ask for the code."""
    digest = _compute_code_digest(opened)
    with contextlib.suppress(OSError, MissingRuntimeError, ArchiveError):
        if digest:
            (make_private_folder("own") / digest).touch(mode=0o600)


def check_code_trust(opened: object, where: Path, trust: str) -> None:
    """Check that a file may run as it was opened: an archive by TorchScript, whatever else it carries.

    Raises:
        TrustError: It is native code that this user did not make here, nor allow.
        ArchiveError: Others can write to the record of one's own code.
    """
    if trust != NATIVE and (digest := _compute_code_digest(opened)):
        _check_own(digest, where)


def check_kernel_trust(files: Mapping[str, bytes], where: Path, trust: str) -> None:
    """Check that the kernel of an archive may run. Raises as ``check_code_trust``."""
    if trust != NATIVE:
        _check_own(_compute_kernel_digest(files), where)


def _compute_code_digest(opened: object) -> str:
    if isinstance(opened, KernelFiles):
        return _compute_kernel_digest(opened.build_files())
    if isinstance(opened, EmbeddedKernel):
        return _compute_kernel_digest(opened.archive.kernel())
    return compute_file_digest(opened.content) if isinstance(opened, Archive) and opened.holds == CODE else ""


def _compute_kernel_digest(files: Mapping[str, bytes]) -> str:
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _check_own(digest: str, where: Path) -> None:
    folder = cache_folder() / "own"
    if (folder / digest).is_file():
        check_private_folder(folder)
        return
    what, got = "the file holds native code that was not made here, and nobody asked for it", f"sha256 {digest}"
    expected = f"code that this user exported or converted, and {folder} knows"
    mend = 'make it here from its .pt; or, if you trust who made it, load(..., trust="native") or --allow-native'
    raise TrustError(what, where=str(where), got=got, expected=expected, mend=mend)
