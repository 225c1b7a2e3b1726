"""Verification of files by options: runners are chosen once, for every format, before anything long runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exporter.archive.cases import Cases
from runtime_checks import verification
from runtime_checks.native_code import resolve_trust
from runtime_checks.options import VerifyOptions
from runtime_checks.report import Report
from runtime_checks.runners.selection import list_unchecked_devices, select_runners


class FileVerifier:
    """A verifier of files of some formats. Raises the errors of ``select_runners`` when it is made.

    The runtimes of ``options`` are those of the first format; the others run in their usual one."""

    def __init__(self, options: VerifyOptions, formats: Sequence[str] = ("pt",)) -> None:
        self._options = options
        others = options.with_runtimes(())
        self._runners = {name: select_runners(options if name == formats[0] else others, name) for name in formats}
        self._notes = list_unchecked_devices(options.device_names)

    def collect_report(
        self, path: Path, format_name: str, fresh: Cases | None = None, shown_as: Path | None = None
    ) -> Report:
        """Run every check on the file, which the report shows as ``shown_as``; a mismatch is in the report.

        Raises ``SignatureError`` if the file has to be signed, and is not."""
        notes, trust = self._notes, resolve_trust(path, self._options.trust, self._options.public_key)
        if trust.signature is not None:
            notes = (*notes, f"signature: {trust.signature.describe()}")
        return verification.collect_report(
            path,
            fresh=fresh,
            runners=self._runners[format_name],
            shown_as=shown_as,
            notes=notes,
            envelope=self._options.envelope,
            trust=trust.file,
        )

    def verify(self, path: Path, format_name: str, fresh: Cases | None = None, shown_as: Path | None = None) -> Report:
        """Run ``collect_report``, and raise a failed check as ``MismatchError``."""
        report = self.collect_report(path, format_name, fresh, shown_as)
        report.raise_if_failed()
        return report
