"""pytest's plugin for golden archives: the fixture ``torchferry_golden``.

A test exports its model and holds the fresh archive against the one in the repository: contract, graph, numbers.

    def test_spring(torchferry_golden):
        torchferry_golden("spring.py:make_model")

The reference is ``goldens/test_spring.pt`` beside the test's file; ``pytest --torchferry-update`` writes it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchferry import Difference

UPDATE = "--torchferry-update"
MARKER = "torchferry_golden"
# A file that computes the same by the same graph.
_HELD = ("same file", "same graph")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("torchferry").addoption(
        UPDATE, action="store_true", help="write the golden archives of the tests that run, instead of comparing"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(folder='goldens', name=None): where the golden archive of a test stands, and its name"
    )
    if config.getoption(UPDATE) and in_ci():
        raise pytest.UsageError(
            f"{UPDATE} is refused in CI (CI={os.environ['CI']}): a reference that CI writes holds nothing still\n"
            f"  mend: run it where you work, look at the change, and commit it"
        )


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


@dataclass(frozen=True)
class Golden:
    """``reference`` is the archive in the repository; ``export`` makes the fresh one, as ``torchferry.export`` does."""

    reference: Path
    fresh: Path
    export: Callable[..., Any]
    update: bool
    test: str

    def __call__(self, source: Any, **options: Any) -> Difference | None:
        """Export ``source`` with these options of ``torchferry.export``, and fail the test where that is not what the
        reference is. ``source`` may be a ``Path`` to an archive that is there already."""
        import torchferry

        path = self._made(source, options)
        if self.update:
            self._write(path)
            return None
        if not self.reference.is_file():
            pytest.fail(
                f"there is no golden archive\n  where: {self.reference}\n"
                f"  mend: make it with `pytest '{self.test}' {UPDATE}`, and commit it",
                pytrace=False,
            )
        try:
            found = torchferry.diff(self.reference, path, run=True)
        except torchferry.TorchferryError as error:
            pytest.fail(f"the golden archive cannot be compared: {error}\n  golden: {self.reference}", pytrace=False)
        if found.verdict not in _HELD:
            pytest.fail(self._said(found), pytrace=False)
        return found

    def _made(self, source: Any, options: dict[str, Any]) -> Path:
        if isinstance(source, Path) and source.suffix == ".pt":
            return source
        self.export(source, output=self.fresh, **options)
        return self.fresh

    def _write(self, path: Path) -> None:
        import torchferry

        self.reference.parent.mkdir(parents=True, exist_ok=True)
        if self.reference.is_file():
            try:
                if torchferry.diff(self.reference, path, run=True).verdict in _HELD:
                    return
            except torchferry.TorchferryError:
                # Of another schema, or damaged: it is to be replaced.
                pass
        shutil.copyfile(path, self.reference)

    def _said(self, found: Difference) -> str:
        lines = [
            f"the model is not what its golden archive is: {found.verdict}",
            f"  golden: {self.reference}",
            *(f"  note: {note}" for note in found.notes),
            *(f"  {line}" for line in found.lines()),
            f"  to accept it: pytest '{self.test}' {UPDATE}, and commit the new archive",
        ]
        return "\n".join(lines)


@pytest.fixture
def torchferry_golden_export() -> Callable[..., Any]:
    """What makes the fresh archive; override it for an export with other habits."""
    import torchferry

    return torchferry.export


@pytest.fixture
def torchferry_golden(
    request: pytest.FixtureRequest, tmp_path: Path, torchferry_golden_export: Callable[..., Any]
) -> Golden:
    """Holds the archive of a model still: ``torchferry_golden(source, **options of torchferry.export)``."""
    marker = request.node.get_closest_marker(MARKER)
    given = dict(marker.kwargs) if marker else {}
    name = given.pop("name", None) or re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    folder = request.path.parent / given.pop("folder", "goldens")
    if given or (marker and marker.args):
        raise pytest.UsageError(f"the marker {MARKER} takes folder and name; got {sorted(given) or marker.args}")
    update = bool(request.config.getoption(UPDATE))
    return Golden(folder / f"{name}.pt", tmp_path / f"{name}.pt", torchferry_golden_export, update, request.node.nodeid)
