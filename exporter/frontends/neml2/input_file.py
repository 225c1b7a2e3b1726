"""NEML2 input files. This file and ``neml2_implicit`` are all that imports neml2."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Origin
from exporter.archive.input_files import Given, as_tensor, ordered
from exporter.archive.tensor_spec import TensorSpec
from exporter.common.errors import MissingRuntimeError, SourceError, UsageError, first_line, near
from exporter.frontends.neml2 import batch_layout, driver_recording, implicit_models
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.eager.warmup import first_run
from exporter.model.implicit.newton_solver import loops
from exporter.model.source import Listing, Source

# neml2-run computes in float64 unless told otherwise, and a literal like Scalar([0.1]) follows the default dtype.
DTYPE = torch.float64
REFUSED = ("neml2", "nmhit", "pyzag", "exporter", "runtime_checks", "torchferry")


class RawTensors(nn.Module):
    """A neml2 model that takes and returns plain tensors; ``sub_batch`` dimensions belong to a variable's shape."""

    def __init__(self, model: nn.Module, sub_batch: Mapping[str, int]) -> None:
        super().__init__()
        self.model = model
        self.sub_batch = dict(sub_batch)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.model(*self._wrapped(tensors).values())
        return tuple(v.data for v in (result if isinstance(result, tuple) else (result,)))

    def blocks(self, *tensors: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], dict[tuple[str, str], torch.Tensor]]:
        """The outputs, and the Jacobian by ``(output, input)`` from the library's own chain rule."""
        model: Any = self.model
        outputs, rows = model.jacobian(self._wrapped(tensors))
        return tuple(v.data for v in outputs.values()), {
            (of, by): block.data for of, row in rows.items() for by, block in row.items()
        }

    def _wrapped(self, tensors: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        types: Any = self.model.input_spec
        return {
            name: kind(tensor, sub_batch_ndim=self.sub_batch.get(name, 0))
            for (name, kind), tensor in zip(types.items(), tensors, strict=True)
        }


def model_names(path: Path) -> list[str]:
    """Names of all models of an input file, in its order. Raises ``SourceError``."""
    return _names(_parse(path), "Models")


def driver_models(path: Path) -> list[str]:
    """Models that a driver of the file names: the ones that the file is about."""
    root = _parse(path)
    return [n for n in (_driver_option(root, d, "model") for d in _names(root, "Drivers")) if n]


def load(path: Path, name: str, given: Given | None) -> Source:
    """One model of an input file. Warmup inputs: ``given``, else what the file's drivers feed it.

    Raises ``SourceError`` for a file that does not parse or a name that is not there, ``UnsupportedError`` for a solver
    that has no place in a file, ``MissingRuntimeError`` where neml2 is missing.
    """
    with _float64():
        factory, model = _model(path, name)
        solvers = implicit_models.install(model)
        calls: list[driver_recording.Call]
        if given is not None:
            calls, findings = [_given_call(model, given, factory)], ()
        else:
            calls, findings = _recorded(path, name)
        layout = batch_layout.find(model, calls, factory.settings, RawTensors)
    raw = RawTensors(model, layout.sub_batch).eval()
    source = Source(
        name=name,
        module=raw,
        blocks=raw.blocks,
        named=model,
        inputs=layout.inputs,
        outputs=tuple(TensorSpec(n, type=t.__name__) for n, t in model.output_spec.items()),
        batch_ndim=layout.batch_ndim,
        calls=layout.calls,
        default_dtype=DTYPE,
        findings=(*findings, *layout.findings, *solvers),
        origin=Origin(
            kind="neml2",
            library="neml2",
            version=version(),
            model=name,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            refused_imports=REFUSED,
        ),
    )
    return _held(source, path, raw) if loops(model) else source


def _held(source: Source, path: Path, raw: RawTensors) -> Source:
    """An implicit model, held against the library's own solver where that runs."""
    if not built_for_this_torch():
        why = f"neml2 {version()} is not built for torch {torch.__version__}: tools/build_neml2.sh builds it"
        return dataclasses.replace(source, findings=(*source.findings, implicit_models.not_held(why)))
    with _float64():
        _, other = _model(path, source.name)
        library = RawTensors(other.requires_grad_(False), raw.sub_batch).eval()
        with inference_conditions(source):
            inputs = first_run(source, 0).inputs
            found = implicit_models.held_against(source, library, inputs)
    return dataclasses.replace(source, findings=(*source.findings, *found))


def listing(path: Path, name: str) -> Listing:
    """Names, shapes and types of one model, without running it."""
    with _float64():
        factory, model = _model(path, name)

    def specs(types: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(n, (*(factory.settings.sub_batch_shape(n) or ()), *t.BASE_SHAPE), type=t.__name__)
            for n, t in types.items()
        )

    parameters = {n: tuple(p.shape) for n, p in model.named_parameters()}
    kind = type(model).__name__
    return Listing(name, kind, specs(model.input_spec), specs(model.output_spec), parameters)


def refuse_unknown(name: str, names: list[str], where: str) -> None:
    if name not in names:
        raise SourceError(f"there is no model {name!r} in the input file", where=where, expected=near(name, names))


@functools.cache
def built_for_this_torch() -> bool:
    """Whether neml2's own Newton solver runs at any batch: it fails where neml2 is built for another torch."""
    neml2 = _neml2()
    text = """
    [Models]
      [rate]
        type = ScalarLinearCombination
        from = 'x'
        weights = '-1'
        to = 'x_rate'
      []
      [step]
        type = ScalarBackwardEulerTimeIntegration
        variable = 'x'
      []
      [residual]
        type = ComposedModel
        models = 'rate step'
      []
      [model]
        type = ImplicitUpdate
        equation_system = 'system'
        solver = 'newton'
      []
    []
    [EquationSystems]
      [system]
        type = NonlinearSystem
        model = 'residual'
        unknowns = 'x'
      []
    []
    [Solvers]
      [newton]
        type = Newton
        linear_solver = 'lu'
      []
      [lu]
        type = DenseLU
      []
    []
    """
    with _float64(), torch.no_grad():
        model = neml2.load_string(text).get_model("model").requires_grad_(False)
        values = {"x~1": 1.0, "t": 2.0, "t~1": 1.0, "x": 1.0}
        # What it reads of another torch's memory differs from call to call.
        for rows in (2, 3, 5, 32, 100, 2, 7, 1000):
            inputs = [t(torch.full((rows,), values[n])) for n, t in model.input_spec.items()]
            try:
                result = model(*inputs)
            except (IndexError, RuntimeError):
                return False
            found = (result[0] if isinstance(result, tuple) else result).data
            if not torch.allclose(found, torch.full((rows,), 0.5, dtype=DTYPE)):
                return False
    return True


def version() -> str:
    from importlib.metadata import version as installed

    return installed("neml2")


@contextlib.contextmanager
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _neml2() -> Any:
    try:
        import neml2
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == "neml2"
        raise MissingRuntimeError(
            f"neml2 {'is not installed' if absent else 'cannot be imported'}, and the model is a NEML2 input file",
            got=first_line(error),
            mend='pip install "torchferry[neml2]"',
        ) from None
    return neml2


def _parse(path: Path) -> Any:
    if not path.is_file():
        raise SourceError(
            "there is no such input file",
            where=str(path),
            got="a folder" if path.is_dir() else "no file",
            expected="a NEML2 input file (model.i), or path/to/file.py:factory for a Python model",
        )
    neml2 = _neml2()
    try:
        factory = neml2.load_input(path)
    except (RuntimeError, ValueError) as error:
        first, *more = str(error).splitlines() or ["unreadable"]
        raise SourceError(
            "the input file does not parse",
            where=first.split(": ")[0] if first.startswith(str(path)) else str(path),
            got=first.split(": ", 1)[-1][:120] + (f" (and {len(more)} more)" if more else ""),
            expected="a HIT file: [Models] ... [] blocks with name = value lines",
        ) from None
    if not _sections(factory, "Models"):
        raise SourceError(
            "the input file has no models",
            where=str(path),
            got="no [Models] block",
            expected="a NEML2 input file with a [Models] block",
        )
    return factory


def _model(path: Path, name: str) -> tuple[Any, Any]:
    factory = _parse(path)
    refuse_unknown(name, _names(factory, "Models"), str(path))
    try:
        return factory, factory.get_model(name).eval()
    except Exception as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else str(error)
        raise SourceError(
            f"neml2 cannot build model {name!r}",
            where=str(path),
            got=f"{type(error).__name__}: {str(text).splitlines()[0][:200]}",
            mend="mend the input file, or install the package that registers the type",
        ) from error


def _sections(factory: Any, section: str) -> list[Any]:
    import nmhit

    kind = nmhit.NodeType.Section  # pyright: ignore[reportAttributeAccessIssue]
    tops = [top for top in factory._root.children(kind) if top.path() == section]
    return [child for top in tops for child in top.children(kind)]


def _names(factory: Any, section: str) -> list[str]:
    found = (node.path().rsplit("/", 1)[-1] for node in _sections(factory, section))
    return list(dict.fromkeys(found))


def _driver_option(factory: Any, driver: str, option: str) -> str:
    for node in _sections(factory, "Drivers"):
        if node.path().rsplit("/", 1)[-1] == driver:
            return node.param_optional_str(option, "")
    return ""


def _recorded(path: Path, name: str) -> Any:
    """What the file's drivers feed the model ``name``, called by them or from within the model they drive."""
    neml2 = _neml2()
    runs = []
    factory = neml2.load_input(path)
    for driver in _names(factory, "Drivers"):
        kind = _driver_option(factory, driver, "type")
        if kind == "ModelUnitTest":
            unit = functools.partial(neml2.ModelUnitTest.from_file, path, name=driver)
            runs.append((driver, lambda unit=unit: _unit_test(unit())))
        elif kind == "TransientDriver":
            runs.append((driver, functools.partial(_transient, factory, driver)))
    return driver_recording.record(runs, name)


def _unit_test(unit: Any) -> driver_recording.Drive:
    inputs = [unit.inputs[name] for name in unit.model.input_spec]
    return unit.model, lambda: unit.model(*inputs)


def _transient(factory: Any, driver: str) -> driver_recording.Drive:
    transient = factory.get_driver(driver)
    # The driver is run to listen to it; the file that it would save is not asked for.
    transient.save_as = ""
    if not built_for_this_torch():
        implicit_models.install(transient.model)
    return transient.model, transient.run


def _given_call(model: Any, given: Given, factory: Any) -> driver_recording.Call:
    values = ordered(given, list(model.input_spec))
    call = []
    for name, kind in model.input_spec.items():
        tensor = as_tensor(name, values[name], "float64")
        sub = factory.settings.sub_batch_ndim(name) or 0
        own = len(kind.BASE_SHAPE)
        if tuple(tensor.shape[tensor.ndim - own :]) != tuple(kind.BASE_SHAPE) or tensor.ndim < own:
            raise UsageError(
                f"input {name!r} has the wrong shape",
                got=str(list(tensor.shape)),
                expected=f"[*batch, {', '.join(map(str, kind.BASE_SHAPE))}] for a {kind.__name__}"
                if own
                else "[*batch]",
            )
        call.append(kind(tensor, sub_batch_ndim=sub))
    batches = {name: batch_layout.dynamic_batch(v) for name, v in zip(values, call, strict=True)}
    try:
        torch.broadcast_shapes(*batches.values())
    except RuntimeError:
        raise UsageError(
            "the batches of the given inputs do not broadcast",
            got=", ".join(f"{name!r}: {list(batch)}" for name, batch in batches.items()),
            expected="one batch for all (or 1, or none)",
        ) from None
    return tuple(call)
