"""Archives read and run without ``torch.jit``: the same operators as torch's own reader, and the same numbers."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from project import ARTIFACTS
from scripted_bodies import BODIES, F, X, Y, scripted
from torch import nn

from exporter.archive import pt_archive
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError, UnsupportedError
from exporter.common.torch_hooks import ignore_deprecations
from exporter.graph.loading import ScriptedModule, load_module
from exporter.saved_code import code_reader, code_records
from exporter.saved_code.ir import Graph, Literal
from exporter.saved_code.saved_module import SavedModule

FILES = sorted(ARTIFACTS.glob("*.pt"))


class Changed(Archive):
    """An archive in which one record has other bytes."""

    def read_records(self, names) -> dict[str, bytes]:
        return {name: self.data.get(name, data) for name, data in super().read_records(names).items()}

    def record(self, name: str) -> bytes:
        return self.data.get(name) or super().record(name)

    @property
    def data(self) -> dict[str, bytes]:
        return self.__dict__.get("changed", {})


def open_file(path: Path, changed: dict[str, bytes] | None = None) -> Archive:
    """Open a file of torch.jit.save, which need not be an archive of ours."""
    records = dict.fromkeys(pt_archive.list_records(path), 0)
    contract: Any = None
    archive = Changed(path, contract, records, "", "graphs", path)
    object.__setattr__(archive, "changed", changed or {})
    return archive


def save(module: Any, folder: Path) -> Path:
    path = folder / "module.pt"
    with ignore_deprecations():
        module = module if isinstance(module, torch.jit.ScriptModule) else torch.jit.script(module)
        torch.jit.save(module, path)
    return path


def describe(graph: Graph) -> list[tuple[str, tuple[str, ...]]]:
    """List torch's operators with their overloads and their numbers.

    A list of numbers is a constant or is made, as the reader likes; torch leaves out what nobody uses, and may leave
    out an integer that becomes a tensor to be read as an integer."""
    used = {v for node in graph for block in node.blocks for v in block.outputs if isinstance(v, int)}
    used |= {value for value in graph.body.outputs if isinstance(value, int)}
    nodes = list(graph)
    while True:
        needed = [n for n in nodes if n.blocks or n.kind.endswith("_") or used & set(n.outputs)]
        before, used = used, used | {value for node in needed for value in node.inputs if isinstance(value, int)}
        if before == used:
            break
    return [
        (
            node.operator.partition("[")[0],
            tuple(i.text for i in node.inputs if isinstance(i, Literal) and not i.text.startswith("[")),
        )
        for node in needed
        if node.kind.startswith("aten::") and node.kind != "aten::Int"
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_both_readers_find_the_same_operators(path):
    module = SavedModule(pt_archive.read(path))
    names = sorted(module.method_names)
    ours, torchs = (m.read_methods(names) for m in (module, ScriptedModule(load_module(path))))
    assert names
    for name in names:
        assert describe(ours.graphs[name]) == describe(torchs.graphs[name])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_same_numbers_as_torch_to_the_bit(path):
    archive = pt_archive.read(path)
    ours, torchs = SavedModule(archive), ScriptedModule(load_module(path))
    for case in archive.cases():
        pairs = zip(ours.run(case.method, case.inputs), torchs.run(case.method, case.inputs), strict=True)
        for got, wanted in pairs:
            assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
            assert got.detach().numpy().tobytes() == wanted.detach().numpy().tobytes()


def test_a_changed_parameter_changes_the_numbers():
    archive = pt_archive.read(ARTIFACTS / "robertson.pt")
    (case, *_) = [case for case in archive.cases() if case.method == "forward"]
    module = SavedModule(archive)
    before = module.run("forward", case.inputs)[0]
    with torch.no_grad():
        module.named_parameters["k"].mul_(2.0)
    assert not torch.equal(module.run("forward", case.inputs)[0], before)


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_what_people_write(body, tmp_path):
    module = scripted(body)
    (wanted,) = module(X.clone(), Y.clone())
    (got,) = SavedModule(open_file(save(module, tmp_path))).run("forward", [X.clone(), Y.clone()])
    assert got.dtype == wanted.dtype
    assert torch.equal(got, wanted)


CONTROL = [
    """
    if bool((x > 0).any()):
        z = x + 1
    else:
        z = x - 1
    return (z,)""",
    """
    n = 0
    while bool((x.abs() > 0.1).any()) and n < 30:
        x = x * 0.5
        n += 1
    return (x + n,)""",
    """
    total = x
    for k in range(9):
        if k == 5:
            break
        if k % 2 == 0:
            continue
        total = total + k * y
    return (total,)""",
    """
    for k in range(3):
        if float(x.sum()) + k > 0.5:
            return (x * k,)
    return (y,)""",
    """
    z: Optional[Tensor] = None
    if x.size(0) > 3:
        z = y
    if z is not None:
        return (x + z,)
    return (x,)""",
    """
    parts: List[Tensor] = []
    sizes: List[List[int]] = []
    for row in x.unbind(0):
        parts.append(row * float('inf') if bool(row[0] > 1e9) else row)
        sizes.append(row.size())
    return (torch.stack(parts) + len(sizes) + sizes[0][0],)""",
    "return (x * int(y.sum()) + float(y.max()) - y.min().item(),)",
    """
    a, (b, c) = x, (y, 3)
    pair = (a, b, c)
    return (pair[0] * pair[-1] + pair[0:2][1],)""",
    """
    text = 'Größe {} "q"'.format(x.size(0))
    n = len(text)
    return (x + n, )""",
    "return (torch.tensor([1.5, -2.0], dtype=x.dtype, device=x.device) * x + torch.tensor(2) * self.count,)",
    "return (x.masked_fill(x > 1, float('nan')).nan_to_num(-1.0, 2.0, float('-inf')),)",
    "return (torch.softmax(x, 1) + torch.cumsum(y, 0) + torch.einsum('ij,kj->ik', x, y).sum(),)",
]


@pytest.mark.parametrize("body", CONTROL, ids=range(len(CONTROL)))
def test_control_flow_on_data(body, tmp_path):
    module = scripted(body)
    saved = SavedModule(open_file(save(module, tmp_path)))
    for x, y in ((X, Y), (-X, Y), (X[:2], Y[:2]), (-X.abs(), -Y)):
        (wanted,) = module(x.clone(), y.clone())
        (got,) = saved.run("forward", [x.clone(), y.clone()])
        assert torch.equal(got, wanted)


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def double(pair: Pair) -> Pair:
    return Pair(pair.second * 2, pair.first)


class Whole(nn.Module):
    """Layers by number, a function, a tuple with names, a list of numbers, a constant and a call of another method."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Sequential(nn.Linear(3, 2)))
        self.factors = [1.5, -0.25]
        self.label, self.is_on = "a", True

    @torch.jit.export
    def shift(self, x: torch.Tensor, by: float) -> torch.Tensor:
        return x + by

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        pair = double(Pair(x, y))
        first, second = pair
        if self.is_on and self.label == "a":
            first = first * self.factors[0]
        return self.layers((first + self.shift(second, 0.5)).float()) + torch.jit.annotate(float, 1e-3)


