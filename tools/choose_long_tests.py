"""The tests that ``make test`` leaves to ``make test-all``, chosen anew by what they take.

PYTEST_ADDOPTS="--durations=0 --durations-min=0.2" make test > LOG
python tools/choose_long_tests.py LOG [--seconds 1100] [--write]

The longest go into ``tests/long_tests.txt``, as many as leave so many seconds of tests, fixtures included; a file
keeps at least one test, and those of ``KEPT`` stay. The log is to be of a run that left no test of the list out: empty
the list before. Prints what comes and what goes; ``--write`` writes the list."""

from __future__ import annotations

import argparse
import collections
import re
from collections.abc import Mapping
from pathlib import Path

LIST = Path(__file__).parents[1] / "tests" / "long_tests.txt"
# What a user meets first, and checks that one test alone makes.
KEPT = (
    "tests/docs/test_code_blocks.py::test_blocks_run_in_order[README.md]",
    "tests/exporter/soundness/test_hazards.py::test_a_hazard_is_refused_with_its_line[order_of_a_set]",
    "tests/integration/test_artifacts.py::test_a_fresh_export_is_the_reference[rates]",
    "tests/runtime_checks/native/test_native_library.py::test_c_fortran_and_the_harness_agree_with_python[eq]",
)
_DURATION = re.compile(r"\s*([\d.]+)s (call|setup|teardown) +(tests/\S+?\.py::.*)")


def read_durations(log: str) -> tuple[dict[str, float], float]:
    """Return the seconds of each test's own run by its name, and those of all fixtures."""
    own, fixtures = collections.defaultdict[str, float](float), 0.0
    for seconds, phase, name in filter(None, (_match(line) for line in log.splitlines())):
        if phase == "call":
            own[name] += seconds
        else:
            fixtures += seconds
    return dict(own), fixtures


def _match(line: str) -> tuple[float, str, str] | None:
    match = _DURATION.fullmatch(line.rstrip())
    return (float(match[1]), match[2], match[3]) if match else None


def choose(own: Mapping[str, float], fixtures: float, seconds: float) -> list[str]:
    """Return the longest tests, in order of their names, without which the others take so many seconds."""
    chosen, left = list[str](), sum(own.values()) + fixtures
    counts = collections.Counter(get_file(name) for name in own)
    for name in sorted(own, key=lambda name: (-own[name], name)):
        if left <= seconds:
            break
        if name not in KEPT and counts[get_file(name)] > 1:
            chosen.append(name)
            counts[get_file(name)] -= 1
            left -= own[name]
    return sorted(chosen)


def get_file(name: str) -> str:
    """Return the file of a test."""
    return name.partition("::")[0]


def main() -> None:
    """Print the change of the list, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="what pytest printed")
    parser.add_argument("--seconds", type=float, default=1100.0, help="of all tests that stay, on all cores together")
    parser.add_argument("--write", action="store_true", help="write the list")
    arguments = parser.parse_args()
    own, fixtures = read_durations(arguments.log.read_text())
    chosen, known = choose(own, fixtures, arguments.seconds), LIST.read_text().splitlines()
    for name in sorted({*chosen} ^ {*known}):
        print("+" if name in chosen else "-", name)
    print(f"{len(chosen)} tests of {sum(own[name] for name in chosen):.0f} s, of {sum(own.values()) + fixtures:.0f} s")
    if arguments.write:
        LIST.write_text("".join(f"{name}\n" for name in chosen))


if __name__ == "__main__":
    main()
