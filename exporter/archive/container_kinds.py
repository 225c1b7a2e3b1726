"""Kinds of zip containers, told by the records that a file holds, and by nothing else.

A file whose records fit no kind, or those of two, is refused: what one reader checks would not be what another runs.
``runtime_checks/native/src/container_kinds.cpp`` has the same table."""

from __future__ import annotations

from collections.abc import Collection

from exporter.common.errors import ArchiveError

# TorchScript, compiled code, programs of torch.export.
GRAPHS, CODE, PROGRAMS = "graphs", "code", "programs"
# A name that ends with "/" stands for all below it, "#" for a number.
_ALL_HAVE = (
    "extra/torchferry/contract.json", "extra/torchferry/graph.txt", "extra/torchferry/manifest.json",
    ".data/serialization_id", ".data/version", "byteorder",
)  # fmt: skip
_PACKAGES_HAVE = (
    "archive_format", "archive_version", "data/torchferry/cases.pt", "extra/torchferry/cases.pt",
    "data/torchferry/parameters.pt",
)  # fmt: skip
# The first names a record that no other kind has.
RECORDS = {
    GRAPHS: (
        "data.pkl", "constants.pkl", "version", "data/#", "constants/#", "code/", "traced_inputs.pkl",
        "traced_inputs/#", "extra/torchferry/cases.pt", "extra/torchferry/kernel/", *_ALL_HAVE,
    ),
    CODE: ("data/aotinductor/", "extra/torchferry/machine.json", *_PACKAGES_HAVE, *_ALL_HAVE),
    PROGRAMS: (
        "models/", "data/weights/", "data/constants/", "data/sample_inputs/", *_PACKAGES_HAVE, *_ALL_HAVE,
    ),
}  # fmt: skip
# What a file of each kind is called.
SUFFIXES = {GRAPHS: ".pt", CODE: ".pt2", PROGRAMS: ".program.pt2"}


def list_kinds(names: Collection[str]) -> list[str]:
    """Return the kinds of which a file with these records has the record that no other kind has."""
    return [kind for kind, rules in RECORDS.items() if any(_fits(name, rules[0]) for name in names)]


def classify_records(names: Collection[str], where: str) -> str:
    """Return the kind of a container with these records. Raises ``ArchiveError`` for records of no kind, or of two."""
    marked = list_kinds(names)
    if len(marked) != 1:
        what = "the file holds models of two kinds" if marked else "the file holds no model"
        expected = "TorchScript (data.pkl), compiled code (data/aotinductor/) or programs (models/)"
        mend = "do not load this file: nothing that torchferry writes is like it"
        raise ArchiveError(what, where=where, got=", ".join(marked) or "none", expected=expected, mend=mend)
    (kind,) = marked
    rules = RECORDS[kind]
    strange = [name for name in names if not any(_fits(name, rule) for rule in rules)]
    if strange:
        what, expected = (
            "the file has a record that files of its kind do not have",
            f"records of {SUFFIXES[kind]} files",
        )
        raise ArchiveError(what, where=where, got=", ".join(sorted(strange)[:5]), expected=expected)
    return kind


def check_suffix(name: str, kind: str, where: str) -> None:
    """Raise ``ArchiveError`` for a file of one kind under the name of another; other names say nothing."""
    fitting = [suffix for suffix in SUFFIXES.values() if name.endswith(suffix)]
    suffix = max(fitting, key=len, default=SUFFIXES[kind])
    if suffix != SUFFIXES[kind]:
        what, got = "the file's name is that of another kind of file", f"{kind} in a {suffix}"
        mend = f"rename it to NAME{SUFFIXES[kind]}, if you know where it comes from"
        raise ArchiveError(what, where=where, got=got, expected=SUFFIXES[kind], mend=mend)


def _fits(name: str, rule: str) -> bool:
    if rule.endswith("#"):
        number = name.removeprefix(rule[:-1])
        return number != name and number.isascii() and number.isdigit()
    return name.startswith(rule) if rule.endswith("/") else name == rule
