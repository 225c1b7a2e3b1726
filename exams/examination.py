"""The examination of one case: bundles of samples go through the pipelines, and those that are refused are split."""

from __future__ import annotations

import bisect
import functools
import itertools
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exams.cells import REFUSED, VERIFIED, WRONG, Verdict, read_unverified, write_cell
from exams.pipelines import BUDGET, DERIVATIVES, PIPELINES, Workbench
from exams.samples import Sample
from exporter.common.errors import MismatchError, RunError, TorchferryError, UnsoundError
from exporter.common.forking import time_limit

# Samples refused one by one before the rest of a refused bundle counts as refused together.
MOST_REFUSED = 2
# Samples in one bundle: an export holds all of them at once.
LARGEST = 24
# Of each case, the samples whose derivatives are judged, and the numbers that they may take, alone and in a bundle: a
# Jacobian costs the whole bundle for each number that it takes, and an export with a batch runs it for many rows.
DIFFERENTIATED, LARGEST_SIDE, LARGEST_SIDE_OF_BATCH = 2, 400, 100
SECONDS = 900
_FILE = re.compile(r"(/[\w.-]+)+/[\w.-]+")
_LACKS_OPERATOR = "NOT_IMPLEMENTED"
_NUMBER = re.compile(r"-?\b\d+\.\d+(e[+-]?\d+)?|\b(nan|inf)\b")
_NAME = re.compile(r"\b([xo])\d+_(\d+)")


@dataclass(frozen=True)
class Case:
    """Samples that form one row of a table, the pipelines that they go through, of how many of them the derivatives are
    judged, and the seconds of large batches in an export."""

    samples: Sequence[Sample]
    pipelines: tuple[str, ...]
    differentiated: int = DIFFERENTIATED
    budget: float | None = BUDGET


Cells = dict[str, str]


def examine(cases: Sequence[Case], expected: Sequence[Mapping[str, str]], only: Sequence[str] = ()) -> list[Cells]:
    """Return the cells of cases that go through the same pipelines together, by pipeline, or of ``only`` some of them.

    The ``expected`` ones save splits: samples that were refused before go through alone. What the first pipeline does
    not verify goes through no other."""
    ((pipelines, budget),) = {(case.pipelines, case.budget) for case in cases}
    starts = list(itertools.accumulate((len(case.samples) for case in cases), initial=0))
    places = [range(start, end) for start, end in itertools.pairwise(starts)]
    samples = [sample for case in cases for sample in case.samples]
    owner = functools.partial(bisect.bisect_right, starts)
    cells: list[Cells] = [{} for _ in cases]
    numbers = list(range(len(samples)))
    with tempfile.TemporaryDirectory() as folder:
        work = Workbench(samples, Path(folder), budget)
        first, *others = pipelines
        for pipeline in (first, *(p for p in others if not only or p in only)):
            is_derivative = pipeline in DERIVATIVES
            chosen = _pick_small(cases, places, {*numbers}) if is_derivative else numbers
            unverified = {
                place[n]
                for case, place, row in zip(cases, places, expected, strict=True)
                for n in read_unverified(row.get(pipeline, ""), len(case.samples))
            }
            groups = _plan(samples, chosen, unverified, columns=LARGEST_SIDE if is_derivative else 0)
            verdicts = settle(groups, functools.partial(PIPELINES[pipeline], work), owner)
            for place, own in zip(places, cells, strict=True):
                own[pipeline] = write_cell({n - place.start: verdicts[n] for n in place if n in verdicts})
            if pipeline == first:
                numbers = [n for n in numbers if verdicts[n].state == VERIFIED]
    return cells


def _pick_small(cases: Sequence[Case], places: Sequence[range], numbers: set[int]) -> list[int]:
    """Return a few samples of each case, of those with these numbers, whose Jacobian is small."""
    picked: list[int] = []
    for case, place in zip(cases, places, strict=True):
        own = {n: sample for n, sample in zip(place, case.samples, strict=True) if n in numbers}
        sizes = {n: sum(t.numel() for t in sample.inputs) for n, sample in own.items()}
        largest = {n: LARGEST_SIDE_OF_BATCH if sample.rows else LARGEST_SIDE for n, sample in own.items()}
        picked += [n for n in own if 0 < sizes[n] <= largest[n]][: case.differentiated]
    return picked


def settle(
    groups: Sequence[Sequence[int]],
    judge: Callable[[Sequence[int]], dict[int, Verdict]],
    owner: Callable[[int], int] = lambda number: 0,
) -> dict[int, Verdict]:
    """Return the verdict on every sample of the groups; a group that is refused is split in halves.

    Where ``MOST_REFUSED`` samples of an ``owner`` were refused one by one, and none was verified, its others count as
    refused like them."""
    verdicts: dict[int, Verdict] = {}
    remaining = list(reversed(groups))
    refusals: dict[int, list[Verdict]] = {}
    hopeful: set[int] = set()
    while remaining:
        group = remaining.pop()
        for n in group:
            known = refusals.get(owner(n), [])
            if len(known) >= MOST_REFUSED and owner(n) not in hopeful:
                verdicts[n] = known[0]
        group = [n for n in group if n not in verdicts]
        if not group:
            continue
        try:
            with time_limit(SECONDS):
                judged = judge(group)
            verdicts |= judged
            hopeful |= {owner(n) for n, verdict in judged.items() if verdict.state == VERIFIED}
            continue
        except MismatchError as error:
            verdict = Verdict(WRONG, f"verification found it: {_explain(error)}")
        except RunError as error:
            # A runtime may lack an operator; a file that it does not read or run is wrong.
            text = _explain(error)
            verdict = Verdict(REFUSED if _LACKS_OPERATOR in text else WRONG, text)
        except TorchferryError as error:
            verdict = Verdict(REFUSED, _explain(error))
        except Exception as error:
            verdict = Verdict(WRONG, f"{type(error).__name__}: {error}")
        if len(group) == 1:
            verdicts[group[0]] = verdict
            if verdict.state == REFUSED:
                refusals.setdefault(owner(group[0]), []).append(verdict)
        else:
            half = len(group) // 2
            remaining += [group[half:], group[:half]]
    return verdicts


def _plan(samples: Sequence[Sample], numbers: Iterable[int], unverified: set[int], columns: int = 0) -> list[list[int]]:
    """Return groups of samples that go through together; the ones expected to fail are few, or alone.

    Those of a batch share its size. ``columns`` limits the numbers that a group takes."""
    groups: list[list[int]] = []
    key = lambda n: (samples[n].rows, n in unverified)  # noqa: E731
    for (_, is_bad), run in itertools.groupby(sorted(numbers, key=key), key):
        members = list(run)
        if is_bad:
            groups += [[n] for n in members[:MOST_REFUSED]]
            members = members[MOST_REFUSED:]
        group, width = [], 0
        for n in members:
            size = sum(t.numel() for t in samples[n].inputs)
            if group and (len(group) == LARGEST or (columns and width + size > columns)):
                groups.append(group)
                group, width = [], 0
            group, width = [*group, n], width + size
        groups += [group] if group else []
    return groups


def _explain(error: TorchferryError) -> str:
    """Return what an error says, and the first line of what it got."""
    got = error.details.get("got", "").split("\n")[0]
    # An unsound capture says it in its first line already.
    text = f"{error.what}: {got}" if got and not isinstance(error, UnsoundError) else error.what
    # Names of temporary files and numbers of samples differ from run to run, and digits from machine to machine.
    return _NUMBER.sub("NUMBER", _NAME.sub(r"\1_\2", _FILE.sub("FILE", text)))
