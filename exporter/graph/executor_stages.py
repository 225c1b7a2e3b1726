"""Stages of a saved graph in torch's executor: as captured, with profiled types, and as it runs.

The profiling executor (torch/csrc/jit/runtime/profiling_graph_executor_impl.cpp) notes shapes and dtypes in the first
call of a method and runs a graph that is specialised to them from the second on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from exporter.archive.input_files import InputValues, align_inputs, order_inputs, to_tensor
from exporter.archive.pt_archive import MAX_OPTIMISED_NODES
from exporter.common.errors import RunError, UsageError, suggest_names, summarize_error
from exporter.common.script_loading import iterate_nodes
from exporter.common.torch_hooks import ignore_deprecations
from exporter.common.torch_internals import (
    allow_cpu_fusion,
    can_fuse_on_cpu,
    get_last_optimized_graph,
    get_profiled_runs,
    has_fusion_fallback,
    inline_calls,
    is_fusing,
    optimized_execution,
    requires_llvm,
    set_fusing,
    set_fusion_fallback,
    set_profiled_runs,
    set_profiling_executor,
    set_profiling_mode,
    set_requires_llvm,
)
from exporter.graph.loading import File, resolve_captured_method
from exporter.graph.reader import list_settable_tensors, read, read_graph
from exporter.saved_code.ir import Graph

Stage = Literal["raw", "profiling", "optimized"]
STAGES: tuple[str, ...] = get_args(Stage)
# From here on the executor runs its last graph.
_CALLS = 3


@dataclass(frozen=True)
class StagedGraph:
    """A method's graph at one stage. ``nodes`` as torch counts them, constants and attribute reads included; ``names``
    of the inputs, and ``outputs`` of the outputs if the contract has them."""

    stage: str
    graph: Graph
    nodes: int
    names: tuple[str, ...]
    outputs: tuple[str, ...] = ()


def resolve_method(file: File, module: torch.jit.ScriptModule, requested: str) -> str:
    """Return the requested method of the file: for one of the contract, the graph captured for it.

    Raises ``UsageError`` if there is no such method."""
    available = sorted(module._c._method_names())
    is_contract_method = file.contract is not None and requested in file.contract.methods
    if is_contract_method:
        return resolve_captured_method(module._c._method_names(), requested)
    if requested not in available:
        what, where = f"there is no method {requested!r}", str(file.path)
        raise UsageError(what, where=where, expected=suggest_names(requested, available))
    return requested


def compute_stage(
    file: File, requested: str, stage_name: Stage, user_inputs: InputValues | None = None, *, is_fused: bool = False
) -> StagedGraph:
    """Return a method's graph at one stage, run on the inputs ``user_inputs`` by name, else on those of a stored case.

    With ``is_fused`` its operations are in the groups that torch fuses, also where this torch would not.

    Raises ``UsageError``, with the reason, for a method or a stage that the file does not have."""
    if stage_name not in STAGES:
        raise UsageError(f"there is no stage {stage_name!r}", where="--stage", expected=f"one of {', '.join(STAGES)}")
    module = file.load()
    method = resolve_method(file, module, requested)
    names = list_input_names(file, module, requested, method)
    spec = file.contract.methods.get(requested) if file.contract else None
    outputs = spec.output_names if spec else ()
    if stage_name == "raw":
        saved = read(module, list_settable_tensors(file.contract))
        count = _count_nodes(_inline_graph(module, method))
        return StagedGraph(stage_name, saved.graphs[method], count, names, outputs)
    inputs = prepare_inputs(file, module, requested, method, user_inputs)
    _check_size(file, module, method, stage_name)
    with fuse_on_cpu() if is_fused else contextlib.nullcontext():
        graph = get_executed_graph(module, method, inputs, 1 if stage_name == "profiling" else _CALLS)
    return StagedGraph(stage_name, read_graph(graph, module, method), _count_nodes(graph), names, outputs)


def _count_nodes(graph: Any) -> int:
    return sum(1 for _ in iterate_nodes(graph))


def _inline_graph(module: torch.jit.ScriptModule, method: str) -> Any:
    graph = module._c._get_method(method).graph.copy()
    inline_calls(graph)
    return graph


def _check_size(file: File, module: torch.jit.ScriptModule, method: str, stage_name: str) -> None:
    if (count := _count_nodes(_inline_graph(module, method))) > MAX_OPTIMISED_NODES:
        what = f"stage {stage_name!r} is not available: torch's optimiser takes minutes on a graph of this size"
        where = f"{file.path}, method {method}"
        expected = f"at most {MAX_OPTIMISED_NODES}; larger ones run without it everywhere"
        raise UsageError(what, where=where, got=f"{count} nodes", expected=expected, mend="--stage raw, or --passes")


def get_executed_graph(module: torch.jit.ScriptModule, method: str, inputs: Sequence[Any], calls: int) -> Any:
    """Return torch's graph of the last run after so many calls; raise ``RunError`` if the method fails."""
    run = module._c._get_method(method)
    try:
        with torch.no_grad(), _profiling_executor(), optimized_execution(True):
            for _ in range(calls):
                run(*inputs)
            return get_last_optimized_graph()
    except RuntimeError as error:
        raise RunError("the method does not run on these inputs", where=method, got=summarize_error(error)) from error


