"""TorchScript's code that costs torch's compiler time, memory or its stack: both readers refuse it before torch
reads it, and read the same in code that changed."""

from __future__ import annotations

import random
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterable

import pytest
from project import ROOT, mark_rest_thorough
from tampering import CODE, Records, add, rewrite
from two_readers import Forge, expect_taken, list_wrong_answers

from exporter.archive.code_check import check_code

MODULE = "__torch__.torchferry.___torch_mangle_0"
HEADER = re.compile(r"class (\w+)\(Module\):\n(?:  [^d\s].*\n)*", re.MULTILINE)
FORWARD = re.compile(r"  def forward\(.*?\) -> [^\n]*:\n", re.DOTALL)


def change_code(change: Callable[[str], str]) -> Forge:
    def apply(records: Records) -> None:
        records[CODE] = change(records[CODE].decode()).encode()

    return lambda path: rewrite(path, apply, manifest=True)


def begin_forward(*lines: str) -> Forge:
    """Put statements where ``forward`` begins; ``{x}`` is the first of its inputs."""

    def change(code: str) -> str:
        match = FORWARD.search(code)
        assert match
        name = re.findall(r"(\w+): Tensor", match[0])[0]
        body = "".join(f"    {line}\n" for line in lines).replace("{x}", name)
        return code[: match.end()] + body + code[match.end() :]

    return change_code(change)


def add_methods(methods: Iterable[str]) -> Forge:
    """Put methods into the model's class; ``{C}`` is its path."""

    def change(code: str) -> str:
        match = HEADER.search(code)
        assert match
        text = "".join(methods).replace("{C}", f"{MODULE}.{match[1]}")
        return code[: match.end()] + text + code[match.end() :]

    return change_code(change)


def add_definitions(definitions: Iterable[str]) -> Forge:
    return change_code(lambda code: code + "".join(definitions).replace("{M}", MODULE))


def do_all(*forgeries: Forge) -> Forge:
    return lambda path: [forge(path) for forge in forgeries]


def put_in_each_other(count: int, display: str) -> list[str]:
    return ["w0 = {x}", *(f"w{i + 1} = {display.replace('T', f'w{i}')}" for i in range(count))]


def chain_functions(count: int, call: str) -> list[str]:
    first = "def f0(x: Tensor) -> Tensor:\n  return x\n"
    return [first] + [
        f"def f{i + 1}(x: Tensor) -> Tensor:\n  return {call.replace('F', f'{{M}}.f{i}(x, )')}\n" for i in range(count)
    ]


def chain_methods(count: int, call: str) -> list[str]:
    first = "  def m0(self: {C}, x: Tensor) -> Tensor:\n    return x\n"
    return [first] + [
        f"  def m{i + 1}(self: {{C}}, x: Tensor) -> Tensor:\n    return {call.replace('F', f'(self).m{i}(x, )')}\n"
        for i in range(count)
    ]


def chain_classes(count: int) -> list[str]:
    first = "class C0:\n  a : Tensor\n"
    return [first] + [f"class C{i + 1}:\n  a : {{M}}.C{i}\n" for i in range(count)]


def chain_tuples(count: int, fields: str = "  a : T\n  b : T\n") -> list[str]:
    first = "class T0(NamedTuple):\n  a : Tensor\n"
    lines = [f"class T{i + 1}(NamedTuple):\n{fields.replace(': T', f': {{M}}.T{i}')}" for i in range(count)]
    return [first, *lines]


def chain_objects(method: str, call: str) -> list[str]:
    """Classes whose method calls that of another twice, without its name."""
    header = f"  def {method}(self) -> int:\n"
    text = [f"class C0:\n{header}    return 1\n"]
    for i in range(17):
        body = f"{header}    a = self.a\n    return torch.add({call}, {call})\n".replace("C0", f"C{i}")
        text.append(f"class C{i + 1}:\n  a : {{M}}.C{i}\n{body}")
    return text


