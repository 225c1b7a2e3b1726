"""Signatures by an identity: what Sigstore's services would say of one, changed in every way, and those of others."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path

import pytest
from forging import CHANGES, list_places
from project import ROOT

import torchferry
from exporter.archive.file_signature import find_signed_file
from exporter.archive.identity_signature import SUFFIX, Identity, check_identity, make_signer
from exporter.common.errors import MissingRuntimeError, SignatureError, TrustError, UsageError
from torchferry.cli.app import run

pytest.importorskip("sigstore", reason="sigstore is not installed")

from sigstore_services import Services

NAME, ISSUER = "jane@example.org", "https://accounts.example.org"


@pytest.fixture(scope="module")
def services() -> Services:
    return Services()


@pytest.fixture(scope="module")
def jane(services, tmp_path_factory) -> Identity:
    return Identity(NAME, ISSUER, services.write_trusted_root(tmp_path_factory.mktemp("root") / "root.json"))


def sign_as_jane(services: Services, path: Path) -> Path:
    place = find_signed_file(path)
    bundle = place.with_name(place.name + SUFFIX)
    bundle.write_text(json.dumps(services.make_bundle(place.read_bytes(), NAME, ISSUER)))
    return bundle


@pytest.fixture
def path(tmp_path) -> Path:
    return Path(shutil.copy(ROOT / "artifacts" / "robertson.pt", tmp_path))


@pytest.fixture
def bundle(services, path) -> Path:
    return sign_as_jane(services, path)


def test_who_has_signed_is_said(path, bundle, jane):
    check_identity(path, jane)
    report = torchferry.verify(path, public_key=jane)
    assert report.notes[-1] == f"signature: identity {NAME}, of {ISSUER}"
    assert torchferry.load(path, public_key=jane).contract.name


def write_nothing(path: Path) -> None:
    path.unlink()


def write_another_file(path: Path) -> None:
    path.write_text(json.dumps(Services().make_bundle(b"", NAME, ISSUER)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (write_nothing, "the file is not signed"),
        (lambda bundle: bundle.write_text("{"), "the signature is damaged"),
        (lambda bundle: bundle.write_text("[" * 100_000), "the signature is damaged"),
        (lambda bundle: bundle.write_text(" " * 2**20 + "{}"), "more than 1048576 bytes"),
        (lambda bundle: bundle.with_name("robertson.pt").write_bytes(b""), "the file or its signature was changed"),
        (write_another_file, "the file or its signature was changed"),
    ],
    ids=["nothing", "no JSON", "nesting", "much", "the file", "other services"],
)
def test_what_is_refused(change, message, path, bundle, jane):
    change(bundle)
    with pytest.raises(SignatureError, match=message):
        check_identity(path, jane)


@pytest.mark.parametrize(("name", "issuer"), [("joe@example.org", ISSUER), (NAME, "https://elsewhere.example.org")])
def test_another_identity(name, issuer, path, bundle, jane):
    with pytest.raises(SignatureError, match="signed by another identity"):
        check_identity(path, Identity(name, issuer, jane.trusted_root))


def test_other_services_vouch_for_nobody(path, bundle, jane, tmp_path):
    root = Services().write_trusted_root(tmp_path / "root.json")
    with pytest.raises(SignatureError, match="Sigstore does not know it"):
        check_identity(path, Identity(NAME, ISSUER, root))


def test_what_is_hashed_are_the_bytes_that_are_loaded(path, bundle, jane, tmp_path):
    content = tmp_path / "content"
    shutil.copy(path, content)
    path.write_bytes(b"")
    check_identity(path, jane, content)
    content.write_bytes(b"")
    with pytest.raises(SignatureError, match="was changed"):
        check_identity(path, jane, content)


def test_fields_of_a_bundle(path, bundle, jane):
    """What a bundle may leave out is the digest, which is that of the file."""
    whole, taken, refused = json.loads(bundle.read_text()), set(), 0
    for place in filter(None, list_places(whole)):
        for change in CHANGES:
            forged = copy.deepcopy(whole)
            change(forged, place)
            if forged == whole:
                continue
            bundle.write_text(json.dumps(forged))
            try:
                check_identity(path, jane)
            except SignatureError:
                refused += 1
            else:
                taken.add(place)
    assert taken <= {("messageSignature", "messageDigest")}
    assert refused > 500


@pytest.mark.parametrize("content", ["", "{}", "[" * 100_000, None], ids=["empty", "object", "nesting", "missing"])
def test_a_trusted_root_that_is_none(content, path, bundle, tmp_path):
    root = tmp_path / "root.json"
    if content is not None:
        root.write_text(content)
    with pytest.raises(UsageError, match="the file is no trusted root"):
        check_identity(path, Identity(NAME, ISSUER, root))


def test_keys_of_services_that_cannot_be_fetched(path, bundle, monkeypatch):
    from sigstore.verify import Verifier

    def fail() -> None:
        raise OSError("no network")

    monkeypatch.setattr(Verifier, "production", fail)
    with pytest.raises(MissingRuntimeError, match=r"(?s)cannot be fetched.*no network.*--trusted-root FILE"):
        check_identity(path, Identity(NAME, ISSUER))


@pytest.mark.parametrize("module", ["sigstore.verify", "sigstore.hashes", "sigstore_models.common.v1"])
def test_sigstore_is_not_installed(module, path, bundle, jane, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingRuntimeError, match=r"torchferry\[keyless\]"):
        check_identity(path, jane)


def test_native_code_of_an_identity_runs(services, jane, solid, tmp_path, monkeypatch):
    """A kernel is signed by its manifest."""
    kernel = Path(shutil.copytree(solid.with_suffix(""), tmp_path / "kernel"))
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(TrustError):
        torchferry.load(kernel)
    with pytest.raises(SignatureError, match="not signed"):
        torchferry.load(kernel, public_key=jane)
    assert sign_as_jane(services, kernel).name == "manifest.json.sigstore.json"
    torchferry.load(kernel, public_key=jane)


def test_the_command(path, bundle, jane, capsys):
    named = ["--identity", NAME, "--issuer", ISSUER, "--trusted-root", str(jane.trusted_root)]
    assert run(["verify", str(path), "--require-signature", *named]) == 0
    assert f"signature: identity {NAME}, of {ISSUER}" in capsys.readouterr().out
    bundle.unlink()
    assert run(["verify", str(path), *named]) == 4
    assert "the file is not signed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--require-signature"], "nobody is named who has to have signed it"),
        (["--identity", NAME], "an identity is a name of an issuer"),
        (["--issuer", ISSUER], "an identity is a name of an issuer"),
        (["--trusted-root", "root.json"], "an identity is a name of an issuer"),
        (["--identity", "", "--issuer", ""], "an identity is a name of an issuer"),
        (["--identity", NAME, "--issuer", " "], "an identity is a name of an issuer"),
        (["--identity", NAME, "--issuer", ISSUER, "--key", "k"], "by a key or by an identity"),
    ],
)
def test_wrong_usage(arguments, message, path, capsys):
    assert run(["verify", str(path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_identity_goes_to_other_folders(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert Identity(NAME, ISSUER, "root.json").absolute() == Identity(NAME, ISSUER, tmp_path / "root.json")
    assert Identity(NAME, ISSUER).absolute() == Identity(NAME, ISSUER)


def test_a_signer_is_a_key_or_an_identity():
    identity = Identity(NAME, ISSUER)
    assert make_signer("mine.key.pub") == make_signer(Path("mine.key.pub")) == Path("mine.key.pub")
    assert make_signer(identity) is identity
    assert make_signer(None) is None
    for value in (("jane", ISSUER), 3):
        with pytest.raises(TypeError):
            make_signer(value)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError):
        Identity(1, 2)  # pyright: ignore[reportArgumentType]
