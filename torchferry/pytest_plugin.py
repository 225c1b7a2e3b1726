"""pytest's plugin for golden archives: the fixture ``torchferry_golden``.

A test exports its model and holds the fresh archive against the one in the repository: contract, graph, numbers.

    def test_spring(torchferry_golden):
        torchferry_golden("spring.py:make_model")

The reference is ``goldens/test_springs/test_spring.pt`` beside the test's file ``test_springs.py``;
``pytest --torchferry-update`` writes it.
"""

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
_USED: pytest.StashKey[dict[Path, str]] = pytest.StashKey()
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
    calls: list[Any]

    def __call__(self, source: Any, **options: Any) -> Difference | None:
        """Export ``source`` with these options of ``torchferry.export``, and fail the test where that is not what the
        reference is. ``source`` may be a ``Path`` to an archive that is there already."""
        import torchferry

        if self.calls:
            pytest.fail("a test has one golden archive: split it, or parametrize it", pytrace=False)
        self.calls.append(source)
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
        from exporter.common.atomic_files import written

        if self.reference.is_file():
            try:
                if torchferry.diff(self.reference, path, run=True).verdict in _HELD:
                    return
            except torchferry.TorchferryError:
                # Of another schema, or damaged: it is to be replaced.
                pass
        written(self.reference, path.read_bytes())

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


def _file_name(node: pytest.Item) -> str:
    """Of class and test; where characters are lost, with a hash of the whole name."""
    whole = ".".join(filter(None, (getattr(getattr(node, "cls", None), "__name__", ""), node.name)))
    plain = re.sub(r"[^\w.-]+", "-", whole).strip("-")
    return plain if plain == whole else f"{plain}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"


@pytest.fixture
def torchferry_golden(
    request: pytest.FixtureRequest, tmp_path: Path, torchferry_golden_export: Callable[..., Any]
) -> Golden:
    """Holds the archive of a model still: ``torchferry_golden(source, **options of torchferry.export)``."""
    marker = request.node.get_closest_marker(MARKER)
    given = dict(marker.kwargs) if marker else {}
    name = given.pop("name", None) or f"{request.path.stem}/{_file_name(request.node)}"
    folder = request.path.parent / given.pop("folder", "goldens")
    if given or (marker and marker.args):
        raise pytest.UsageError(f"the marker {MARKER} takes folder and name; got {sorted(given) or marker.args}")
    update = bool(request.config.getoption(UPDATE))
    reference = folder / f"{name}.pt"
    used = request.config.stash.setdefault(_USED, {})
    owner = used.setdefault(reference.resolve(), request.node.nodeid)
    if owner != request.node.nodeid:
        pytest.fail(
            f"two tests have one golden archive\n  where: {reference}\n  got: {owner} and {request.node.nodeid}"
        )
    return Golden(reference, tmp_path / "fresh.pt", torchferry_golden_export, update, request.node.nodeid, [])
