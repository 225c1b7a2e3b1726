"""Export of a program as an ONNX model: torch's exporter, then passes that keep every number, then contract names.

torch's and onnxscript's own optimiser is left out: its rules treat constants near 0 or 1 as 0 or 1, and drop
``x + 1e-12``."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from exporter import __version__
from exporter.archive.contract import Contract, name_output
from exporter.archive.tensor_spec import TensorSpec, list_dynamic_sizes
from exporter.backends.onnx import float64_precision
from exporter.backends.onnx.elementary_functions import build_function_table
from exporter.backends.onnx.fourier_transforms import replace_inverse_transforms
from exporter.backends.onnx.gaussian_elimination import LINEAR_ALGEBRA
from exporter.backends.onnx.losses import build_loss_table
from exporter.backends.onnx.normalisation import build_normalisation_table
from exporter.backends.onnx.operator_forms import build_form_table
from exporter.backends.torch_export.program import ORIGIN, Program, quiet_export, quiet_logs
from exporter.common.errors import MissingRuntimeError, UnsupportedError, summarize_error
from exporter.common.forking import ForkFailedError, run_in_fork

# Metadata keys of a model, and of a node.
CONTRACT, METHOD, ORIGIN_KEY = "torchferry.contract", "torchferry.method", "torchferry.origin"
# Dtypes of onnxruntime, by their names in the contract.
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")
# Seconds that no elements may take, and how many times those of loading the model: it is then taken for endless.
EMPTY_SECONDS, EMPTY_FACTOR = 5.0, 20.0
_FX_NODE = "pkg.torch.onnx.fx_node"
_NODE = re.compile(r"%(\w+) :")
_TARGET = re.compile(r"target=torch\.ops\.([\w.]+)")


def require() -> None:
    """Raise ``MissingRuntimeError`` if the packages of the extra are missing."""
    try:
        import onnx  # noqa: F401
        import onnx_ir  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        what, mend = "a package that writes ONNX is missing", 'pip install "torchferry[onnx]"'
        raise MissingRuntimeError(what, got=str(error), mend=mend) from None


def check_dtypes(contract: Contract) -> None:
    """Raise ``UnsupportedError`` for variables of a dtype that ONNX runtimes do not know."""
    for spec in (*contract.inputs, *contract.outputs, *contract.parameters):
        if spec.dtype not in DTYPES:
            what, where = "ONNX runtimes do not know the dtype of a variable", repr(spec.name)
            expected, mend = ", ".join(DTYPES), "export it as .pt only, or give the model other inputs"
            raise UnsupportedError(what, check="dtypes", where=where, got=spec.dtype, expected=expected, mend=mend)


def decomposition_overrides() -> dict[str, Callable[..., Any]]:
    """Return replacements of operators that ONNX does not have, or has with too few digits."""
    return {
        **LINEAR_ALGEBRA,
        **build_function_table(),
        **build_form_table(),
        **build_loss_table(),
        **build_normalisation_table(),
        **float64_precision.build_decompositions(),
    }


def check_names(contract: Contract) -> None:
    """Raise ``UnsupportedError`` for an input with the name of a parameter: in ONNX both are inputs."""
    common_names = sorted({s.name for s in contract.inputs} & {p.name for p in contract.parameters})
    if common_names:
        what = "an input has the name of a parameter, which is an input in ONNX, too"
        got = ", ".join(map(repr, common_names))
        mend = "rename the input with --rename, or keep the parameter out: --parameter NAME for the others"
        raise UnsupportedError(what, check="names", got=got, mend=mend)


def list_names(contract: Contract, method: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return names of a model's inputs and outputs: the contract's, unless another value has that name already."""
    spec = contract.methods[method]
    used_names = {*spec.inputs, *(p.name for p in contract.parameters)}
    outputs = []
    for output in spec.outputs:
        name = name_output(output)
        while name in used_names:
            name = f"out:{name}"
        used_names.add(name)
        outputs.append(name)
    return spec.inputs, tuple(outputs)


