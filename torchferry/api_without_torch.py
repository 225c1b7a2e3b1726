"""The part of torchferry that runs on NumPy alone: kernels."""

from __future__ import annotations

from pathlib import Path

from exporter import __version__
from exporter.archive.identity_signature import Identity, make_signer
from exporter.archive.kernel_container import is_kernel
from exporter.common.errors import (
    ArchiveError,
    MissingRuntimeError,
    SignatureError,
    TorchferryError,
    TrustError,
    UsageError,
)
from runtime_checks.kernels.numpy_kernel import Kernel

__all__ = [
    "ArchiveError",
    "Identity",
    "Kernel",
    "MissingRuntimeError",
    "SignatureError",
    "TorchferryError",
    "TrustError",
    "UsageError",
    "__version__",
    "load",
]


def load(path: str | Path, *, trust: str = "graphs", public_key: str | Path | Identity | None = None) -> Kernel:
    """Load a kernel's folder, built by this machine's C compiler. Raises ``MissingRuntimeError`` for other files, which
    need torch, and without a compiler; ``ArchiveError`` for a folder that was changed; ``TrustError`` for one that was
    not made here, unless ``trust`` is ``"native"``; ``SignatureError`` for one that is not signed with ``public_key``.
    """
    if not is_kernel(Path(path)) and not Path(path).is_dir():
        expected = "the folder of a kernel, which needs NumPy alone"
        mend = "pip install torch, or export the model with --format c"
        raise MissingRuntimeError("torch is not installed", where=str(path), expected=expected, mend=mend)
    return Kernel(Path(path), trust, make_signer(public_key))
