"""What is given to others: the wheels as a new user installs them, the source distribution, the recipe for conda."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from project import ROOT

from runtime_checks import native_build

SPRING = """import torch
from torch import nn


class Spring(nn.Module):
    def forward(self, stretch, stiffness):
        return {"force": stiffness * stretch}


def make_model():
    x = torch.tensor([0.1, 0.2], dtype=torch.float64)
    return Spring(), {"stretch": x, "stiffness": 100 * x}
"""
# Every environment can do these; where there is an extra, the first two are tried.
ALWAYS = (
    "export spring.py:make_model --derivative force:stretch -o spring.pt",
    "verify spring.pt",
    "inspect spring.pt",
    "check spring.py:make_model",
    "graph spring.pt",
    "diff spring.pt spring.pt",
    "convert spring.pt --to c -o kernel",
    "wrap torch kernel",
)
# What an extra adds; where it is missing, the message names it.
EXTRAS = {
    "neml2": "export model.i --model eq -o eq.pt",
    "onnx": "convert spring.pt --to onnx -o spring.onnx",
    "plot": "bench spring.pt --batch 1 --plot spring.svg",
    "native": "verify spring.pt --runtime libtorch",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build_wheel(tmp_path_factory.mktemp("wheel"), _clone(tmp_path_factory.mktemp("source")))


@pytest.fixture(scope="module")
def native_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of the native library for the torch of this Python."""
    source = _clone(tmp_path_factory.mktemp("source")) / "packaging" / "native"
    return _build_wheel(tmp_path_factory.mktemp("native"), source, "--no-build-isolation")


