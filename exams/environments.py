"""Packages that only a suite needs, in the cache: from pip, beside those of this interpreter."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path

from exporter.common.errors import MissingRuntimeError
from runtime_checks.cache import check_private_folder, fill_once, make_private_folder


def ensure_packages(requirements: Path) -> Path:
    """Return the folder of a file of requirements, for ``site.addsitedir``; the first call installs them.

    The folder is another one for another torch or Python. Raises ``MissingRuntimeError`` if pip cannot install them."""
    torch = f"torch=={importlib.metadata.version('torch')}"
    key = "\n".join([requirements.read_text(encoding="utf-8"), torch, sys.version])
    folder = make_private_folder("exams") / f"{requirements.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    fill_once(folder, functools.partial(_install, requirements, torch, folder))
    check_private_folder(folder)
    return _find_packages(folder)


def _find_packages(folder: Path) -> Path:
    """Return the packages of an environment; by the folder's name, code of others is known as such."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))


def _install(requirements: Path, constraint: str, folder: Path) -> None:
    """Install into an environment that sees the packages of this one, so that torch is not installed again."""
    print(f"installing {requirements.name} into {folder}", file=sys.stderr)
    folder.mkdir(mode=0o700)
    _run([sys.executable, "-m", "venv", str(folder)], requirements)
    own, outer = sysconfig.get_path("purelib"), _find_packages(folder) / "outer.pth"
    outer.write_text(f"import site; site.addsitedir({own!r})\n", encoding="utf-8")
    limits = folder / "constraints.txt"
    limits.write_text(constraint + "\n", encoding="utf-8")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "-c", str(limits), "-r", str(requirements)], requirements)
    # Who adds the folder has those packages already.
    outer.unlink()


def _run(command: list[str], requirements: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        what, expected = "the packages of a suite cannot be installed", "a network, or pip's cache"
        got, mend = done.stderr.strip()[-400:], "see what pip says; the other suites do without"
        raise MissingRuntimeError(what, where=str(requirements), got=got, expected=expected, mend=mend)
