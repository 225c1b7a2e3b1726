"""What runs a loaded file: TorchScript, compiled code, or onnxruntime; tensors in the contract's order."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.jit._fuser import optimized_execution

from exporter.archive import target_machine
from exporter.archive.contract import Contract
from exporter.archive.onnx_container import OnnxFiles
from exporter.archive.pt_archive import LARGEST_OPTIMISED, Archive
from exporter.archive.tensor_spec import fits_shape
from exporter.common.errors import ArchiveError, MissingRuntimeError, RunError, UsageError, first_line
from runtime_checks.kernels import compilation
from runtime_checks.kernels.ctypes_library import Library
from runtime_checks.runners.children.torch_child import calls_of_code, calls_of_programs, graph_size

Tensors = Sequence[torch.Tensor]


class Engine(Protocol):
    """``parameters`` are tensors to be written to in place."""

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]: ...

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]: ...

    def to(self, *target: Any) -> torch.device | None: ...


class Script:
    """A TorchScript module. ``optimised`` says whether torch's optimising executor runs it: not a graph of more than
    20,000 nodes, on which that takes minutes."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.optimised = graph_size(module) <= LARGEST_OPTIMISED

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        return dict(self.module.named_parameters())

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        with contextlib.nullcontext() if self.optimised else optimized_execution(False):
            return getattr(self.module, method)(*inputs)

    def to(self, *target: Any) -> torch.device | None:
        self.module.to(*target)
        return torch._C._nn._parse_to(*target)[0]  # pyright: ignore[reportAttributeAccessIssue]


class Compiled:
    """Code that was compiled for this machine. It knows one batch dimension and dense memory, and checks nothing
    itself: shapes and dtypes are held here."""

    def __init__(self, opened: Archive) -> None:
        self._contract = opened.contract
        held = opened.parameters()
        # One tensor for each name, whichever methods take it.
        self.parameters = {name: value for of in held.values() for name, value in of.items()}
        self._held = {method: [self.parameters[n] for n in of] for method, of in held.items()}
        try:
            self._calls = self._loaded(opened)
        except Exception as error:
            raise RunError(f"{self._what} does not load", where=str(opened.path), got=first_line(error)) from error

    _what = "the compiled code"

    def _loaded(self, opened: Archive) -> Mapping[str, Callable[[list[torch.Tensor]], Any]]:
        return calls_of_code(str(opened.path), self._held)

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        flat, batch = flattened(self._contract, method, inputs)
        given = [value.contiguous() for value in flat]
        return restored(self._contract, method, self._calls[method]([*given, *self._held[method]]), batch)

    def to(self, *target: Any) -> torch.device | None:
        raise UsageError(
            f"{self._what} stays on the device that it was made for",
            got=", ".join(map(str, target)),
            mend="load the .pt there, or convert it there",
        )


class Programs(Compiled):
    """Programs of torch.export, which run in Python, operator by operator."""

    _what = "the program"

    def _loaded(self, opened: Archive) -> Mapping[str, Callable[[list[torch.Tensor]], Any]]:
        return calls_of_programs(str(opened.path), self._held)


class Kernel:
    """A kernel that was built here. ``described`` is its manifest."""

    def __init__(
        self,
        contract: Contract,
        sources: Mapping[str, bytes],
        described: Mapping[str, Any],
        values: Mapping[str, torch.Tensor],
    ) -> None:
        self._library = Library(str(compilation.built(sources)), described)
        self._contract = contract
        # Cases of the archive in which rounding decides.
        self.left_out = frozenset(described["left_out"])
        self.parameters = {p["name"]: values[p["name"]].detach().clone() for p in described["parameters"]}

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        flat, batch = flattened(self._contract, method, inputs)
        held = {name: value.numpy() for name, value in self.parameters.items()}
        outputs, _ = self._library.call(method, [value.detach().numpy() for value in flat], held)
        return restored(self._contract, method, [torch.from_numpy(value) for value in outputs], batch)

    def to(self, *target: Any) -> torch.device | None:
        raise UsageError("a kernel runs on the CPU", got=", ".join(map(str, target)), mend="load the .pt there")


