"""``torchferry keygen`` and ``torchferry sign``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from torchferry.cli.output import out


def keygen_command(
    path: Annotated[Path, Argument(help="The private key; the public one is FILE.pub.", metavar="FILE")],
) -> None:
    """Make a pair of keys (Ed25519): one signs, and everybody may have the other.

    Examples:

      torchferry keygen mine.key
    """
    from exporter.archive.file_signature import make_keys

    public = make_keys(path)
    out.print(f"wrote {path}, which signs: keep it secret", soft_wrap=True)
    out.print(f"wrote {public}, which checks: give it to all who read your files", soft_wrap=True)


def command(
    path: Annotated[Path, Argument(help="A file that torchferry wrote.", metavar="FILE")],
    key: Annotated[Path, Option(help="The private key.")],
    days: Annotated[float | None, Option(help="How many days the signature is valid. Default: for ever.")] = None,
    passphrase: Annotated[bool, Option("--passphrase", help="Ask for the passphrase of the key.")] = False,
) -> None:
    """Sign a file: who has it, and your public key, can tell that it is the one that you signed.

    The signature lies beside the file, as FILE.sig. Exit code 4: the file is damaged.

    Examples:

      torchferry sign eq.pt --key mine.key

      torchferry sign eq.pt --key mine.key --days 365
    """
    from torchferry import api

    secret = typer.prompt("passphrase", hide_input=True) if passphrase else None
    out.print(f"wrote {api.sign(path, key, days=days, passphrase=secret)}", soft_wrap=True)
