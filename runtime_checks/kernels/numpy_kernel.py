"""A kernel for NumPy: built by this machine's C compiler, called through ctypes. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.archive import kernel_container
from exporter.archive.contract import block_name
from exporter.archive.kernel_container import identifiers
from exporter.common.errors import MissingRuntimeError, UsageError, near
from runtime_checks.kernels import compilation

if TYPE_CHECKING:
    import numpy


class Kernel:
    """The model in a kernel's folder. ``kernel.forward(strain=..., ...)`` gives the outputs by name, ``kernel(a, b)``
    a tuple of those of ``forward``; inputs have any number of batch dimensions, which broadcast, and any strides.

    Names that are none in Python are given by ``call``, or as the kernel's header has them. ``status`` has, of the last
    call, 0 for each element that has converged, and is 0 for models that solve nothing.
    Raises ``ArchiveError`` for a folder that was changed, ``MissingRuntimeError`` without NumPy or a C compiler.
    """

    def __init__(self, path: Path) -> None:
        files = kernel_container.read(path)
        try:
            from runtime_checks.kernels.ctypes_library import Library
        except ImportError as error:
            raise MissingRuntimeError(
                "numpy is needed to call a kernel", got=str(error), mend="pip install numpy"
            ) from None
        self.contract = files.contract
        self.status: Any = 0
        self._parameters: dict[str, Any] = {}
        self._library = Library(str(compilation.built(files.sources())), files.described)

    def __call__(self, *inputs: numpy.ndarray) -> tuple[numpy.ndarray, ...]:
        return self._called("forward", inputs)

    def __getattr__(self, name: str) -> Any:
        contract = self.__dict__.get("contract")
        if contract is None or name not in contract.methods:
            raise AttributeError(name)

        def method(**inputs: numpy.ndarray) -> dict[str, numpy.ndarray]:
            names = contract.methods[name].inputs
            known = dict(zip(identifiers(names), names, strict=True))
            return self.call(name, {known.get(given, given): value for given, value in inputs.items()})

        return method

    def call(self, method: str, inputs: Mapping[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        """Outputs by name. Raises ``UsageError`` for an unknown method, and for missing, extra or unfit inputs."""
        if method not in self.contract.methods:
            raise UsageError(f"the kernel has no method {method!r}", expected=near(method, self.contract.methods))
        spec = self.contract.methods[method]
        if set(spec.inputs) != set(inputs):
            raise UsageError(
                f"method {method!r} does not take these inputs",
                got=", ".join(map(repr, inputs)),
                expected=", ".join(map(repr, spec.inputs)),
            )
        outputs = self._called(method, [inputs[name] for name in spec.inputs])
        names = [o if isinstance(o, str) else block_name(*o) for o in spec.outputs]
        return dict(zip(names, outputs, strict=True))

    def set_parameter(self, name: str, value: Any) -> None:
        """For the calls from now on; the shape must be the contract's. Raises ``UsageError``."""
        import numpy

        known = {p.name: p for p in self.contract.parameters}
        if name not in known:
            raise UsageError(f"there is no parameter {name!r}", expected=near(name, known))
        array = numpy.array(value, dtype=known[name].dtype)
        if array.shape != known[name].shape:
            raise UsageError(
                f"parameter {name!r} has another shape",
                got=str(list(array.shape)),
                expected=str(list(known[name].shape)),
                mend="give one value for the whole batch: what differs by element is an input of the model",
            )
        self._parameters[name] = array

    def _called(self, method: str, inputs: Sequence[numpy.ndarray]) -> tuple[numpy.ndarray, ...]:
        from runtime_checks.kernels.ctypes_library import flattened_call

        try:
            outputs, self.status = flattened_call(self._library, method, inputs, self._parameters)
        except (TypeError, ValueError) as error:
            raise UsageError(f"method {method!r} cannot be called so", got=str(error)) from None
        return tuple(outputs)

    def __repr__(self) -> str:
        inputs = "; ".join(s.describe() for s in self.contract.inputs)
        outputs = "; ".join(s.describe() for s in self.contract.outputs)
        return f"Kernel {self.contract.name}\n  inputs: {inputs}\n  outputs: {outputs}"
