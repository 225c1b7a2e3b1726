"""A program as an ONNX model: torch's exporter, then passes that keep every number, then the contract's names.

torch's and onnxscript's own optimiser is left out: its rules take constants that are near 0 or 1 for 0 or 1, and drop
``x + 1e-12``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from exporter import __version__
from exporter.archive.contract import Contract, block_name
from exporter.archive.tensor_spec import open_sizes
from exporter.backends.onnx import float64_precision
from exporter.backends.onnx.elementary_functions import functions
from exporter.backends.onnx.gaussian_elimination import LINEAR_ALGEBRA
from exporter.backends.torch_export.program import ORIGIN, Program, quiet_export, quiet_logs
from exporter.common.errors import MissingRuntimeError, UnsupportedError, first_line

# The one that torch's own translations are written for; every runtime since 2023 has it.
OPSET = 18
OPSETS = range(18, 24)
# In the metadata of a model, and of a node.
CONTRACT, METHOD, OF = "torchferry.contract", "torchferry.method", "torchferry.origin"
# What onnxruntime has, by the names of the contract.
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")
_FX_NODE = "pkg.torch.onnx.fx_node"
_NODE = re.compile(r"%(\w+) :")
_TARGET = re.compile(r"target=torch\.ops\.([\w.]+)")


def require() -> None:
    """Raises ``MissingRuntimeError`` where the packages of the extra are missing."""
    try:
        import onnx  # noqa: F401
        import onnx_ir  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingRuntimeError(
            "a package that writes ONNX is missing", got=str(error), mend='pip install "torchferry[onnx]"'
        ) from None


def refuse_dtypes(contract: Contract) -> None:
    """Raises ``UnsupportedError`` for variables that have no ONNX form that runtimes know."""
    for spec in (*contract.inputs, *contract.outputs, *contract.parameters):
        if spec.dtype not in DTYPES:
            raise UnsupportedError(
                "ONNX runtimes do not know the dtype of a variable",
                check="dtypes",
                where=repr(spec.name),
                got=spec.dtype,
                expected=", ".join(DTYPES),
                mend="export it as .pt only, or give the model other inputs",
            )


def instead() -> dict[str, Callable[..., Any]]:
    """What takes the place of operators that ONNX does not have, or has with too few digits."""
    return {**LINEAR_ALGEBRA, **functions(), **float64_precision.decompositions()}


def refuse_names(contract: Contract) -> None:
    """Raises ``UnsupportedError`` for an input with the name of a parameter: here both are inputs."""
    both = sorted({s.name for s in contract.inputs} & {p.name for p in contract.parameters})
    if both:
        raise UnsupportedError(
            "an input has the name of a parameter, which is an input in ONNX, too",
            check="names",
            got=", ".join(map(repr, both)),
            mend="rename the input with --rename, or keep the parameter out: --parameter NAME for the others",
        )


def names_of(contract: Contract, method: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of a model's inputs and outputs: those of the contract, where no other value has it already."""
    spec = contract.methods[method]
    taken = {*spec.inputs, *(p.name for p in contract.parameters)}
    outputs = []
    for output in spec.outputs:
        name = output if isinstance(output, str) else block_name(*output)
        while name in taken:
            name = f"out:{name}"
        taken.add(name)
        outputs.append(name)
    return spec.inputs, tuple(outputs)


def model_of(program: Program, contract: Contract, opset: int = OPSET) -> Any:
    """An ``onnx_ir.Model``: the method's inputs, then its parameters as inputs that have a value already.

    Raises ``UnsupportedError``, with the model and line that need it, for an operator that has no ONNX form.
    """
    import onnx_ir
    from onnx_ir.passes import common
    from onnxscript import optimizer

    with quiet_export(), quiet_logs("torch.onnx", "onnxscript", "onnx_ir"):
        try:
            made = torch.onnx.export(
                program.exported,
                dynamo=True,
                opset_version=opset,
                optimize=False,
                verbose=False,
                custom_translation_table=float64_precision.translations(),
            )
        except torch.onnx.OnnxExporterError as error:
            raise _no_form(program, error) from error
    assert made is not None
    model = made.model
    _place(model, _origins(made.exported_program))
    float64_precision.retype(model, made.exported_program)
    common.InlinePass()(model)
    common.ShapeInferencePass()(model)
    float64_precision.restore(model, made.exported_program)
    with quiet_logs("torch.onnx", "onnxscript", "onnx_ir"):
        optimizer.fold_constants(model)
    float64_precision.without_matmul(model)
    float64_precision.keep_small_terms(model)
    for step in (
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.IdentityEliminationPass(),
        common.OutputFixPass(),
        common.RemoveUnusedNodesPass(),
        common.NameFixPass(),
    ):
        step(model)
    _name(model, program, contract)
    model.metadata_props.clear()
    model.metadata_props[METHOD] = program.method
    model.producer_name, model.producer_version = "torchferry", __version__
    model.graph.name = contract.name
    for node in float64_precision.every_node(model):
        kept = {OF: node.metadata_props[OF]} if node.metadata_props.get(OF) else {}
        node.metadata_props.clear()
        node.metadata_props.update(kept)
        node.doc_string = None
    for value in float64_precision.every_value(model):
        value.metadata_props.clear()
        value.doc_string = None
    assert isinstance(model, onnx_ir.Model)
    return model