def _clone(folder: Path) -> Path:
    """Return a copy of the checkout: builds leave folders in it."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "torchferry")], check=True)
    return folder / "torchferry"


def _build_wheel(folder: Path, source: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *options, "-w", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def _read_settings() -> dict[str, Any]:
    # pytest brings the latter where Python has not the former.
    tomllib = importlib.import_module("tomllib" if importlib.util.find_spec("tomllib") else "tomli")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_file_of_a_package_is_in_the_wheel():
    """What is no Python is packed only where pyproject.toml says so; a checkout has it anyway."""
    data = _read_settings()["tool"]["setuptools"]["package-data"]
    patterns = {ROOT / name.replace(".", "/"): globs for name, globs in data.items()}
    packed = {path for folder, globs in patterns.items() for pattern in globs for path in folder.glob(pattern)}
    packages = ("exporter", "runtime_checks", "torchferry")
    listed = subprocess.run(["git", "ls-files", *packages], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = {ROOT / line for line in listed.stdout.splitlines() if not line.endswith(".py")}
    assert len(paths) > 50
    assert sorted(paths - packed) == []


@pytest.fixture(scope="module")
def dependencies(wheel, tmp_path_factory) -> Path:
    """Return an environment with what the wheel brings along, and without the wheel."""
    environment = tmp_path_factory.mktemp("dependencies") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    _run_pip(environment, "install", str(wheel))
    _run_pip(environment, "uninstall", "-y", "torchferry")
    return environment


def _run_pip(environment: Path, command: str, *arguments: str) -> None:
    # The newest torch brings gigabytes for GPUs.
    constraints = ("-c", str(ROOT / "tools" / "constraints.txt")) if command == "install" else ()
    pip = [str(environment / "bin" / "python"), "-m", "pip", command, "-q", *constraints]
    subprocess.run([*pip, *arguments], check=True, capture_output=True)


def _install(folder: Path, dependencies: Path, *wanted: str) -> None:
    """Make an environment in a folder, with a model beside it."""
    # The same files under other names: what pip writes are new files.
    shutil.copytree(dependencies, folder / "venv", symlinks=True, copy_function=os.link)
    _run_pip(folder / "venv", "install", *wanted)
    (folder / "spring.py").write_text(SPRING)


def _run(folder: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    binary = folder / "venv" / "bin"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{binary}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        [str(binary / "torchferry"), *command.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment | variables,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_installed_with_one_extra(wheel, dependencies, extra, tmp_path):
    _install(tmp_path, dependencies, f"{wheel}[{extra}]" if extra else str(wheel))
    (tmp_path / "model.i").write_text((ROOT / "examples" / "rates" / "model.i").read_text())

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return _run(tmp_path, command)

    for command in ALWAYS[: 2 if extra else None]:
        done = run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    if extra:
        done = run(EXTRAS[extra])
        assert done.returncode == 0, f"{EXTRAS[extra]}\n{done.stdout}\n{done.stderr}"
    # With nothing else there all of it is missing; CMake may be on the machine.
    for name in EXTRAS.keys() - {"native"} if not extra else ():
        done = run(EXTRAS[name])
        assert done.returncode != 0, EXTRAS[name]
        assert f"torchferry[{name}]" in done.stderr, done.stderr


@pytest.mark.thorough
def test_the_native_wheel_serves_where_there_is_no_compiler(wheel, native_wheel, dependencies, tmp_path):
    _install(tmp_path, dependencies, str(wheel), str(native_wheel))
    # A path without a compiler, and a cache without a library.
    bare = {"PATH": str(tmp_path / "venv" / "bin"), "TORCHFERRY_CACHE": str(tmp_path / "cache")}
    exported = _run(tmp_path, "export spring.py:make_model --derivative force:stretch -o spring.pt", **bare)
    assert exported.returncode == 0, exported.stderr
    verified = _run(tmp_path, "verify spring.pt --runtime libtorch", **bare)
    assert verified.returncode == 0, verified.stderr
    cmake_folder = Path(_run(tmp_path, "cmake-dir", **bare).stdout.strip())
    package = cmake_folder.parents[2]
    assert package.name == "torchferry_native"
    # A client in C++, whose torch the package finds beside itself.
    source, build = ROOT / "examples" / "solvers", tmp_path / "build"
    cmake = native_build.find_tool("cmake")
    configure = [cmake, "-S", str(source), "-B", str(build), f"-Dtorchferry_DIR={cmake_folder}"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run([cmake, "--build", str(build), "--target", "decay_cpp"], check=True, capture_output=True)
    decay = _run(tmp_path, f"export {source}/decay.py:make_model -o decay.pt", **bare)
    assert decay.returncode == 0, decay.stderr
    subprocess.run([str(build / "decay_cpp"), str(tmp_path / "decay.pt")], check=True, capture_output=True)
    # The control: built for another torch, it is not used, and here nothing else can be.
    record = package / "build.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"torch": "2.9.0"}))
    refused = _run(tmp_path, "verify spring.pt --runtime libtorch", **bare)
    assert refused.returncode == 6, refused.stderr
    assert "torchferry-native" in refused.stderr
    assert "2.9.0" in refused.stderr


@pytest.mark.thorough
def test_the_native_wheel_links_what_every_linux_has_and_torch(native_wheel, tmp_path):
    """auditwheel gives it a tag of manylinux, and puts no library into it: none is missing elsewhere."""
    torch_libraries = ["--exclude=libtorch*.so", "--exclude=libc10.so"]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    repair = [sys.executable, "-m", "auditwheel", "repair", *torch_libraries, "-w", str(tmp_path), str(native_wheel)]
    done = subprocess.run(repair, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    (repaired,) = tmp_path.glob("*.whl")
    assert re.search(r"-py3-none-manylinux_\d+_\d+_\w+\.whl$", repaired.name), repaired.name
    with zipfile.ZipFile(native_wheel) as before, zipfile.ZipFile(repaired) as after:
        assert _list_own_files(after) == _list_own_files(before)
        binaries = [before.read(f"torchferry_native/{n}") for n in ("lib/libtorchferry.so", "bin/torchferry_verify")]
        licences = {Path(name).name for name in before.namelist() if ".dist-info/licenses/" in name}
        metadata = next(before.read(name).decode() for name in before.namelist() if name.endswith("/METADATA"))
    assert licences == {"LICENSE", "json.txt", "cli11.txt"}
    # No folder of the machine that built it.
    assert not any(re.search(rb"site-packages|/runtime_checks/", binary) for binary in binaries)
    assert f"Version: {importlib.metadata.version('torchferry')}\n" in metadata
    assert f"Requires-Dist: torch=={importlib.metadata.version('torch').partition('+')[0]}\n" in metadata
    # The control: a library that nobody excuses, and that is not there, is found.
    strict = [part for part in repair if part != "--exclude=libc10.so"]
    done = subprocess.run(strict, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    assert "libc10.so" in done.stderr


def _list_own_files(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name and not name.endswith("/")}


def test_the_source_distribution_is_the_checkout_and_builds_without_network(tmp_path):
    source = _clone(tmp_path)
    # What builds leave there.
    for name in ("runtime_checks/native/build/CMakeCache.txt", "examples/solvers/out/decay.pt", "tests/native.o"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).touch()
    make = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "-o", str(tmp_path), str(source)]
    subprocess.run(make, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        files = {member.name.partition("/")[2] for member in tar if member.isfile()}
    listed = subprocess.run(["git", "ls-files"], cwd=source, capture_output=True, text=True, check=True)
    assert {*listed.stdout.splitlines()} - files == set()
    own = {"PKG-INFO", "setup.cfg"}
    assert {f for f in files if not f.startswith("torchferry.egg-info/")} - {*listed.stdout.splitlines()} == own
    wheel = _build_wheel(tmp_path, archive, "--no-build-isolation", "--no-index")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    packages = ("exporter/", "runtime_checks/", "torchferry/")
    assert {f for f in listed.stdout.splitlines() if f.startswith(packages)} - names == set()


# What conda calls packages of PyPI otherwise.
CONDA_NAMES = {"torch": "pytorch", "graphviz": "python-graphviz"}
# In no channel of conda.
NOT_IN_CONDA = {"landlockpy"}


def test_the_recipe_for_conda_has_the_dependencies_of_the_project():
    project = _read_settings()["project"]
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    pairs = re.findall(r"^([\w-]+)([^;\s]*)", "\n".join(project["dependencies"]), re.MULTILINE)
    wanted = {CONDA_NAMES.get(name, name): bounds for name, bounds in pairs if name not in NOT_IN_CONDA}
    run = recipe.partition("  run:\n")[2].partition("\n\n")[0]
    listed = dict(re.findall(r"^    - (\S+) (\S+)$", run, re.MULTILINE))
    assert listed == wanted | {"python": project["requires-python"]}
    assert f'version: "{importlib.metadata.version("torchferry")}"' in recipe
    assert f"- torchferry = {project['scripts']['torchferry']}\n" in recipe
