"""Results kept one by one, so that a long run that was cut off goes on where it stopped.

A log holds while what its results depend on is the same: the first line is the digest of that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class ResultLog:
    """A file of results, a line of JSON each; a log with another digest begins anew.

    Attributes:
        results: What the file held when it was opened.
    """

    def __init__(self, path: Path, digest: str) -> None:
        """Open a log, or begin one."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        self.results = _parse_lines(lines[1:]) if lines and lines[0] == digest else []
        # Written again: a last line that was cut off would swallow the next one.
        beside = path.with_name(f"{path.name}.new")
        beside.write_text("\n".join([digest, *map(json.dumps, self.results)]) + "\n", encoding="utf-8")
        beside.replace(path)

    def add(self, result: Mapping[str, Any]) -> None:
        """Keep one more result, at once."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")


def read_digest(path: Path) -> str:
    """Return the digest that a log begins with; nothing if there is no log."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except FileNotFoundError:
        return ""


def _parse_lines(lines: Iterable[str]) -> list[dict[str, Any]]:
    results = []
    for line in lines:
        try:
            result = json.loads(line)
        except ValueError:
            continue
        results += [result] if isinstance(result, dict) else []
    return results


def digest_files(texts: Iterable[str], paths: Iterable[Path]) -> str:
    """Return the sha256 of texts, and of files with their names; of a folder, of all files below it but compiled code.

    Args:
        texts: What results depend on besides, as versions and options.
        paths: Files and folders.
    """
    digest = hashlib.sha256(json.dumps(list(texts)).encode())
    for root in paths:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.suffix != ".pyc" and path.is_file():
                content = path.read_bytes()
                digest.update(f"{path.relative_to(root.parent)} {len(content)} ".encode() + content)
    return digest.hexdigest()
