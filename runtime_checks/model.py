"""The Python host API of an archive: integrity first, then torch, then calls by variable name."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from exporter.archive import onnx_container, pt_archive
from exporter.archive.contract import Contract
from exporter.archive.identity_signature import Signer
from exporter.archive.pt_archive import Archive
from exporter.archive.tensor_spec import name_dtype
from exporter.common.errors import ArchiveError, RunError, UsageError, suggest_names, summarize_error
from exporter.common.script_loading import load_script
from exporter.common.torch_internals import HAS_TORCH_SCRIPT
from runtime_checks.engines.engines import (
    AotInductorEngine,
    Engine,
    OnnxRuntimeEngine,
    ProgramEngine,
    TorchScriptEngine,
    check_machine,
)
from runtime_checks.engines.interpreter import InterpreterEngine
from runtime_checks.engines.selection import (
    AUTO,
    ENGINES,
    INTERPRETER,
    KERNEL,
    PT2,
    TORCHSCRIPT,
    EngineChoice,
    EngineWarning,
    select_engine,
)
from runtime_checks.envelope import OFF, check_envelope, check_envelope_mode
from runtime_checks.native_code import GRAPHS, check_code_trust, resolve_trust
from runtime_checks.structured_calls import bind_arguments, build_results


class Model:
    """A loaded archive: ``model(a, b)`` is ``forward``, ``model.call("forward", {"a": a})`` goes by name.

    Inputs have the shape ``(*batch, *shape)`` of the contract; outputs are a tuple in the contract's order.

    Example:
        ```python
        model = torchferry.load("spring.pt")
        (force,) = model(stretch)
        force = model.call("forward", {"stretch": stretch})["force"]
        ```
    """

    def __init__(
        self, contract: Contract, engine: Engine, device: str | torch.device = "cpu", envelope: str = OFF
    ) -> None:
        self.contract = contract
        self.envelope = envelope
        self.engine = engine
        self.device = torch.device(device)
        # With engine="auto": what was timed, and what was left out.
        self.choice: EngineChoice | None = None

    @property
    def module(self) -> Any:
        """Return the TorchScript module. Raise ``UsageError`` for another engine, which has none."""
        if not isinstance(self.engine, TorchScriptEngine):
            raise UsageError("no TorchScript module runs this file", expected="a .pt with the engine torchscript")
        return self.engine.module

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.envelope != OFF:
            names = self.contract.methods["forward"].inputs
            check_envelope(self.contract, dict(zip(names, inputs, strict=False)), self.envelope)
        return self.engine.run("forward", inputs)

    def call(self, method: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return outputs by name. Raise ``UsageError`` for an unknown method, for missing or extra inputs, and for one
        on another device than the model."""
        spec = self.contract.check_call(method, inputs, "archive")
        for name, value in inputs.items():
            if not isinstance(value, torch.Tensor):
                what, got = f"input {name!r} is no tensor", type(value).__name__
                raise UsageError(what, got=got, expected="a tensor", mend="torch.as_tensor(value)")
            if not _is_same_device(value.device, self.device):
                what, device = f"input {name!r} is on the wrong device", str(self.device)
                mend = f"move it with .to({device!r}), or the model with to()"
                raise UsageError(what, got=str(value.device), expected=device, mend=mend)
        check_envelope(self.contract, inputs, self.envelope)
        outputs = self.engine.run(method, [inputs[name] for name in spec.inputs])
        return dict(zip(spec.output_names, outputs, strict=True))

    def call_as_module(self, *arguments: Any, **keywords: Any) -> Any:
        """Call ``forward`` as the model itself was called: the same arguments, the same structure of results.

        Arguments that were a list, a dict, a named tuple or a dataclass of tensors are one again; so are the results,
        where classes of the model's own are named tuples. What was no tensor is fixed, and may be left out. Where the
        contract has no structure, arguments are the inputs, and the result is the output, or the tuple of them.

        Args:
            arguments: Arguments of the model's own call, in its order, up to the first that the export left out.
            keywords: Arguments by name; those of ``*args`` and ``**kwargs`` as a tuple and a dict by these names.

        Returns:
            What the model returns.

        Raises:
            UsageError: An argument is missing, unknown, or has another structure than in the file.

        Example:
            ```python
            state = model.call_as_module(x, state={"h": h, "c": c})["state"]
            ```
        """
        outputs = self.call("forward", bind_arguments(self.contract, arguments, keywords))
        return build_results(self.contract, outputs)

    def call_from_anywhere(self, method: str, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return outputs by name, on the first input's device, whichever the model is on. Raises as ``call``."""
        outputs = self.call(method, {name: value.to(self.device) for name, value in inputs.items()})
        origin = next((value.device for value in inputs.values()), self.device)
        return {name: value.to(origin) for name, value in outputs.items()}

    def set_parameter(self, name: str, value: torch.Tensor) -> None:
        """Change a parameter in place; the shape must be the contract's. Raise ``UsageError`` otherwise."""
        parameters = self.engine.parameters
        specs = {p.name: p for p in self.contract.parameters if p.name in parameters}
        if name not in specs:
            raise UsageError(f"there is no parameter {name!r}", expected=suggest_names(name, specs))
        specs[name].check_shape(value.shape)
        with torch.no_grad():
            parameters[name].copy_(value)

    def to(self, *target: Any) -> Model:
        """Move parameters, buffers and constants, as ``torch.nn.Module.to`` does."""
        self.device = self.engine.to(*target) or self.device
        return self

    def __repr__(self) -> str:
        inputs = "; ".join(s.describe() for s in self.contract.inputs)
        outputs = "; ".join(s.describe() for s in self.contract.outputs)
        return f"Model {self.contract.name}\n  inputs: {inputs}\n  outputs: {outputs}"


def _is_same_device(a: torch.device, b: torch.device) -> bool:
    """Return whether the devices are the same; ``cuda`` is ``cuda:0`` here, as in torch unless another is chosen."""
    return a.type == b.type and (a.type == "cpu" or (a.index or 0) == (b.index or 0))


def load(
    path: str | Path,
    device: str | torch.device = "cpu",
    *,
    envelope: str = OFF,
    threads: int = 1,
    engine: str = TORCHSCRIPT,
    trust: str = GRAPHS,
    public_key: Signer | None = None,
) -> Model:
    """Check the records of an archive, a ``.pt2`` or an ONNX container, and load it.

    ``envelope``: what becomes of a call with inputs outside the range of values that was checked: ``off`` lets it pass,
    ``warn`` gives an ``OutsideEnvelopeWarning``, ``error`` raises ``UsageError``, each with the input's name.
    ``threads`` are those of onnxruntime; torch's are the process's own. ``engine="pt2"`` lets the compiled code of a
    ``.pt2`` that lies beside a ``.pt`` run it, ``engine="kernel"`` the C sources that the ``.pt`` carries, or that lie
    in the folder beside it, built by this machine's compiler; once they have passed the ``.pt``'s cases here. Where
    they cannot, an ``EngineWarning`` says why, and its graphs run: by TorchScript; or in Python, operator by operator,
    with ``engine="interpreter"`` and where this torch has no TorchScript. ``trust="native"`` lets native code run that
    this user has not made here; so does ``public_key``, with which the file has to be signed, for the file and what it
    carries.
    Raises ``ArchiveError`` for a damaged file, ``SignatureError`` for one that is not signed, ``TrustError`` for
    somebody else's compiled code, and ``RunError`` for code that was compiled for another machine.
    """
    check_envelope_mode(envelope)
    if engine not in ENGINES:
        raise UsageError("there is no such engine", got=repr(engine), expected=suggest_names(engine, (*ENGINES, AUTO)))
    file = Path(path)
    # What is checked is what is loaded, whoever writes to the file meanwhile.
    content = pt_archive.freeze_archive(file)
    trusted = resolve_trust(file, trust, public_key, content)
    if engine != TORCHSCRIPT and file.suffix in (onnx_container.SUFFIX, ".pt2"):
        mend = "load it without an engine, or load the .pt"
        raise UsageError("an engine is chosen for a .pt", where=str(file), got=f"engine={engine!r}", mend=mend)
    if file.suffix == onnx_container.SUFFIX:
        if str(device) != "cpu":
            raise UsageError("an ONNX container is loaded on the CPU", got=str(device), expected="cpu")
        files = onnx_container.read(file)
        return Model(files.contract, OnnxRuntimeEngine(files, threads), "cpu", envelope)
    opened = pt_archive.read(file, content)
    check_code_trust(opened, file, trusted.file)
    if opened.holds == "code":
        check_machine(opened, str(device))
        return Model(opened.contract, AotInductorEngine(opened), device, envelope)
    if opened.holds == "programs":
        if str(device) != "cpu":
            raise UsageError("a program is loaded on the CPU", where=str(file), got=str(device), expected="cpu")
        return Model(opened.contract, ProgramEngine(opened), device, envelope)
    load_graphs = functools.partial(_load_graphs, opened, device, engine)
    if engine in (PT2, KERNEL):
        compiled = select_engine(opened, engine, str(device), lambda: load_graphs().parameters, trusted)
        if compiled is not None:
            return Model(opened.contract, compiled, device, envelope)
    return Model(opened.contract, load_graphs(), device, envelope)


def _load_graphs(opened: Archive, device: str | torch.device, engine: str) -> TorchScriptEngine | InterpreterEngine:
    """Load the graphs of an archive into torch's executor, or into the interpreter."""
    if not HAS_TORCH_SCRIPT and engine == TORCHSCRIPT:
        reason = "this torch has no TorchScript: a kernel of it is faster"
        warnings.warn(f"{opened.path.name} runs in Python: {reason}", EngineWarning, stacklevel=4)
    if engine == INTERPRETER or not HAS_TORCH_SCRIPT:
        interpreter = InterpreterEngine(opened, device)
        _check_parameters({**interpreter.parameters, **interpreter.buffers}, opened)
        return interpreter
    module = _load_script(opened, device)
    _check_parameters(dict(module.named_parameters()) | dict(module.named_buffers()), opened)
    return TorchScriptEngine(module)


def _check_parameters(tensors: Mapping[str, torch.Tensor], opened: Archive) -> None:
    """Raise ``ArchiveError`` if a module has not the parameters of its contract."""
    contract, where = opened.contract, str(opened.path)
    for spec in contract.parameters:
        tensor = tensors.get(spec.name)
        got = "none" if tensor is None else f"{list(tensor.shape)} {name_dtype(tensor)}"
        if tensor is None or (tuple(tensor.shape), name_dtype(tensor)) != (spec.shape, spec.dtype):
            what = f"the file has no parameter {spec.name!r} as its contract says"
            raise ArchiveError(what, where=where, got=got, expected=f"{list(spec.shape)} {spec.dtype}")


def _load_script(opened: Archive, device: str | torch.device) -> Any:
    try:
        module = load_script(os.fspath(opened.content), device)
    except Exception as error:
        mend = "compare the torch version with the one in the contract, or export it again"
        raise RunError(
            "the archive does not load", where=str(opened.path), got=summarize_error(error), mend=mend
        ) from error
    return module.eval()
