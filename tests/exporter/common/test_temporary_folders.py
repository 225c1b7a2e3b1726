"""What an early end removes."""

from __future__ import annotations

import contextlib

from exporter.common.atomic_files import atomic_write_folder, atomic_write_path
from exporter.common.temporary_folders import remove_temporary_paths, temporary_folder


def test_what_is_listed_is_removed_and_nothing_else(tmp_path):
    (tmp_path / "other.txt").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept.txt").touch()
    with contextlib.ExitStack() as contexts:
        folder = contexts.enter_context(temporary_folder(parent=tmp_path))
        file = contexts.enter_context(atomic_write_path(tmp_path / "a" / "b" / "m.pt"))
        replaced = contexts.enter_context(atomic_write_folder(tmp_path / "old", "last", list))
        (folder / "calls.pt").touch()
        file.write_bytes(b"half")
        (replaced / "kernel.c").touch()
        remove_temporary_paths()
        left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")}
        # This process would end here.
        contexts.pop_all()
    assert left == {"other.txt", "old", "old/kept.txt"}


def test_what_is_done_is_listed_no_more(tmp_path):
    with atomic_write_path(tmp_path / "m.pt") as file:
        file.write_bytes(b"whole")
    remove_temporary_paths()
    assert (tmp_path / "m.pt").read_bytes() == b"whole"
