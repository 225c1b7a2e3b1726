"""Python factories: ``path/to/file.py:make_model`` or ``package.module:make_model``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from exporter.archive.contract import Finding, Origin
from exporter.archive.format_limits import MAX_TEXT
from exporter.archive.input_files import InputValues, align_inputs, order_inputs, to_tensor
from exporter.archive.tensor_spec import Signature, infer_spec, name_dtype
from exporter.archive.value_structure import Structure, StructureNode
from exporter.common.errors import SourceError, TorchferryError, UsageError, suggest_names, summarize_error
from exporter.common.source_paths import STAND_IN, strip_stand_in
from exporter.frontends import source_files
from exporter.frontends.compiled_parts import replace_compiled_parts
from exporter.model.argument_binding import (
    BoundForward,
    call_by_names,
    list_argument_names,
    list_positional_names,
    list_required_names,
    list_variadic_names,
)
from exporter.model.argument_structures import CHECK as ARGUMENTS
from exporter.model.argument_structures import ArgumentStructures
from exporter.model.eager.batch_choice import make_whole_shapes_finding
from exporter.model.function_model import FunctionModule, takes_tensors
from exporter.model.source import Inputs, Source

# Attribute of one of the user's modules: the digest of the text that was executed.
_EXECUTED = "__torchferry_sha256__"


def load(text: str, inputs: InputValues | None) -> Source:
    """Load the module that ``text`` names, in eval mode.

    Its variables come from ``module.signature`` (a ``Signature``); else from example tensors by name: ``--inputs``,
    ``module.example_inputs``, or a factory that returns ``(module, examples)``. Raises ``SourceError`` for a
    factory that is missing, not callable, raises, or returns no module."""
    place, _, attribute = text.rpartition(":")
    code = import_code(place, text)
    model = _make_from_code(code, place, attribute, inputs is not None)
    return _source_from_result(model, attribute, inputs, text, code)


def source_from_callable(value: Any, inputs: InputValues | None) -> Source:
    """Build a source from a function of tensors, a factory or a class."""
    name = getattr(value, "__name__", type(value).__name__)
    where = f"the given {name!r}"
    return _source_from_result(make_module(value, name, where, inputs is not None), name, inputs, where)


def _source_from_result(
    model: Any, name: str, inputs: InputValues | None, where: str, code: ModuleType | None = None
) -> Source:
    examples: Any = None
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[1], Mapping):
        model, examples = model
    if not isinstance(model, nn.Module):
        raise SourceError(
            "the factory returns no module",
            where=where,
            got=type(model).__name__,
            expected="a torch.nn.Module, or (module, {name: example tensor})",
            mend="for a function of tensors: @torchferry.declare({'x': ('n', 3)}, ...)",
        )
    examples = inputs if inputs is not None else examples
    return source_from_module(model, name, examples, where, code)


def source_from_module(model: nn.Module, name: str, inputs: Any, where: str, code: ModuleType | None = None) -> Source:
    """Build a source from a module, and put the module into eval mode.

    ``code`` is what made it, by default what defines its class: the archive must do without its package."""
    definer = model.forward if isinstance(model, FunctionModule) else type(model)
    module_name = code.__name__ if code is not None else getattr(definer, "__module__", "")
    sha256 = getattr(code, _EXECUTED, "")
    code = code or sys.modules.get(module_name)
    revision, digests = source_files.describe_files(source_files.list_module_files(code) if code is not None else [])
    # torch.compile wraps a module; the wrapped one computes the same.
    module = getattr(model, "_orig_mod", model)
    examples = inputs if inputs is not None else getattr(module, "example_inputs", None)
    origin = Origin(
        "python", "torch", str(torch.__version__), name, sha256, list_refused(module_name), revision, digests
    )
    return build_source(module, name, examples, where, origin)


def build_source(module: nn.Module, name: str, examples: Any, where: str, origin: Origin) -> Source:
    """Build the source of a module, and put it into eval mode; its variables are declared, or those of ``examples``."""
    own, module = module, replace_compiled_parts(module, where)
    if not isinstance(module, FunctionModule):
        # A function chooses the mode of its modules itself.
        module.eval()
    _check_parameters(module, where)
    variables = _resolve_variables(module, examples, where)
    signature = variables.signature
    arguments, positional = _describe_arguments(module, variables)
    return Source(
        name=name,
        module=variables.bind(module, name),
        parameter_module=module,
        own_module=variables.bind(own, name) if own is not module else None,
        inputs=signature.inputs,
        outputs=signature.outputs,
        declares_outputs=bool(signature.outputs),
        batch_ndim=signature.batch_ndim if signature.inputs else 0,
        calls=variables.calls,
        whole_call=variables.whole_call,
        findings=variables.findings,
        metadata=signature.metadata,
        arguments=arguments,
        positional=positional,
        # The default dtype after the import of the user's file, which may set another.
        default_dtype=torch.get_default_dtype(),
        origin=origin,
    )


def _describe_arguments(module: nn.Module, variables: _Variables) -> tuple[Structure, int]:
    """Return the structure of the arguments of the user's own call, and how many may be given by position; nothing
    where they are the variables, in order."""
    names = [spec.name for spec in variables.signature.inputs]
    accepted = list_argument_names(module)
    if variables.structures is not None:
        structure = variables.structures.describe()
    elif (known := {*names}) <= {*accepted}:
        own_order = tuple(name for name in accepted if name in known)
        structure = (StructureNode("dict", keys=own_order), *(StructureNode("variable", name) for name in own_order))
    else:
        # They go to the arguments by position.
        return (), 0
    own_names = [*structure[0].keys] if structure else []
    pairs = zip(own_names, list_positional_names(module), strict=False)
    positional = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    is_plain = variables.structures is None and own_names == names and positional == len(names)
    return ((), 0) if is_plain else (structure, positional)


def _check_parameters(module: nn.Module, where: str) -> None:
    """Raise ``SourceError`` for a parameter that has several elements in one place of memory: it cannot be set."""
    for name, parameter in module.named_parameters():
        # One that is lazy has no shape yet; the first call reports it.
        if (
            not is_lazy(parameter)
            and parameter.layout == torch.strided
            and any(size > 1 and stride == 0 for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
        ):
            raise SourceError(
                f"parameter {name!r} is an expanded view: several of its elements are one number",
                where=where,
                got=f"shape {list(parameter.shape)}, strides {list(parameter.stride())}",
                expected="a number for each element",
                mend="torch.nn.Parameter(value.clone()), or a parameter of the smaller shape that forward expands",
            )


def list_refused(module_name: str) -> tuple[str, ...]:
    """Return the package of a user's module, which an archive must do without; of torch and Python nothing."""
    package = strip_stand_in(module_name.split(".", maxsplit=1)[0])
    return () if package in ("", "__main__", "torch", *sys.stdlib_module_names) else (package,)


