"""The native library with sanitizers, over every forged file: it refuses each, and touches nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from native_build import programs, run
from project import ROOT
from two_readers import forge_all

SANITIZERS = "address,undefined"
OPTIONS = {
    # torch's reader of zip files keeps memory when it refuses one.
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "honest"),
    [
        *(("test_archives", None), ("test_code", None)),
        *(("test_stored_tensors", "robertson.pt"), ("test_zip_files", "robertson.pt")),
    ],
)
def test_sanitizers_over_all_forged_files(name, honest, shared, eq_path, tmp_path):
    folder = programs(ROOT / "tests" / "runtime_checks" / "native", shared, sanitize=SANITIZERS)
    forged = runpy.run_path(str(Path(__file__).with_name(f"{name}.py")))["HOSTILE"]
    source = ROOT / "artifacts" / honest if honest else eq_path
    paths = forge_all(source, {label: forge for label, (forge, _) in forged.items()}, tmp_path).values()
    code, out, text = run(folder / "load_all", *paths, environment=OPTIONS)
    assert code == 0, text[-4000:]
    assert out.decode().split() == ["TF_ERROR_ARCHIVE"] * len(forged)