@contextlib.contextmanager
def _profiling_executor():
    """Use torch's default executor, whatever the process has set."""
    executor = set_profiling_executor(True)
    mode = set_profiling_mode(True)
    runs = get_profiled_runs()
    set_profiled_runs(1)
    try:
        yield
    finally:
        set_profiling_executor(executor)
        set_profiling_mode(mode)
        set_profiled_runs(runs)


@contextlib.contextmanager
def fuse_on_cpu() -> Iterator[None]:
    """Let torch's executor fuse on the CPU too, where the fuser's own interpreter runs what LLVM would compile."""
    switches = (
        (can_fuse_on_cpu, allow_cpu_fusion, True),
        (is_fusing, set_fusing, True),
        (requires_llvm, set_requires_llvm, False),
        (has_fusion_fallback, set_fusion_fallback, True),
    )
    before = [read_switch() for read_switch, _, _ in switches]
    try:
        for _, turn, value in switches:
            turn(value)
        yield
    finally:
        for (_, turn, _), value in zip(switches, before, strict=True):
            turn(value)


def list_input_names(file: File, module: torch.jit.ScriptModule, requested: str, method: str) -> tuple[str, ...]:
    """Return the contract's names if it has the method, else the names of the arguments."""
    if file.contract is not None and requested in file.contract.methods:
        return file.contract.methods[requested].inputs
    with ignore_deprecations():
        return tuple(a.name for a in module._c._get_method(method).schema.arguments[1:])


def prepare_inputs(
    file: File, module: torch.jit.ScriptModule, requested: str, method: str, user_inputs: InputValues | None
) -> tuple[torch.Tensor, ...]:
    """Return inputs to run the method on; raise ``UsageError`` if there are none."""
    contract = file.contract
    is_contract_method = contract is not None and requested in contract.methods
    if user_inputs is not None:
        if contract is not None and is_contract_method:
            specs = [contract.input_spec(n) for n in contract.methods[requested].inputs]
            return align_inputs(dict(user_inputs), specs, contract.batch.ndim)
        values = order_inputs(user_inputs, list_input_names(file, module, requested, method))
        return tuple(v if isinstance(v, torch.Tensor) else to_tensor(n, v, "float64") for n, v in values.items())
    if file.archive is not None and is_contract_method:
        return next(case.inputs for case in file.archive.cases() if case.method == requested)
    got = "no stored case of this method" if contract else "a TorchScript file without torchferry's contract and cases"
    raise UsageError(
        "this is not available: there are no inputs to run the method on",
        where=f"{file.path}, method {requested}",
        got=got,
        expected="inputs: torch's executor makes its graphs from the calls that it sees",
        mend="give --inputs FILE with tensors by argument name; or --stage raw",
    )