# A tuple of tuples that hold each other twice over, 23 deep, of which a pickle needs four bytes each.
DOUBLED = b"\x80\x02(K\x01" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(23)) + b"t."
PARTS, DEPTH, LENGTH, FORM, CYCLE = "parts", "in each other", "characters with all", "does not write", "itself"
TAKEN, ALIAS, HEAD = "where that means something else", "another name for", "not like those"
# A constant of 8,191 parts.
LARGE = b"\x80\x02(K\x01" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(12)) + b"t."
HOSTILE: dict[str, tuple[Forge, str]] = {
    "tuples that double": (begin_forward(*put_in_each_other(18, "(T, T)")), PARTS),
    "tuples that double in branches": (
        begin_forward("w = ({x}, {x})", *["if True:", "  w = (w, w)", "else:", "  w = (w, w)"] * 9),
        PARTS,
    ),
    "tuples that double in one branch": (
        begin_forward(
            "w0 = ({x}, {x})",
            *(f"if True:\n      w{i + 1} = (w{i}, w{i})\n    else:\n      w{i + 1} = ({{x}},)" for i in range(18)),
        ),
        PARTS,
    ),
    "methods that name each other's classes": (
        add_definitions(
            f"class C{i}:\n  def m(self, other: {'int' if i == 0 else f'{{M}}.C{i - 1}'}) -> int:\n    return 1\n"
            for i in range(200)
        ),
        DEPTH,
    ),
    "functions that name each other as arguments": (
        add_definitions(
            ["def f0(x: Tensor) -> Tensor:\n  return x\n"]
            + [
                f"def f{i + 1}(x: Tensor) -> Tensor:\n  a = torch.is_tensor({{M}}.f{i})\n  return x\n"
                for i in range(200)
            ]
        ),
        DEPTH,
    ),
    "tuples that double through annotations": (
        begin_forward(*put_in_each_other(18, "(unchecked_cast(Tensor, {x}), T, T)")),
        PARTS,
    ),
    "tuples that double through lists": (begin_forward(*put_in_each_other(18, "([T][0], [T][0])")), PARTS),
    "tuples that double through pairs": (
        begin_forward(
            "w0 = ({x}, {x})", *(f'd{i} = {{"a": (w{i}, w{i})}}\n    w{i + 1} = torch.items(d{i})' for i in range(18))
        ),
        PARTS,
    ),
    "tuples that double through generic operators": (
        begin_forward("w0 = [{x}]", *(f"w{i + 1} = torch.list([(w{i}, w{i})])" for i in range(18))),
        PARTS,
    ),
    "tuples that double through what they are unpacked to": (
        begin_forward("w0 = ({x}, {x})", *(f"v{i}, u{i}, = ((w{i}, w{i}), 1)\n    w{i + 1} = v{i}" for i in range(18))),
        PARTS,
    ),
    "tuples with names that double": (add_definitions(chain_tuples(18)), PARTS),
    "a tuple with names that holds itself": (
        add_definitions(["class T(NamedTuple):\n  a : {M}.U\nclass U(NamedTuple):\n  a : {M}.T\n"]),
        CYCLE,
    ),
    "many types that are large": (
        begin_forward(*put_in_each_other(14, "(T, T)"), *["v = w14"] * 200),
        "parts in all",
    ),
    "a type without end in what a function gives": (
        add_definitions(["def f0(x: Tensor):\n  return (x, x)\n"]),
        FORM,
    ),
    "pairs in each other": (begin_forward(*put_in_each_other(60, 'torch.items({"a": T})')), DEPTH),
    "lists in each other": (begin_forward(*put_in_each_other(2000, "[T]")), DEPTH),
    "tuples of one in each other": (begin_forward(*put_in_each_other(2000, "(T,)")), DEPTH),
    "a loop over a tuple": (begin_forward("w = ({x}, {x})", "for v in w:", "  pass"), FORM),
    "values with a star": (begin_forward("w = ({x}, {x})", "v = (*w, *w)"), FORM),
    "a comprehension": (begin_forward("w = [a for a in ({x}, {x})]"), FORM),
    "pairs of two lists": (begin_forward("w = list(zip([{x}], [{x}]))"), FORM),
    "a sum of tuples": (begin_forward("w = ({x}, {x}) + ({x}, {x})"), FORM),
    "a sum of many": (begin_forward("w = " + "{x} + " * 100_000 + "1"), FORM),
    "many signs": (begin_forward("w = torch.mul({x}, " + "- " * 100_000 + "1)"), FORM),
    "numbers after each other": (begin_forward("w = torch.mul({x}, 1" + " - 1j" * 100_000 + ")"), FORM),
    "a long elif": (begin_forward("if True:", "  pass", *["elif True:", "  pass"] * 1000), FORM),
    "a conditional expression": (begin_forward("w = {x} if True else {x}"), FORM),
    "many elements": (begin_forward("w = {x}" + "[0]" * 100_000), "after each other"),
    "many attributes": (begin_forward("w = {x}" + ".grad" * 100_000), "after each other"),
    "many calls": (begin_forward("w = {x}" + ".relu()" * 100_000), "after each other"),
    "a function in a function": (begin_forward("def f():", "  return 1"), FORM),
    "functions that name each other": (add_definitions(chain_functions(2000, "F")), DEPTH),
    "methods that name each other": (add_methods(chain_methods(2000, "F")), DEPTH),
    "classes that name each other": (add_definitions(chain_classes(2000)), DEPTH),
    "functions that call each other twice": (add_definitions(chain_functions(17, "torch.add(F, F)")), LENGTH),
    "methods that call each other twice": (add_methods(chain_methods(17, "torch.add(F, F)")), LENGTH),
    "a function that calls itself": (add_definitions(["def f(x: Tensor) -> Tensor:\n  return {M}.f(x, )\n"]), CYCLE),
    "text that is not closed": (begin_forward('w = "a'), FORM),
    "a statement outside of functions": (add_definitions(["a = 1\n"]), FORM),
    "a zero byte": (begin_forward("w = \0"), FORM),
    "tuples of a pickle that double": (
        add("constants.pkl", DOUBLED),
        "none were shared|value of",
    ),
    "a constant of many parts": (add("constants.pkl", LARGE), r"value of \d+ parts"),
    "a text of brackets": (
        add("constants.pkl", b"\x80\x02(X\x70\x17\0\0" + b"List[" * 1200 + b"t."),
        "brackets",
    ),
    "large types of arguments": (
        begin_forward(*put_in_each_other(14, "(T, T)"), *["v = torch.len(w14)"] * 200),
        "parts in all",
    ),
    "targets in brackets": (begin_forward("w0 = {x}", *(f"(w{i + 1}) = (w{i}, w{i})" for i in range(18))), PARTS),
    "targets in each other": (begin_forward("(w0, v), u, = ((({x}, {x}), {x}), 1)"), FORM),
    "an element that is set": (begin_forward("{x}[0] = {x}"), FORM),
    "the last element": (begin_forward(*put_in_each_other(18, "({x}, {x}, (T, T))[-1]")), PARTS),
    "some elements": (begin_forward(*put_in_each_other(18, "(T, {x}, T)[0:]")), PARTS),
    "unions": (begin_forward(*put_in_each_other(18, "[(T, 1), (T, 1.5, {x})][0]")), PARTS),
    "unions in a dict": (begin_forward(*put_in_each_other(18, '{"a": (T, 1), "b": (T, {x})}["a"]')), PARTS),
    "a type in brackets": (add_definitions(chain_tuples(18, "  a : (Tuple)[{M}.T0]\n  b : T\n  c : T\n")), PARTS),
    "a type in small letters": (
        do_all(
            add_definitions(chain_tuples(9)),
            begin_forward(f"w = uninitialized(tuple[{MODULE}.T9])", *["w = (w, w)"] * 9),
        ),
        PARTS,
    ),
    "a class of an expression": (add_definitions(["class Q(" + "- " * 100_000 + "1):\n  a : Tensor\n"]), HEAD),
    "a base in brackets": (add_definitions(["class Q((NamedTuple)):\n  a : Tensor\n"]), HEAD),
    "a namespace in brackets": (
        add_definitions(
            line.replace("{M}.", f"(__torch__){MODULE.removeprefix('__torch__')}.")
            for line in chain_functions(200, "F")
        ),
        DEPTH,
    ),
    "code in a folder named code": (
        add("code/__torch__/code/m.py", "".join(chain_tuples(18)).replace("{M}", "__torch__.code.m").encode()),
        PARTS,
    ),
    "a value named range": (begin_forward("range = ({x}, {x})", "for v in range(2):", "  pass"), TAKEN),
    "an element of a range": (begin_forward("for v in range(2)[0]:", "  pass"), FORM),
    "a function named int": (
        add_definitions(
            ["def f0(x: Tensor) -> Tensor:\n  return x\n"]
            + [
                f"def f{i + 1}(x: Tensor) -> Tensor:\n  int = {{M}}.f{i}\n  return torch.add(int(x, ), int(x, ))\n"
                for i in range(17)
            ]
        ),
        LENGTH,
    ),
    "a value named int": (begin_forward("int = {x}", "v = int({x})"), TAKEN),
    "a namespace of another name": (begin_forward("v = __torch__"), ALIAS),
    "a module of another name": (begin_forward(f"v = {MODULE}"), ALIAS),
    "operators of another name": (begin_forward("v = ops.aten"), ALIAS),
    "a value named ops": (add_methods(["  def m1(ops: {C}, x: Tensor) -> Tensor:\n    return ops.m0(x, )\n"]), TAKEN),
    "a value named torch": (begin_forward("torch = {x}", "v = torch.neg({x})"), TAKEN),
    "methods of an object of another type": (
        add_methods(m.replace("self: {C}", "self: Tensor") for m in chain_methods(17, "torch.add(F, F)")),
        LENGTH,
    ),
    "methods of an object of some class": (
        do_all(
            add_definitions(["class Z:\n  a : int\n"]),
            add_methods(
                m.replace(
                    "return torch",
                    f"c = uninitialized({MODULE}.Z)\n"
                    "    c = torch._unwrap_optional(annotate(Optional[{C}], self))\n    return torch",
                ).replace("(self).m", "(c).m")
                for m in chain_methods(17, "torch.add(F, F)")
            ),
        ),
        LENGTH,
    ),
    "elements of what a tuple holds": (
        add_definitions(chain_objects("__getitem__", "((a, 1)[-2])[0]")),
        CYCLE,
    ),
    "a value named list": (begin_forward("list = ({x}, {x})", *["list = (list[0:], list[0:])"] * 18), PARTS),
    "constructors": (add_definitions(chain_objects("__init__", "{M}.C0()")), LENGTH),
    "elements of objects": (add_definitions(chain_objects("__getitem__", "(a)[0]")), LENGTH),
    "objects that are called": (add_definitions(chain_objects("__call__", "(self).a()")), LENGTH),
    "objects as numbers": (add_definitions(chain_objects("__int__", "int(a)")), LENGTH),
    "one line that is long": (
        add_definitions(
            [
                "def f0(x: Tensor) -> Tensor:\n  return torch.neg(" + "torch.stack([" + "x, " * 3000 + "]))\n",
                *chain_functions(7, "torch.stack([" + "F, " * 5 + "])")[1:],
            ]
        ),
        LENGTH,
    ),
    "an early return": (begin_forward("if True:", "  return {x}", "else:", "  pass"), "last line"),
    "a block of one space": (begin_forward("while True:", " pass"), "spaces in front"),
    "what a namespace has": (begin_forward('v = getattr(__torch__, "f0")'), FORM),
    "a type for several names": (begin_forward("w1, u0 : Tensor = (({x}, {x}), 1)"), FORM),
    "a space in a path": (
        add_definitions(line.replace(".T", " .T") for line in chain_tuples(18)),
        "named before what it holds|parts",
    ),
    "an escape in a name": (begin_forward('v = getattr({x}, "\\167")'), "for a name"),
    "a class and a function of one name": (
        add_definitions(["class f:\n  a : int\n", "def f() -> int:\n  return 1\n"]),
        "another definition",
    ),
    "a class twice": (add_definitions(["class f:\n  a : int\n"] * 2), "another definition"),
    "a function with a type": (
        do_all(add_definitions(chain_functions(1, "F")), begin_forward(f"v : Any = {MODULE}.f0")),
        "of another type",
    ),
    "a namespace with a type": (begin_forward("v : Any = __torch__"), ALIAS),
    "one name for two functions": (
        do_all(add_definitions(chain_functions(1, "F")), begin_forward(f"v = {MODULE}.f0", f"v = {MODULE}.f1")),
        "another function for",
    ),
    "methods by the path of their class": (add_definitions(chain_objects("m", "{M}.C0.m(a, )")), LENGTH),
    "methods of what a tuple holds": (
        add_methods(
            m.replace("return torch", "u = (self, 1)[-2]\n    return torch").replace("(self).m", "(u).m")
            for m in chain_methods(17, "torch.add(F, F)")
        ),
        LENGTH,
    ),
    "numbers of what a tuple holds": (add_definitions(chain_objects("__int__", "int((a, 1)[-2])")), CYCLE),
    "what with gives": (
        add_definitions(
            ["class C0:\n  def m(self) -> int:\n    return 1\n"]
            + [
                f"class E{i}:\n  a : {{M}}.C{i}\n  def __enter__(self) -> {{M}}.C{i}:\n    return self.a\n"
                "  def __exit__(self, t: Any, v: Any, b: Any) -> NoneType:\n    return None\n"
                f"class C{i + 1}:\n  a : {{M}}.E{i}\n  def m(self) -> int:\n    with self.a as c:\n"
                "      n = torch.add((c).m(), (c).m())\n    return n\n"
                for i in range(17)
            ]
        ),
        LENGTH,
    ),
    "conditions that are objects": (
        add_definitions(
            ["class C0:\n  def __bool__(self) -> bool:\n    return True\n"]
            + [
                f"class C{i + 1}:\n  a : {{M}}.C{i}\n  def __bool__(self) -> bool:\n    if self.a:\n      pass\n"
                "    else:\n      pass\n    while self.a:\n      pass\n    return True\n"
                for i in range(17)
            ]
        ),
        LENGTH,
    ),
    "text that is never closed": (begin_forward('w = ("' + '\\"' * 1_000_000), FORM),
}
HONEST = expect_taken(
    {
        "tuples in tuples": begin_forward(*put_in_each_other(12, "(T, T)")),
        "a wide tuple": begin_forward("w = (" + ", ".join(["{x}"] * 30_000) + ")"),
        "lists of lists": begin_forward(*put_in_each_other(30, "[T]")),
        "functions that call each other": add_definitions(chain_functions(90, "F")),
        "functions that call each other twice": add_definitions(chain_functions(12, "torch.add(F, F)")),
        "methods that call each other": add_methods(chain_methods(60, "F")),
        "classes of classes": add_definitions(chain_classes(90)),
        "tuples with names": add_definitions(chain_tuples(12)),
        "values named as types": add_methods(
            [
                "  def q(self: {C}, list: List[int]) -> int:\n    return list[0]\n",
                "  def r(self: {C}, tuple: Tuple[int, int]) -> int:\n    return (tuple)[0]\n",
            ]
        ),
        "complex numbers": begin_forward("w = torch.mul({x}, 1.5-2.j)", "v = [-inf, nan, -1e-05]"),
        "a loop and an empty branch": begin_forward(
            *("w = annotate(List[int], [])", "for u in range(2):", "  v = torch.append(w, u)"),
            *("if True:", "  pass", "else:", "  pass"),
        ),
    }
)


