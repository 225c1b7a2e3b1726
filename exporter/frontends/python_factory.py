"""Python factories: ``path/to/file.py:make_model`` or ``package.module:make_model``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Origin
from exporter.archive.input_files import Given, as_tensor, match_shapes, ordered
from exporter.archive.tensor_spec import Signature, TensorSpec
from exporter.common.errors import SourceError, TorchferryError, UsageError, first_line, near
from exporter.common.source_paths import STAND_IN, without_stand_in
from exporter.model.argument_binding import Bound, argument_names, required_names
from exporter.model.function_model import Function, takes_tensors
from exporter.model.source import Inputs, Source

# Set on a module of the user's: the digest of the text that was executed.
_EXECUTED = "__torchferry_sha256__"


def load(text: str, given: Given | None) -> Source:
    """The module that ``text`` names, in eval mode.

    Its variables come from ``module.signature`` (a ``Signature``); else from example tensors by name: ``--inputs``,
    ``module.example_inputs``, or a factory that returns ``(module, examples)``. Raises ``SourceError`` for a
    factory that is missing, not callable, raises, or returns no module.
    """
    place, _, attribute = text.rpartition(":")
    code = _import(place, text)
    made = _make(code, place, attribute, given is not None)
    return _with_examples(
        made,
        attribute,
        given,
        text,
        sha256=getattr(code, _EXECUTED, ""),
        refused=(without_stand_in(code.__name__.split(".")[0]),),
    )


def from_callable(value: Any, given: Given | None) -> Source:
    """A function of tensors, a factory or a class that is there already."""
    name = getattr(value, "__name__", type(value).__name__)
    where = f"{name!r}, which was given"
    return _with_examples(made_of(value, name, where, given is not None), name, given, where)


def _with_examples(
    made: Any, name: str, given: Given | None, where: str, *, sha256: str = "", refused: tuple[str, ...] = ()
) -> Source:
    examples: Any = None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping):
        made, examples = made
    if not isinstance(made, nn.Module):
        raise SourceError(
            "the factory returns no module",
            where=where,
            got=type(made).__name__,
            expected="a torch.nn.Module, or (module, {name: example tensor})",
            mend="for a function of tensors: @torchferry.declare({'x': ('n', 3)}, ...)",
        )
    examples = given if given is not None else examples
    return from_module(made, name, examples, where, sha256=sha256, refused=refused)


def from_module(
    made: nn.Module, name: str, given: Any, where: str, *, sha256: str = "", refused: tuple[str, ...] = ()
) -> Source:
    """A module that is there already, put into eval mode.

    ``refused`` are packages that the archive must do without; by default the one that defines the module's class.
    """
    package = getattr(made.forward if isinstance(made, Function) else type(made), "__module__", "").split(".")[0]
    if not refused and package not in ("", "__main__", "torch", *sys.stdlib_module_names):
        refused = (package,)
    # torch.compile wraps a module; what it wraps computes the same.
    module = getattr(made, "_orig_mod", made)
    if not isinstance(module, Function):
        # A function has its modules in the mode that it has set them to.
        module.eval()
    examples = given if given is not None else getattr(module, "example_inputs", None)
    signature, calls = _variables(module, examples, where)
    return Source(
        name=name,
        module=Bound(module, [spec.name for spec in signature.inputs], name),
        named=module,
        inputs=signature.inputs,
        outputs=signature.outputs,
        declares_outputs=bool(signature.outputs),
        batch_ndim=signature.batch_ndim if signature.inputs else 0,
        calls=calls,
        # The one that is in force once the user's file has been imported: it may set another.
        default_dtype=torch.get_default_dtype(),
        origin=Origin("python", "torch", torch.__version__, name, sha256, refused),
    )


def _is_free(name: str, path: Path) -> bool:
    """Whether the module of this name is the file's, or there is none."""
    loaded = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if loaded is None else None
    file = getattr(loaded, "__file__", None) if loaded is not None else spec.origin if spec else None
    return Path(file).resolve() == path.resolve() if file else loaded is None and spec is None


