import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tampering import change_cases, change_contract, rewrite

from exporter.archive import pt_archive
from exporter.archive.pt_archive import CASES, CONTRACT, GRAPH, MANIFEST, REQUIRED_RECORDS
from exporter.common import atomic_files
from exporter.common.errors import ArchiveError, OutputError, SchemaError


def test_the_record_set(eq_path):
    opened = pt_archive.read(eq_path)
    assert {f"extra/{name}" for name in REQUIRED_RECORDS} <= set(opened.records)
    assert opened.contract.name == "eq"
    assert "aten::div" in opened.graph
    assert "# forward_batch" in opened.graph


def test_cases_are_contiguous_and_name_their_method(eq_path):
    opened = pt_archive.read(eq_path)
    cases = {case.name: case for case in opened.cases()}
    assert {"warmup", "batch_1", "batch_7"} <= set(cases)
    assert any(name.startswith("small") for name in cases)
    assert any(name.startswith("large") for name in cases)
    assert all(t.is_contiguous() for c in cases.values() for t in (*c.inputs, *c.outputs))
    assert cases["batch_1"].inputs[0].shape == (1,)


def test_reading_imports_no_torch(eq_path):
    code = f"""
import sys
from pathlib import Path
from exporter.archive import pt_archive
from exporter.common import atomic_files
pt_archive.read(Path({str(eq_path)!r}))
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.write_bytes(b""), "empty"),
        (lambda p: _cut(p, 1000), "damaged"),
        (lambda p: _cut(p, p.stat().st_size - 30), "damaged"),
        (lambda p: p.write_text("a text file\n" * 50), "damaged"),
        (lambda p: p.unlink(), "does not exist"),
        (lambda p: (p.unlink(), p.mkdir()), "a folder"),
        (lambda p: rewrite(p, lambda r: r.pop(f"extra/{GRAPH}"), manifest=False), "missing: extra/torchferry/graph"),
        (lambda p: rewrite(p, lambda r: r.pop("constants.pkl"), manifest=False), "missing: constants.pkl"),
        (lambda p: rewrite(p, lambda r: r.pop(f"extra/{MANIFEST}"), manifest=False), "missing"),
        (lambda p: rewrite(p, lambda r: r.pop(f"extra/{CASES}"), manifest=True), "missing: extra/torchferry/cases"),
        (lambda p: rewrite(p, lambda r: r.update({"extra/more": b"x"}), manifest=False), "added: extra/more"),
        (lambda p: rewrite(p, lambda r: r.update({"version": b"9\n"}), manifest=False), "record version"),
        (
            lambda p: rewrite(
                p,
                lambda r: r.update({f"extra/{MANIFEST}": r[f"extra/{MANIFEST}"].replace(b",", b", ")}),
                manifest=False,
            ),
            "manifest is damaged",
        ),
        (lambda p: change_contract(p, lambda c: c.pop("name")), "contract is broken"),
        (lambda p: rewrite(p, lambda r: r.update({f"extra/{CONTRACT}": b"{"}), manifest=True), "not JSON"),
    ],
)
def test_damage(eq_copy, damage, message):
    damage(eq_copy)
    with pytest.raises(ArchiveError, match=message):
        pt_archive.read(eq_copy)


def test_a_newer_schema(eq_copy):
    change_contract(eq_copy, lambda c: c.update(schema=2))
    with pytest.raises(SchemaError, match="schema 2"):
        pt_archive.read(eq_copy)


def test_a_record_twice(eq_copy):
    with zipfile.ZipFile(eq_copy, "a") as z, pytest.warns(UserWarning, match="Duplicate"):
        z.writestr(z.namelist()[0], b"again")
    with pytest.raises(ArchiveError, match="twice"):
        pt_archive.read(eq_copy)


def test_a_plain_torchscript_file(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "plain.pt")
    with pytest.raises(ArchiveError, match="not a torchferry archive"):
        pt_archive.read(tmp_path / "plain.pt")


def test_some_other_zip_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as z:
        z.writestr("readme.txt", "hello")
    with pytest.raises(ArchiveError, match="not a TorchScript archive"):
        pt_archive.read(tmp_path / "other.pt")


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("warmup/forward/in/0"),
        lambda t: t.update({"warmup/backward/in/0": torch.zeros(1)}),
        lambda t: t.clear(),
        lambda t: t.update({"x": torch.zeros(1)}),
        lambda t: t.update({"a/forward/in/zz": torch.zeros(1)}),
        lambda t: t.update({"warmup/forward/in/0": 3}),
        lambda t: t.update({"warmup/forward/in/0": torch.zeros(2, 2, dtype=torch.float64)}),
        lambda t: t.update({"warmup/forward/in/0": torch.zeros(3)}),
        lambda t: t.update({"warmup/forward/out/0": torch.zeros(2, dtype=torch.float64)}),
    ],
)
def test_cases_that_do_not_fit_the_contract(eq_copy, change):
    change_cases(eq_copy, change)
    with pytest.raises(ArchiveError, match="case"):
        pt_archive.read(eq_copy).cases()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_is_found_wherever_it_is(eq_path, tmp_path, position, flip):
    whole = bytearray(eq_path.read_bytes())
    whole[int(position * len(whole))] ^= flip
    damaged = tmp_path / "flipped.pt"
    damaged.write_bytes(whole)
    with pytest.raises(ArchiveError):
        pt_archive.read(damaged)


def test_a_directory_bit_in_a_zip_header_is_found(eq_path, tmp_path):
    """Python reads such a record and torch does not: the archive would compute with other constants."""
    whole = bytearray(eq_path.read_bytes())
    entry = whole.rfind(b"PK\x01\x02")
    whole[entry + 38] ^= 0x10
    (tmp_path / "flipped.pt").write_bytes(whole)
    with pytest.raises(ArchiveError, match="between the records"):
        pt_archive.read(tmp_path / "flipped.pt")


def test_every_record_byte_is_guarded(eq_path, tmp_path):
    """A byte in the middle of each record's data, one after the other."""
    with zipfile.ZipFile(eq_path) as z:
        infos = [i for i in z.infolist() if i.file_size]
    whole = eq_path.read_bytes()
    for info in infos:
        header = info.header_offset
        name, extra = (
            int.from_bytes(whole[header + position : header + position + 2], "little") for position in (26, 28)
        )
        changed = bytearray(whole)
        changed[header + 30 + name + extra + info.compress_size // 2] ^= 1
        damaged = tmp_path / "flipped.pt"
        damaged.write_bytes(changed)
        with pytest.raises(ArchiveError):
            pt_archive.read(damaged)


def test_replacing_keeps_the_old_file_on_failure(tmp_path):
    target = tmp_path / "m.pt"
    target.write_text("old")

    def fails_half_way():
        with atomic_files.atomic_write_path(target) as beside:
            beside.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails_half_way()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["m.pt"]


def test_replacing_replaces_whole(tmp_path):
    target = tmp_path / "new" / "m.pt"
    with atomic_files.atomic_write_path(target) as beside:
        beside.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert os.listdir(target.parent) == ["m.pt"]


def test_a_link_keeps_pointing_to_the_archive(tmp_path):
    (tmp_path / "real.pt").write_text("old")
    (tmp_path / "link.pt").symlink_to(tmp_path / "real.pt")
    with atomic_files.atomic_write_path(tmp_path / "link.pt") as beside:
        beside.write_text("new")
    assert (tmp_path / "link.pt").is_symlink()
    assert (tmp_path / "real.pt").read_text() == "new"


def test_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="not a regular file"), atomic_files.atomic_write_path(tmp_path / "pipe"):
        pass


