"""Code that torch writes is taken, whatever a module in TorchScript has."""

import enum
import io
import zipfile
from typing import NamedTuple

import pytest
import torch

from exporter.archive.code_check import check_code
from exporter.common.torch_hooks import ignore_deprecations


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    a: torch.Tensor
    b: int


@torch.jit.script
class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    def step(self, by: int) -> int:
        self.count += by
        return self.count

    def __getitem__(self, i: int) -> int:
        return self.count + i


def choose(x: torch.Tensor, color: Color) -> Pair:
    return Pair(x, 3) if color == Color.RED else Pair(x, 4)


class Everything(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.color = Color.RED
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
        self.named = torch.nn.ModuleDict({"first": torch.nn.ReLU(), "from": torch.nn.Tanh()})
        self.table = {"a": 1}
        self.inner = torch.nn.Sequential(torch.nn.Sequential(torch.nn.LSTM(2, 2)))

    def forward(
        self,
        x: torch.Tensor,
        y: torch.Tensor | None = None,
        z: float = float("-inf"),
        range: int = 2,
    ) -> tuple[torch.Tensor, Pair, str, list[tuple[str, tuple[torch.Tensor, int]]], list[list[int]], bool]:
        pair = choose(x, self.color)
        text = "h\u00e9 \"q' %s \\ \n" + str(pair.b) + f"{range}"
        rows: dict[str, tuple[torch.Tensor, int]] = {}
        rows["a"] = (x, -range)
        if y is not None:
            x = x + y
            range += 1  # noqa: A001
        else:
            x = x * self.table["a"]
        k = 0
        while k < 3:
            k += 1
        assert k == 3, f"no {k}"
        with torch.no_grad():
            x = x + 1
        for layer in self.layers:
            x = layer(x)
        for layer in self.named.values():
            x = layer(x)
        counters = [Counter(1), Counter(k)]
        last = counters.pop()
        x = x * last.step(2) + counters[0][1]
        x = x[..., None, 1:].sum() * z
        x = torch.real(x * complex(1.5, -2))
        is_both = isinstance(pair, Pair) and x.dtype == torch.float32
        return x, pair, text, list(rows.items()), [[1], [2]], is_both


class Loops(torch.nn.Module):
    def forward(self, x: torch.Tensor, steps: list[int]) -> torch.Tensor:
        states: list[tuple[torch.Tensor, list[int]]] = []
        for i, step in enumerate(steps):
            states.append((x, [i, step]))
        for value, (i, j) in [(s[0], (s[1][0], s[1][1])) for s in states]:
            x = x + value * i - j
        return x


def read_code(module: torch.nn.Module) -> list[tuple[str, bytes]]:
    buffer = io.BytesIO()
    with ignore_deprecations():
        torch.jit.save(module if isinstance(module, torch.jit.ScriptModule) else torch.jit.script(module), buffer)
    with zipfile.ZipFile(buffer) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        return [(name.partition("/")[2], archive.read(name)) for name in names]


@pytest.mark.parametrize("make", [Everything, Loops, lambda: torch.nn.GRU(2, 2, bidirectional=True)])
def test_code_that_torch_writes_is_taken(make):
    check_code(read_code(make()))


def test_a_trace_is_taken():
    layers = [torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU()) for _ in range(30)]
    with ignore_deprecations():
        traced = torch.jit.trace(torch.nn.Sequential(*layers), torch.ones(2, 3))
    assert isinstance(traced, torch.jit.ScriptModule)
    check_code(read_code(traced))


def test_a_default_may_name_a_function():
    functions = b"def f(x: int) -> int:\n  return x\ndef g(x: int=__torch__.a.f(1, )) -> int:\n  return x\n"
    check_code([("code/__torch__/a.py", functions)])


def test_an_error_names_record_and_line():
    records = [("code/__torch__/a.py", b"class A(Module):\n  def f(self) -> int:\n    v = zip()\n")]
    with pytest.raises(ValueError, match=r"a call of zip, .* in line 3 of the record code/__torch__/a.py"):
        check_code(records)