def build_onnx_model(program: Program, contract: Contract, opset: int) -> Any:
    """Build an ``onnx_ir.Model``: the method's inputs, then its parameters as inputs with a default value.

    Raises ``UnsupportedError``, with the model and line that need it, for an operator that has no ONNX form."""
    import onnx_ir
    from onnx_ir.passes import common
    from onnxscript import optimizer

    with quiet_export(), quiet_logs("torch.onnx", "onnxscript", "onnx_ir"):
        try:
            onnx_program = torch.onnx.export(
                program.exported,
                dynamo=True,
                opset_version=opset,
                optimize=False,
                verbose=False,
                custom_translation_table=float64_precision.make_translations(),
            )
        except torch.onnx.OnnxExporterError as error:
            raise _make_unsupported_error(program, error) from error
    assert onnx_program is not None
    model = onnx_program.model
    _set_origins(model, _collect_origins(onnx_program.exported_program))
    float64_precision.retype_constants_to_float64(model, onnx_program.exported_program)
    common.InlinePass()(model)
    common.ShapeInferencePass()(model)
    float64_precision.restore_constants(model, onnx_program.exported_program)
    with quiet_logs("torch.onnx", "onnxscript", "onnx_ir"):
        optimizer.fold_constants(model)
    float64_precision.replace_matmul(model)
    float64_precision.keep_small_terms(model)
    replace_inverse_transforms(model)
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
    _set_names(model, program, contract)
    model.metadata_props.clear()
    model.metadata_props[METHOD] = program.method
    model.producer_name, model.producer_version = "torchferry", __version__
    model.graph.name = contract.name
    _clear_notes(model)
    assert isinstance(model, onnx_ir.Model)
    return model


def _clear_notes(model: Any) -> None:
    """Leave only the origins of what torch.onnx has written about nodes and values."""
    for node in float64_precision.iterate_nodes(model):
        properties = {ORIGIN_KEY: node.metadata_props[ORIGIN_KEY]} if node.metadata_props.get(ORIGIN_KEY) else {}
        node.metadata_props.clear()
        node.metadata_props.update(properties)
        node.doc_string = None
    for value in float64_precision.iterate_values(model):
        value.metadata_props.clear()
        value.doc_string = None


def probe_empty_batch(models: Mapping[str, Any], contract: Contract) -> str:
    """Return onnxruntime's objection to an empty batch if the model itself supports it; empty if there is none.

    onnxruntime (1.31) keeps the dimension of a sum over no elements, and reads a size of 0 in a reshape as another;
    kernels of 1.32 divide by 0, which ends the process that they run in, or do not end."""
    if 0 not in contract.batch.sizes:
        return ""
    try:
        import onnxruntime
    except ImportError:
        return ""
    try:
        return run_in_fork(_run_empty_batch, models, contract)
    except ForkFailedError as error:
        return (
            f"onnxruntime {onnxruntime.__version__} ends the process, or does not end ({summarize_error(error)[:160]})"
        )


def _run_empty_batch(models: Mapping[str, Any], contract: Contract) -> str:
    import onnx_ir
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # What does not end in a kernel is ended by the system: no handler of Python would run.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    for name, model in models.items():
        begun = time.perf_counter()
        try:
            session = onnxruntime.InferenceSession(onnx_ir.to_proto(model).SerializeToString(), options)
        except Exception:
            # The batch is not the cause: verification reports it.
            return ""
        signal.setitimer(signal.ITIMER_REAL, EMPTY_SECONDS + EMPTY_FACTOR * (time.perf_counter() - begun))
        try:
            outputs: Any = session.run(None, _make_empty(contract, name))
        except Exception as error:
            return f"onnxruntime {onnxruntime.__version__} does not take it ({summarize_error(error)[:160]})"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        shapes = [_shape_empty(contract, contract.output_spec(o)) for o in contract.methods[name].outputs]
        if [value.shape for value in outputs] != shapes:
            return f"onnxruntime {onnxruntime.__version__} returns another shape"
    return ""


