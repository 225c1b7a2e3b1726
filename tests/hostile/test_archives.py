"""Archives that somebody forged, manifest and seal included: both readers refuse each for the same reason."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forging import ESCAPE
from planted_scripts import CallsOneThatSaves, Prints, Reads, RunsAtLoad, Saves, Seeds
from project import ROOT
from tampering import CODE, Records, add, change_contract, lengthen, rewrite, seal
from two_readers import Forge, expect_taken, list_wrong_answers

from exporter.archive import format_limits
from exporter.archive.pt_archive import CASES, CONTRACT, GRAPH
from exporter.common.torch_hooks import ignore_deprecations

CONTRACT_RECORD, CASES_RECORD = f"extra/{CONTRACT}", f"extra/{CASES}"


def save_script(module: torch.nn.Module) -> Records:
    buffer = io.BytesIO()
    with ignore_deprecations():
        torch.jit.save(torch.jit.script(module), buffer)
    with zipfile.ZipFile(buffer) as saved:
        return {name.partition("/")[2]: saved.read(name) for name in saved.namelist()}


def take_module_of(module: Callable[[], torch.nn.Module]) -> Forge:
    def change(old: Records) -> None:
        ours = {name: data for name, data in old.items() if name.startswith("extra/")}
        old.clear()
        old.update({**save_script(module()), **ours})

    return lambda path: rewrite(path, change, manifest=True)


def say(change: Callable[[dict], object]) -> Forge:
    return lambda path: change_contract(path, change)


def write_contract(change: Callable[[bytes], bytes]) -> Forge:
    return lambda path: rewrite(path, lambda r: r.update({CONTRACT_RECORD: change(r[CONTRACT_RECORD])}), manifest=True)


def write_cases(change: Callable[[bytes], bytes]) -> Forge:
    """The pickle inside the record of cases, replaced."""

    def apply(old: Records) -> None:
        source, target = zipfile.ZipFile(io.BytesIO(old[CASES_RECORD])), io.BytesIO()
        with zipfile.ZipFile(target, "w") as packed:
            for name in source.namelist():
                data = source.read(name)
                packed.writestr(name, change(data) if name.endswith("/data.pkl") else data)
        old[CASES_RECORD] = target.getvalue()

    return lambda path: rewrite(path, apply, manifest=True)


def expand(data: bytes) -> bytes:
    """Say in the list of records that the version has 4 GiB, which torch's reader makes room for at once."""
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        place = packed.start_dir
    version = data.index(b"/version", place)
    entry = data.rindex(b"PK\1\2", place, version)
    return data[: entry + 24] + b"\xff" * 4 + data[entry + 28 :]


def expand_record(path: Path) -> None:
    path.write_bytes(expand(path.read_bytes()))


def expand_record_of_cases(path: Path) -> None:
    rewrite(path, lambda r: r.update({CASES_RECORD: expand(r[CASES_RECORD])}), manifest=True)


def first_input(contract: dict) -> dict:
    return contract["inputs"][0]


def rename_input(name: str) -> Forge:
    def change(contract: dict) -> None:
        old = first_input(contract)["name"]
        first_input(contract)["name"] = name
        inputs = contract["methods"]["forward"]["inputs"]
        inputs[inputs.index(old)] = name
        contract["envelope"]["values"].pop(old)

    return say(change)


def add_finding(**texts: str) -> Forge:
    return say(lambda c: c["findings"].append({"check": "values", "what": "", **texts}))


def set_bounds(**bounds: float) -> Forge:
    return say(lambda c: c["tolerance"]["dtypes"]["float64"].update(bounds))


SPACED = b"\ndef f(x: __torch__ .torch \n. classes.profiling._ScriptProfile) -> int:\n  return 1\n"


# A comment in brackets, where a line may end, between the parts of a name.
CLASS = b"__torch__.torch.#\nclasses.profiling._ScriptProfile"
HIDDEN = b"    made = (%s).__new__(%s)\n    none = (made).enable()\n" % (CLASS, CLASS)
FORWARD = re.compile(rb"(def forward\(.*?\) -> [^\n]*:\n)", re.DOTALL)


def hide_class(old: Records) -> None:
    """Make an object of a C++ class where ``forward`` begins."""
    old[CODE], count = FORWARD.subn(rb"\1" + HIDDEN, old[CODE], count=1)
    assert count == 1


def list_records(data: bytes) -> tuple[bytes, bytes, int]:
    """The records of a zip file, the list of them, and their number."""
    place = data.rfind(b"PK\5\6")
    _, _, _, _, count, _, begin, _ = struct.unpack_from("<4s4H2LH", data, place)
    return data[:begin], data[begin:place], count


