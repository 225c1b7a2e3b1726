"""What torch's executor makes of a saved graph: as captured, with profiled types, and as it runs.

The profiling executor (torch/csrc/jit/runtime/profiling_graph_executor_impl.cpp) notes shapes and dtypes in the first
call of a method and runs a graph that is specialised to them from the second on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch.jit._fuser import optimized_execution

from exporter.archive.contract import block_name
from exporter.archive.input_files import Given, as_tensor, match_shapes, ordered
from exporter.archive.pt_archive import LARGEST_OPTIMISED
from exporter.common.errors import RunError, UsageError, first_line, near
from exporter.common.torch_hooks import quiet_deprecations
from exporter.graph.ir import Graph
from exporter.graph.loading import File, captured_name
from exporter.graph.reader import read, read_graph, settable_names
from exporter.graph.torch_nodes import nodes

Stage = Literal["raw", "profiling", "optimized"]
STAGES: tuple[str, ...] = get_args(Stage)
# From here on the executor runs its last graph.
_CALLS = 3


@dataclass(frozen=True)
class Staged:
    """``nodes`` as torch counts them, constants and reads of attributes included; ``names`` of the inputs, and
    ``outputs`` of the outputs where the contract has them."""

    stage: str
    graph: Graph
    nodes: int
    names: tuple[str, ...]
    outputs: tuple[str, ...] = ()


def method_named(file: File, module: torch.jit.ScriptModule, asked: str) -> str:
    """The method of the file that is meant: for one of the contract, the graph that was captured for it.

    Raises ``UsageError`` for a method that is not there.
    """
    there = sorted(module._c._method_names())
    known = file.contract is not None and asked in file.contract.methods
    if known:
        return captured_name(module, asked)
    if asked not in there:
        raise UsageError(f"there is no method {asked!r}", where=str(file.path), expected=near(asked, there))
    return asked


def stage(file: File, asked: str, wanted: Stage, given: Given | None = None) -> Staged:
    """One method's graph at one stage; ``given`` are inputs by name to run it on, else those of a stored case.

    Raises ``UsageError`` for a method or a stage that the file does not have, with the reason.
    """
    if wanted not in STAGES:
        raise UsageError(f"there is no stage {wanted!r}", where="--stage", expected=f"one of {', '.join(STAGES)}")
    module = file.module()
    method = method_named(file, module, asked)
    names = input_names(file, module, asked, method)
    spec = file.contract.methods.get(asked) if file.contract else None
    outputs = tuple(o if isinstance(o, str) else block_name(*o) for o in spec.outputs) if spec else ()
    if wanted == "raw":
        saved = read(module, settable_names(file.contract))
        return Staged(wanted, saved.graphs[method], _count(_inlined(module, method)), names, outputs)
    inputs = run_inputs(file, module, asked, method, given)
    _refuse_large(file, module, method, wanted)
    graph = executed(module, method, inputs, 1 if wanted == "profiling" else _CALLS)
    return Staged(wanted, read_graph(graph, module, method), _count(graph), names, outputs)


def _count(graph: Any) -> int:
    return sum(1 for _ in nodes(graph))


def _inlined(module: torch.jit.ScriptModule, method: str) -> Any:
    whole = module._c._get_method(method).graph.copy()
    torch._C._jit_pass_inline(whole)
    return whole


def _refuse_large(file: File, module: torch.jit.ScriptModule, method: str, wanted: str) -> None:
    if (count := _count(_inlined(module, method))) > LARGEST_OPTIMISED:
        raise UsageError(
            f"stage {wanted!r} is not available: torch's optimiser takes minutes on a graph of this size",
            where=f"{file.path}, method {method}",
            got=f"{count} nodes",
            expected=f"at most {LARGEST_OPTIMISED}; torchferry.load and the native library run larger ones without it",
            mend="--stage raw, or --passes",
        )


def executed(module: torch.jit.ScriptModule, method: str, inputs: Sequence[Any], calls: int) -> Any:
    """torch's graph of what ran last after so many calls. Raises ``RunError`` where the method does not run."""
    run = module._c._get_method(method)
    try:
        with torch.no_grad(), _profiling(), optimized_execution(True):
            for _ in range(calls):
                run(*inputs)
            return torch._C._last_executed_optimized_graph()
    except RuntimeError as error:
        raise RunError("the method does not run on these inputs", where=method, got=first_line(error)) from error


@contextlib.contextmanager
def _profiling():
    """The executor that torch has by default, whatever the process has set."""
    jit: Any = torch._C
    executor = jit._jit_set_profiling_executor(True)
    mode = jit._jit_set_profiling_mode(True)
    runs = jit._jit_get_num_profiled_runs()
    jit._jit_set_num_profiled_runs(1)
    try:
        yield
    finally:
        jit._jit_set_profiling_executor(executor)
        jit._jit_set_profiling_mode(mode)
        jit._jit_set_num_profiled_runs(runs)


def input_names(file: File, module: torch.jit.ScriptModule, asked: str, method: str) -> tuple[str, ...]:
    """The contract's names where it speaks of the method, else those of the arguments."""
    if file.contract is not None and asked in file.contract.methods:
        return file.contract.methods[asked].inputs
    with quiet_deprecations():
        return tuple(a.name for a in module._c._get_method(method).schema.arguments[1:])


def run_inputs(
    file: File, module: torch.jit.ScriptModule, asked: str, method: str, given: Given | None
) -> tuple[torch.Tensor, ...]:
    """What the method is run on. Raises ``UsageError`` where nothing is known of it."""
    contract = file.contract
    known = contract is not None and asked in contract.methods
    if given is not None:
        if contract is not None and known:
            specs = [contract.taken(n) for n in contract.methods[asked].inputs]
            return match_shapes(dict(given), specs, contract.batch.ndim)
        values = ordered(given, input_names(file, module, asked, method))
        return tuple(v if isinstance(v, torch.Tensor) else as_tensor(n, v, "float64") for n, v in values.items())
    if file.archive is not None and known:
        return next(case.inputs for case in file.archive.cases() if case.method == asked)
    raise UsageError(
        "this is not available: nothing is known to run the method on",
        where=f"{file.path}, method {asked}",
        got="no stored case of this method"
        if contract is not None
        else "a TorchScript file without torchferry's contract and cases",
        expected="inputs: torch's executor makes its graphs from the calls that it sees",
        mend="give --inputs FILE with tensors by argument name; or --stage raw",
    )
