"""NEML2 input files: their models, and the inputs that their drivers feed them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Origin
from exporter.archive.input_files import InputValues, order_inputs, to_tensor
from exporter.archive.tensor_spec import TensorSpec
from exporter.common.errors import MissingRuntimeError, SourceError, UsageError, suggest_names, summarize_error
from exporter.frontends import source_files
from exporter.frontends.model_request import ModelRequest
from exporter.frontends.neml2 import batched_parameters, driver_recording, implicit_models, operator_tracing
from exporter.frontends.neml2.batch_layout import find_batches, get_dynamic_batch, infer_layout
from exporter.frontends.neml2.extensions import import_extensions
from exporter.frontends.neml2.old_syntax import find_old_syntax
from exporter.frontends.neml2.overrides import find_unread, parse_overrides
from exporter.frontends.python_factory import list_refused
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.per_element import PerElementCall, make_per_element
from exporter.model.eager.precision import change_precision
from exporter.model.eager.warmup import run_first
from exporter.model.implicit.coordinate_descent import CompileDescent
from exporter.model.implicit.newton_solver import find_solvers
from exporter.model.source import Inputs, Listing, Source

# neml2-run computes in float64 unless told otherwise, and a literal like Scalar([0.1]) follows the default dtype.
DTYPE = torch.float64
# What a model may be exported in, as by neml2-compile.
DTYPES = ("float64", "float32")
REFUSED = ("neml2", "nmhit", "pyzag", "exporter", "runtime_checks", "torchferry")


class Neml2Module(nn.Module):
    """A neml2 model that takes and returns plain tensors; ``sub_batch`` dimensions belong to a variable's shape."""

    def __init__(self, model: nn.Module, sub_batch: Mapping[str, int]) -> None:
        super().__init__()
        self.model = model
        self.sub_batch = dict(sub_batch)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.model(*self._wrap(tensors).values())
        return tuple(v.data for v in (result if isinstance(result, tuple) else (result,)))

    def compute_jacobian_blocks(self, *tensors: torch.Tensor) -> tuple[Inputs, dict[tuple[str, str], torch.Tensor]]:
        """Return the outputs, and the Jacobian by ``(output, input)`` from the library's own chain rule."""
        model: Any = self.model
        outputs, jacobian = model.jacobian(self._wrap(tensors))
        blocks = {(output, wrt): block.data for output, row in jacobian.items() for wrt, block in row.items()}
        return tuple(v.data for v in outputs.values()), blocks

    def _wrap(self, tensors: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        types: Any = self.model.input_spec
        named = zip(types.items(), tensors, strict=True)
        return {name: wrapper(t, sub_batch_ndim=self.sub_batch.get(name, 0)) for (name, wrapper), t in named}


def list_model_names(request: ModelRequest) -> list[str]:
    """Return names of all models of an input file, in its order. Raises ``SourceError``."""
    return _list_names(_parse_input(request), "Models")


def list_driver_models(request: ModelRequest) -> list[str]:
    """Return the models that the drivers name: those that the file is about. Raises ``SourceError`` for a driver that
    is asked for, and is not there or has no model."""
    factory = _parse_input(request)
    models = {driver: _read_driver_option(factory, driver, "model") for driver in _list_drivers(factory, request)}
    if request.drivers and (lacking := [driver for driver, model in models.items() if not model]):
        what, expected = f"driver {lacking[0]!r} drives no model", "a driver with `model = ...`"
        raise SourceError(what, where=request.text, expected=expected)
    return [name for name in dict.fromkeys(models.values()) if name]


def load(
    request: ModelRequest, name: str, inputs: InputValues | None, compile_descent: CompileDescent | None = None
) -> Source:
    """Load one model of an input file. Warmup inputs: ``inputs``, else those that the file's drivers feed it.

    Parameters that have a batch become inputs, if the model is independent by element then. Raises ``SourceError`` for
    a file that does not parse or a name that is not there, ``UnsupportedError`` for a solver that no file can hold,
    ``MissingRuntimeError`` where neml2 is missing."""
    with _use_float64():
        factory, model = _build_model(request, name)
        solvers = implicit_models.install_solvers(model)
        calls: list[driver_recording.Call]
        own_values = {n: v for n, v in (inputs or {}).items() if n in find_batches(model)}
        if inputs is not None:
            others = {name: value for name, value in inputs.items() if name not in own_values}
            calls, findings = [_make_call(model, others, factory)], ()
        else:
            calls, findings = _record_calls(request, name, compile_descent)
        by_element = batched_parameters.infer_element_layout(model, calls, own_values, factory.settings, Neml2Module)
        layout = by_element[0] if by_element else infer_layout(model, calls, factory.settings, Neml2Module)
    raw = Neml2Module(model, layout.sub_batch).eval()
    path, extensions = Path(request.text), import_extensions(request.extensions)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    files = source_files.list_included_files(path)
    files += [file for extension in extensions for file in source_files.list_module_files(extension)]
    revision, digests = source_files.describe_files(files)
    refused = (*REFUSED, *(name for extension in extensions for name in list_refused(extension.__name__)))
    source = Source(
        name=name,
        module=raw,
        compute_jacobian_blocks=raw.compute_jacobian_blocks,
        parameter_module=model,
        inputs=layout.inputs,
        outputs=tuple(TensorSpec(n, type=t.__name__) for n, t in model.output_spec.items()),
        batch_ndim=layout.batch_ndim,
        calls=layout.calls,
        default_dtype=DTYPE,
        findings=(*findings, *find_unread(path, request.overrides), *layout.findings, *solvers),
        origin=Origin("neml2", "neml2", version(), name, digest, refused, revision, digests),
    )
    if by_element:
        source = make_per_element(source, list(by_element[1]), by_element[1], "it has a batch in the input file")
    if find_solvers(model):
        source = _compare_with_library(source, request, raw)
    # What is recorded, and compared with the library, is in the library's own precision.
    return change_precision(source, getattr(torch, request.dtype)) if request.dtype not in ("", "float64") else source


def _compare_with_library(source: Source, request: ModelRequest, raw: Neml2Module) -> Source:
    """Compare an implicit model with the library's own solver where that runs."""
    if not check_neml2_abi():
        why = f"neml2 {version()} is not built for torch {torch.__version__}: tools/build_neml2.sh builds it"
        return dataclasses.replace(source, findings=(*source.findings, implicit_models.make_not_compared_finding(why)))
    with _use_float64():
        _, other_model = _build_model(request, source.name)
        library = Neml2Module(other_model.requires_grad_(False), raw.sub_batch).eval()
        specs = source.inputs[len(source.inputs) - len(source.per_element) :]
        run = PerElementCall(library, other_model, specs, dict.fromkeys(source.per_element, 0)) if specs else library
        with eager_context(source):
            inputs = run_first(source, 0).inputs
            findings = implicit_models.compare_with_library(source, other_model, run, inputs)
    return dataclasses.replace(source, findings=(*source.findings, *findings))


def build_listing(request: ModelRequest, name: str) -> Listing:
    """Return names, shapes and types of one model, without running it."""
    with _use_float64():
        factory, model = _build_model(request, name)

    def make_specs(types: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
        shapes = {n: (*(factory.settings.sub_batch_shape(n) or ()), *t.BASE_SHAPE) for n, t in types.items()}
        return tuple(TensorSpec(n, shapes[n], type=t.__name__) for n, t in types.items())

    parameters = {n: tuple(p.shape) for n, p in model.named_parameters()}
    class_name = type(model).__name__
    return Listing(name, class_name, make_specs(model.input_spec), make_specs(model.output_spec), parameters)


def check_known_model(name: str, names: list[str], where: str) -> None:
    """Raise ``SourceError`` for a name that is not among the models of the file."""
    if name not in names:
        what = f"there is no model {name!r} in the input file"
        raise SourceError(what, where=where, expected=suggest_names(name, names))


@functools.cache
def check_neml2_abi() -> bool:
    """Return whether neml2's own Newton solver runs at any batch: it fails where neml2 is built for another torch."""
    with _use_float64(), torch.no_grad():
        factory = _parse_input(ModelRequest(str(Path(__file__).with_name("abi_probe.i"))))
        model = factory.get_model("model").requires_grad_(False)
        values = {"x~1": 1.0, "t": 2.0, "t~1": 1.0, "x": 1.0}
        # The memory of another torch that it reads differs from call to call.
        for rows in (2, 3, 5, 32, 100, 2, 7, 1000):
            inputs = [t(torch.full((rows,), values[n])) for n, t in model.input_spec.items()]
            try:
                result = model(*inputs)
            except (IndexError, RuntimeError):
                return False
            solution = (result[0] if isinstance(result, tuple) else result).data
            if not torch.allclose(solution, torch.full((rows,), 0.5, dtype=DTYPE)):
                return False
    return True


def version() -> str:
    """Return the version of the installed neml2."""
    return importlib.metadata.version("neml2")


@contextlib.contextmanager
def _use_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _import_neml2() -> Any:
    try:
        import neml2
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == "neml2"
        what = f"neml2 {'is not installed' if is_absent else 'cannot be imported'}, and the model is a NEML2 input file"
        raise MissingRuntimeError(what, got=summarize_error(error), mend='pip install "torchferry[neml2]"') from None
    return neml2


def _parse_input(request: ModelRequest) -> Any:
    path = Path(request.text)
    if request.dtype not in ("", *DTYPES):
        expected = f"one of {', '.join(DTYPES)}"
        raise UsageError(
            "no model is exported in this precision", where="--dtype", got=request.dtype, expected=expected
        )
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no file"
        expected = "a NEML2 input file (model.i), or path/to/file.py:factory for a Python model"
        raise SourceError("there is no such input file", where=str(path), got=got, expected=expected)
    neml2 = _import_neml2()
    import_extensions(request.extensions)
    try:
        overrides = parse_overrides(path, request.overrides)
        factory = neml2.load_input(path, additional_args=overrides)
    except (RuntimeError, ValueError) as error:
        first, *more = str(error).splitlines() or ["unreadable"]
        where = first.split(": ")[0] if first.startswith(str(path)) else str(path)
        got = first.split(": ", 1)[-1][:120] + (f" (and {len(more)} more)" if more else "")
        expected = "a HIT file: [Models] ... [] blocks with name = value lines"
        raise SourceError("the input file does not parse", where=where, got=got, expected=expected) from None
    if not _list_sections(factory, "Models"):
        what, expected = "the input file has no models", "a NEML2 input file with a [Models] block"
        raise SourceError(what, where=str(path), got="no [Models] block", expected=expected)
    return factory


def _build_model(request: ModelRequest, name: str) -> tuple[Any, Any]:
    factory = _parse_input(request)
    check_known_model(name, _list_names(factory, "Models"), request.text)
    try:
        return factory, factory.get_model(name).eval()
    except Exception as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else str(error)
        got = f"{type(error).__name__}: {str(text).splitlines()[0][:200]}"
        mend = "mend the input file, or import what registers the type: --load FILE"
        if missing := re.search(r"no parameter '([^']+)'", got):
            mend = f"give what the file leaves open behind it: {missing[1]}=VALUE"
        if changes := find_old_syntax(Path(request.text)):
            what, mend = f"this is an input file of NEML2 2, and the library is neml2 {version()}", "; ".join(changes)
            raise SourceError(what, where=request.text, got=got, mend=mend) from error
        raise SourceError(f"neml2 cannot build model {name!r}", where=request.text, got=got, mend=mend) from error


def _list_drivers(factory: Any, request: ModelRequest) -> list[str]:
    """Return the drivers of the file, or those that are asked for; for one that runs another, that one.

    Raises ``SourceError`` if one is not there."""
    names = _list_names(factory, "Drivers")
    if missing := [driver for driver in request.drivers if driver not in names]:
        what, expected = f"there is no driver {missing[0]!r} in the input file", suggest_names(missing[0], names)
        raise SourceError(what, where=request.text, expected=expected)
    drivers = request.drivers or names
    inner_names = {driver: _read_driver_option(factory, driver, "driver") for driver in names}
    for _ in names:
        drivers = [inner_names[d] if inner_names.get(d) in names else d for d in drivers]
    return list(dict.fromkeys(drivers))


def _list_sections(factory: Any, section: str) -> list[Any]:
    import nmhit

    node_type = nmhit.NodeType.Section  # pyright: ignore[reportAttributeAccessIssue]
    tops = [top for top in factory._root.children(node_type) if top.path() == section]
    return [child for top in tops for child in top.children(node_type)]


def _list_names(factory: Any, section: str) -> list[str]:
    names = (node.path().rsplit("/", 1)[-1] for node in _list_sections(factory, section))
    return list(dict.fromkeys(names))


def _read_driver_option(factory: Any, driver: str, option: str) -> str:
    for node in _list_sections(factory, "Drivers"):
        if node.path().rsplit("/", 1)[-1] == driver:
            return node.param_optional_str(option, "")
    return ""


def _record_calls(request: ModelRequest, name: str, compile_descent: CompileDescent | None) -> Any:
    """Record the calls of the model ``name`` by the file's drivers, also from within the model that they drive."""
    # A trace runs no hooks of modules: the calls of a part are recorded before.
    is_driven = list_driver_models(request) == [name]
    calls_before_trace = operator_tracing.CALLS_BEFORE_TRACE if is_driven else driver_recording.CALLS_OF_PART
    with operator_tracing.trace_operators(calls_before_trace) as operators:
        recorded = driver_recording.record_driver_calls(_list_drives(request, compile_descent), name, request.text)
    if any(operator.is_wrong for operator in operators.values()):
        recorded = driver_recording.record_driver_calls(_list_drives(request, compile_descent), name, request.text)
    return recorded


def _list_drives(
    request: ModelRequest, compile_descent: CompileDescent | None
) -> list[tuple[str, Callable[[], driver_recording.Drive]]]:
    """Return what prepares each driver of the file, by name."""
    neml2 = _import_neml2()
    drives = []
    factory = _parse_input(request)
    for driver in _list_drivers(factory, request):
        driver_type = _read_driver_option(factory, driver, "type")
        if driver_type == "ModelUnitTest":
            unit = functools.partial(neml2.ModelUnitTest._from_factory, factory, name=driver)
            drives.append((driver, lambda unit=unit: _prepare_unit_test(unit())))
        elif driver_type == "TransientDriver":
            drives.append((driver, functools.partial(_prepare_transient, factory, driver, compile_descent)))
    return drives


def _prepare_unit_test(unit: Any) -> driver_recording.Drive:
    inputs = [unit.inputs[name] for name in unit.model.input_spec]
    return unit.model, lambda: unit.model(*inputs)


def _prepare_transient(factory: Any, driver: str, compile_descent: CompileDescent | None) -> driver_recording.Drive:
    transient = factory.get_driver(driver)
    # The driver runs only to be recorded; the file that it would save is not needed.
    transient.save_as = ""
    if not check_neml2_abi():
        implicit_models.install_solvers(transient.model)
    if compile_descent is not None:
        implicit_models.compile_predictors(transient.model, compile_descent)
    return transient.model, transient.run


def _make_call(model: Any, inputs: InputValues, factory: Any) -> driver_recording.Call:
    values = order_inputs(inputs, list(model.input_spec))
    call = []
    for name, wrapper in model.input_spec.items():
        tensor = to_tensor(name, values[name], "float64")
        sub_batch_ndim = factory.settings.sub_batch_ndim(name) or 0
        base_ndim = len(wrapper.BASE_SHAPE)
        if tuple(tensor.shape[tensor.ndim - base_ndim :]) != tuple(wrapper.BASE_SHAPE) or tensor.ndim < base_ndim:
            dims = ", ".join(["*batch", *map(str, wrapper.BASE_SHAPE)])
            what, got = f"input {name!r} has the wrong shape", str(list(tensor.shape))
            raise UsageError(what, got=got, expected=f"[{dims}]" + (f" for a {wrapper.__name__}" if base_ndim else ""))
        call.append(wrapper(tensor, sub_batch_ndim=sub_batch_ndim))
    batches = {name: get_dynamic_batch(v) for name, v in zip(values, call, strict=True)}
    try:
        torch.broadcast_shapes(*batches.values())
    except RuntimeError:
        got = ", ".join(f"{name!r}: {list(batch)}" for name, batch in batches.items())
        what = "the batches of the given inputs do not broadcast"
        raise UsageError(what, got=got, expected="one batch for all (or 1, or none)") from None
    return tuple(call)
