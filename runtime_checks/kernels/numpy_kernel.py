"""Kernels called from NumPy: built by this machine's C compiler, called through ctypes. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.archive import kernel_container
from exporter.archive.identity_signature import Signer
from exporter.common.c_text import to_c_identifiers
from exporter.common.errors import MissingRuntimeError, UsageError, suggest_names
from runtime_checks.kernels import compilation
from runtime_checks.native_code import GRAPHS, check_code_trust, resolve_trust

if TYPE_CHECKING:
    import numpy


class Kernel:
    """The model in a kernel's folder: ``kernel.forward(strain=..., ...)`` by name, ``kernel(a, b)`` a tuple.

    Inputs have any number of batch dimensions, which broadcast, and any strides. Names that are not Python identifiers
    are passed to ``call``, or spelled as in the kernel's header. ``status`` holds, for the last call, 0 for each
    element that has converged, and is 0 for models that solve nothing.

    Raises:
        ArchiveError: The folder was changed.
        TrustError: The kernel was not made here, and neither ``trust`` nor a signature lets it run.
        SignatureError: It is not signed with ``public_key``.
        MissingRuntimeError: NumPy or a C compiler is missing.

    Example:
        ```python
        kernel = torchferry.load("spring_kernel")
        force = kernel.forward(stretch=numpy.linspace(0.1, 1.0, 1000))["force"]
        ```
    """

    def __init__(self, path: Path, trust: str = GRAPHS, public_key: Signer | None = None) -> None:
        trusted = resolve_trust(path, trust, public_key)
        files = kernel_container.read(path)
        check_code_trust(files, path, trusted.file)
        try:
            from runtime_checks.kernels.ctypes_library import Library
        except ImportError as error:
            what = "numpy is needed to call a kernel"
            raise MissingRuntimeError(what, got=str(error), mend="pip install numpy") from None
        self.contract = files.contract
        self.status: Any = 0
        self._parameters: dict[str, Any] = {}
        self._library = Library(str(compilation.compile_kernel(files.sources())), files.manifest)

    def __call__(self, *inputs: numpy.ndarray) -> tuple[numpy.ndarray, ...]:
        return self._call_method("forward", inputs)

    def __getattr__(self, name: str) -> Any:
        contract = self.__dict__.get("contract")
        if contract is None or name not in contract.methods:
            raise AttributeError(name)

        def method(**inputs: numpy.ndarray) -> dict[str, numpy.ndarray]:
            names = contract.methods[name].inputs
            names_by_identifier = dict(zip(to_c_identifiers(names), names, strict=True))
            return self.call(name, {names_by_identifier.get(key, key): value for key, value in inputs.items()})

        return method

    def call(self, method: str, inputs: Mapping[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        """Return outputs by name. Raise ``UsageError`` for an unknown method and for missing, extra or unfit inputs."""
        spec = self.contract.check_call(method, inputs, "kernel")
        outputs = self._call_method(method, [inputs[name] for name in spec.inputs])
        return dict(zip(spec.output_names, outputs, strict=True))

    def set_parameter(self, name: str, value: Any) -> None:
        """Set a parameter for all later calls; the shape must be the contract's. Raise ``UsageError`` if it is not."""
        import numpy

        specs = {p.name: p for p in self.contract.parameters}
        if name not in specs:
            raise UsageError(f"there is no parameter {name!r}", expected=suggest_names(name, specs))
        array = numpy.array(value, dtype=specs[name].dtype)
        specs[name].check_shape(array.shape)
        self._parameters[name] = array

    def _call_method(self, method: str, inputs: Sequence[numpy.ndarray]) -> tuple[numpy.ndarray, ...]:
        from runtime_checks.kernels.ctypes_library import call_with_batch

        try:
            outputs, self.status = call_with_batch(self._library, method, inputs, self._parameters)
        except (TypeError, ValueError) as error:
            what, expected = f"method {method!r} cannot be called with these inputs", repr(self)
            raise UsageError(what, got=str(error), expected=expected) from None
        return tuple(outputs)

    def __repr__(self) -> str:
        inputs = "; ".join(s.describe() for s in self.contract.inputs)
        outputs = "; ".join(s.describe() for s in self.contract.outputs)
        return f"Kernel {self.contract.name}\n  inputs: {inputs}\n  outputs: {outputs}"
