"""Resolution of the user's text: which frontend it is for, and which models it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exporter.archive.input_files import InputValues
from exporter.common.errors import UsageError
from exporter.frontends import python_factory
from exporter.frontends.model_request import ModelRequest
from exporter.frontends.neml2 import input_file
from exporter.model.implicit.coordinate_descent import CompileDescent
from exporter.model.source import Source


def is_python(request: ModelRequest) -> bool:
    """Return whether a Python factory is asked for. Raises ``UsageError`` if it is, with what only input files have.

    ``file.py:factory`` and ``package.module:factory`` are Python; everything else is a path to an input file."""
    place, colon, attribute = request.text.rpartition(":")
    is_factory = bool(colon and place and attribute.isidentifier()) and not Path(request.text).exists()
    if is_factory:
        check_no_file_options(request)
    return is_factory


def check_no_file_options(request: ModelRequest) -> None:
    """Raise ``UsageError`` if something is asked for that only an input file has."""
    if request.file_options:
        what, got = "overrides, extensions, drivers and a dtype are for input files", ", ".join(request.file_options)
        raise UsageError(what, where=request.text, got=got, expected="a NEML2 input file (model.i)")


def choose_models(request: ModelRequest, models: Sequence[str]) -> list[str]:
    """Return the models to export, those of the drivers, too; with none named, the only one.

    Raises ``UsageError`` where several exist."""
    text = request.text
    if is_python(request):
        if models:
            what, got = "--model is for input files that hold several models", f"--model {models[0]} with {text}"
            raise UsageError(what, got=got, mend=f"name the factory instead: {text.rpartition(':')[0]}:{models[0]}")
        return [text.rpartition(":")[2]]
    if text.endswith(".py"):
        expected = f"the factory's name too: {text}:make_model"
        raise UsageError("a Python file needs the name of a factory", got=text, expected=expected)
    names = input_file.list_model_names(request)
    if models or request.drivers:
        for name in models:
            input_file.check_known_model(name, names, text)
        return list(dict.fromkeys((*models, *(input_file.list_driver_models(request) if request.drivers else ()))))
    if len(names) > 1:
        expected = "--model NAME, with one or more of: " + ", ".join(names)
        raise UsageError("the input file holds several models", where=text, got="no --model", expected=expected)
    return names


def load(
    request: ModelRequest, model: str, inputs: InputValues | None, compile_descent: CompileDescent | None = None
) -> Source:
    """Load one model from a Python factory or a NEML2 input file.

    ``compile_descent`` compiles loops of predictors, for a driver whose history is recorded."""
    if is_python(request):
        return python_factory.load(request.text, inputs)
    return input_file.load(request, model, inputs, compile_descent)
