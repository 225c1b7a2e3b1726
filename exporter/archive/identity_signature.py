"""Signatures by an identity in place of a key: Sigstore's bundles, which lie beside the file as ``NAME.sigstore.json``.

Sigstore's programs write them (``sigstore sign``): a certificate that lasts for minutes names who has signed, as an
identity provider said it, and a public log has the time. The package ``sigstore`` checks all of that; an identity
without its issuer would be anybody's. Source: the client specification of Sigstore,
https://github.com/sigstore/architecture-docs/blob/main/client-spec.md."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from exporter.archive.file_signature import find_signed_file, read_signature_bytes
from exporter.common.errors import MissingRuntimeError, SignatureError, UsageError, summarize_error
from exporter.common.file_digest import compute_file_digest

if TYPE_CHECKING:
    from sigstore.models import Bundle
    from sigstore.verify import Verifier

SUFFIX = ".sigstore.json"
# A certificate, an entry of the log and its proof are some KiB.
_LONGEST = 2**20


@dataclass(frozen=True)
class Identity:
    """An identity that signs: a ``name``, such as an e-mail address or the address of a workflow, of an ``issuer``.

    ``trusted_root`` is a file with the keys of Sigstore's services; without one they are fetched over the network.

    Example:
        ```python
        torchferry.Identity("jane@example.org", "https://accounts.example.org")
        ```

    Raises:
        UsageError: The name or the issuer is no text, or blank.
    """

    name: str
    issuer: str
    trusted_root: str | Path | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) and text.strip() for text in (self.name, self.issuer)):
            what, expected = "an identity is a name of an issuer", "both: who has signed, and who says so"
            got, mend = f"name {self.name!r}, issuer {self.issuer!r}", "name both: --identity NAME --issuer ADDRESS"
            raise UsageError(what, got=got, expected=expected, mend=mend)

    def describe(self) -> str:
        """Return the identity in a few words."""
        return f"identity {self.name}, of {self.issuer}"

    def absolute(self) -> Identity:
        """Return the same identity, for a process in another folder."""
        root = self.trusted_root
        return dataclasses.replace(self, trusted_root=Path(root).absolute() if root is not None else None)


# Who has to have signed a file: the owner of the public key at a path, or an identity.
Signer: TypeAlias = Path | Identity


def make_signer(value: str | Path | Identity | None) -> Signer | None:
    """Make the signer that a public key's path, or an identity, stands for."""
    return value if value is None or isinstance(value, Identity) else Path(value)


def check_identity(path: Path, identity: Identity, content: os.PathLike[str] | None = None) -> None:
    """Check that an identity has signed a file.

    ``content`` is where the bytes of a single file are, if not at ``path``.

    Raises:
        SignatureError: There is none, it is another identity's, or the file or the signature was changed.
        UsageError: The file of the trusted root is none.
        MissingRuntimeError: The package sigstore is not installed, or the keys of its services cannot be fetched.
    """
    try:
        from sigstore.hashes import Hashed
        from sigstore.verify import policy
        from sigstore_models.common.v1 import HashAlgorithm
    except ImportError as error:
        what, mend = "sigstore is not installed, or older than 4", 'pip install "torchferry[keyless]"'
        raise MissingRuntimeError(what, got=str(error), mend=mend) from None
    place = find_signed_file(path)
    where = place.with_name(place.name + SUFFIX)
    bundle = _read_bundle(where, path)
    verifier = _make_verifier(identity.trusted_root)
    digest = compute_file_digest(content if content is not None and place == path else place)
    hashed = Hashed(algorithm=HashAlgorithm.SHA2_256, digest=bytes.fromhex(digest))
    expected = policy.Identity(identity=identity.name, issuer=identity.issuer)
    # Alone, for a message of its own; the certificate itself is held against Sigstore's keys below.
    try:
        expected.verify(bundle.signing_certificate)
    except Exception as error:
        what, mend = "the file is signed by another identity", "ask who signed it, or name that identity"
        got = summarize_error(error)
        raise SignatureError(what, where=str(where), got=got, expected=identity.describe(), mend=mend) from None
    try:
        verifier.verify_artifact(hashed, bundle, expected)
    # Parts of a bundle are read here for the first time, by several libraries with errors of their own.
    except Exception as error:
        what, mend = "the file or its signature was changed, or Sigstore does not know it", "get both files again"
        raise SignatureError(what, where=str(where), got=summarize_error(error), mend=mend) from None


def _read_bundle(where: Path, path: Path) -> Bundle:
    from sigstore.models import Bundle

    data = read_signature_bytes(where, path, _LONGEST, "sigstore sign")
    try:
        if len(data) > _LONGEST:
            raise ValueError(f"more than {_LONGEST} bytes")
        return Bundle.from_json(data)
    except Exception as error:
        what, expected, mend = "the signature is damaged", "what sigstore sign writes", "get the signature again"
        raise SignatureError(what, where=str(where), got=summarize_error(error), expected=expected, mend=mend) from None


def _make_verifier(trusted_root: str | Path | None) -> Verifier:
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    if trusted_root is None:
        try:
            return Verifier.production()
        except Exception as error:
            what, got = "the keys of Sigstore's services cannot be fetched", summarize_error(error)
            mend = "where there is no network, name a file that has them: --trusted-root FILE"
            raise MissingRuntimeError(what, got=got, mend=mend) from None
    try:
        return Verifier(trusted_root=TrustedRoot.from_file(str(trusted_root)))
    except Exception as error:
        what, expected = "the file is no trusted root", "a trusted_root.json as Sigstore publishes it"
        where, got = str(trusted_root), summarize_error(error)
        mend = "take the one that sigstore keeps below ~/.cache/sigstore-python where there is a network"
        raise UsageError(what, where=where, got=got, expected=expected, mend=mend) from None
