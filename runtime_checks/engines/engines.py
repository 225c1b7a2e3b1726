"""Engines that run a loaded file: TorchScript, compiled code, or onnxruntime; tensors in the contract's order."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from exporter.archive import target_machine
from exporter.archive.contract import Contract
from exporter.archive.onnx_container import OnnxFiles
from exporter.archive.pt_archive import MAX_OPTIMISED_NODES, Archive
from exporter.archive.tensor_spec import fits_shape
from exporter.common.errors import ArchiveError, MissingRuntimeError, RunError, UsageError, summarize_error
from exporter.common.script_loading import OPERATORS, count_graph_nodes
from exporter.common.torch_internals import optimized_execution, parse_target
from runtime_checks.kernels import compilation
from runtime_checks.kernels.ctypes_library import Library
from runtime_checks.runners.children.package_loading import load_compiled_calls, load_program_calls

Tensors = Sequence[torch.Tensor]


class Engine(Protocol):
    """An engine that runs the methods of a file. ``parameters`` are tensors to be written to in place."""

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]: ...

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]: ...

    def to(self, *target: Any) -> torch.device | None: ...


class TorchScriptEngine:
    """An engine for a TorchScript module. ``optimised`` says whether torch's optimising executor runs it: not for
    graphs of more than 20,000 nodes, on which it takes minutes."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.optimised = count_graph_nodes(module) <= MAX_OPTIMISED_NODES

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        return dict(self.module.named_parameters())

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        with contextlib.nullcontext() if self.optimised else optimized_execution(False):
            return getattr(self.module, method)(*inputs)

    def to(self, *target: Any) -> torch.device | None:
        self.module.to(*target)
        return parse_target(*target)[0]


class AotInductorEngine:
    """An engine for code that was compiled for this machine. The code supports one batch dimension and dense memory,
    and checks nothing itself: shapes and dtypes are checked here."""

    def __init__(self, opened: Archive) -> None:
        self._contract = opened.contract
        by_method = opened.parameters()
        # One tensor for each name, whichever methods take it.
        self.parameters = {name: value for values in by_method.values() for name, value in values.items()}
        self._method_parameters = {method: [self.parameters[n] for n in values] for method, values in by_method.items()}
        try:
            self._calls = self._load_calls(opened)
        except Exception as error:
            what, where = f"{self._label} does not load", str(opened.path)
            raise RunError(what, where=where, got=summarize_error(error)) from error

    _label = "the compiled code"

    def _load_calls(self, opened: Archive) -> Mapping[str, Callable[[list[torch.Tensor]], Any]]:
        return load_compiled_calls(os.fspath(opened.content), self._method_parameters)

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        flat, batch = flatten_inputs(self._contract, method, inputs)
        dense = [value.contiguous() for value in flat]
        outputs = self._calls[method]([*dense, *self._method_parameters[method]])
        return restore_batch(self._contract, method, outputs, batch)

    def to(self, *target: Any) -> torch.device | None:
        what, got = f"{self._label} stays on the device that it was made for", ", ".join(map(str, target))
        raise UsageError(what, got=got, mend="load the .pt there, or convert it there")


class ProgramEngine(AotInductorEngine):
    """An engine for programs of torch.export, which run in Python, operator by operator."""

    _label = "the program"

    def _load_calls(self, opened: Archive) -> Mapping[str, Callable[[list[torch.Tensor]], Any]]:
        return load_program_calls(os.fspath(opened.content), self._method_parameters, OPERATORS)


class Kernel:
    """An engine for a kernel that was built here. ``described`` is its manifest."""

    def __init__(
        self,
        contract: Contract,
        sources: Mapping[str, bytes],
        described: Mapping[str, Any],
        values: Mapping[str, torch.Tensor],
    ) -> None:
        self._library = Library(str(compilation.compile_kernel(sources)), described)
        self._contract = contract
        # Cases of the archive whose result is decided by rounding.
        self.left_out = frozenset(described["left_out"])
        self.parameters = {p["name"]: values[p["name"]].detach().clone() for p in described["parameters"]}

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        flat, batch = flatten_inputs(self._contract, method, inputs)
        arrays = {name: value.numpy() for name, value in self.parameters.items()}
        outputs, _ = self._library.call(method, [value.detach().numpy() for value in flat], arrays)
        return restore_batch(self._contract, method, [torch.from_numpy(value) for value in outputs], batch)

    def to(self, *target: Any) -> torch.device | None:
        raise UsageError("a kernel runs on the CPU", got=", ".join(map(str, target)), mend="load the .pt there")