def _is_free(name: str, path: Path) -> bool:
    """Return whether the module of this name is the file's, or there is none."""
    loaded = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if loaded is None else None
    file = getattr(loaded, "__file__", None) if loaded is not None else spec.origin if spec else None
    return Path(file).resolve() == path.resolve() if file else loaded is None and spec is None


def import_code(place: str, text: str) -> ModuleType:
    """Import a Python file, by its path, or a module; once in a process, unless the file was edited.

    ``text`` is what the user asked for, for errors. Raises ``SourceError`` if it does not exist, or fails."""
    if place.endswith(".py") or "/" in place:
        path = Path(place)
        if not path.is_file():
            got, expected = "a folder" if path.is_dir() else "no file", "path/to/file.py:factory"
            raise SourceError("there is no such file", where=text, got=got, expected=expected)
        name = path.stem if path.stem.isidentifier() else "torchferry_source"
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        if not _is_free(name, path):
            # json.py or exporter.py must not replace the module that others import under that name. Named by its
            # content: archives have the names of compiled classes, and are the same from any folder.
            original_name, name = name, f"{STAND_IN}{sha256[:8]}_{name}"
            if not _is_free(name, path):
                name = f"{STAND_IN}{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}_{original_name}"
        loaded = sys.modules.get(name)
        if loaded is not None and getattr(loaded, _EXECUTED, sha256) == sha256:
            # As with any import, a file runs once in a process, unless it was edited.
            setattr(loaded, _EXECUTED, sha256)
            return loaded
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        code = importlib.util.module_from_spec(spec)
        # A file may import its neighbours, as when it is run itself; last, so that they shadow nothing.
        folder = str(path.parent.resolve())
        if folder not in sys.path:
            sys.path.append(folder)
        sys.modules[name] = code
        setattr(code, _EXECUTED, sha256)
        try:
            spec.loader.exec_module(code)
        except BaseException as error:
            del sys.modules[name]
            raise _make_error(f"importing {place}", text, error) from error
        return code
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        code = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            what = "this package or module does not exist"
            expected = "package.module:factory, importable from here, or path/to/file.py:factory"
            raise SourceError(what, where=text, got=str(error), expected=expected) from None
        raise _make_error(f"importing {place}", text, error) from error
    except BaseException as error:
        raise _make_error(f"importing {place}", text, error) from error
    file = Path(code.__file__ or "")
    setattr(code, _EXECUTED, hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "")
    return code