def test_a_module_of_many_parts(tmp_path):
    with ignore_deprecations():
        module = torch.jit.script(Whole())
    saved = SavedModule(open_file(save(module, tmp_path)))
    assert saved.method_names == {"forward", "shift"}
    run: Any = saved.run
    assert torch.equal(run("forward", [X, Y]), module(X, Y))
    assert torch.equal(run("shift", [X, 0.25]), module.shift(X, 0.25))
    assert dict(saved.named_parameters).keys() == dict(module.named_parameters()).keys()


class Table(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F)
        return x @ table + torch.arange(x.shape[0], dtype=F)[:, None] * y


def test_constants_of_a_trace(tmp_path):
    with warnings.catch_warnings():
        # What torch warns of, a constant of the trace, is what is meant.
        warnings.simplefilter("ignore")
        module: Any = torch.jit.trace(Table(), (X, Y))
        torch.jit.save(module, tmp_path / "trace.pt")
    run: Any = SavedModule(open_file(tmp_path / "trace.pt")).run
    assert torch.equal(run("forward", [X, Y]), module(X, Y))


NUMBERS = [
    "i = torch.arange(3)\nn = x.size(0)\nreturn (i * (n ** 2) + torch.tensor([n ** 2]),)",
    "return (x * ((float(x.size(0)) - 12.0) ** 0.5),)",
    "m = 9223372036854775800 + x.size(0) * 10\nif m > 0:\n    return (x,)\nreturn (y,)",
    "return (x + float(3037000500 * x.size(0) * 3037000500),)",
    "f = torch.ones(2) > 0\nb = bool(f[0])\nf.fill_(False)\nreturn (x if b else y,)",
    "return (torch.full([2], 1.0, dtype=torch.complex32).to(torch.complex64).abs().to(x.dtype) + x,)",
    "l: List[int] = []\nreturn (torch.tensor(l),)",
    "n = x.size(0) - 4\nreturn (x + 3 / n if n == 0 else x,)",
    "f = float(x.size(0) - 4)\nreturn (x * (f // f),)",
    "n = float(x.size(0))\nreturn (x * ((n * 100.0) ** 400.0) + 1.0 // 0.1 + (-7.5) % 2.0,)",
    "return (torch.norm(x, 2, 0) + y,)",
    "parts = [x] * 3\nparts += [y]\nreturn (torch.cat(parts),)",
    "return (x * (float(x.size(0)) - 4.5) + round(2.5) + abs(-3) + (-7) // 2 + (-7) % 4,)",
]


