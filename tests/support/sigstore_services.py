"""Services as Sigstore has them, with keys of their own: an authority, the log of its certificates, one of signatures.

What they make is what ``sigstore sign`` writes, by RFC 6962 (certificate transparency), the formats of Rekor 1 and the
bundle of version 0.3; the package sigstore checks it against ``write_trusted_root``."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
SIGNED = START + datetime.timedelta(days=1)
ISSUER_OF_IDENTITIES = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
SIGNED_TIMES = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
LOG_NAME = "rekor.example.org"
KEY_DETAILS = "PKIX_ECDSA_P256_SHA_256"


def make_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def make_key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
    flags = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not signs_certificates, key_cert_sign=signs_certificates, **flags)


@dataclass(frozen=True)
class Services:
    """An authority, the log of its certificates, and the log of signatures, each with a key."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=make_key)
    certificates: ec.EllipticCurvePrivateKey = field(default_factory=make_key)
    signatures: ec.EllipticCurvePrivateKey = field(default_factory=make_key)

    def make_root(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        key = self.authority.public_key()
        return (
            x509.CertificateBuilder(name, name, key, 1, START, START + datetime.timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(make_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    def make_certificate(self, key: ec.EllipticCurvePrivateKey, name: str, issuer: str) -> x509.Certificate:
        """A certificate of ten minutes for a key, in the log of certificates."""
        builder = (
            x509.CertificateBuilder(
                self.make_root().subject,
                x509.Name([]),
                key.public_key(),
                2,
                SIGNED,
                SIGNED + datetime.timedelta(minutes=10),
            )
            .add_extension(make_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()), critical=False
            )
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(name)]), critical=True)
            .add_extension(x509.UnrecognizedExtension(ISSUER_OF_IDENTITIES, issuer.encode()), critical=False)
        )
        before = builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        milliseconds = int(SIGNED.timestamp() * 1000)
        entry = hashlib.sha256(encode_key(self.authority)).digest() + len(before).to_bytes(3, "big") + before
        statement = struct.pack("!BBQH", 0, 0, milliseconds, 1) + entry + struct.pack("!H", 0)
        signature = sign(self.certificates, statement)
        log = hashlib.sha256(encode_key(self.certificates)).digest()
        time = struct.pack("!B32sQHBBH", 0, log, milliseconds, 0, 4, 3, len(signature)) + signature
        times = struct.pack("!HH", len(time) + 2, len(time)) + time
        extension = x509.UnrecognizedExtension(SIGNED_TIMES, b"\x04" + encode_length(len(times)) + times)
        return builder.add_extension(extension, critical=False).sign(self.authority, hashes.SHA256())

    def make_bundle(self, data: bytes, name: str, issuer: str) -> dict[str, Any]:
        """The bundle of somebody's signature of some bytes."""
        key = make_key()
        certificate = self.make_certificate(key, name, issuer)
        signature, digest = sign(key, data), hashlib.sha256(data)
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        spec = {
            "data": {"hash": {"algorithm": "sha256", "value": digest.hexdigest()}},
            "signature": {"content": encode(signature), "publicKey": {"content": encode(pem)}},
        }
        body = json.dumps({"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": spec}).encode()
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": encode(certificate.public_bytes(serialization.Encoding.DER))},
                "tlogEntries": [self.make_entry(body)],
            },
            "messageSignature": {
                "messageDigest": {"algorithm": "SHA2_256", "digest": encode(digest.digest())},
                "signature": encode(signature),
            },
        }

    def make_entry(self, body: bytes) -> dict[str, Any]:
        """The only entry of the log of signatures."""
        log, seconds = hashlib.sha256(encode_key(self.signatures)).digest(), int(SIGNED.timestamp())
        promise = {"body": encode(body), "integratedTime": seconds, "logID": log.hex(), "logIndex": 0}
        promised = json.dumps(promise, separators=(",", ":"), sort_keys=True).encode()
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"{LOG_NAME} - 1\n1\n{encode(root)}\n"
        signed = encode(log[:4] + sign(self.signatures, note.encode()))
        return {
            "logIndex": "0",
            "logId": {"keyId": encode(log)},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
            "integratedTime": str(seconds),
            "inclusionPromise": {"signedEntryTimestamp": encode(sign(self.signatures, promised))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": encode(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\u2014 {LOG_NAME} {signed}\n"},
            },
            "canonicalizedBody": encode(body),
        }

    def write_trusted_root(self, path: Path) -> Path:
        def describe_log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            data = encode_key(key)
            public = {"rawBytes": encode(data), "keyDetails": KEY_DETAILS, "validFor": {"start": START.isoformat()}}
            return {
                "baseUrl": f"https://{LOG_NAME}",
                "hashAlgorithm": "SHA2_256",
                "publicKey": public,
                "logId": {"keyId": encode(hashlib.sha256(data).digest())},
            }

        root = self.make_root().public_bytes(serialization.Encoding.DER)
        authority = {
            "subject": {"organization": "example.org", "commonName": "authority"},
            "uri": "https://authority.example.org",
            "certChain": {"certificates": [{"rawBytes": encode(root)}]},
            "validFor": {"start": START.isoformat()},
        }
        content = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [describe_log(self.signatures)],
            "certificateAuthorities": [authority],
            "ctlogs": [describe_log(self.certificates)],
            "timestampAuthorities": [],
        }
        path.write_text(json.dumps(content))
        return path


def encode_length(length: int) -> bytes:
    """The length of a value in DER."""
    if length < 128:
        return bytes([length])
    digits = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([128 + len(digits)]) + digits