@pytest.mark.parametrize("forgeries", [HOSTILE, HONEST], ids=["forged", "unusual"])
def test_both_readers(forgeries, eq_path, tmp_path):
    problems = list_wrong_answers(eq_path, forgeries, tmp_path)
    assert not problems, "\n".join(problems)


# Reads a list of records, a line with a name and a path for each, and an empty line behind those of each file.
PROGRAM = r"""
#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>
#include "code_lines.hpp"
#include "code_check.hpp"

int main() {
  std::vector<std::pair<std::string, std::string>> records;
  for (std::string line; std::getline(std::cin, line);) {
    if (!line.empty()) {
      const auto tab = line.find('\t');
      std::stringstream text;
      text << std::ifstream(line.substr(tab + 1), std::ios::binary).rdbuf();
      records.emplace_back(line.substr(0, tab), text.str());
      continue;
    }
    try {
      torchferry::check_code(records);
      std::cout << "taken\n";
    } catch (const torchferry::CodeError&) {
      std::cout << "refused\n";
    }
    records.clear();
  }
}
"""
WORDS = [
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ".",
        ":",
        "=",
        "-",
        "+",
        "->",
        "*",
        "\n",
        "\t",
        '"',
        "\\",
        "#",
        "\r",
        "\0",
        "é",
    ),
    *("def", "if", "for", "in", "range", "torch", "Tuple", "annotate", "1", "1e5", "2j", "inf", "as", "class", "items"),
    *("self", "__torch__", "NamedTuple", "return", "x", "y0", "f(x)", ".a", " = ", "  ", "\n  ", "(a, b)", "[a]", "é"),
]
FEW, MANY = 400, 10_000


