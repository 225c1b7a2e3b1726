"""Signing of files with a key: what ``torchferry sign`` and ``torchferry.sign`` do."""

from __future__ import annotations

from pathlib import Path

from exporter.archive.file_signature import sign_file
from exporter.archive.pt_archive import is_shared_object
from runtime_checks.containers import open_container


def sign(path: str | Path, key: str | Path, *, days: float | None = None, passphrase: str | None = None) -> Path:
    """Sign a file, as ``torchferry sign`` does: who has your public key can tell that the file is the one you signed.

    Args:
        path: A file that torchferry wrote, of any format; or a shared object of a kernel, which is signed as it is.
        key: The private key, Ed25519 in PEM: ``torchferry keygen`` makes one.
        days: How many days the signature is valid; by default for ever.
        passphrase: That of the key, if it has one.

    Returns:
        The path of the signature, which lies beside the file.

    Raises:
        ArchiveError: The file is damaged.
        UsageError: The file of the key is no private key.
        MissingRuntimeError: The package cryptography is not installed.

    Example:
        ```python
        torchferry.sign("spring.pt", "mine.key", days=365)
        torchferry.verify("spring.pt", public_key="mine.key.pub")
        ```
    """
    if not is_shared_object(Path(path)):
        open_container(Path(path))
    return sign_file(Path(path), Path(key), days, passphrase)
