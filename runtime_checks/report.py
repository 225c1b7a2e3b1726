"""What verification found: frozen values, a table for people, a dict for machines."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from exporter.errors import MismatchError
from runtime_checks.checks.batches import LAWS
from runtime_checks.compare import Comparison

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
_STYLES = {PASSED: "green", FAILED: "bold red", NOT_RUN: "yellow"}


@dataclass(frozen=True)
class CheckResult:
    """``calls`` were made; ``detail`` says what failed first, or why the check did not run."""

    check: str
    verdict: str
    calls: int = 0
    detail: str = ""


@dataclass(frozen=True)
class OutputResult:
    """An output's worst figures over all calls of all checks; ``inputs`` are those of the worst element."""

    output: str
    comparison: Comparison
    at: str
    inputs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    archive: str
    model: str
    runtime: str
    device: str
    checks: tuple[CheckResult, ...]
    outputs: tuple[OutputResult, ...]
    evidence: dict[str, Any]
    findings: tuple[dict[str, Any], ...]
    seconds: dict[str, float]

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(c.verdict != FAILED for c in self.checks)

    def raise_if_failed(self) -> None:
        """Raises ``MismatchError``, which carries this report, where a check failed."""
        if self.passed:
            return
        failed = [c for c in self.checks if c.verdict == FAILED]
        worst = [o for o in self.outputs if not o.comparison.passed]
        only_laws = all(c.check in LAWS for c in failed)
        what = f"archive of {self.model!r} does not agree with eager mode"
        if only_laws:
            what = f"the rows of a batch of {self.model!r} depend on each other"
        elif not worst:
            what = f"archive of {self.model!r} fails the check {failed[0].check!r}"
        error = MismatchError(
            what,
            where=f"check {failed[0].check!r}: {failed[0].detail}" + "".join(f"; also {c.check!r}" for c in failed[1:]),
            got="; ".join(
                f"{o.output!r} at {o.at} {list(o.comparison.worst)}: {o.comparison.got or o.comparison.reason}"
                for o in worst[:3]
            ),
            expected="; ".join(f"{o.comparison.expected}" for o in worst[:3] if o.comparison.expected),
            mend="declare batch_ndim=0 in the signature: the shapes are then whole and fixed"
            if only_laws
            else "the inputs of the worst element are in the report (--json); look at the model's own code there",
        )
        error.report = self
        raise error

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: numbers that JSON cannot hold are given as text."""
        return {"passed": self.passed, **_plain(dataclasses.asdict(self))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value


def render(report: Report) -> RenderableType:
    checks = Table(title=f"{report.model}: checks ({report.runtime}, {report.device})")
    checks.add_column("check")
    checks.add_column("verdict")
    checks.add_column("calls", justify="right")
    checks.add_column("detail", overflow="fold")
    for check in report.checks:
        verdict = Text(check.verdict, style=_STYLES[check.verdict])
        checks.add_row(check.check, verdict, str(check.calls or ""), check.detail)
    outputs = Table(title=f"{report.model}: outputs against eager mode")
    for column in ("output", "max abs", "max rel", "ULP", "worst element", "its inputs"):
        outputs.add_column(column, overflow="fold")
    for result in report.outputs:
        c = result.comparison
        differs = c.max_abs > 0 or not c.passed
        outputs.add_row(
            Text(result.output, style="" if c.passed else _STYLES[FAILED]),
            f"{c.max_abs:.2e}",
            f"{c.max_rel:.2e}",
            str(c.max_ulp) if c.max_ulp >= 0 else "-",
            f"{result.at} {list(c.worst)}" if differs else "none",
            "; ".join(f"{k}={_short(v)}" for k, v in result.inputs.items()) if differs else "",
        )
    verdict = Text("verified", style="bold green") if report.passed else Text("NOT VERIFIED", style="bold red")
    return Group(checks, outputs, verdict)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        head = ", ".join(_short(v) for v in value[:6])
        return f"[{head}{', ...' if len(value) > 6 else ''}]"
    return str(value)
