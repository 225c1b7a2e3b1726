"""Signatures, by both readers: a file that was changed, is of another key, has none or an old one is refused."""

from __future__ import annotations

import ctypes.util
import datetime
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from native_build import fill_cache, verify_natively
from project import ROOT, need

import torchferry
from exporter.archive import file_signature
from exporter.archive.file_signature import check_signature, find_signed_file, make_keys, sign_file
from exporter.common.errors import OutputError, SignatureError, UsageError
from runtime_checks.engines.engines import Kernel
from torchferry.cli.app import run

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> tuple[Path, Path]:
    private = tmp_path_factory.mktemp("keys") / "mine.key"
    return private, make_keys(private)


@pytest.fixture
def path(tmp_path) -> Path:
    return Path(shutil.copy(ROOT / "artifacts" / "robertson.pt", tmp_path))


@pytest.fixture
def signed_path(path, keys) -> Path:
    sign_file(path, keys[0])
    return path


def load_natively(path: Path, key: Path, *arguments: str) -> tuple[str, str]:
    """The status and the message of the native library."""
    need(ctypes.util.find_library("crypto") is not None, "OpenSSL's libcrypto is not installed")
    code, report = verify_natively(path, "--key", key, *arguments)
    assert code == (0 if report["passed"] else 4 if report["status"] == "TF_ERROR_SIGNATURE" else 2)
    return report.get("status", "TF_OK"), report.get("error", "")


def test_a_signed_file_is_taken(signed_path, keys, capsys):
    private, public = keys
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    torchferry.load(signed_path, public_key=public)
    report = torchferry.verify(signed_path, public_key=public)
    assert any(note.startswith("signature: key ") for note in report.notes)
    assert load_natively(signed_path, public) == ("TF_OK", "")
    assert run(["verify", str(signed_path), "--require-signature", "--key", str(public)]) == 0
    assert "expires never" in capsys.readouterr().out
    # The file itself is as it was.
    assert signed_path.read_bytes() == (ROOT / "artifacts" / "robertson.pt").read_bytes()