# torch says that complex numbers of 32 bits are new, and that lists without elements are of integers in TorchScript.
@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:Creating a tensor from an empty")
@pytest.mark.parametrize("body", NUMBERS, ids=range(len(NUMBERS)))
def test_numbers_as_torchscript_computes_them(body, tmp_path):
    """Integers of 64 bits, infinities where Python raises, and the types of results."""
    module = scripted(body)
    saved = SavedModule(open_file(save(module, tmp_path)))
    (wanted,), (got,) = module(X, Y), saved.run("forward", [X, Y])
    assert got.dtype == wanted.dtype
    assert got.numpy().tobytes() == wanted.numpy().tobytes()


class Counter(nn.Module):
    """A list of its own, to which each call adds."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = [1.5]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        alias = self.steps
        alias.append(3.0)
        self.steps[0] += 1.0
        return x * len(self.steps) + self.steps[0]


def test_a_list_that_is_an_attribute_is_written_to(tmp_path):
    with ignore_deprecations():
        module = torch.jit.script(Counter())
    saved: Any = SavedModule(open_file(save(module, tmp_path)))
    loaded: Any = torch.jit.load(tmp_path / "module.pt")
    for _ in range(3):
        assert torch.equal(saved.run("forward", [X]), loaded(X))


class Tied(nn.Module):
    """One layer under two names, and a view of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(2, 2)
        self.a = self.b
        self.c = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(self.b(self.c(x)))


def test_a_layer_under_two_names(tmp_path):
    with ignore_deprecations():
        module = torch.jit.script(Tied())
    saved: Any = SavedModule(open_file(save(module, tmp_path)))
    loaded: Any = torch.jit.load(tmp_path / "module.pt")
    assert list(saved.named_parameters) == [name for name, _ in loaded.named_parameters()]
    assert all(p.requires_grad for p in saved.named_parameters.values())
    x = X.float()
    with torch.no_grad():
        for tensors in (saved.named_parameters, dict(loaded.named_parameters())):
            tensors["b.weight"].add_(0.5)
    kept = saved.named_parameters["b.weight"]
    saved.to("cpu")
    assert saved.named_parameters["b.weight"] is kept
    assert torch.equal(saved.run("forward", [x]), loaded(x))