def _make_from_code(code: ModuleType, place: str, attribute: str, inputs_given: bool) -> Any:
    public = [n for n, v in vars(code).items() if not n.startswith("_") and callable(v)]
    if not hasattr(code, attribute):
        what, where = f"there is no {attribute!r} in {place}", f"{place}:{attribute}"
        raise SourceError(what, where=where, expected=suggest_names(attribute, public))
    return make_module(getattr(code, attribute), attribute, f"{place}:{attribute}", inputs_given)


def make_module(value: Any, attribute: str, where: str, inputs_given: bool) -> Any:
    """Return a module as it is, a function as a module, or a factory's module. Raises ``SourceError``."""
    if isinstance(value, nn.Module):
        return value
    if callable(value) and takes_tensors(value):
        return FunctionModule(value)
    if not callable(value):
        got, expected = type(value).__name__, "a function without required arguments, or an nn.Module"
        raise SourceError(f"{attribute!r} is not callable", where=where, got=got, expected=expected)
    try:
        needed = [p for p in inspect.signature(value).parameters.values() if p.default is p.empty]
        required = [p.name for p in needed if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    except ValueError:
        required = []
    if required and inputs_given and not isinstance(value, type):
        return FunctionModule(value)
    if required:
        raise SourceError(
            f"factory {attribute!r} needs arguments",
            where=where,
            got=", ".join(required),
            expected="a function without required arguments that makes a module, or a function of tensors with "
            "declared inputs",
            mend=f"write one that calls it: def make(): return {attribute}(...); or for a function of tensors: "
            f"@torchferry.declare({{{required[0]!r}: ('n', 3)}}, ...), or --inputs FILE",
        )
    try:
        return value()
    except BaseException as error:
        raise _make_error(f"factory {attribute!r}", where, error) from error


def _make_error(what: str, where: str, error: BaseException) -> SourceError:
    if isinstance(error, (KeyboardInterrupt, TorchferryError)):
        raise error
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != __file__ and "importlib" not in str(trace.tb_frame.f_code.co_filename):
            line = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        line = f"{error.filename}:{error.lineno}"
    mend = "run it in Python alone first; the line above is where it fails"
    return SourceError(f"{what} fails", where=line or where, got=summarize_error(error), mend=mend)


@dataclass(frozen=True)
class _Variables:
    """A signature, declared or inferred; the example inputs as calls; ``whole_call`` and ``findings`` of ``Source``;
    the ``structures`` of arguments that hold several variables."""

    signature: Signature
    calls: tuple[Inputs, ...] = ()
    whole_call: Inputs = ()
    findings: tuple[Finding, ...] = ()
    structures: ArgumentStructures | None = None

    def bind(self, module: nn.Module, name: str) -> Callable[..., Any]:
        """Return the function of the variables that calls the module."""
        structures = self.structures
        if structures is None:
            return BoundForward(module, [spec.name for spec in self.signature.inputs], name)
        # A name of *args or **kwargs stands for a tuple or a dict.
        if not set(structures.arguments) & set(list_variadic_names(module)):
            return structures.bind(BoundForward(module, structures.arguments, name))
        return structures.bind(lambda *values: call_by_names(module, structures.arguments, values))


def _resolve_variables(module: nn.Module, values: Any, where: str) -> _Variables:
    """Return the declared signature, else one inferred from ``values`` by name; and ``values`` as a call."""
    signature = getattr(module, "signature", None)
    if signature is not None:
        if not isinstance(signature, Signature):
            got, expected = type(signature).__name__, "torchferry.Signature.of({'x': (3,)}, {'y': ()})"
            raise SourceError("module.signature is not a Signature", where=where, got=got, expected=expected)
        if values is None or not signature.inputs:
            return _Variables(signature)
        return _Variables(signature, (align_inputs(values, signature.inputs, signature.batch_ndim),))
    names = list_argument_names(module)
    if values is None:
        raise SourceError(
            "the names, shapes and dtypes of the model's inputs are not known",
            where=where,
            got="no signature, no example_inputs, no --inputs",
            expected=f"example tensors by name for forward({', '.join(names) or '*args'})",
            mend="pass --inputs FILE, set module.example_inputs = {name: tensor with a batch}, "
            "or declare module.signature = torchferry.Signature.of({name: shape}, {name: shape})",
        )
    if not isinstance(values, Mapping):
        what, expected = "example_inputs is not a dict of tensors by name", "{'x': torch.rand(5, 3), ...}"
        raise SourceError(what, where=where, got=type(values).__name__, expected=expected)
    if names:
        # Optional arguments without an example keep their default.
        required = set(list_required_names(module))
        accepted = (*names, *list_variadic_names(module))
        mend = "name the examples like the arguments of forward, or declare other names with a signature"
        values = order_inputs(values, [n for n in accepted if n in required or n in values], mend)
    structures = ArgumentStructures(values, where)
    fixed = tuple(
        Finding(ARGUMENTS, f"{place!r} is fixed", reason=f"it is {value!r}, and no tensor"[:MAX_TEXT])
        for place, value in structures.fixed.items()
    )
    tensors = {name: _to_example_tensor(name, value, module) for name, value in structures.tensors.items()}
    kept = None if structures.is_flat else structures
    if reason := _explain_whole_shapes(tensors):
        specs = tuple(infer_spec(name, tensor) for name, tensor in tensors.items())
        findings = (*fixed, make_whole_shapes_finding(reason))
        return _Variables(Signature(specs, batch_ndim=0), (tuple(tensors.values()),), (), findings, kept)
    if empty := [name for name, tensor in tensors.items() if not tensor.shape[0]]:
        what, expected = (
            f"example input {empty[0]!r} has no rows",
            "at least one row, with values the model is made for",
        )
        mend = "give examples of some size: inputs of size 0 are checked by themselves"
        raise UsageError(what, where=where, got=f"shape {list(tensors[empty[0]].shape)}", expected=expected, mend=mend)
    specs = tuple(infer_spec(name, tensor, 1) for name, tensor in tensors.items())
    calls = (align_inputs(tensors, specs, 1),) if specs else ()
    return _Variables(Signature(specs), calls, tuple(tensors.values()), fixed, kept)


def _explain_whole_shapes(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return why example inputs have no batch; empty if they share a leading size, or have 1 there."""
    for name, tensor in tensors.items():
        if tensor.ndim == 0:
            return f"example input {name!r} has shape []"
    if len({tensor.shape[0] for tensor in tensors.values()} - {1}) > 1:
        sizes = ", ".join(f"{name!r}: {tensor.shape[0]}" for name, tensor in tensors.items())
        return f"example inputs have different leading sizes: {sizes}"
    return ""


def _to_example_tensor(name: str, value: Any, module: nn.Module) -> torch.Tensor:
    """Return a tensor or array as it is; nested lists (JSON) in the dtype of the module's parameters, else float64."""
    if isinstance(value, torch.Tensor):
        return value
    if hasattr(value, "__array__"):
        try:
            return torch.as_tensor(value)
        except TypeError as error:
            what, expected = f"input {name!r} is not an array of numbers", "a tensor, or an array of numbers"
            raise UsageError(what, got=summarize_error(error), expected=expected) from None
    floating = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    return to_tensor(name, value, name_dtype(next(floating, torch.float64)))
