"""What a model needs so that it fits a host, and which of its parameters hosts see."""

from __future__ import annotations

from collections.abc import Sequence

from exporter.archive.contract import Contract, ParameterSpec
from exporter.archive.kernel_container import KernelFiles
from exporter.archive.tensor_spec import TensorSpec
from exporter.common.errors import UsageError

# A parameter with its place among the kernel's.
PlacedParameter = tuple[int, ParameterSpec]


def check_double(kernel: KernelFiles, specs: Sequence[TensorSpec], host: str) -> None:
    """Raise ``UsageError`` for a variable that is not in double precision."""
    for spec in specs:
        if spec.dtype != "float64":
            what, where = f"the numbers of {host} are in double precision", f"{kernel.path}, {spec.name}"
            raise UsageError(what, where=where, got=spec.dtype, expected="float64")


def check_batch(kernel: KernelFiles, host: str) -> None:
    """Raise ``UsageError`` for a model without a batch of elements, which are points, rows or calls of a host."""
    if kernel.contract.batch.ndim == 0:
        what, where = f"the model has no batch of elements, as {host} needs it", str(kernel.path)
        expected, mend = "shapes of one element", "export it with a batch"
        raise UsageError(what, where=where, got="full shapes", expected=expected, mend=mend)


def list_model_parameters(contract: Contract) -> list[PlacedParameter]:
    """List the parameters of the model in double precision, without the settings of its solvers."""
    placed = enumerate(contract.parameters)
    return [(i, p) for i, p in placed if p.dtype == "float64" and p.name not in contract.solver_settings]


def list_derived_parameters(contract: Contract) -> list[PlacedParameter]:
    """List the parameters that the kernel has derivatives by; a block is by the input, where one has the same name."""
    spec = contract.methods.get("jacobian")
    derived = {o[1] for o in spec.outputs if not isinstance(o, str)} if spec else set[str]()
    derived -= {s.name for s in contract.inputs}
    return [(i, p) for i, p in enumerate(contract.parameters) if p.name in derived]
