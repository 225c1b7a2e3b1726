"""What torch does not document: it is there, does what its name says, and nothing else of ours reaches for it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from project import ROOT
from torch.autograd import Function

from exporter.common import torch_internals
from exporter.common.errors import MissingRuntimeError
from exporter.common.torch_hooks import ignore_deprecations

PACKAGES = ("exporter", "runtime_checks", "torchferry")
# They run in processes that see nothing but torch; postponing torch's compiler changes torch itself.
ISOLATED = {"package_loading.py", "script_loading.py", "torch_child.py"}
OTHERS = {*ISOLATED, "torch_internals.py"}
# A stand-in is set as an attribute of torch.
SET = {"torch._dynamo"}
UNITS: list[torch.jit.CompilationUnit] = []
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
# What changed between the versions that we support, and from which one on it holds.
CHANGES = {
    "Function.apply is written in C++": ((2, 14), lambda: not isinstance(Function.__dict__["apply"], classmethod)),
    "the derivative of clamp at a number is 0": ((2, 14), lambda: measure_share(0.0) == 0.0),
    "the derivative of clamp at a tensor is a half": ((2, 14), lambda: measure_share(torch.zeros(())) == 0.5),
    "torch's headers need C++20": ((2, 14), lambda: find_cxx_standard() == 20),
    "torch.jit warns of its end as of the future": ((2, 14), lambda: find_warning() is FutureWarning),
}


def find_cxx_standard() -> int:
    text = (Path(torch.__path__[0]) / "include" / "ATen" / "ATen.h").read_text()
    match = re.search(r"C\+\+(\d+) or later", text)
    assert match
    return int(match[1])


def measure_share(bound: Any) -> float:
    x = torch.zeros((), requires_grad=True)
    return float(torch.autograd.grad(torch.clamp(x, bound), x)[0])


def find_warning() -> type[Warning] | None:
    with pytest.warns((DeprecationWarning, FutureWarning)) as caught:
        torch.jit.script(double)
    return caught[0].category


def double(x: torch.Tensor) -> torch.Tensor:
    return x + x


def find_private_names(text: str) -> Iterator[tuple[int, str]]:
    """Lines and names of torch with a part that begins with an underscore; operators of ``torch.ops`` are no such."""
    inner: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            parts, value = [node.attr], node.value
            while isinstance(value, ast.Attribute):
                inner.add(id(value))
                parts.insert(0, value.attr)
                value = value.value
            if isinstance(value, ast.Name) and value.id == "torch" and parts[0] != "ops":
                yield from check(node.lineno, ["torch", *parts])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                yield from check(node.lineno, [*str(node.module).split("."), alias.name])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    yield from check(node.lineno, alias.name.split("."))


def check(line: int, parts: list[str]) -> Iterator[tuple[int, str]]:
    if any(part.startswith("_") and not part.startswith("__") for part in parts):
        yield line, ".".join(parts)


def test_no_other_file_reaches_for_what_torch_does_not_document():
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name not in OTHERS]
    assert len(paths) > 100
    private_names = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in paths
        for line, name in find_private_names(path.read_text())
        if name not in SET
    ]
    assert private_names == []


@pytest.mark.parametrize(
    "line",
    [
        "state = torch._C._get_tracing_state()",
        "from torch._ops import OpOverload",
        "from torch.jit import _trace",
        "import torch._inductor.config",
        "symbol = torch.Tensor._make_wrapper_subclass(cls)",
    ],
)
def test_each_way_to_reach_for_it_is_found(line):
    assert [number for number, _ in find_private_names(f"import torch\n{line}\n")] == [2]


def test_what_is_documented_is_not_found():
    text = "import torch\ntorch.ops.aten._assert_scalar.default\ntorch.__version__\nfrom torch import nn\n"
    assert list(find_private_names(text)) == []


@pytest.mark.parametrize("name", torch_internals._LATE)
def test_what_is_imported_late_is_there(name):
    module, attribute = torch_internals._LATE[name]
    expected = importlib.import_module(module)
    assert getattr(torch_internals, name) is (getattr(expected, attribute) if attribute else expected)


def test_torch_has_all_of_it():
    missing = [n for n, value in vars(torch_internals).items() if isinstance(value, torch_internals._Missing)]
    assert missing == []
    assert torch_internals.HAS_TORCH_SCRIPT
    torch_internals.require_torch_script()


def test_what_a_torch_without_torchscript_lacks_is_said_where_it_is_used():
    missing = torch_internals._find("_jit_pass_that_is_gone")
    for use in (missing, lambda: missing.get):
        with pytest.raises(MissingRuntimeError, match="this torch has no TorchScript"):
            use()


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = torch_internals.nothing


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_in_which_version(change):
    since, holds = CHANGES[change]
    assert holds() == (since <= VERSION), f"torch {torch.__version__}: {change}"


def test_the_shares_of_clamp_are_those_of_torch():
    assert (measure_share(0.0), measure_share(torch.zeros(()))) == torch_internals.CLAMP_SHARES


def make_graph(text: str):
    with ignore_deprecations():
        # A graph and what it calls end with their unit.
        UNITS.append(torch.jit.CompilationUnit(text))
    return getattr(UNITS[-1], "f").graph.copy()  # noqa: B009


def list_operators(graph) -> list[str]:
    return [node.kind().partition("::")[2] for node in graph.nodes() if not node.kind().startswith("prim::")]


def test_passes_do_what_their_names_say():
    graph = make_graph("def f(x):\n    y = x.exp()\n    z = x.exp()\n    w = x.sin()\n    return y * z\n")
    torch_internals.remove_dead_code(graph)
    assert list_operators(graph) == ["exp", "exp", "mul"]
    torch_internals.merge_subexpressions(graph)
    assert list_operators(graph) == ["exp", "mul"]
    graph = make_graph("def g(x):\n    return x.exp()\ndef f(x):\n    return g(x).sin()\n")
    torch_internals.inline_calls(graph)
    assert list_operators(graph) == ["exp", "sin"]
    graph = make_graph("def f(x):\n    return x * (2 + 3)\n")
    torch_internals.propagate_constants(graph)
    assert list_operators(graph) == ["mul"]
    graph = make_graph("def f(x):\n    for i in range(3):\n        x = x.exp()\n    return x\n")
    torch_internals.unroll_loops(graph)
    assert "exp" in list_operators(graph)
    function = torch_internals.create_function("f", make_graph("def f(x):\n    return x.exp()\n"))
    assert function(torch.zeros(2)).tolist() == [1.0, 1.0]


def test_a_trace_has_a_state_and_values():
    assert torch_internals.get_tracing_state() is None
    seen = []

    def run(x: torch.Tensor) -> torch.Tensor:
        state = torch_internals.get_tracing_state()
        seen.append((state is not None, torch_internals.get_value_trace(x).debugName()))
        torch_internals.set_tracing_state(None)
        seen.append((torch_internals.get_tracing_state() is None, ""))
        torch_internals.set_tracing_state(state)
        return x.exp()

    with ignore_deprecations():
        trace: Any = torch.jit.trace(run, torch.zeros(2), check_trace=False)
    assert [entry[0] for entry in seen] == [True, True]
    assert seen[0][1]
    assert "exp" in list_operators(trace.graph)


def test_the_engine_has_its_entry():
    assert callable(getattr(torch.autograd, torch_internals.ENGINE_ENTRY))
    assert callable(getattr(torch.autograd.graph, torch_internals.ENGINE_ENTRY))
    assert torch_internals.get_autograd_node() is None
    x = torch.zeros(2, requires_grad=True)
    before = torch_internals.get_sequence_number()
    x.exp()
    assert torch_internals.get_sequence_number() > before