def _make_empty(contract: Contract, method: str) -> dict[str, Any]:
    """Return inputs of a method without elements, by their names in its model."""
    specs = [contract.input_spec(name) for name in contract.methods[method].inputs]
    arrays = [torch.zeros(_shape_empty(contract, s), dtype=getattr(torch, s.dtype)).numpy() for s in specs]
    return dict(zip(list_names(contract, method)[0], arrays, strict=True))


def _shape_empty(contract: Contract, spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape of a variable where there are no elements."""
    sizes = dict.fromkeys(list_dynamic_sizes(contract.inputs), 0)
    return (*((0,) if contract.batch.ndim else ()), *spec.resolve_shape(sizes))


def list_operators(models: Sequence[Any]) -> tuple[str, ...]:
    """Return the ONNX operators of the models, sorted."""
    nodes = (node for model in models for node in float64_precision.iterate_nodes(model))
    return tuple(sorted({f"onnx::{node.op_type}" for node in nodes}))


def _collect_origins(exported: Any) -> dict[str, str]:
    """Return the origins by the name of a program's node."""
    origins: dict[str, str] = {}
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                origins.setdefault(node.name, node.meta.get("custom", {}).get(ORIGIN, ""))
    return origins


def _set_origins(model: Any, origins: Mapping[str, str]) -> None:
    for node in float64_precision.iterate_nodes(model):
        match = _NODE.match(node.metadata_props.get(_FX_NODE, ""))
        node.metadata_props[ORIGIN_KEY] = origins.get(match[1], "") if match else ""


def _set_names(model: Any, program: Program, contract: Contract) -> None:
    """Set the contract's names for inputs and outputs, a name for the batch, and other names for everything else."""
    import onnx_ir

    inputs, outputs = list_names(contract, program.method)
    input_names = [*inputs, *program.parameters]
    graph = model.graph
    symbols = _map_symbols(graph.inputs, contract, inputs)
    contract_names = {*input_names, *outputs}
    for i, value in enumerate(float64_precision.iterate_values(model)):
        if value.name in contract_names:
            value.name = f"internal_{i}"
        if value.shape is not None:
            value.shape = onnx_ir.Shape([_rename_dimension(d, symbols) for d in value.shape])
    for value, name in zip(graph.inputs, input_names, strict=True):
        value.name = name
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name
    for value in graph.inputs[len(inputs) :]:
        array: Any = program.parameters[value.name].numpy()
        value.const_value = onnx_ir.tensor(array, name=value.name)
        graph.register_initializer(value)


def _map_symbols(values: Sequence[Any], contract: Contract, inputs: Sequence[str]) -> dict[str, str]:
    """Return the contract's names of dynamic sizes by torch's names."""
    symbols: dict[str, str] = {}
    for value, name in zip(values, inputs, strict=False):
        batch_shape = ("batch",) if contract.batch.ndim else ()
        for size, contract_size in zip(value.shape, (*batch_shape, *contract.input_spec(name).shape), strict=True):
            if isinstance(contract_size, str):
                symbols.setdefault(str(size), contract_size)
    return symbols


def _rename_dimension(size: Any, symbols: Mapping[str, str]) -> Any:
    return size if isinstance(size, int) else symbols.get(str(size), str(size).replace(" ", ""))


def _make_unsupported_error(program: Program, error: BaseException) -> UnsupportedError:
    """Return an error with the operator that torch.onnx cannot translate, and the places in the model that need it."""
    text = "\n".join(map(str, _iterate_causes(error)))
    match = _TARGET.search(text)
    operator = match[1] if match else ""
    places: dict[str, None] = {}
    # The operator may come from one that torch decomposes.
    decomposed = program.exported.run_decompositions()
    for module in (*program.exported.graph_module.modules(), *decomposed.graph_module.modules()):
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if operator and str(node.target).startswith(operator.rpartition(".")[0] or operator):
                places.setdefault(node.meta.get("custom", {}).get(ORIGIN, ""))
    what = f"method {program.method!r} needs an operator that has no ONNX form"
    where, got = "; ".join(filter(None, places)), operator or summarize_error(error)
    expected, mend = "operators of the ONNX standard", "write it with others, or use the .pt"
    return UnsupportedError(what, check="operators", where=where, got=got, expected=expected, mend=mend)


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
