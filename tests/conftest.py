"""Fixtures, and what keeps a test that cannot run from counting as passed."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from file_processes import FileProcesses
from long_tests import GONE, mark_long_tests
from project import (
    ARTIFACTS,
    MODELS,
    RATES,
    ROOT,
    export_unverified,
    load_module,
    make_once,
    need,
    skip_checks,
    skip_gate,
)
from tampering import change_contract

import torchferry
from runtime_checks.file_verifier import FileVerifier
from runtime_checks.runners import fork_server

# No collection, nor a search for functions, looks at what torch and torchferry are made of, as in a command.
gc.freeze()
# Whether there is a GPU is found out without its use: the process of a test file could not use it then.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# Threads of OpenMP do not live on in the processes of test files.
torch.set_num_threads(1)

FACTORIES = {"elastic": "Elastic", "single": "Single", "picks": "picks", "whole": "Whole", "conjugate": "Conjugate"}
KERNELS = ("robertson", "return_map", "perzyna")

# The longest tests go first, so that nobody waits for them at the end.
FIRST = ("test_code_blocks.py", "test_gate.py", "test_hazards.py")


LONG_TESTS = Path(__file__).with_name("long_tests.txt")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
    # Another Python, another torch, or a package that is missing may have other tests.
    is_required = os.environ.get("TORCHFERRY_REQUIRE_ALL") == "1"
    is_whole = is_required and [*config.args] == config.getini("testpaths")
    gone = mark_long_tests(set(LONG_TESTS.read_text().splitlines()), items)
    config.stash[GONE] = gone if is_whole else []


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fork a process for each file, and share one import of torch for all fresh processes that its tests start."""
    config = session.config
    # With xdist the workers run the tests.
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        stack = contextlib.ExitStack()
        config.add_cleanup(stack.close)
        server = stack.enter_context(fork_server.shared_fork_server())

        def before_fork() -> None:
            server.start()
            # All processes make their folders in one.
            config._tmp_path_factory.getbasetemp()  # pyright: ignore[reportAttributeAccessIssue]

        config.pluginmanager.register(FileProcesses(before_fork, server.take_over))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def without_the_gate() -> Iterator[None]:
    """It is tested elsewhere, and takes seconds for each model."""
    with skip_gate():
        yield


@pytest.fixture(scope="module")
def file_without_the_gate() -> Iterator[None]:
    """The same for all tests of a file, and before its fixtures of the module."""
    with skip_gate():
        yield


@pytest.fixture
def without_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the stages before it."""
    monkeypatch.setattr(FileVerifier, "verify", lambda *_, **__: None)


@pytest.fixture(scope="session")
def neml2() -> None:
    """For tests of NEML2 input files."""
    need(importlib.util.find_spec("neml2") is not None, "neml2 is not installed")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all test processes of this run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session")
def eq_path(shared: Path, neml2: None) -> Path:
    """An archive of the first example; tests that change it work on a copy."""
    return make_once(shared / "eq", lambda folder: export_unverified(str(RATES), folder / "eq.pt", "eq")) / "eq.pt"


@pytest.fixture
def eq_copy(eq_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(eq_path, tmp_path / "eq.pt"))


@pytest.fixture(scope="session")
def archives(shared: Path) -> dict[str, Path]:
    def make(folder: Path) -> None:
        for name, factory in FACTORIES.items():
            export_unverified(f"{MODELS}:{factory}", folder / f"{name}.pt")

    folder = make_once(shared / "native archives", make)
    return {name: folder / f"{name}.pt" for name in FACTORIES}


@pytest.fixture(scope="session")
def compiled_robertson(shared: Path) -> Path:
    """A package of compiled code, which takes a quarter of a minute to write."""

    def make(folder: Path) -> None:
        torchferry.convert(ARTIFACTS / "robertson.pt", folder / "robertson.pt2", to="pt2")

    return make_once(shared / "compiled robertson", make) / "robertson.pt2"


@pytest.fixture
def elastic(archives, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copy(archives["elastic"], tmp_path / "elastic.pt"))


@pytest.fixture(scope="session")
def damaged(archives, shared: Path) -> Path:
    """The archive of ``elastic``, damaged in every way that a host may meet."""

    def make(folder: Path) -> None:
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

    return make_once(shared / "damaged", make)


@pytest.fixture(scope="session")
def folders(shared: Path) -> dict[str, Path]:
    """Kernels of archives in ``artifacts``; tests that change one work on a copy."""

    def make(folder: Path) -> None:
        for name in KERNELS:
            torchferry.convert(ARTIFACTS / f"{name}.pt", folder / name, to="c")

    folder = make_once(shared / "kernels", make)
    return {name: folder / name for name in KERNELS}


@pytest.fixture(scope="session")
def cuda_folders(shared: Path) -> dict[str, Path]:
    """The same with sources for GPUs; tests that change one work on a copy."""
    from kernel_host import write_cuda_kernel

    def make(folder: Path) -> None:
        for name in KERNELS:
            write_cuda_kernel(ARTIFACTS / f"{name}.pt", folder / name)

    folder = make_once(shared / "cuda_kernels", make)
    return {name: folder / name for name in KERNELS}


@pytest.fixture(scope="session")
def solid(shared: Path) -> Path:
    """An archive that carries its kernel, which lies beside it as well."""

    def make(folder: Path) -> None:
        source = f"{ROOT / 'examples' / 'return_map.py'}:make_model"
        with skip_checks():
            torchferry.export(source, output=folder / "m.pt", derivatives=["stress:strain"], formats="pt,c")

    return make_once(shared / "solid", make) / "m.pt"


@pytest.fixture
def carrying(solid: Path, tmp_path: Path) -> Path:
    """A copy of the archive alone: it has the sources in it."""
    return Path(shutil.copy(solid, tmp_path))
