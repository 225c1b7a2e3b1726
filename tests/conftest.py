"""Fixtures, and what keeps a test that cannot run from counting as passed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tampering import change_contract

import torchferry
from exporter import archive
from exporter.archive import Archive
from exporter.pipeline import export_source
from exporter.sound import Clock
from exporter.soundness import gate
from exporter.sources import resolve
from runtime_checks.runners import forkserver

ROOT = Path(__file__).parents[1]
ARTIFACTS = ROOT / "artifacts"
RATES = ROOT / "examples" / "rates" / "model.i"
PLANTED = Path(__file__).with_name("planted.py")
MODELS = Path(__file__).parent / "native" / "models.py"
FACTORIES = {"elastic": "Elastic", "single": "Single", "picks": "picks", "whole": "Whole", "conjugate": "Conjugate"}


# A fork costs by what its process holds: what forks most goes first, while that is little. The longest test goes before
# all, so that nobody waits for it at the end.
FIRST = ("test_readme.py::test_bash", "test_hazards.py", "test_gate.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, part in enumerate(FIRST) if part in item.nodeid), len(FIRST)))


def need(present: bool, reason: str) -> None:
    """Skip with the reason, or fail where every test has to run."""
    if present:
        return
    if os.environ.get("TORCHFERRY_REQUIRE_ALL") == "1":
        pytest.fail(f"TORCHFERRY_REQUIRE_ALL=1, and {reason}")
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _one_import_of_torch() -> Iterator[None]:
    """For all fresh processes of a worker."""
    with forkserver.shared():
        yield


@pytest.fixture
def without_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tested elsewhere, and takes seconds for each model."""
    monkeypatch.setattr(gate, "_BEFORE", {})
    monkeypatch.setattr(gate, "_AFTER", {})


@pytest.fixture(scope="session")
def neml2() -> None:
    """For tests of NEML2 input files."""
    need(importlib.util.find_spec("neml2") is not None, "neml2 is not installed")


def export_unverified(source: str, path: Path, model: str = "", **given: object) -> Archive:
    """All stages up to the file, without the fresh process: for tests of those stages."""
    name = resolve.chosen_models(source, [model] if model else [])[0]
    loaded = resolve.load(source, name, given or None)
    export_source(loaded, path, (), 0, lambda *_: None, lambda _: None, Clock())
    return archive.read(path)


@pytest.fixture(scope="session")
def eq_path(tmp_path_factory: pytest.TempPathFactory, neml2: None) -> Path:
    """An archive of the first example; tests that change it work on a copy."""
    path = tmp_path_factory.mktemp("eq") / "eq.pt"
    export_unverified(str(RATES), path, "eq")
    return path


@pytest.fixture
def eq_copy(eq_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(eq_path, tmp_path / "eq.pt"))


def load_module(path: Path) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(str(path)).eval()


@pytest.fixture(scope="session")
def archives(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("native")
    for name, factory in FACTORIES.items():
        export_unverified(f"{MODELS}:{factory}", folder / f"{name}.pt")
    return {name: folder / f"{name}.pt" for name in FACTORIES}


@pytest.fixture
def elastic(archives, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copy(archives["elastic"], tmp_path / "elastic.pt"))


@pytest.fixture(scope="session")
def damaged(archives, tmp_path_factory) -> Path:
    """The archive of ``elastic``, damaged in every way that a host may meet."""
    folder = tmp_path_factory.mktemp("damaged")
    whole = archives["elastic"].read_bytes()
    (folder / "empty.pt").touch()
    (folder / "truncated.pt").write_bytes(whole[: len(whole) // 2])
    (folder / "text.pt").write_text("not an archive at all\n" * 20)
    changed = bytearray(whole)
    changed[len(whole) // 3] ^= 1
    (folder / "flipped.pt").write_bytes(changed)
    torch.jit.save(load_module(archives["elastic"]), str(folder / "foreign.pt"))
    with zipfile.ZipFile(shutil.copy(archives["elastic"], folder / "added.pt"), "a") as file:
        file.writestr(f"{file.namelist()[0].split('/')[0]}/extra/stowaway", "x")
    change_contract(Path(shutil.copy(archives["elastic"], folder / "schema.pt")), lambda c: c.update(schema=2))
    return folder


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all test processes of this run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kernels of archives in ``artifacts``; tests that change one work on a copy."""
    place = tmp_path_factory.mktemp("kernels")
    names = ("robertson", "return_map", "perzyna")
    return {n: torchferry.convert(ARTIFACTS / f"{n}.pt", place / n, to="c").path for n in names}


@pytest.fixture(scope="session")
def solid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive that carries its kernel, which lies beside it as well."""
    path = tmp_path_factory.mktemp("solid") / "m.pt"
    source = f"{ROOT / 'examples' / 'return_map.py'}:make_model"
    torchferry.export(source, output=path, derivatives=["stress:strain"], formats="pt,c")
    return path


@pytest.fixture
def carrying(solid: Path, tmp_path: Path) -> Path:
    """A copy of the archive alone: it has the sources in it."""
    return Path(shutil.copy(solid, tmp_path))
