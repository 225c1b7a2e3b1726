"""Forged tensors in archives: cases that are none, or that make much of a small file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from project import ROOT
from tampering import Records, change_cases, rewrite
from two_readers import Forge, expect_taken, list_wrong_answers

from exporter.archive import pt_archive
from exporter.archive.pt_archive import CASES
from exporter.common.errors import ArchiveError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]
ROBERTSON = ROOT / "artifacts" / "robertson.pt"
RECORD = f"extra/{CASES}"
INPUT, RATE = "warmup/forward/in/0", "warmup/forward/out/0"
F = torch.float64
FITS, WHOLE, NAMED, READ = "does not fit", "not whole tensors", "not tensors by name", "cannot be read"


def put(name: str, change: Callable[[torch.Tensor], Any]) -> Forge:
    return lambda path: change_cases(path, lambda tensors: tensors.update({name: change(tensors[name])}))


def put_rows(change: Callable[[torch.Tensor], torch.Tensor]) -> Forge:
    """All tensors of a case, so that their batches agree."""
    return lambda path: change_cases(path, lambda t: t.update({INPUT: change(t[INPUT]), RATE: change(t[RATE])}))


def add_case(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Forge:
    def apply(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({f"{name}/forward/in/0": change(tensors[INPUT]), f"{name}/forward/out/0": change(tensors[RATE])})

    return lambda path: change_cases(path, apply)


def rename(old: str, new: str) -> Forge:
    return lambda path: change_cases(path, lambda tensors: tensors.update({new: tensors.pop(old)}))


def replace(change: Callable[[bytes], bytes]) -> Forge:
    def apply(old: Records) -> None:
        old[RECORD] = change(old[RECORD])

    return lambda path: rewrite(path, apply, manifest=True)


def save(value: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def deflate(data: bytes) -> bytes:
    """The same records, compressed, and 64 MiB of zeros."""
    source, target = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in source.namelist():
            packed.writestr(name, source.read(name))
        packed.writestr(f"{source.namelist()[0].partition('/')[0]}/data/999", b"\0" * 2**26)
    return target.getvalue()


def load(data: bytes) -> dict[str, torch.Tensor]:
    return torch.load(io.BytesIO(data), weights_only=True)


HOSTILE: dict[str, tuple[Forge, str]] = {
    "a batch of 2^38 of one row": (put_rows(lambda v: v[:1].expand(2**38, 3)), f"{WHOLE}|{READ}"),
    "a batch of 2^30 of one row": (put_rows(lambda v: v[:1].expand(2**30, 3)), WHOLE),
    "rows that overlap": (put_rows(lambda v: torch.as_strided(v.clone(), (3 * len(v), 3), (1, 0))), WHOLE),
    "a sparse tensor": (put(INPUT, lambda v: v.to_sparse()), f"{WHOLE}|{READ}"),
    "sparse rows": (put(INPUT, lambda v: v.to_sparse_csr()), f"{WHOLE}|{READ}"),
    "a tensor without memory": (put(INPUT, lambda v: v.to("meta")), f"{WHOLE}|{READ}"),
    "a quantized tensor": (
        put(INPUT, lambda v: torch.quantize_per_tensor(v.float(), 0.1, 0, torch.qint8)),
        f"{WHOLE}|{READ}",
    ),
    "another dtype": (put(INPUT, lambda v: v.float()), FITS),
    "complex numbers": (put(INPUT, lambda v: v.to(torch.complex128)), FITS),
    "whole numbers": (put(RATE, lambda v: v.long()), FITS),
    "another shape": (put(INPUT, lambda v: v[:, :2].clone()), FITS),
    "a dimension more": (put(INPUT, lambda v: v[:, :, None].clone()), FITS),
    "a scalar": (put(INPUT, lambda v: v[0, 0].clone()), FITS),
    "other batches": (put(INPUT, lambda v: v[:1].clone()), "different batches"),
    "a number": (put(INPUT, lambda v: 1.0), NAMED),
    "a list": (put(INPUT, lambda v: [v]), NAMED),
    "nothing": (put(INPUT, lambda v: None), NAMED),
    "a dict in a dict": (put(INPUT, lambda v: {"x": v}), NAMED),
    "a tensor less": (lambda p: change_cases(p, lambda t: t.pop(RATE)), FITS),
    "a tensor more": (lambda p: change_cases(p, lambda t: t.update({"warmup/forward/in/1": t[INPUT]})), FITS),
    "a tensor far away": (lambda p: change_cases(p, lambda t: t.update({"warmup/forward/in/999999": t[INPUT]})), FITS),
    "a tensor out of reach": (rename(INPUT, f"warmup/forward/in/{10**30}"), f"{FITS}|{NAMED}"),
    "a negative place": (rename(INPUT, "warmup/forward/in/-1"), NAMED),
    "another side": (rename(INPUT, "warmup/forward/up/0"), NAMED),
    "a name without parts": (rename(INPUT, "warmup"), NAMED),
    "another method": (rename(INPUT, "warmup/backward/in/0"), FITS),
    "a method without cases": (
        lambda p: change_cases(p, lambda t: [t.pop(n) for n in list(t) if "/jacobian/" in n]),
        "has no cases",
    ),
    "no cases": (lambda p: change_cases(p, lambda t: t.clear()), "holds no cases"),
    "a number for a name": (replace(lambda data: save({1: torch.zeros(1, dtype=F)})), NAMED),
    "a tensor alone": (replace(lambda data: save(torch.zeros(1))), NAMED),
    "a format before zip": (
        replace(lambda data: save(load(data), _use_new_zipfile_serialization=False)),
        READ,
    ),
    "a format before zip, and a zip file behind it": (
        replace(lambda data: save(load(data), _use_new_zipfile_serialization=False) + save({})),
        READ,
    ),
    "records that expand": (replace(deflate), READ),
    "half of it": (replace(lambda data: data[: len(data) // 2]), READ),
    "a byte": (replace(lambda data: b"x"), READ),
    "nothing at all": (replace(lambda data: b""), READ),
    "a program": (replace(lambda data: save({INPUT: print})), READ),
}
HONEST = expect_taken(
    {
        "a view of more memory": put_rows(lambda v: torch.cat([v, v])[: len(v)]),
        "columns first": put_rows(lambda v: v.t().clone().t()),
        "two names of one memory": add_case("z", lambda v: v),
        "a case of slashes": add_case("a/b/c", lambda v: v.clone()),
        "no rows": add_case("none", lambda v: v[:0]),
    }
)


@pytest.mark.parametrize("forgeries", [HOSTILE, HONEST], ids=["forged", "unusual"])
def test_both_readers(forgeries, tmp_path):
    problems = list_wrong_answers(ROBERTSON, forgeries, tmp_path)
    assert not problems, "\n".join(problems)


def test_a_wrong_answer_is_seen(tmp_path):
    """The control: an honest file that is to be refused, and a forged one that is to be taken."""
    label, (forge, _) = next(iter(HOSTILE.items()))
    planted: dict[str, tuple[Forge, str]] = {"untouched": (lambda path: None, WHOLE), label: (forge, "")}
    assert len(list_wrong_answers(ROBERTSON, planted, tmp_path)) == 2


def test_parameters_of_a_package(compiled_robertson, tmp_path):
    """Those of compiled code are read by the same rules."""
    record = "data/torchferry/parameters.pt"

    def change(value: Callable[[torch.Tensor], Any]) -> Forge:
        def apply(old: Records) -> None:
            tensors = torch.load(io.BytesIO(old[record]), weights_only=True)
            for values in tensors.values():
                values.update({name: value(tensor) for name, tensor in values.items()})
            old[record] = save(tensors)

        return lambda path: rewrite(path, apply, manifest=True)

    forgeries: dict[str, tuple[Forge, str]] = {
        "one number for all": (change(lambda v: v[:1].expand(2**38)), WHOLE),
        "sparse": (change(lambda v: v.to_sparse()), f"{WHOLE}|{READ}"),
        "no tensor": (change(lambda v: 1.0), "not tensors by name"),
        "a list": (
            lambda p: rewrite(p, lambda r: r.update({record: save([1])}), manifest=True),
            "not tensors by name",
        ),
    }
    for number, (forge, expected) in enumerate(forgeries.values()):
        path = tmp_path / f"{number}.pt2"
        path.write_bytes(Path(compiled_robertson).read_bytes())
        forge(path)
        with pytest.raises(ArchiveError, match=expected):
            pt_archive.read(path).parameters()
