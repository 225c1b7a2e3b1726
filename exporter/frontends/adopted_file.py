"""Files of others: TorchScript, and programs of ``torch.export``, from whatever source."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exporter.archive import pt_archive
from exporter.archive.container_kinds import CODE, GRAPHS, PROGRAMS, list_kinds
from exporter.archive.contract import Finding, Origin
from exporter.archive.input_files import InputValues
from exporter.common.errors import (
    ArchiveError,
    SourceError,
    TrustError,
    UsageError,
    summarize_error,
)
from exporter.common.file_digest import compute_file_digest
from exporter.frontends.compiled_parts import wrap_checked
from exporter.frontends.model_request import AdoptedFile
from exporter.frontends.python_factory import build_source
from exporter.graph.loading import load_module
from exporter.model.compiled_model import list_arguments
from exporter.model.source import Source

# Kinds of origins.
SCRIPT, PROGRAM = "torchscript", "torch.export"


def load(file: AdoptedFile, inputs: InputValues | None) -> Source:
    """Load a file that torchferry did not write, in eval mode; none of its graphs runs yet.

    Its variables are the arguments of its ``forward``, in the shapes of ``inputs``, or of the examples that a program
    holds. Raises ``ArchiveError`` for a file that is neither TorchScript nor a program, or calls what does not only
    compute; ``UsageError`` for one that has a contract already; ``TrustError`` for a program that is not trusted;
    ``SourceError`` for TorchScript without ``forward``, ``UnsoundError`` where it changes its own attributes."""
    kind = _find_kind(file.path)
    digest = compute_file_digest(file.path)
    name = "".join(c if c.isalnum() else "_" for c in file.path.stem)
    origin = Origin(kind, "torch", str(torch.__version__), name, digest, files={file.path.name: digest})
    if kind == PROGRAM:
        model, examples = _load_program(file)
        values = inputs if inputs is not None else examples
        return build_source(model, name, values, f"the program {file.path}", origin)
    compiled = load_module(file.path)
    findings = _find_train_mode(compiled)
    model = wrap_checked(compiled, str(file.path))
    arguments = ", ".join(f"{a.name}: {a.type.annotation_str}" for a in list_arguments(compiled))
    where = f"forward({arguments}) of {file.path}"
    if inputs is None and arguments:
        what, expected = "the shapes of the file's inputs are not known", "example tensors by name of its arguments"
        raise SourceError(what, where=where, got="no inputs", expected=expected, mend="pass them: --inputs FILE")
    source = build_source(model, name, inputs, where, origin)
    return dataclasses.replace(source, findings=(*source.findings, *findings))


def _find_kind(path: Path) -> str:
    """Return what a file holds. Raises ``UsageError`` for one of torchferry's, ``ArchiveError`` for one that is no file
    of torch, or holds no graphs."""
    expected = "TorchScript, or a program of torch.export"
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no file"
        raise ArchiveError("there is no such file", where=str(path), got=got, expected=expected)
    records = pt_archive.list_records(path)
    if f"extra/{pt_archive.CONTRACT}" in records:
        what, got = "the file has a contract already", f"the record extra/{pt_archive.CONTRACT}"
        mend = "torchferry verify, inspect or convert take it as it is"
        raise UsageError(what, where=str(path), got=got, expected="a file of another origin", mend=mend)
    kinds = list_kinds(records)
    if kinds == [PROGRAMS]:
        return PROGRAM
    # torch.save has the records of TorchScript but this one.
    if kinds == [GRAPHS] and "constants.pkl" in records:
        return SCRIPT
    got = {CODE: "machine code", GRAPHS: "tensors or pickled objects"}.get("".join(kinds), "other records")
    mend = "save the module as TorchScript: torch.jit.script(module).save(...), or torch.jit.trace"
    raise ArchiveError("the file holds no graphs", where=str(path), got=got, expected=expected, mend=mend)


def _load_program(file: AdoptedFile) -> tuple[nn.Module, Mapping[str, Any] | None]:
    """Return the module of a program, and the examples that it holds by name of its arguments."""
    if not file.is_trusted:
        what, got = "a program of torch.export may run code of its own while it is read", "pickles of Python objects"
        mend = "--allow-native (allow_native=True in Python), if you trust who made it; TorchScript needs no trust"
        raise TrustError(what, where=str(file.path), got=got, expected="a file that you trust", mend=mend)
    try:
        program = torch.export.load(file.path)
        module = program.module()
    except Exception as error:
        what, expected = "the program does not load", "a program of torch.export, as torch.export.save writes it"
        raise ArchiveError(what, where=str(file.path), got=summarize_error(error), expected=expected) from error
    # torch forbids to change a program's mode, which is a part of its graph.
    module.__dict__.pop("eval", None)
    module.__dict__.pop("train", None)
    assert program.call_spec.in_spec is not None
    positional, named = program.call_spec.in_spec.children()
    parameters = list(inspect.signature(module.forward).parameters.values())
    for i, parameter in enumerate(parameters):
        kind = (
            inspect.Parameter.POSITIONAL_OR_KEYWORD if i < positional.num_children else inspect.Parameter.KEYWORD_ONLY
        )
        parameters[i] = parameter.replace(kind=kind)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # The class is this module's alone. torch's own signature does not say what is a keyword.
    type(module).forward.__signature__ = inspect.Signature([own, *parameters])
    if program.example_inputs is None:
        return module, None
    values, keywords = program.example_inputs
    assert list(named.context) == list(keywords)
    return module, {**dict(zip([p.name for p in parameters], values, strict=False)), **keywords}


def _find_train_mode(compiled: torch.jit.ScriptModule) -> tuple[Finding, ...]:
    """Return a finding for a file that was saved in train mode."""
    training = [
        p or "the model itself" for p, module in compiled.named_modules() if getattr(module, "training", False) is True
    ]
    if not training:
        return ()
    what, reason = "the file was saved in train mode", "it is adopted in eval mode: its modules were told so"
    return (Finding("train mode", what, where=", ".join(training[:5]), reason=reason),)
