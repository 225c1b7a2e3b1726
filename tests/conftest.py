"""Fixtures, and what keeps a test that cannot run from counting as passed."""

from __future__ import annotations

import gc
import importlib.util
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from project import ARTIFACTS, MODELS, RATES, ROOT, export_unverified, load_module, need
from tampering import change_contract

import torchferry
from exporter.soundness import gate
from runtime_checks.file_verifier import FileVerifier
from runtime_checks.runners import fork_server

# No collection, nor a search for functions, looks at what torch and torchferry are made of, as in a command.
gc.freeze()

FACTORIES = {"elastic": "Elastic", "single": "Single", "picks": "picks", "whole": "Whole", "conjugate": "Conjugate"}


# A fork costs by what its process holds: what forks most goes first, while that is little. The longest test goes before
# all, so that nobody waits for it at the end.
FIRST = ("test_code_blocks.py::test_blocks", "test_hazards.py", "test_gate.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, part in enumerate(FIRST) if part in item.nodeid), len(FIRST)))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _one_import_of_torch() -> Iterator[None]:
    """For all fresh processes of a worker."""
    with fork_server.shared_fork_server():
        yield


@pytest.fixture
def without_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tested elsewhere, and takes seconds for each model."""
    monkeypatch.setattr(gate, "_BEFORE", {})
    monkeypatch.setattr(gate, "_AFTER", {})


@pytest.fixture
def without_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the stages before it."""
    monkeypatch.setattr(FileVerifier, "verify", lambda *_, **__: None)


@pytest.fixture(scope="session")
def neml2() -> None:
    """For tests of NEML2 input files."""
    need(importlib.util.find_spec("neml2") is not None, "neml2 is not installed")


@pytest.fixture(scope="session")
def eq_path(tmp_path_factory: pytest.TempPathFactory, neml2: None) -> Path:
    """An archive of the first example; tests that change it work on a copy."""
    path = tmp_path_factory.mktemp("eq") / "eq.pt"
    export_unverified(str(RATES), path, "eq")
    return path


@pytest.fixture
def eq_copy(eq_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(eq_path, tmp_path / "eq.pt"))


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