class OnnxRuntimeEngine:
    """An engine with one onnxruntime session for each method."""

    def __init__(self, opened: OnnxFiles, threads: int = 1) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            mend = 'pip install "torchferry[onnx]"'
            raise MissingRuntimeError("onnxruntime is not installed", got=str(error), mend=mend) from None
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self._files = opened
        paths = {method: str(opened.path.with_name(name)) for method, name in opened.methods.items()}
        try:
            self._sessions = {m: onnxruntime.InferenceSession(path, options) for m, path in paths.items()}
        except Exception as error:
            # Its exceptions have no class of their own.
            what, where = "the ONNX container does not load", str(opened.path)
            raise RunError(what, where=where, got=summarize_error(error)) from error
        self._initializers = {m: [i.name for i in s.get_overridable_initializers()] for m, s in self._sessions.items()}
        self.parameters = opened.parameters()

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        contract = self._files.contract
        flat, batch = flatten_inputs(contract, method, inputs)
        feed = {n: v.detach().numpy() for n, v in zip(self._files.inputs[method], flat, strict=True)}
        feed |= {name: self.parameters[name].numpy() for name in self._initializers[method]}
        results: Any = self._sessions[method].run(None, feed)
        return restore_batch(contract, method, [torch.from_numpy(value) for value in results], batch)

    def to(self, *target: Any) -> torch.device | None:
        what, mend = "an ONNX container is loaded on the CPU", "load the .pt there"
        raise UsageError(what, got=", ".join(map(str, target)), mend=mend)


def check_machine(opened: Archive, device: str) -> str:
    """Check that the compiled code fits this machine and describe its target. Raise ``RunError`` if it does not."""
    target = opened.machine()
    if target is None:
        raise ArchiveError("this file holds no compiled code", where=str(opened.path), mend="load it as .pt")
    target_machine.check_compatible(target, target_machine.current_machine(torch.__version__, device), str(opened.path))
    return f"{target.processor} with {len(target.instructions)} instruction sets, torch {target.torch}, {target.device}"


def flatten_inputs(contract: Contract, method: str, inputs: Tensors) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """Return the inputs with one batch dimension of one size, and their batch shape: any number of dimensions,
    broadcast if they differ. Raise ``UsageError`` for a shape or dtype that is not the contract's."""
    specs = [contract.input_spec(name) for name in contract.methods[method].inputs]
    if len(inputs) != len(specs):
        expected = ", ".join(spec.name for spec in specs)
        raise UsageError(f"method {method!r} takes {len(specs)} inputs", got=str(len(inputs)), expected=expected)
    sizes: dict[str, int] = {}
    batch_shapes = []
    for spec, value in zip(specs, inputs, strict=True):
        batch_ndim = value.ndim - len(spec.shape)
        is_valid_rank = batch_ndim == 0 if contract.batch.ndim == 0 else batch_ndim >= 0
        if not is_valid_rank or not fits_shape(value.shape[batch_ndim:], spec.shape, sizes):
            shape = ", ".join(map(str, spec.shape))
            what, expected = f"input {spec.name!r} has another shape", f"[{shape}]"
            expected = f"[*batch, {shape}]" if contract.batch.ndim else expected
            raise UsageError(what, got=str(list(value.shape)), expected=expected)
        if str(value.dtype) != f"torch.{spec.dtype}":
            raise UsageError(f"input {spec.name!r} has another dtype", got=str(value.dtype), expected=spec.dtype)
        batch_shapes.append(tuple(value.shape[:batch_ndim]))
    if contract.batch.ndim == 0:
        return list(inputs), ()
    try:
        batch = tuple(torch.broadcast_shapes(*batch_shapes)) if batch_shapes else ()
    except RuntimeError:
        what, expected = "the batches of the inputs do not broadcast", "one batch, or batches of size 1 beside it"
        raise UsageError(what, got=", ".join(map(str, batch_shapes)), expected=expected) from None
    rows = math.prod(batch)
    flat = []
    for value, spec in zip(inputs, specs, strict=True):
        shape = spec.static_shape
        is_flat = tuple(value.shape) == (*batch, *shape) and len(batch) == 1
        flat.append(value if is_flat else value.expand((*batch, *shape)).reshape((rows, *shape)))
    return flat, batch


def restore_batch(
    contract: Contract, method: str, outputs: Sequence[torch.Tensor], batch: tuple[int, ...]
) -> tuple[torch.Tensor, ...]:
    """Give the outputs the batch shape of the inputs."""
    if contract.batch.ndim == 0 or len(batch) == 1:
        return tuple(outputs)
    return tuple(value.reshape((*batch, *value.shape[1:])) for value in outputs)
