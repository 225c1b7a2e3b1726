"""Every class of hazard is refused by the check that is meant for it, with its line, and its sound twin passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from gate_specimens import findings_of, load, source_of
from project import mark_rest_thorough

from exporter.common.errors import CaptureError, TorchferryError

HAZARDS = sorted(Path(__file__).with_name("hazards").glob("*.py"))
NETWORKS = sorted(Path(__file__).with_name("networks").glob("*.py"))


@pytest.fixture(autouse=True)
def _settings():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def test_there_are_as_many_as_the_table_says():
    assert len(HAZARDS) >= 100
    assert len(NETWORKS) >= 12


def check_of(path: Path) -> str:
    """Without an import: what a hazard does at its import belongs to its own test."""
    match = re.search(r'^CHECK = "(.+)"', path.read_text(), re.MULTILINE)
    assert match is not None, path
    return match[1]


# Of each check the first hazard and its twin; the others, and networks, take minutes together.
FIRST = [*{check_of(path): path for path in reversed(HAZARDS)}.values()]
REST = [path for path in HAZARDS if path not in FIRST]


@pytest.mark.parametrize("path", mark_rest_thorough(FIRST, REST), ids=lambda p: p.stem)
def test_a_hazard_is_refused_with_its_line(path):
    with pytest.raises(CaptureError) as caught:
        findings_of(source_of(path, "Hazard"))
    error = caught.value
    assert error.exit_code == 3
    assert error.details["check"] == load(path).CHECK, str(error)
    where = re.search(rf"{re.escape(str(path))}:(\d+)", error.details["where"])
    assert where is not None, str(error)
    assert "# HAZARD" in path.read_text().splitlines()[int(where[1]) - 1], str(error)


@pytest.mark.parametrize("path", mark_rest_thorough(FIRST, [*REST, *NETWORKS]), ids=lambda p: p.stem)
def test_what_is_sound_passes(path):
    try:
        result = findings_of(source_of(path, "Sound"))
    except TorchferryError as error:
        pytest.fail(f"wrongly refused: {error}")
    # What has shapes that data decide cannot run without data, where the device check looks.
    assert {f.check for f in result if f.severity == "not run"} <= {"device"}
    assert not [f for f in result if f.severity in ("unsound", "allowed")]