def test_an_error_of_the_model(tmp_path):
    module = scripted("if bool((x > 100).any()):\n    raise ValueError('too large')\nreturn (x,)")
    saved = SavedModule(open_file(save(module, tmp_path)))
    assert torch.equal(saved.run("forward", [X, Y])[0], X)
    with pytest.raises(RuntimeError, match="too large"):
        saved.run("forward", [X * 1e6, Y])


HEAD = (
    "class Own(Module):\n  __parameters__ = []\n  __buffers__ = []\n  training : bool\n"
    "  def forward(self: {name},\n    x: Tensor,\n    y: Tensor) -> Tuple[Tensor]:\n"
)
FORGED = {
    '    return (torch.save(x, "f"), )\n': "no operator that only computes",
    '    return (ops.aten.from_file("/etc/passwd"), )\n': "no operator that only computes",
    '    return (open("f"), )\n': "the call of open",
    "    return (x.__class__, )\n": "the attribute __class__",
    "    return (self.nobody, )\n": "the attribute nobody",
    "    return (self.nobody(x), )\n": "the method nobody",
    "    return (z, )\n": "the name z",
    "    return (CONSTANTS.c7, )\n": "CONSTANTS.c7",
    "    return (torch.sin(x, x, x), )\n": "aten::sin takes no",
    "    import os\n    return (x, )\n": "import os",
    "    return ((lambda: x)(), )\n": "no name where one belongs",
    "    x.y = x\n    return (x, )\n": "x.y = x",
    "    return ([x for x in y], )\n": "for x in y",
    "    return (x[1:2], )\n": r"x\[1:2\]",
    "    return ((x, y, x)[0:3:2], )\n": r"0:3:2",
    "    for i in range(2):\n      z = x\n    else:\n      x = y\n    return (x, )\n": "the else of a loop",
    "    return (annotate(), )\n": "index out of range",
    "    return (unchecked_cast(int), )\n": "index out of range",
    "    a = b = x\n    return (x, )\n": "too many values",
    '    return (-"a", )\n': "-'a'",
    "    return (CONSTANTS.c" + "9" * 5000 + ", )\n": "integer string",
    "    return (annotate(Union[int, str, float], x), ops.prim.name(x))\n": "no operator prim::name",
    "    t0 = (x, x)\n"
    + "".join(f"    t{i + 1} = (t{i}, t{i})\n" for i in range(30))
    + "    return (x, )\n": "a type of more",
    "    return (self.forward(x, y, x), )\n": "the arguments of self.forward",
    "    return (self.forward(x, y=y, z=x), )\n": "the arguments of self.forward",
    "    return ((x, y)[7], )\n": "the element 7",
    "    return (self.forward, )\n": "the attribute forward",
}


def forge(body: str, folder: Path) -> SavedModule:
    path = save(scripted("return (x,)"), folder)
    (record,) = [name for name in pt_archive.list_records(path) if name.endswith(".py")]
    name = record.removeprefix("code/").removesuffix(".py").replace("/", ".")
    return SavedModule(open_file(path, {record: (HEAD.format(name=f"{name}.Own") + body).encode()}))


def test_a_forged_file_that_is_honest(tmp_path):
    """The control of those below: what the record says is what is read."""
    assert torch.equal(forge("    return (torch.sin(x), )\n", tmp_path).run("forward", [X, Y])[0], X.sin())


