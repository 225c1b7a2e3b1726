"""Signatures of files: Ed25519 (RFC 8032) over a short text, which lies beside the file as ``NAME.sig``.

The text names the file by its sha256, the key by that of its 32 bytes, and the time: it says who signed which bytes,
and nothing of what they compute. A container of several files is signed by its manifest, which has their digests. The
native library reads the same text: ``runtime_checks/native/src/signature.cpp``."""

from __future__ import annotations

import datetime
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.archive import onnx_container
from exporter.archive.kernel_container import MANIFEST, is_kernel
from exporter.common.atomic_files import write_atomically
from exporter.common.errors import MissingRuntimeError, OutputError, SignatureError, UsageError
from exporter.common.file_digest import compute_file_digest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SUFFIX = ".sig"
NEVER = "never"
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
_TEXT = re.compile(
    r"torchferry signature 1\nsha256 ([0-9a-f]{64})\nkey ([0-9a-f]{64})\n"
    rf"signed ({_TIME})\nexpires ({_TIME}|{NEVER})\n"
    r"signature ([0-9a-f]{128})\n",
    re.ASCII,
)
_LONGEST = 1024


@dataclass(frozen=True)
class FileSignature:
    """What a signature says. ``key`` is the sha256 of the public key; times are UTC, as text."""

    digest: str
    key: str
    signed: str
    expires: str = NEVER

    def statement(self) -> bytes:
        """Return the text that is signed."""
        lines = ("torchferry signature 1", f"sha256 {self.digest}", f"key {self.key}")
        return "".join(f"{line}\n" for line in (*lines, f"signed {self.signed}", f"expires {self.expires}")).encode()

    def describe(self) -> str:
        """Return the signature in a few words."""
        return f"key {self.key[:16]}, signed {self.signed}, expires {self.expires}"


def make_keys(private: Path) -> Path:
    """Write a new private key, which only its owner can read, and its public key beside it; return the latter's path.

    Raises ``OutputError`` if there is a key already."""
    ed25519, serialization = _load_cryptography()
    public = private.with_name(f"{private.name}.pub")
    for path in (private, public):
        if path.exists():
            what, mend = "there is a key already", "name another file: what it has signed would have no key any more"
            raise OutputError(what, where=str(path), mend=mend)
    key = ed25519.Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    write_atomically(private, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), mode=0o600)
    write_atomically(public, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return public


def sign_file(path: Path, private: Path, days: float | None = None, passphrase: str | None = None) -> Path:
    """Sign a file with a private key, for some days or for ever; return the path of the signature.

    Raises ``UsageError`` for a file that is no private key of Ed25519, ``OutputError`` if the signature cannot be
    written."""
    if days is not None and not 0 < days < 1e5:
        raise UsageError("a signature lasts for no such time", got=f"{days:g} days", expected="above 0, below 100,000")
    key = _read_private_key(private, passphrase)
    now = datetime.datetime.now(datetime.timezone.utc)
    expires = NEVER if days is None else _format_time(now + datetime.timedelta(days=days))
    place = find_signed_file(path)
    signature = FileSignature(compute_file_digest(place), _compute_key_id(key.public_key()), _format_time(now), expires)
    value = key.sign(signature.statement()).hex()
    target = place.with_name(place.name + SUFFIX)
    write_atomically(target, signature.statement() + f"signature {value}\n".encode())
    return target


def check_signature(path: Path, public: Path, content: os.PathLike[str] | None = None) -> FileSignature:
    """Check that the owner of a public key has signed a file, and return what the signature says.

    ``content`` is where the bytes of a single file are, if not at ``path``.

    Raises:
        SignatureError: There is none, it is another key's, it has expired, or the file or the signature was changed.
        UsageError: The file of the key is no public key of Ed25519.
        MissingRuntimeError: The package cryptography is not installed.
    """
    key = _read_public_key(public)
    place = find_signed_file(path)
    where = place.with_name(place.name + SUFFIX)
    signature, value = _read_signature(where, path)
    expected_key = _compute_key_id(key)
    if signature.key != expected_key:
        what, mend = "the file is signed with another key", "ask who signed it, or name that key"
        raise SignatureError(
            what, where=str(path), got=f"key {signature.key}", expected=f"key {expected_key}", mend=mend
        )
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(value, signature.statement())
    except InvalidSignature:
        what, mend = "the signature was changed, or is not by that key", "get the file and its signature again"
        raise SignatureError(what, where=str(where), mend=mend) from None
    digest = compute_file_digest(content if content is not None and place == path else place)
    if digest != signature.digest:
        what, mend = "the file was changed after it was signed", "get the file again"
        raise SignatureError(what, where=str(place), got=f"sha256 {digest}", expected=signature.digest, mend=mend)
    now = _format_time(datetime.datetime.now(datetime.timezone.utc))
    if signature.expires != NEVER and signature.expires < now:
        what, mend = "the signature has expired", "ask who signed it to sign it again"
        raise SignatureError(what, where=str(where), got=signature.expires, expected=f"after {now}", mend=mend)
    return signature


def find_signed_file(path: Path) -> Path:
    """Return the file whose digest stands for a container: its manifest, if it has several files."""
    if is_kernel(path):
        return path / MANIFEST
    return onnx_container.manifest_path(path) if path.suffix == onnx_container.SUFFIX else path


def read_signature_bytes(where: Path, path: Path, longest: int, program: str) -> bytes:
    """Read the signature of the file at ``path``, and one byte more of one that is longer than what ``program`` writes.

    Raises ``SignatureError`` if there is none, or it cannot be read."""
    try:
        with where.open("rb") as file:
            return file.read(longest + 1)
    except FileNotFoundError:
        what, mend = "the file is not signed", f"ask who made it for a signature: {program}"
        raise SignatureError(what, where=str(path), expected=where.name, mend=mend) from None
    except OSError as error:
        raise SignatureError("the signature cannot be read", where=str(where), got=error.strerror or "") from None


def _read_signature(where: Path, path: Path) -> tuple[FileSignature, bytes]:
    text = read_signature_bytes(where, path, _LONGEST, "torchferry sign").decode("ascii", errors="replace")
    match = _TEXT.fullmatch(text)
    if match is None:
        mend = "get the signature again: a copy must not change a byte"
        raise SignatureError(
            "the signature is damaged", where=str(where), expected="what torchferry sign writes", mend=mend
        )
    return FileSignature(*match.groups()[:4]), bytes.fromhex(match[5])


def _format_time(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _compute_key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def _read_private_key(path: Path, passphrase: str | None) -> Ed25519PrivateKey:
    ed25519, serialization = _load_cryptography()
    password = None if passphrase is None else passphrase.encode()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password)
    except (OSError, ValueError, TypeError) as error:
        raise _make_key_error("private", path, str(error)) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise _make_key_error("private", path, type(key).__name__)
    return key


def _read_public_key(path: Path) -> Ed25519PublicKey:
    ed25519, serialization = _load_cryptography()
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _make_key_error("public", path, str(error)) from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise _make_key_error("public", path, type(key).__name__)
    return key


def _make_key_error(kind: str, path: Path, got: str) -> UsageError:
    mend = "make one with torchferry keygen, or with openssl genpkey -algorithm ed25519"
    return UsageError(f"the file is no {kind} key", where=str(path), got=got, expected="Ed25519 in PEM", mend=mend)


def _load_cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        mend = 'pip install "torchferry[sign]"'
        raise MissingRuntimeError("cryptography is not installed", got=str(error), mend=mend) from None
    return ed25519, serialization
