"""Submodules in which data decide what is computed. A trace would keep one path through them: they are compiled from
their source, and the rest of the model is traced around them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from exporter.archive.contract import Finding
from exporter.capture.scripting import is_compilable
from exporter.common.errors import UnsoundError
from exporter.model.jit_marks import get_mark, mark_for_now
from exporter.model.source import Source
from exporter.soundness import gate
from exporter.soundness.check_context import find_submodules_at_line
from exporter.soundness.checks import data_reads
from exporter.soundness.gate import Allowance

_Result = TypeVar("_Result")


def run_by_parts(
    source: Source, run: Callable[[], _Result], allowances: Sequence[Allowance], tell: Callable[[str], Any]
) -> _Result:
    """Return ``run()``, and run it again with the submodules compiled for which alone it was refused.

    Their marks are taken back afterwards. ``tell`` hears which they are. Raises what the last run raises; where that
    would be refused with them compiled, too, for what is left."""
    with contextlib.ExitStack() as marks:
        while True:
            try:
                return run()
            except UnsoundError as error:
                parts = _find_parts(source, error.findings)
                rest = [finding for finding in error.findings if finding not in parts]
                if not parts:
                    raise
                gate.require_sound(source.name, rest, allowances)
            for path, finding in {path: finding for finding, paths in parts.items() for path in paths}.items():
                where = finding.where
                tell(f"submodule {path!r} is compiled from its source: data decide what it computes, at {where}")
                marks.enter_context(mark_for_now(source.parameter_module.get_submodule(path), where))


def _find_parts(source: Source, findings: Iterable[Finding]) -> dict[Finding, list[str]]:
    """Return the paths of the submodules that can be compiled so that a finding is none, by finding."""
    parts = dict[Finding, list[str]]()
    for finding in findings:
        if finding.severity != "unsound" or finding.check != data_reads.CHECK:
            continue
        at_line = [path for path in find_submodules_at_line(source, finding.where) if path]
        modules = {path: source.parameter_module.get_submodule(path) for path in at_line}
        new = [path for path, module in modules.items() if get_mark(module) != "script" and is_compilable(module)]
        if new:
            parts[finding] = new
    return parts