@pytest.mark.parametrize("body", FORGED)
def test_what_only_a_forger_writes(body, tmp_path):
    with pytest.raises((UnsupportedError, ArchiveError), match=FORGED[body].replace("(", r"\(")) as raised:
        forge(body, tmp_path).read_methods(["forward"])
    assert re.search(r"\.py(:\d+)?$", raised.value.details["where"])


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("    return (\n", "was never closed"),
        ("    return (x, )\n  def forward(self) -> Tensor:\n    return x\n", "forward is defined twice"),
        ("    return (x, )\nclass Own(Module):\n  training : bool\n", "Own is defined twice"),
        ("    return (x, )\nclass Other(Module):\n  z : 3\n", "no name where one belongs"),
        ("    return (x, )\n" + "x\n" * 300_000, "words of code"),
    ],
)
def test_code_that_is_no_code(body, what, tmp_path, monkeypatch):
    monkeypatch.setattr(code_records, "MAX_WORDS", 200_000)
    with pytest.raises(ArchiveError, match="a record of code cannot be parsed") as raised:
        forge(body, tmp_path)
    assert what in raised.value.details["got"]


def test_blocks_deeper_than_pythons_parser_takes(tmp_path):
    body = "".join(f"{'  ' * i}    if True:\n" for i in range(110)) + "  " * 110 + "    z = x\n    return (x, )\n"
    with pytest.raises(UnsupportedError, match="too many levels"):
        forge(body, tmp_path)


class Shared:
    """What a pickle may hold: objects that are in each other many times."""

    def __init__(self, depth: int) -> None:
        self.pickled = (
            b"\x80\x02"
            + b"".join(
                b"c__torch__.m\nM\n)\x81q"
                + bytes([i])
                + b"}(X\x01\x00\x00\x00a"
                + self.get(i)
                + b"X\x01\x00\x00\x00b"
                + self.get(i)
                + b"ub"
                for i in range(depth)
            )
            + b"."
        )

    def get(self, i: int) -> bytes:
        return b"h" + bytes([i - 1]) if i else b"K\x00"


def test_objects_that_are_in_each_other_many_times(tmp_path):
    """A walk over all paths of this pickle of two kilobytes would take weeks; there is no class of its root."""
    path = save(scripted("return (x,)"), tmp_path)
    with pytest.raises(ArchiveError, match="no code of its class"):
        SavedModule(open_file(path, {"data.pkl": Shared(60).pickled}))


@pytest.mark.parametrize("limit", ["MAX_STEPS", "MAX_NODES"])
def test_a_file_that_inlines_without_end(limit, tmp_path, monkeypatch):
    """Each function calls the next one twice: a few lines that stand for more operators than a memory holds."""
    monkeypatch.setattr(code_reader, limit, 10_000)
    body = "    return (__torch__.g0(x), )\n"
    path = save(scripted("return (x,)"), tmp_path)
    (record,) = [name for name in pt_archive.list_records(path) if name.endswith(".py")]
    name = record.removeprefix("code/").removesuffix(".py").replace("/", ".")
    functions = "".join(
        f"def g{i}(x: Tensor) -> Tensor:\n  return {name}.g{i + 1}({name}.g{i + 1}(torch.sin(x)))\n" for i in range(40)
    )
    text = HEAD.format(name=f"{name}.Own") + body.replace("__torch__.g0", f"{name}.g0")
    text += functions + "def g40(x: Tensor) -> Tensor:\n  return torch.sin(x)\n"
    module = SavedModule(open_file(path, {record: text.encode()}))
    with pytest.raises(UnsupportedError, match=r"more than 10000 (statements|operations)"):
        module.read_methods(["forward"])


def test_a_method_that_is_not_there():
    with pytest.raises(ArchiveError, match="no method 'gone'"):
        SavedModule(pt_archive.read(FILES[0])).read_methods(["gone"])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_tensors_move_in_place(tmp_path):
    """To a GPU and back: the same tensors, one storage for those of one layer, and the numbers of the CPU."""
    with ignore_deprecations():
        module = torch.jit.script(Tied())
    saved: Any = SavedModule(open_file(save(module, tmp_path)))
    kept, x = saved.named_parameters["b.weight"], X.float()
    for device in ("cuda", "cpu"):
        saved.to(device)
        assert kept.device.type == device
        assert saved.named_parameters["b.weight"] is kept
        assert torch.allclose(saved.run("forward", [x.to(device)]).cpu(), module(x), rtol=1e-5, atol=1e-6)