def _import(place: str, text: str) -> ModuleType:
    if place.endswith(".py") or "/" in place:
        path = Path(place)
        if not path.is_file():
            raise SourceError(
                "there is no such file",
                where=text,
                got="a folder" if path.is_dir() else "no file",
                expected="path/to/file.py:factory",
            )
        name = path.stem if path.stem.isidentifier() else "torchferry_source"
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        if not _is_free(name, path):
            # json.py or exporter.py must not take the place of what others import under that name. Named by its
            # content: archives have the names of compiled classes, and are the same from any folder.
            own, name = name, f"{STAND_IN}{sha256[:8]}_{name}"
            if not _is_free(name, path):
                name = f"{STAND_IN}{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}_{own}"
        loaded = sys.modules.get(name)
        if loaded is not None and getattr(loaded, _EXECUTED, sha256) == sha256:
            # As any import: a file runs once in a process, unless it was edited.
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
            raise _raises(f"importing {place}", text, error) from error
        return code
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        code = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise SourceError(
                "there is no such package or module",
                where=text,
                got=str(error),
                expected="package.module:factory, importable from here, or path/to/file.py:factory",
            ) from None
        raise _raises(f"importing {place}", text, error) from error
    except BaseException as error:
        raise _raises(f"importing {place}", text, error) from error
    file = Path(code.__file__ or "")
    setattr(code, _EXECUTED, hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "")
    return code


def _make(code: ModuleType, place: str, attribute: str, inputs_given: bool) -> Any:
    public = [n for n, v in vars(code).items() if not n.startswith("_") and callable(v)]
    if not hasattr(code, attribute):
        raise SourceError(
            f"there is no {attribute!r} in {place}",
            where=f"{place}:{attribute}",
            expected=near(attribute, public),
        )
    return made_of(getattr(code, attribute), attribute, f"{place}:{attribute}", inputs_given)


def made_of(value: Any, attribute: str, where: str, inputs_given: bool) -> Any:
    """A module as it is, a function of tensors as one, and what a factory or a class makes. Raises ``SourceError``."""
    if isinstance(value, nn.Module):
        return value
    if callable(value) and takes_tensors(value):
        return Function(value)
    if not callable(value):
        raise SourceError(
            f"{attribute!r} is not callable",
            where=where,
            got=type(value).__name__,
            expected="a function without required arguments, or an nn.Module",
        )
    try:
        required = [
            p.name
            for p in inspect.signature(value).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except ValueError:
        required = []
    if required and inputs_given and not isinstance(value, type):
        return Function(value)
    if required:
        raise SourceError(
            f"factory {attribute!r} needs arguments",
            where=where,
            got=", ".join(required),
            expected="a function without required arguments that makes a module, or a function of tensors that says "
            "what it takes",
            mend=f"write one that calls it: def make(): return {attribute}(...); or for a function of tensors: "
            f"@torchferry.declare({{{required[0]!r}: ('n', 3)}}, ...), or --inputs FILE",
        )
    try:
        return value()
    except BaseException as error:
        raise _raises(f"factory {attribute!r}", where, error) from error


def _raises(what: str, where: str, error: BaseException) -> SourceError:
    if isinstance(error, (KeyboardInterrupt, TorchferryError)):
        raise error
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != __file__ and "importlib" not in str(trace.tb_frame.f_code.co_filename):
            line = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        line = f"{error.filename}:{error.lineno}"
    return SourceError(f"{what} fails", where=line or where, got=first_line(error))


def _variables(module: nn.Module, values: Any, where: str) -> tuple[Signature, tuple[Inputs, ...]]:
    """The signature that the module declares, else the one that ``values`` by name give; and ``values`` as a call."""
    signature = getattr(module, "signature", None)
    if signature is not None:
        if not isinstance(signature, Signature):
            raise SourceError(
                "module.signature is not a Signature",
                where=where,
                got=type(signature).__name__,
                expected="torchferry.Signature.of({'x': (3,)}, {'y': ()})",
            )
        if values is None or not signature.inputs:
            return signature, ()
        return signature, (match_shapes(values, signature.inputs, signature.batch_ndim),)
    names = argument_names(module)
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
        raise SourceError("example_inputs is not a dict by name", where=where, got=type(values).__name__)
    if names:
        # Optional arguments without an example keep their default.
        required = set(required_names(module))
        values = ordered(values, [n for n in names if n in required or n in values])
    tensors = {name: _example(name, value, module) for name, value in values.items()}
    flat = [name for name, tensor in tensors.items() if tensor.ndim == 0]
    if flat:
        raise UsageError(
            f"example input {flat[0]!r} has no batch dimension",
            where=where,
            got="shape []",
            expected="shape [batch, ...]",
        )
    specs = tuple(TensorSpec(n, tuple(t.shape[1:]), str(t.dtype).removeprefix("torch.")) for n, t in tensors.items())
    return Signature(specs), (match_shapes(tensors, specs, 1),)


def _example(name: str, value: Any, module: nn.Module) -> torch.Tensor:
    """A tensor or array as it is; nested lists (JSON) in the dtype of the module's parameters, else float64."""
    if isinstance(value, torch.Tensor):
        return value
    if hasattr(value, "__array__"):
        return torch.as_tensor(value)
    floating = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    return as_tensor(name, value, str(next(floating, torch.float64)).removeprefix("torch."))