def refuses_empty(models: Mapping[str, Any], contract: Contract) -> str:
    """What onnxruntime says of an empty batch, where the model itself admits it; empty where it takes it.

    onnxruntime (1.31) keeps the dimension of a sum over no elements, and reads a size of 0 in a reshape as another.
    """
    if 0 not in contract.batch.sizes:
        return ""
    try:
        import onnx_ir
        import onnxruntime
    except ImportError:
        return ""
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for name, model in models.items():
        taken = [contract.taken(n) for n in contract.methods[name].inputs]
        sizes = dict.fromkeys(open_sizes(contract.inputs), 0)
        lead = (0,) if contract.batch.ndim else ()
        given = {s.name: torch.zeros((*lead, *s.sized(sizes)), dtype=getattr(torch, s.dtype)).numpy() for s in taken}
        names = names_of(contract, name)[0]
        try:
            session = onnxruntime.InferenceSession(onnx_ir.to_proto(model).SerializeToString(), options)
        except Exception:
            # Not of the batch: the verification says it.
            return ""
        try:
            found: Any = session.run(None, dict(zip(names, given.values(), strict=True)))
        except Exception as error:
            return f"onnxruntime {onnxruntime.__version__} does not take it ({first_line(error)[:160]})"
        wanted = [contract.returned(o) for o in contract.methods[name].outputs]
        if any(v.shape != (*lead, *s.sized(sizes)) for v, s in zip(found, wanted, strict=True)):
            return f"onnxruntime {onnxruntime.__version__} returns another shape"
    return ""


def operators(models: Sequence[Any]) -> tuple[str, ...]:
    return tuple(sorted({f"onnx::{node.op_type}" for model in models for node in float64_precision.every_node(model)}))


def _origins(exported: Any) -> dict[str, str]:
    """By the name of a node of the program."""
    found: dict[str, str] = {}
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                found.setdefault(node.name, node.meta.get("custom", {}).get(ORIGIN, ""))
    return found


def _place(model: Any, origins: Mapping[str, str]) -> None:
    for node in float64_precision.every_node(model):
        match = _NODE.match(node.metadata_props.get(_FX_NODE, ""))
        node.metadata_props[OF] = origins.get(match[1], "") if match else ""


def _name(model: Any, program: Program, contract: Contract) -> None:
    """The contract's names for what goes in and out, a name for the batch, and none of them for anything else."""
    import onnx_ir

    inputs, outputs = names_of(contract, program.method)
    wanted = [*inputs, *program.parameters]
    graph = model.graph
    symbols = _symbols(graph.inputs, contract, inputs)
    own = {*wanted, *outputs}
    for i, value in enumerate(float64_precision.every_value(model)):
        if value.name in own:
            value.name = f"internal_{i}"
        if value.shape is not None:
            value.shape = onnx_ir.Shape([_dimension(d, symbols) for d in value.shape])
    for value, name in zip(graph.inputs, wanted, strict=True):
        value.name = name
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name
    for value in graph.inputs[len(inputs) :]:
        held: Any = program.parameters[value.name].numpy()
        value.const_value = onnx_ir.tensor(held, name=value.name)
        graph.register_initializer(value)


def _symbols(values: Sequence[Any], contract: Contract, inputs: Sequence[str]) -> dict[str, str]:
    """torch's names of sizes that are open, by the contract's."""
    found: dict[str, str] = {}
    for value, name in zip(values, inputs, strict=False):
        lead = ("batch",) if contract.batch.ndim else ()
        for made, said in zip(value.shape, (*lead, *contract.taken(name).shape), strict=True):
            if isinstance(said, str):
                found.setdefault(str(made), said)
    return found


def _dimension(size: Any, symbols: Mapping[str, str]) -> Any:
    return size if isinstance(size, int) else symbols.get(str(size), str(size).replace(" ", ""))


def _no_form(program: Program, error: BaseException) -> UnsupportedError:
    """The operator that torch.onnx has no translation of, with the places in the model that need it."""
    text = "\n".join(map(str, _chain(error)))
    match = _TARGET.search(text)
    operator = match[1] if match else ""
    places: dict[str, None] = {}
    # The operator may come of one that torch takes apart.
    whole = program.exported.run_decompositions()
    for module in (*program.exported.graph_module.modules(), *whole.graph_module.modules()):
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if operator and str(node.target).startswith(operator.rpartition(".")[0] or operator):
                places.setdefault(node.meta.get("custom", {}).get(ORIGIN, ""))
    return UnsupportedError(
        f"method {program.method!r} needs an operator that has no ONNX form",
        check="operators",
        where="; ".join(filter(None, places)),
        got=operator or first_line(error),
        expected="operators of the ONNX standard",
        mend="write it with others, or use the .pt",
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