def change_words(text: str, draw: random.Random) -> str:
    """Lose, double, replace or swap words, some times."""
    words = re.findall(r"\w+|\s+|.", text)
    for _ in range(draw.choice((1, 1, 2, 5))):
        place, other, length = draw.randrange(len(words)), draw.randrange(len(words)), draw.randrange(1, 30)
        kind = draw.choice(("lose", "insert", "replace", "swap", "double", "cut"))
        if kind == "lose":
            words[place] = ""
        elif kind == "insert":
            words.insert(place, draw.choice(WORDS))
        elif kind == "replace":
            words[place] = draw.choice((*WORDS, words[other]))
        elif kind == "swap":
            words[place], words[other] = words[other], words[place]
        elif kind == "double":
            words[place:place] = words[place : place + length]
        else:
            words[place : place + length] = []
    return "".join(words)


def is_taken(records: list[tuple[str, bytes]]) -> bool:
    try:
        check_code(records)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("count", mark_rest_thorough([FEW], [MANY]))
def test_both_languages_read_changed_code_alike(count, tmp_path):
    sources = sorted((ROOT / "runtime_checks" / "native" / "src").glob("code_*.cpp"))
    (tmp_path / "read.cpp").write_text(PROGRAM)
    program, folder = tmp_path / "read", ROOT / "runtime_checks" / "native"
    include = [f"-I{folder / 'src'}", f"-I{folder / 'include'}"]
    command = ["g++", "-std=c++17", "-O1", *include, tmp_path / "read.cpp", *sources, "-o", program]
    subprocess.run(command, check=True, timeout=300)
    originals = []
    for path in sorted((ROOT / "artifacts").glob("*.pt")):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if "/code/" in name and name.endswith(".py")]
            originals.append([(name.partition("/")[2], archive.read(name).decode()) for name in names])
    draw, listing, answers = random.Random(0), "", list[bool]()
    for number in range(count):
        records = list(originals[number % len(originals)])
        # The first files are as they are.
        if number >= len(originals):
            victim = draw.randrange(len(records))
            records[victim] = (records[victim][0], change_words(records[victim][1], draw))
        written = [(name, text.encode()) for name, text in records]
        for i, (name, data) in enumerate(written):
            place = tmp_path / f"{number}-{i}"
            place.write_bytes(data)
            listing += f"{name}\t{place}\n"
        listing += "\n"
        answers.append(is_taken(written))
    done = subprocess.run([program], input=listing, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["taken" if taken else "refused" for taken in answers]
    assert all(answers[: len(originals)])
    # The control: changes are seen, and not all of them matter.
    assert 0.02 < sum(answers) / count < 0.9
