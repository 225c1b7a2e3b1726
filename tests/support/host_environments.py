"""Environments of hosts whose packages are no dependency of this project: made once, in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from filelock import FileLock
from project import ROOT, need

from runtime_checks.cache import fill_once, make_private_folder

# What the package needs to call kernels without torch.
NEEDS_OF_KERNELS = ("numpy", "pydantic", "filelock", "jinja2", "typer")
# What a script prints before a result.
_RESULT = "RESULT "


def need_environment(name: str, *requirements: str) -> Path:
    """Return the Python of an environment with these packages; skip with the reason where pip cannot install them."""
    digest = hashlib.sha256(f"{sys.version} {requirements}".encode()).hexdigest()[:12]
    folder = make_private_folder("hosts") / f"{name}-{digest}"
    python = folder / "bin" / "python"

    def make_environment() -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        last = (result.stderr.strip().splitlines() or ["pip failed"])[-1]
        need(result.returncode == 0, f"pip cannot install {' '.join(requirements)}: {last}")

    fill_once(folder, make_environment)
    return python


def need_calculix() -> Path:
    """Return a CalculiX that loads libraries; skip with the reason where it cannot be built."""
    script = ROOT / "tools" / "build_calculix.sh"
    digest = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    folder = make_private_folder("hosts") / f"calculix-{digest}"
    for program in ("gfortran", "dpkg-source", "apt-get"):
        need(shutil.which(program) is not None, f"{program} is not installed")
    for library in ("spooles/FrontMtx.h", "arpack"):
        need(
            (Path("/usr/include") / library).exists(),
            f"/usr/include/{library} is missing: libspooles-dev, libarpack2-dev",
        )
    with FileLock(f"{folder}.lock"):
        if not (folder / "ccx").exists():
            command = [str(script), str(folder)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            need(result.returncode == 0, f"CalculiX cannot be built: {result.stderr.strip()[-300:]}")
    return folder / "ccx"


def run_in(python: Path, *arguments: str, folder: Path) -> list[Any]:
    """Run a script in a host's environment; return what its lines that begin with RESULT hold."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(python), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = (line for line in done.stdout.splitlines() if line.startswith(_RESULT))
    return [json.loads(line.removeprefix(_RESULT)) for line in lines]