def show_another(path: Path) -> None:
    """Python reads the list directly before the end, and torch the one that the end names."""
    shown = path.read_bytes()
    take_module_of(RunsAtLoad)(path)
    loaded, loaded_list, count = list_records(path.read_bytes())
    records, records_list, _ = list_records(shown)
    length, size = max(len(loaded_list), len(records_list)), max(len(loaded), len(records))
    # Python moves all places by as much as the list that it finds lies behind the one that the end names.
    loaded, records = loaded.ljust(size, b"\0"), records.ljust(size, b"\0")
    whole = loaded + lengthen(loaded_list, length) + records + lengthen(records_list, length)
    comment = b"torchferry sha256 "
    whole += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, length, size, len(comment) + 64) + comment
    path.write_bytes(whole + hashlib.sha256(whole).hexdigest().encode())


def compress_differently(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        saved = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, data in saved.items():
            archive.writestr(name, data)
    seal(path)


NESTED = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
# torch makes room for 2**32 values: 64 GiB.
KEPT_FAR = b"\x80\x02}r\xff\xff\xff\xff."
# Lists that are kept first and put into each other afterwards.
LINKED = (
    b"\x80\x02("
    + b"".join(b"]r" + i.to_bytes(4, "little") for i in range(1000))
    + b"".join(b"j" + i.to_bytes(4, "little") + b"j" + (i + 1).to_bytes(4, "little") + b"a0" for i in range(999))
    + b"t."
)
CLASS_OF_CPP = b"\x80\x02c__torch__.torch.classes.a\nB\n."
OPERATOR = "only computes?"
KIND, NOT_JSON, BROKEN = "kind", "is not JSON", "contract is broken"
PICKLE = "cannot be read|not tensors by name|not one that torch writes"
HOSTILE: dict[str, tuple[Forge, str]] = {
    "compiled code beside TorchScript": (add("data/aotinductor/forward/a.so"), "two kinds"),
    "programs beside TorchScript": (add("models/forward.json", b"{}"), "two kinds"),
    "no model": (lambda p: rewrite(p, lambda r: r.pop("data.pkl"), manifest=True), "no model"),
    "a record of nobody": (add("extra/torchferry/more"), KIND),
    "a record that torch would read": (add("data/weights/w"), KIND),
    "a number that is none": (add("data/1x"), KIND),
    "code without a name": (add("code"), KIND),
    "the name of a package": (lambda p: p.rename(p.with_suffix(".pt2")), KIND),
    "the name of a program": (lambda p: p.rename(p.with_suffix(".program.pt2")), KIND),
    "a record with an escape": (add(f"code/{ESCAPE}"), "not a name"),
    "a record with a long name": (add("code/" + "n" * 600), "not a name"),
    "a record above": (add("../x"), "leads out"),
    "TorchScript that runs at load": (take_module_of(RunsAtLoad), "runs while it is loaded"),
    "a class of C++": (
        lambda p: rewrite(
            p, lambda r: r.update({"data.pkl": b"\x80\x02c__torch__.torch.classes.a\nB\n."}), manifest=True
        ),
        "runs while it is loaded",
    ),
    "an object in traced inputs": (
        add("traced_inputs.pkl", b"\x80\x02c__torch__.torch.classes.a\nB\n."),
        "runs while it is loaded",
    ),
    "a method that writes files": (take_module_of(Saves), OPERATOR),
    "a function that writes files": (take_module_of(CallsOneThatSaves), OPERATOR),
    "a method that reads files": (take_module_of(Reads), OPERATOR),
    "a method that sets the host's random numbers": (take_module_of(Seeds), OPERATOR),
    "a method that prints": (take_module_of(Prints), OPERATOR),
    "a C++ class in source": (
        lambda p: rewrite(p, lambda r: r.update({CODE: r[CODE] + SPACED}), manifest=True),
        "runs while it is loaded",
    ),
    "a C++ class behind a comment": (
        lambda p: rewrite(p, hide_class, manifest=True),
        "not what torch writes",
    ),
    "deep lists in a module": (add("data.pkl", NESTED), "nested too deeply|not one that torch writes"),
    "deep lists of constants": (add("constants.pkl", NESTED), r"a value of \d+ parts"),
    "a list that holds itself": (add("constants.pkl", b"\x80\x02]q\x00h\x00a."), "holds itself|not one that torch"),
    "a value kept far away": (add("constants.pkl", KEPT_FAR), "not one that torch writes|at place 4294967295"),
    "deep brackets": (add(CODE, b"(" * 200_000), "nested too deeply"),
    "deep blocks": (add(CODE, b"\n".join(b"  " * i + b"if True:" for i in range(1000))), "nested too deeply"),
    "two lists of records": (show_another, "list of records is not where"),
    "bytes behind the end": (lambda p: p.write_bytes(p.read_bytes() + b"x"), "damaged"),
    "another compression": (compress_differently, "damaged"),
    "another graph than the contract's": (
        lambda p: rewrite(p, lambda r: r.update({f"extra/{GRAPH}": b"another"}), manifest=True),
        "different graph",
    ),
    "a hash of nothing": (say(lambda c: c.update(graph="0" * 63)), BROKEN),
    "a hash with an escape": (say(lambda c: c.update(graph=ESCAPE)), BROKEN),
    "a text of 8 MiB": (write_contract(lambda data: data + b" " * 2**23), "too long"),
    "a mark of bytes": (write_contract(lambda data: b"\xef\xbb\xbf" + data), NOT_JSON),
    "UTF-16": (write_contract(lambda data: data.decode().encode("utf-16")), NOT_JSON),
    "no UTF-8": (write_contract(lambda data: data.replace(b'"eq"', b'"\xff"')), NOT_JSON),
    "an end too early": (write_contract(lambda data: data[:-2]), NOT_JSON),
    "more behind the end": (write_contract(lambda data: data + b"{}"), NOT_JSON),
    "no object": (write_contract(lambda data: b"[]"), BROKEN),
    "a list of lists of lists": (write_contract(lambda data: b"[" * 100_000), NOT_JSON),
    "lists in each other, and long": (
        write_contract(lambda data: b"[" * 900 + b"1," * 5000 + b"1" + b"]" * 900),
        BROKEN,
    ),
    "a key twice": (write_contract(lambda data: data.replace(b"{", b'{"name": "other",', 1)), NOT_JSON),
    "a key twice, farther in": (
        write_contract(lambda data: data.replace(b'"ndim"', b'"ndim": 0, "ndim"', 1)),
        NOT_JSON,
    ),
    "not a number": (write_contract(lambda data: data.replace(b"1e-10", b"NaN", 1)), NOT_JSON),
    "infinity": (write_contract(lambda data: data.replace(b"1e-10", b"Infinity", 1)), NOT_JSON),
    "a number beyond": (write_contract(lambda data: data.replace(b"1e-10", b"1e999", 1)), f"{BROKEN}|{NOT_JSON}"),
    "a model with an escape": (say(lambda c: c.update(name=ESCAPE)), BROKEN),
    "a model with a new line": (say(lambda c: c.update(name="solid\nsubroutine evil()")), "not a name"),
    "a model without a name": (say(lambda c: c.update(name="")), "not a name"),
    "a model with a long name": (say(lambda c: c.update(name="n" * 501)), "not a name"),
    "a name in the other direction": (say(lambda c: c.update(name="a\u202eb")), BROKEN),
    "an input with an escape": (rename_input(ESCAPE), BROKEN),
    "an input with a new line": (rename_input("a\nb"), "not a name"),
    "an input with an invisible name": (rename_input("a\u200bb"), BROKEN),
    "a finding with an escape": (add_finding(what=ESCAPE), BROKEN),
    "a reason in the other direction": (add_finding(reason="\u2067sound"), BROKEN),
    "a key with an escape": (say(lambda c: c["envelope"]["values"].update({ESCAPE: {"low": 0, "high": 1}})), BROKEN),
    "a library with an escape": (say(lambda c: c["source"].update(library=ESCAPE)), BROKEN),
    "an operator with an escape": (say(lambda c: c["operators"].append(ESCAPE)), BROKEN),
    "a long text": (add_finding(what="x" * 100_001), BROKEN),
    "many findings": (say(lambda c: c.update(findings=[{"check": "a", "what": "b"}] * 10_001)), BROKEN),
    "many inputs": (
        say(lambda c: c.update(inputs=[{**first_input(c), "name": f"x{i}"} for i in range(20_000)])),
        BROKEN,
    ),
    "a method that is no name": (say(lambda c: c["methods"].update({"a-b": c["methods"]["forward"]})), "method|broken"),
    "a method of other letters": (say(lambda c: c["methods"].update({"é": c["methods"]["forward"]})), "method|broken"),
    "no method": (say(lambda c: c.update(methods={})), BROKEN),
    "a block by a tangent": (
        say(lambda c: c["methods"]["forward"]["outputs"].append([c["outputs"][0]["name"], "tangent:a"])),
        BROKEN,
    ),
    "a zero of a tangent": (
        say(lambda c: c["methods"]["forward"].update(zeros=[[f"tangent:{c['outputs'][0]['name']}", "a"]])),
        BROKEN,
    ),
    "a symmetric block that is none": (
        say(lambda c: c["methods"]["forward"].update(symmetric=[[c["outputs"][0]["name"], "a"]])),
        BROKEN,
    ),
    "an information with a new line": (
        say(lambda c: c.update(info=[{**c["outputs"][0], "name": "a\nb"}])),
        "not a name",
    ),
    "a solver that does what it likes": (
        say(lambda c: c.update(solvers=[{"path": "p", "settings": {}, "on_failure": "bogus"}])),
        BROKEN,
    ),
    "two inputs of a name": (say(lambda c: c["inputs"].append(first_input(c))), "same name|twice"),
    "a large tolerance": (set_bounds(rtol=1e300), BROKEN),
    "a large absolute tolerance": (set_bounds(atol=1.5), BROKEN),
    "a tolerance below zero": (set_bounds(rtol=-1.0), BROKEN),
    "a floor below zero": (set_bounds(floor=-1.0), BROKEN),
    "a size below zero": (say(lambda c: first_input(c).update(shape=[-1])), BROKEN),
    "a size beyond": (say(lambda c: first_input(c).update(shape=[2**41])), BROKEN),
    "a size of 65 bits": (say(lambda c: first_input(c).update(shape=[2**64])), BROKEN),
    "a shape of many sizes": (say(lambda c: first_input(c).update(shape=[1] * 65)), BROKEN),
    "a batch beyond": (say(lambda c: c["batch"].update(sizes=[10**13])), BROKEN),
    "two batch dimensions": (say(lambda c: c["batch"].update(ndim=2)), "0 or 1"),
    "an unknown dtype": (say(lambda c: first_input(c).update(dtype="float8")), BROKEN),
    "an unknown severity": (add_finding(severity="fine"), BROKEN),
    "deep lists for cases": (write_cases(lambda data: NESTED), PICKLE),
    "a small record of 4 GiB": (expand_record, "implausible size"),
    "a small record of cases of 4 GiB": (expand_record_of_cases, r"records of \d+ bytes in"),
    "a value of cases kept far away": (
        write_cases(lambda data: KEPT_FAR),
        "not one that torch writes|at place 4294967295",
    ),
    "lists that are linked afterwards": (write_cases(lambda data: LINKED), PICKLE),
    "deep tuples for cases": (write_cases(lambda data: b"\x80\x02)" + b"\x85" * 100_000 + b"."), PICKLE),
    "an opcode of another protocol": (write_cases(lambda data: b"\x80\x04\x95" + data[2:]), PICKLE),
    "a pickle that ends early": (write_cases(lambda data: data[: len(data) // 2]), PICKLE),
    "a list of cases": (write_cases(lambda data: pickle.dumps([1, 2], 2)), PICKLE),
}


HONEST = expect_taken(
    {
        "untouched": lambda path: None,
        "another name of the file": lambda path: path.rename(path.with_name("m")),
        "letters of every language": say(lambda c: c.update(name="модель 模型 *~1/β")),
        "an input of any letters": rename_input("état/σ*/~1"),
        "a name of 500 characters": say(lambda c: c.update(name="é" * 500)),
        "a finding of two lines": add_finding(what="first\n\tsecond"),
        "10,000 findings": say(lambda c: c.update(findings=[{"check": "a", "what": "b"}] * 10_000)),
        "the largest tolerance": set_bounds(rtol=1.0, atol=1.0),
        "a floor": set_bounds(floor=1e3),
        "an optional field less": say(lambda c: c.pop("differentiable")),
        "a contract in another layout": write_contract(lambda data: json.dumps(json.loads(data), indent=3).encode()),
        "letters as numbers": write_contract(lambda data: data.replace(b'"eq"', b'"\\u0065\\u0071"')),
        "a whole number for a tolerance": set_bounds(rtol=0),
        "no hash of the graphs": say(lambda c: c.update(graph="")),
    }
)


@pytest.mark.parametrize("forgeries", [HOSTILE, HONEST], ids=["forged", "unusual"])
def test_both_readers(forgeries, eq_path, tmp_path):
    problems = list_wrong_answers(eq_path, forgeries, tmp_path)
    assert not problems, "\n".join(problems)


def test_the_limits_are_the_same_in_both_languages():
    text = (ROOT / "runtime_checks" / "native" / "src" / "limits.hpp").read_text().replace("'", "")
    written = dict(re.findall(r"constexpr \w+ k(\w+) = ([^;]+);", text))
    for name, value in vars(format_limits).items():
        if name.startswith("MAX_"):
            # uint64_t{1} << 30
            number = re.sub(r"\w+\{1\}", "1", written[name.title().replace("_", "")])
            base, _, shift = number.partition("<<")
            assert float(base) * 2 ** int(shift or 0) == value, name