class Onnx:
    """Sessions of onnxruntime, one for each method."""

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
        self._sessions = {
            method: onnxruntime.InferenceSession(str(opened.path.with_name(name)), options)
            for method, name in opened.methods.items()
        }
        self._taken = {m: [i.name for i in s.get_overridable_initializers()] for m, s in self._sessions.items()}
        self.parameters = opened.parameters()

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        contract = self._files.contract
        flat, batch = flattened(contract, method, inputs)
        feed = {n: v.detach().numpy() for n, v in zip(self._files.inputs[method], flat, strict=True)}
        feed |= {name: self.parameters[name].numpy() for name in self._taken[method]}
        found: Any = self._sessions[method].run(None, feed)
        return restored(contract, method, [torch.from_numpy(value) for value in found], batch)

    def to(self, *target: Any) -> torch.device | None:
        raise UsageError("an ONNX container is loaded on the CPU", got=", ".join(map(str, target)))


def hold_machine(opened: Archive, device: str) -> str:
    """What the compiled code is for. Raises ``RunError`` where that is another machine."""
    made = opened.machine()
    if made is None:
        raise ArchiveError("this file holds no compiled code", where=str(opened.path), mend="load it as .pt")
    target_machine.hold(made, target_machine.here(torch.__version__, device), str(opened.path))
    return f"{made.processor} with {len(made.instructions)} instruction sets, torch {made.torch}, {made.device}"


def flattened(contract: Contract, method: str, inputs: Tensors) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """The inputs with one batch dimension of one size, and the batch that they had: any number of dimensions, broadcast
    where they differ. Raises ``UsageError`` for a shape or dtype that is not the contract's."""
    specs = [contract.taken(name) for name in contract.methods[method].inputs]
    if len(inputs) != len(specs):
        raise UsageError(f"method {method!r} takes {len(specs)} inputs", got=str(len(inputs)))
    sizes: dict[str, int] = {}
    leads = []
    for spec, value in zip(specs, inputs, strict=True):
        lead = value.ndim - len(spec.shape)
        known = lead == 0 if contract.batch.ndim == 0 else lead >= 0
        if not known or not fits_shape(value.shape[lead:], spec.shape, sizes):
            shape = ", ".join(map(str, spec.shape))
            raise UsageError(
                f"input {spec.name!r} has another shape",
                got=str(list(value.shape)),
                expected=f"[*batch, {shape}]" if contract.batch.ndim else f"[{shape}]",
            )
        if str(value.dtype) != f"torch.{spec.dtype}":
            raise UsageError(f"input {spec.name!r} has another dtype", got=str(value.dtype), expected=spec.dtype)
        leads.append(tuple(value.shape[:lead]))
    if contract.batch.ndim == 0:
        return list(inputs), ()
    try:
        batch = tuple(torch.broadcast_shapes(*leads)) if leads else ()
    except RuntimeError:
        raise UsageError("the batches of the inputs do not broadcast", got=", ".join(map(str, leads))) from None
    rows = math.prod(batch)
    flat = []
    for value, spec in zip(inputs, specs, strict=True):
        whole = tuple(value.shape) == (*batch, *spec.fixed) and len(batch) == 1
        flat.append(value if whole else value.expand((*batch, *spec.fixed)).reshape((rows, *spec.fixed)))
    return flat, batch


def restored(
    contract: Contract, method: str, outputs: Sequence[torch.Tensor], batch: tuple[int, ...]
) -> tuple[torch.Tensor, ...]:
    """With the batch that the inputs had."""
    if contract.batch.ndim == 0 or len(batch) == 1:
        return tuple(outputs)
    return tuple(value.reshape((*batch, *value.shape[1:])) for value in outputs)
