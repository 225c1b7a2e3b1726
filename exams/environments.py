"""Packages that only a suite needs, in the cache: from pip, beside those of this interpreter."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from filelock import FileLock

from exporter.common.errors import MissingRuntimeError
from runtime_checks.cache import check_private_folder, make_private_folder


def ensure_packages(requirements: Path) -> Path:
    """Return the folder of a file of requirements, for ``site.addsitedir``; the first call installs them.

    The folder is another one for another torch or Python. Raises ``MissingRuntimeError`` if pip cannot install them."""
    torch = f"torch=={importlib.metadata.version('torch')}"
    key = "\n".join([requirements.read_text(encoding="utf-8"), torch, sys.version])
    place = make_private_folder("exams") / f"{requirements.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    # By this name code of others is known as such.
    folder = place / "site-packages"
    with FileLock(f"{place}.lock"):
        if not folder.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(mode=0o700)
            print(f"installing {requirements.name} into {folder}", file=sys.stderr)
            try:
                _install(requirements, torch, place / "scratch").rename(folder)
            finally:
                shutil.rmtree(place / "scratch", ignore_errors=True)
        check_private_folder(place)
    return folder


def _install(requirements: Path, constraint: str, scratch: Path) -> Path:
    """Install into an environment that sees the packages of this one, so that torch is not installed again."""
    venv.create(scratch / "venv", with_pip=True, symlinks=True)
    python = scratch / "venv" / "bin" / "python"
    paths = {"base": str(scratch / "venv"), "platbase": str(scratch / "venv")}
    packages = Path(sysconfig.get_path("purelib", vars=paths))
    own = sysconfig.get_path("purelib")
    (packages / "outer.pth").write_text(f"import site; site.addsitedir({own!r})\n", encoding="utf-8")
    limits = scratch / "constraints.txt"
    limits.write_text(constraint + "\n", encoding="utf-8")
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(limits)]
    done = subprocess.run([*command, "-r", str(requirements)], capture_output=True, text=True, check=False)
    if done.returncode:
        what, got = "pip cannot install the packages of a suite", done.stderr.strip()[-400:]
        mend = "see what pip says; the other suites do without"
        raise MissingRuntimeError(
            what, where=str(requirements), got=got, expected="a network, or pip's cache", mend=mend
        )
    for path in (packages / "outer.pth", *packages.glob("pip*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return packages