def test_folders_that_were_made_are_removed_on_failure(tmp_path):
    def fails():
        with atomic_files.atomic_write_path(tmp_path / "a" / "b" / "m.pt"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert os.listdir(tmp_path) == []


def test_output_is_a_folder(tmp_path):
    with pytest.raises(OutputError, match="a folder"), atomic_files.atomic_write_path(tmp_path):
        pass


def test_output_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match="cannot be written"),
        atomic_files.atomic_write_path(tmp_path / "file" / "m.pt"),
    ):
        pass


def test_compressed_bombs_are_refused(eq_copy, monkeypatch):
    monkeypatch.setattr(pt_archive, "MAX_INFLATED_BYTES", -10_000)
    with pytest.raises(ArchiveError, match="plausible"):
        pt_archive.read(eq_copy)


def test_a_copy_under_another_name_is_the_same_archive(eq_copy):
    moved = Path(shutil.move(eq_copy, eq_copy.with_name("other name.pt")))
    assert pt_archive.read(moved).contract.name == "eq"


def test_a_name_that_is_too_long_is_said(tmp_path):
    with (
        pytest.raises(OutputError, match="cannot be written"),
        atomic_files.atomic_write_path(tmp_path / ("m" * 253 + ".pt")),
    ):
        pass
    assert not list(tmp_path.iterdir())
    # The longest name of a file.
    atomic_files.write_atomically(tmp_path / ("m" * 252 + ".pt"), b"whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]
