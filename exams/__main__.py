"""Run the exams, and hold every cell of their tables against the expected one.

python -m exams [SUITE ...] [--share N] [--only GLOB] [--pipeline NAME] [--jobs N] [--fresh] [--update] [--new]"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import os
import sys
import time
from collections import Counter

from exams.cells import STATES, WRONG, classify_cell
from exams.environments import ensure_packages
from exams.page import PAGE, RANDOM, TITLES, format_page
from exams.pipelines import PIPELINES
from exams.runs import MOST_SAMPLES, ROOT, plan_tasks, run_suite, select_share
from exams.tables import EXPECTED, Row, list_changes, merge_rows, read_table, write_table
from exporter.common.errors import INTERRUPTED, MissingRuntimeError

SUITES = (*TITLES, RANDOM)
FOLDER = ROOT / "out" / "exams"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m exams", description="Run the exams; hold every cell of their tables against the expected one."
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--share", type=int, default=1, metavar="N", help="run one case in N, always the same ones")
    parser.add_argument("--only", default="*", metavar="GLOB", help="run the cases with such names")
    parser.add_argument("--pipeline", action="append", default=[], choices=PIPELINES, help="run this one, and pt")
    text = "samples of a case; the tables are of the usual number"
    parser.add_argument("--samples", type=int, default=MOST_SAMPLES, metavar="N", help=text)
    text = "random programs: so many seeds of each kind"
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help=text)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--fresh", action="store_true", help="run cases again that a run of this code has done")
    parser.add_argument("--new", action="store_true", help="run the cases that have no row yet, and add them")
    parser.add_argument("--update", action="store_true", help="what comes out is expected from now on")
    arguments = parser.parse_args()
    if arguments.new and arguments.pipeline:
        parser.error("a new row has the cells of all pipelines: --new without --pipeline")
    if (arguments.new or arguments.update) and arguments.samples != MOST_SAMPLES:
        parser.error("the tables are of the usual number: --samples without --update and --new")
    arguments.update |= arguments.new
    if unknown := {*arguments.suites} - {*SUITES}:
        parser.error(f"there is no suite {', '.join(sorted(unknown))}: there are {', '.join(SUITES)}")
    changes, faults = [], []
    try:
        for suite in arguments.suites or SUITES:
            own_changes, own_faults = run(suite, arguments)
            changes += own_changes
            faults += own_faults
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    for line in (*changes, *faults):
        print(line)
    if changes and not arguments.update:
        print(f"{len(changes)} cells are not as {EXPECTED.relative_to(ROOT)} has them; --update takes them over")
    return bool(faults or (changes and not arguments.update))


def run(suite: str, arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Run a suite; return what has changed, which ``--update`` takes over, and what is a fault in any case."""
    module = importlib.import_module(f"exams.suites.{suite}")
    has_table = suite in TITLES
    recorded = read_table(suite)
    expected = recorded if has_table else {}
    cases = module.list_seeds(arguments.seeds) if arguments.seeds and not has_table else module.list_cases()
    selected = [c for c in select_share(cases, arguments.share) if fnmatch.fnmatch(c, arguments.only)]
    is_whole = len(selected) == len(cases)
    if has_table or arguments.new:
        print(f"{suite}: {sum(case not in recorded for case in cases)} cases have no row yet; --new adds them")
        selected = [case for case in selected if (case not in recorded) == arguments.new]
    log = FOLDER / f"{'_'.join([suite, *sorted(arguments.pipeline)])}.jsonl"
    if arguments.fresh:
        log.unlink(missing_ok=True)
    requirements = getattr(module, "REQUIREMENTS", None) if selected else None
    try:
        packages = str(ensure_packages(requirements)) if requirements else ""
    except MissingRuntimeError as error:
        return [], [f"{suite}: not run: {error}"]
    tasks = plan_tasks(suite, selected, expected, arguments.pipeline, arguments.samples, packages)
    rows = run_suite(tasks, log, arguments.jobs, _Progress(suite, len(selected)))
    print(f"{suite}: {describe_counts(rows)}")
    wrong = [(r.case, p, text) for r in rows for p, text in r.cells.items() if classify_cell(text) == WRONG]
    if arguments.update:
        # Of random programs a seed counts as run where none is wrong; other seeds stay.
        bad = set() if has_table else {case for case, _, _ in wrong}
        kept = {case: row for case, row in recorded.items() if case not in bad and (case in {*cases} or not has_table)}
        write_table(suite, merge_rows(kept, [row for row in rows if row.case not in bad]))
        PAGE.write_text(format_page(), encoding="utf-8")
    if not has_table:
        return [], [f"{suite}: {case}, {p}: {text}\n{module.shrink(case, p)}" for case, p, text in wrong]
    known = sum(expected.get(case, Row(case, 0, {})).cells.get(pipeline) == text for case, pipeline, text in wrong)
    print(f"{suite}: {known} cells are known to be wrong")
    changes = list_changes(expected, rows)
    if is_whole:
        changes += [f"{case}: the case is gone" for case in expected if case not in {*cases}]
    return [f"{suite}: {line}" for line in changes], []


def describe_counts(rows: list[Row]) -> str:
    """Return how many cells are in each state; one in which samples differ is in the worst of theirs."""
    states = Counter(classify_cell(text) for row in rows for text in row.cells.values() if text)
    return f"{len(rows)} cases; " + ", ".join(f"{states[state]:,} cells {state}" for state in STATES)


class _Progress:
    """Says, at most every few seconds, how far a suite is."""

    def __init__(self, suite: str, total: int) -> None:
        self._suite, self._total, self._done = suite, total, 0
        self._start = self._last = time.monotonic()

    def __call__(self, row: Row) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._last > 10 or self._done == self._total:
            self._last = now
            left = (now - self._start) / self._done * (self._total - self._done)
            print(
                f"{self._suite}: {self._done} of {self._total}, {left / 60:.0f} min left ({row.case})", file=sys.stderr
            )


if __name__ == "__main__":
    sys.exit(main())