def expire(path: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Past(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime(2020, 1, 1, tzinfo=tz)

    with monkeypatch.context() as patch:
        patch.setattr(file_signature.datetime, "datetime", Past)
        sign_file(path, keys[0], days=1.5)


def change_text(old: str, new: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        text = path.with_name(f"{path.name}.sig")
        assert old in text.read_text()
        text.write_text(text.read_text().replace(old, new, 1))

    return change


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte of the file": (flip, "was changed after it was signed"),
    "another file": (lambda p: shutil.copy(ROOT / "artifacts" / "rates.pt", p), "was changed after it was signed"),
    "no signature": (lambda p: p.with_name(f"{p.name}.sig").unlink(), "is not signed"),
    "a longer life": (change_text("expires never", "expires 2999-01-01T00:00:00Z"), "the signature was changed"),
    "another time": (change_text("signed 2", "signed 1"), "the signature was changed"),
    "another digest": (change_text("sha256 ", "sha256 0"), "damaged"),
    "a line more": (change_text("expires", "note x\nexpires"), "damaged"),
    "an end of lines": (change_text("\nkey", "\r\nkey"), "damaged"),
    "a capital letter": (change_text("torchferry", "Torchferry"), "damaged"),
    "a long text": (lambda p: p.with_name(f"{p.name}.sig").write_text("x" * 2**20), "damaged"),
    "nothing": (lambda p: p.with_name(f"{p.name}.sig").write_text(""), "damaged"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_both_readers_refuse(fault, signed_path, keys):
    change, message = FAULTS[fault]
    change(signed_path)
    with pytest.raises(SignatureError, match=message):
        torchferry.load(signed_path, public_key=keys[1])
    status, text = load_natively(signed_path, keys[1])
    assert status == "TF_ERROR_SIGNATURE"
    assert message in text
    assert run(["verify", str(signed_path), "--require-signature", "--key", str(keys[1])]) == 4


def test_another_key(signed_path, keys, tmp_path):
    other = make_keys(tmp_path / "other.key")
    with pytest.raises(SignatureError, match="signed with another key"):
        check_signature(signed_path, other)
    assert "signed with another key" in load_natively(signed_path, other)[1]
    # Who puts the name of the right key into a signature by another still does not have that key.
    sign_file(signed_path, tmp_path / "other.key")
    text = signed_path.with_name(f"{signed_path.name}.sig")
    ours, theirs = (file_signature._compute_key_id(file_signature._read_public_key(k)) for k in (keys[1], other))
    text.write_text(text.read_text().replace(theirs, ours))
    with pytest.raises(SignatureError, match="not by that key"):
        check_signature(signed_path, keys[1])
    assert "not by that key" in load_natively(signed_path, keys[1])[1]


def test_a_signature_that_has_expired(path, keys, monkeypatch):
    expire(path, keys, monkeypatch)
    with pytest.raises(SignatureError, match="has expired"):
        check_signature(path, keys[1])
    assert "has expired" in load_natively(path, keys[1])[1]
    sign_file(path, keys[0], days=1.5)
    check_signature(path, keys[1])
    assert load_natively(path, keys[1]) == ("TF_OK", "")


@pytest.mark.parametrize("text", ["", "no key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_what_is_no_key(text, signed_path, tmp_path):
    key = tmp_path / "some.pub"
    key.write_text(text)
    with pytest.raises(UsageError, match="no public key"):
        check_signature(signed_path, key)
    status, message = load_natively(signed_path, key)
    assert status == "TF_ERROR_ARGUMENT"
    assert "no public key" in message
    with pytest.raises(UsageError, match="no private key"):
        sign_file(signed_path, key)


def test_keys_of_openssl(path, tmp_path):
    need(shutil.which("openssl") is not None, "openssl is not installed")
    private, public = tmp_path / "a.pem", tmp_path / "a.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    sign_file(path, private)
    check_signature(path, public)
    assert load_natively(path, public) == ("TF_OK", "")
    other = tmp_path / "rsa.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "rsa", "-out", other], check=True, capture_output=True)
    with pytest.raises(UsageError, match="no private key"):
        sign_file(path, other)


def test_a_key_with_a_passphrase(path, tmp_path, keys):
    from cryptography.hazmat.primitives import serialization

    key = file_signature._read_private_key(keys[0], None)
    form, pem = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    locked = tmp_path / "locked.key"
    locked.write_bytes(key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"secret")))
    with pytest.raises(UsageError, match="no private key"):
        sign_file(path, locked)
    sign_file(path, locked, passphrase="secret")
    check_signature(path, keys[1])


@pytest.mark.thorough
def test_every_kind_of_file_is_signed(compiled_robertson, solid, keys, tmp_path, monkeypatch):
    """Somebody else's native code that a key has signed runs for who names that key."""
    fill_cache(tmp_path / "cache")
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    folder = Path(shutil.copytree(solid.with_suffix(""), tmp_path / "solid"))
    for path in (Path(shutil.copy(compiled_robertson, tmp_path)), folder):
        torchferry.sign(path, keys[0])
        with pytest.raises(torchferry.TrustError):
            torchferry.load(path)
        torchferry.load(path, public_key=keys[1])
        assert torchferry.verify(path, public_key=keys[1]).passed
    assert find_signed_file(folder) == folder / "manifest.json"
    assert load_natively(tmp_path / "robertson.pt2", keys[1]) == ("TF_OK", "")


@pytest.mark.thorough
def test_a_kernel_that_a_signed_archive_carries(carrying, keys, tmp_path, monkeypatch):
    """It is part of what was signed; what lies beside the archive is not."""
    fill_cache(tmp_path / "cache")
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    torchferry.sign(carrying, keys[0])
    assert isinstance(torchferry.load(carrying, engine="kernel", public_key=keys[1]).engine, Kernel)
    assert torchferry.verify(carrying, runtimes="c", public_key=keys[1]).passed
    assert verify_natively(carrying, "--key", keys[1], "--engine", "kernel")[1]["engine"] == "kernel"
    with pytest.warns(torchferry.EngineWarning, match="TrustError"):
        torchferry.load(carrying, engine="kernel")


def test_a_package_beside_a_signed_archive(path, compiled_robertson, keys, tmp_path, monkeypatch):
    fill_cache(tmp_path / "cache")
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    shutil.copy(compiled_robertson, tmp_path)
    torchferry.sign(path, keys[0])
    with pytest.warns(torchferry.EngineWarning, match="TrustError"):
        torchferry.load(path, engine="pt2", public_key=keys[1])


def test_a_shared_object_is_signed(solid, keys, tmp_path):
    library, folder = tmp_path / "solid.so", solid.with_suffix("")
    sources = [folder / "make_model.c", folder / "make_model_shared.c"]
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", library, *sources, "-lm"], check=True)
    assert verify_natively(library)[1]["status"] == "TF_ERROR_TRUST"
    torchferry.sign(library, keys[0])
    assert load_natively(library, keys[1]) == ("TF_OK", "")
    flip(library)
    assert load_natively(library, keys[1])[0] == "TF_ERROR_SIGNATURE"


def test_commands(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["keygen", "a.key"]) == 0
    assert run(["keygen", "a.key"]) == 2
    assert run(["sign", "robertson.pt", "--key", "a.key", "--days", "30"]) == 0
    assert run(["sign", "robertson.pt", "--key", "a.key", "--days", "0"]) == 2
    assert run(["verify", "robertson.pt", "--require-signature"]) == 2
    assert "add --key" in capsys.readouterr().err
    assert run(["verify", "robertson.pt", "--key", "a.key.pub"]) == 0
    flip(path)
    assert run(["sign", "robertson.pt", "--key", "a.key"]) == 4
    with pytest.raises(OutputError, match="a key already"):
        make_keys(tmp_path / "a.key")
    assert os.stat("a.key").st_mode & 0o077 == 0
