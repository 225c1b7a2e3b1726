"""Results of a verification: frozen values, a table for people, a dict for machines."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from exporter.archive.contract import Bounds
from exporter.common.errors import MismatchError
from runtime_checks.checks.batch_invariance import INVARIANCES
from runtime_checks.comparison import Comparison

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
_STYLES = {PASSED: "green", FAILED: "bold red", NOT_RUN: "yellow"}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. ``calls`` were made; ``detail`` says what failed first, or why the check did not run."""

    check: str
    verdict: str
    calls: int = 0
    detail: str = ""


@dataclass(frozen=True)
class OutputResult:
    """An output's worst figures over all calls of all checks; ``inputs`` are those of the worst element.

    ``bounds`` are the contract's, and ``is_wide`` says whether numbers pass them that do not pass the usual ones."""

    output: str
    comparison: Comparison
    at: str
    bounds: Bounds
    is_wide: bool
    inputs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RuntimeReport:
    """The report of one runtime on one device. ``evidence`` is what its runner shows of the process."""

    runtime: str
    device: str
    checks: tuple[CheckResult, ...]
    outputs: tuple[OutputResult, ...]
    evidence: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the runtime and the device as one text."""
        return f"{self.runtime}, {self.device}"


@dataclass(frozen=True)
class Report:
    """The report of a verification.

    Attributes:
        archive: The file.
        model: The model's name.
        legs: A report for each runtime on each device: checks, errors of each output, evidence of the process.
        findings: What the soundness gate noted.
        seconds: Seconds by stage.
        notes: What this machine could not check.

    Example:
        ```python
        report = torchferry.verify("spring.pt")
        assert report.passed and max(o.comparison.max_abs for o in report.outputs) < 1e-12
        ```
    """

    archive: str
    model: str
    legs: tuple[RuntimeReport, ...]
    findings: tuple[dict[str, Any], ...]
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        """Return the checks of all runtimes."""
        return tuple(c for leg in self.legs for c in leg.checks)

    @property
    def outputs(self) -> tuple[OutputResult, ...]:
        """Return the outputs of all runtimes."""
        return tuple(o for leg in self.legs for o in leg.outputs)

    @property
    def passed(self) -> bool:
        """Return whether every runtime made checks and none failed."""
        has_checks = bool(self.legs) and all(leg.checks for leg in self.legs)
        return has_checks and all(c.verdict != FAILED for c in self.checks)

    def raise_if_failed(self) -> None:
        """Raise ``MismatchError``, which carries this report, if a check failed or a runtime made none."""
        if not self.passed:
            error = self._describe_failure()
            error.report = self
            raise error

    def _describe_failure(self) -> MismatchError:
        failed = [c for c in self.checks if c.verdict == FAILED]
        worst = [o for o in self.outputs if not o.comparison.passed]
        if not failed:
            silent = "; ".join(leg.name for leg in self.legs if not leg.checks) or "no runtime ran"
            what, expected = f"nothing was checked of {self.model!r}", "at least one check for each runtime"
            got, mend = f"no check: {silent}", "ask for a runtime that this machine has"
            return MismatchError(what, where=self.archive, got=got, expected=expected, mend=mend)
        what = f"archive of {self.model!r} does not agree with eager mode"
        mend = "the inputs of the worst element are in the report (--json); look at the model's own code there"
        if all(c.check in INVARIANCES for c in failed):
            what = f"the rows of a batch of {self.model!r} depend on each other"
            mend = "export with --batch no, or batch_ndim=0 in its signature: the shapes are then whole"
        elif not worst:
            what = f"archive of {self.model!r} fails the check {failed[0].check!r}"
        values = [(o, o.comparison) for o in worst[:3]]
        where = f"check {failed[0].check!r}: {failed[0].detail}" + "".join(f"; also {c.check!r}" for c in failed[1:])
        got = "; ".join(f"{o.output!r} at {o.at} {list(c.worst)}: {c.got or c.reason}" for o, c in values)
        expected = "; ".join(f"{c.expected}" for _, c in values if c.expected)
        return MismatchError(what, where=where, got=got, expected=expected, mend=mend)

    def as_dict(self) -> dict[str, Any]:
        """Return the report JSON-ready: numbers that JSON cannot hold are given as text."""
        return {"passed": self.passed, **_to_plain(dataclasses.asdict(self))}


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(v) for v in value]
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value


def render(report: Report) -> RenderableType:
    """Render one table for all runtimes: a verdict for each, the detail of the first failure."""
    checks = Table(title=f"{report.model}: checks ({'; '.join(leg.name for leg in report.legs)})")
    checks.add_column("check")
    for leg in report.legs:
        checks.add_column(leg.name.replace(", ", "\n") if len(report.legs) > 1 else "verdict")
    checks.add_column("calls", justify="right")
    checks.add_column("detail", overflow="fold")
    for name in dict.fromkeys(c.check for c in report.checks):
        results = [next((c for c in leg.checks if c.check == name), None) for leg in report.legs]
        verdicts = [Text(c.verdict, style=_STYLES[c.verdict]) if c else Text("") for c in results]
        present = [c for c in results if c]
        shown = next((c for c in present if c.verdict == FAILED), present[0])
        checks.add_row(name, *verdicts, str(max(c.calls for c in present) or ""), shown.detail)
    several = len(report.legs) > 1
    outputs = Table(title=f"{report.model}: outputs against eager mode")
    figures = ("max abs", "max rel", "ULP", "rtol, atol", "worst element")
    for column in ("output", *(["runtime"] if several else []), *figures):
        outputs.add_column(column, overflow="fold")
    failing: list[Text] = []
    for leg in report.legs:
        for result in leg.outputs:
            c = result.comparison
            differs = c.max_abs > 0 or not c.passed
            outputs.add_row(
                Text(result.output, style="" if c.passed else _STYLES[FAILED]),
                *([leg.name] if several else []),
                f"{c.max_abs:.2e}",
                f"{c.max_rel:.2e}",
                str(c.max_ulp) if c.max_ulp >= 0 else "-",
                Text(result.bounds.describe() + " wide" * result.is_wide, style="yellow" * result.is_wide),
                f"{result.at} {list(c.worst)}" if differs else "none",
            )
            if not c.passed:
                values = "; ".join(f"{k}={_shorten(v)}" for k, v in result.inputs.items())
                place = f"{leg.name}: " * several
                failing.append(
                    Text(f"{place}{result.output} at {result.at} {list(c.worst)}: {values}", style=_STYLES[FAILED])
                )
    noted = [f for f in report.findings if f["severity"] in ("allowed", "not run")]
    notes = [Text(f"{f['severity']}: {f['check']}: {f['what']} ({f['reason']})", style="yellow") for f in noted]
    notes += [Text(note, style="yellow") for note in report.notes]
    verdict = Text("verified", style="bold green") if report.passed else Text("NOT VERIFIED", style="bold red")
    return Group(checks, outputs, *failing, *notes, verdict)


def _shorten(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        head = ", ".join(_shorten(v) for v in value[:6])
        return f"[{head}{', ...' if len(value) > 6 else ''}]"
    return str(value)
