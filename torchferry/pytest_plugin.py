"""The pytest plugin for golden archives: the fixture ``torchferry_golden``.

A test exports its model and compares the fresh archive with the one in the repository: contract, graph, numbers.

    def test_spring(torchferry_golden):
        torchferry_golden("spring.py:make_model")

The reference is ``goldens/test_springs/test_spring.pt`` beside the test's file ``test_springs.py``;
``pytest --torchferry-update`` writes it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchferry import Difference

UPDATE = "--torchferry-update"
MARKER = "torchferry_golden"
_REFERENCES_KEY: pytest.StashKey[dict[Path, str]] = pytest.StashKey()
# Verdicts for a file that computes the same with the same graph.
_ACCEPTED_VERDICTS = ("same file", "same graph")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes golden archives."""
    text = "write the golden archives of the tests that run, instead of comparing"
    parser.getgroup("torchferry").addoption(UPDATE, action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse to update golden archives in CI."""
    marker = f"{MARKER}(folder='goldens', name=None): where the golden archive of a test stands, and its name"
    config.addinivalue_line("markers", marker)
    if config.getoption(UPDATE) and is_ci():
        raise pytest.UsageError(
            f"{UPDATE} is refused in CI (CI={os.environ['CI']}): a reference that CI writes protects nothing\n"
            f"  mend: run it where you work, look at the change, and commit it"
        )


def is_ci() -> bool:
    """Return whether this process runs in CI."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


@dataclass(frozen=True)
class Golden:
    """The fixture's callable: ``reference`` is the archive in the repository, ``export`` makes the fresh one."""

    reference: Path
    fresh: Path
    export: Callable[..., Any]
    update: bool
    test: str
    calls: list[Any]

    def __call__(self, source: Any, **options: Any) -> Difference | None:
        """Export ``source`` with these options of ``torchferry.export``, and fail the test if the result differs from
        the reference. ``source`` may be a ``Path`` to an existing archive."""
        import torchferry

        if self.calls:
            pytest.fail("a test has one golden archive: split it, or parametrize it", pytrace=False)
        self.calls.append(source)
        path = self._export_fresh(source, options)
        if self.update:
            self._write(path)
            return None
        if not self.reference.is_file():
            mend = f"make it with `pytest '{self.test}' {UPDATE}`, and commit it"
            pytest.fail(f"there is no golden archive\n  where: {self.reference}\n  mend: {mend}", pytrace=False)
        try:
            difference = torchferry.diff(self.reference, path, run=True)
        except torchferry.TorchferryError as error:
            pytest.fail(f"the golden archive cannot be compared: {error}\n  golden: {self.reference}", pytrace=False)
        if difference.verdict not in _ACCEPTED_VERDICTS:
            pytest.fail(self._describe_difference(difference), pytrace=False)
        return difference

    def _export_fresh(self, source: Any, options: dict[str, Any]) -> Path:
        if isinstance(source, Path) and source.suffix == ".pt":
            return source
        self.export(source, output=self.fresh, **options)
        return self.fresh

    def _write(self, path: Path) -> None:
        import torchferry
        from exporter.common.atomic_files import write_atomically

        if self.reference.is_file():
            try:
                if torchferry.diff(self.reference, path, run=True).verdict in _ACCEPTED_VERDICTS:
                    return
            except torchferry.TorchferryError:
                # The reference has another schema or is damaged: replace it.
                pass
        write_atomically(self.reference, path.read_bytes())

    def _describe_difference(self, difference: Difference) -> str:
        lines = [
            f"the model is not what its golden archive is: {difference.verdict}",
            f"  golden: {self.reference}",
            *(f"  note: {note}" for note in difference.notes),
            *(f"  {line}" for line in difference.lines()),
            f"  to accept it: pytest '{self.test}' {UPDATE}, and commit the new archive",
        ]
        return "\n".join(lines)


@pytest.fixture
def torchferry_golden_export() -> Callable[..., Any]:
    """Return the function that makes the fresh archive; override it for an export with other defaults."""
    import torchferry

    return torchferry.export


def _make_file_name(node: pytest.Item) -> str:
    """Return a file name from class and test, with a hash of the full name if characters are lost."""
    full_name = ".".join(filter(None, (getattr(getattr(node, "cls", None), "__name__", ""), node.name)))
    plain = re.sub(r"[^\w.-]+", "-", full_name).strip("-")
    return plain if plain == full_name else f"{plain}-{hashlib.sha256(full_name.encode()).hexdigest()[:6]}"


@pytest.fixture
def torchferry_golden(request: pytest.FixtureRequest, tmp_path: Path, torchferry_golden_export: Any) -> Golden:
    """Compare a model's archive with its golden one: ``torchferry_golden(source, **options of torchferry.export)``."""
    marker = request.node.get_closest_marker(MARKER)
    options = dict(marker.kwargs) if marker else {}
    name = options.pop("name", None) or f"{request.path.stem}/{_make_file_name(request.node)}"
    folder = request.path.parent / options.pop("folder", "goldens")
    if options or (marker and marker.args):
        raise pytest.UsageError(f"the marker {MARKER} takes folder and name; got {sorted(options) or marker.args}")
    update = bool(request.config.getoption(UPDATE))
    reference = folder / f"{name}.pt"
    used = request.config.stash.setdefault(_REFERENCES_KEY, {})
    owner = used.setdefault(reference.resolve(), request.node.nodeid)
    if owner != request.node.nodeid:
        places = f"where: {reference}\n  got: {owner} and {request.node.nodeid}"
        pytest.fail(f"two tests have one golden archive\n  {places}")
    return Golden(reference, tmp_path / "fresh.pt", torchferry_golden_export, update, request.node.nodeid, [])
