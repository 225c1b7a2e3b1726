"""``torchferry verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from exporter.archive.identity_signature import Identity, Signer
from exporter.common.errors import UsageError
from runtime_checks.runners.fork_server import start_runtime
from torchferry.cli.options import (
    AllowNativeOption,
    DeviceOption,
    JsonOption,
    MemoryLimitOption,
    TimeLimitOption,
    choose_trust,
)
from torchferry.cli.output import err, out, print_json
from torchferry.cli.startup import pause_collection


def command(
    path: Annotated[Path, Argument(help="An archive, or an ONNX container.", metavar="ARCHIVE")],
    runtime: Annotated[
        str,
        Option(
            help="Where it runs: python, libtorch, interpreter (without TorchScript), several; c: the kernel in it. "
            "Default: the usual one."
        ),
    ] = "",
    device: DeviceOption = "cpu",
    time_limit: TimeLimitOption = 600.0,
    memory_limit: MemoryLimitOption = 16.0,
    envelope: Annotated[
        str, Option(help="Stored inputs outside the range of values that was checked: error, warn or off.")
    ] = "off",
    allow_native: AllowNativeOption = False,
    require_signature: Annotated[
        bool,
        Option(
            "--require-signature",
            help="The file has to be signed: an error without --key or --identity, which alone ask for the same.",
        ),
    ] = False,
    key: Annotated[Path | None, Option(help="The public key that has to have signed it.")] = None,
    identity: Annotated[
        str | None, Option(help="Who has to have signed it by Sigstore: an e-mail address, the address of a workflow.")
    ] = None,
    issuer: Annotated[str | None, Option(help="Who vouches for the identity: the address of a provider.")] = None,
    trusted_root: Annotated[
        Path | None, Option(help="The keys of Sigstore's services: a file. Default: fetched over the network.")
    ] = None,
    jobs: Annotated[
        int | None,
        Option("--jobs", "-j", help="How many calls of a .pt run at the same time in Python; by default as in export."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check an archive: its records, and its numbers in a fresh process without the source library.

    Exit code 0: every check that applies passed. 2: native code that was not made here, without --allow-native.
    4: damaged. 5: numbers differ. 6: a runtime or device is missing.

    Examples:

      torchferry verify eq.pt

      torchferry verify eq.pt --json --time-limit 60

      torchferry verify eq.onnx

      torchferry verify eq.pt --runtime c

      torchferry verify eq.pt --runtime python,libtorch --device cpu,cuda

      torchferry verify eq.pt --require-signature --key theirs.key.pub

      torchferry verify eq.pt --identity jane@example.org --issuer https://github.com/login/oauth
    """
    usual = "python" if path.suffix == ".pt" else ""
    with start_runtime((runtime or usual).split(",")):
        with pause_collection():
            from runtime_checks.containers import infer_file_format
            from runtime_checks.file_verifier import FileVerifier
            from runtime_checks.options import VerifyOptions
            from runtime_checks.report import render
            from torchferry.options import choose_jobs

        signer = _choose_signer(key, identity, issuer, trusted_root)
        if require_signature and signer is None:
            mend = "add --key with the public key, or --identity and --issuer"
            raise UsageError("nobody is named who has to have signed it", where="--require-signature", mend=mend)
        count, trust = choose_jobs(jobs), choose_trust(allow_native)
        options = VerifyOptions(runtime, device, time_limit, memory_limit, envelope, err.print, count, trust, signer)
        format_name = infer_file_format(path)
        report = FileVerifier(options, [format_name]).collect_report(path, format_name)
        if report.passed and json:
            print_json(report.as_dict())
        if not json:
            out.print(render(report))
        report.raise_if_failed()


def _choose_signer(
    key: Path | None, identity: str | None, issuer: str | None, trusted_root: Path | None
) -> Signer | None:
    # What is empty is not left out.
    if identity is None and issuer is None and trusted_root is None:
        return key
    if key is not None:
        got, expected = f"--key {key}, --identity {identity}", "one of them"
        raise UsageError("a file is signed by a key or by an identity", got=got, expected=expected)
    return Identity(identity or "", issuer or "", trusted_root)
