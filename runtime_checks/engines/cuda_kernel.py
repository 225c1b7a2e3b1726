"""An engine for a kernel on a GPU: its sources built by nvcc, called on torch's tensors in torch's stream."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exporter.archive.contract import Contract
from exporter.archive.kernel_container import KernelFiles
from exporter.common.errors import RunError, UsageError
from runtime_checks.engines.engines import Tensors, flatten_inputs, restore_batch
from runtime_checks.kernels import compilation, gpu_compilation
from runtime_checks.kernels.ctypes_library import ERRORS, Array


class CudaKernel:
    """An engine for a kernel that was built for a GPU here. Nothing waits for the device.

    On the CPU its threads run one after the other. Raises ``MissingRuntimeError`` if there is no compiler."""

    def __init__(
        self, contract: Contract, files: KernelFiles, values: Mapping[str, torch.Tensor], device: torch.device
    ) -> None:
        toolchain = gpu_compilation.choose_toolchain(device)
        library = ctypes.CDLL(str(compilation.compile_kernel(files.cuda_sources(), toolchain)))
        self.device = device
        # Cases of the archive whose result is decided by rounding.
        self.left_out = frozenset(files.manifest["left_out"])
        self.parameters = {
            p["name"]: values[p["name"]].detach().to(device, copy=True).contiguous()
            for p in files.manifest["parameters"]
        }
        self._describe_error = getattr(library, f"{files.name}_cuda_error")
        self._describe_error.restype = ctypes.c_char_p
        self._contract, self._described = contract, files.manifest["methods"]
        self._functions, self._workspaces = {}, {}
        for method in self._described:
            function = getattr(library, f"{files.name}_cuda_{method}")
            function.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 6]
            size = getattr(library, f"{files.name}_cuda_{method}_workspace")
            size.restype = ctypes.c_size_t
            self._functions[method], self._workspaces[method] = function, size()

    def run(self, method: str, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        """Run a method. Raises ``UsageError`` for another device's inputs, ``RunError`` for what the device refuses."""
        flat, batch = flatten_inputs(self._contract, method, inputs)
        if wrong := next((value.device for value in flat if value.device != self.device), None):
            what, mend = "an input is on the wrong device", f"move it with .to({str(self.device)!r})"
            raise UsageError(what, got=str(wrong), expected=str(self.device), mend=mend)
        flat = [value.detach().resolve_neg() for value in flat]
        is_batched = self._contract.batch.ndim > 0
        count = len(flat[0]) if is_batched and flat else 1
        leading = (count,) if is_batched else ()
        outputs = [
            torch.empty((*leading, *o["shape"]), dtype=getattr(torch, o["dtype"]), device=self.device)
            for o in self._described[method]["outputs"]
        ]
        parameters = (ctypes.c_void_p * max(len(self.parameters), 1))(*[p.data_ptr() for p in self.parameters.values()])
        # The allocator keeps the memory until the stream has done what uses it.
        workspace = torch.empty(self._workspaces[method], dtype=torch.uint8, device=self.device)
        arrays = make_device_arrays(flat, is_batched), make_device_arrays(outputs, is_batched)
        pointer = workspace.data_ptr() or None
        code = self._call(method, count, *arrays, parameters, None, pointer)
        if code < 0:
            what, got = (
                f"method {method!r} of the kernel fails on {self.device}",
                f"{ERRORS[code]}: {self._describe_error().decode()}",
            )
            raise RunError(what, got=got, mend="use a smaller batch, or free memory of the device")
        return restore_batch(self._contract, method, outputs, batch)

    def _call(self, method: str, *arguments: Any) -> int:
        if self.device.type == "cpu":
            return self._functions[method](*arguments, None)
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            for value in self.parameters.values():
                # The call may still read them when nothing else holds them any more.
                value.record_stream(stream)
            return self._functions[method](*arguments, stream.cuda_stream)

    def to(self, *target: Any) -> torch.device | None:
        what, got = "a kernel stays on the device that it was built for", ", ".join(map(str, target))
        raise UsageError(what, got=got, mend="load the .pt there")


def make_device_arrays(values: Sequence[torch.Tensor], is_batched: bool) -> Any:
    """Build the array structs of a call, as ``ctypes_library.make_arrays`` does of NumPy's."""
    arrays = (Array * max(len(values), 1))()
    for array, value in zip(arrays, values, strict=False):
        array.data = value.data_ptr()
        if not value.is_contiguous():
            strides = value.stride() if is_batched else (value.numel(), *value.stride())
            array.strides = (ctypes.c_ssize_t * len(strides))(*strides)
    return arrays
