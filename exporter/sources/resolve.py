"""From what the user typed to sources: which kind it is, which models it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exporter.errors import UsageError
from exporter.given import Given
from exporter.sources import neml2, python
from exporter.sources.source import Source


def is_python(text: str) -> bool:
    """``file.py:factory`` and ``package.module:factory`` are Python; everything else is a path to an input file."""
    place, colon, attribute = text.rpartition(":")
    return bool(colon and place and attribute.isidentifier()) and not Path(text).exists()


def chosen_models(text: str, models: Sequence[str]) -> list[str]:
    """The models to export; with none named, the only one there is. Raises ``UsageError`` where several exist."""
    if is_python(text):
        if models:
            raise UsageError(
                "--model is for input files that hold several models",
                got=f"--model {models[0]} with {text}",
                mend=f"name the factory instead: {text.rpartition(':')[0]}:{models[0]}",
            )
        return [text.rpartition(":")[2]]
    if text.endswith(".py"):
        raise UsageError(
            "a Python file holds several things", got=text, expected=f"the factory's name too: {text}:make_model"
        )
    names = neml2.model_names(Path(text))
    if models:
        for name in models:
            neml2.refuse_unknown(name, names, text)
        return list(dict.fromkeys(models))
    if len(names) > 1:
        raise UsageError(
            "the input file holds several models",
            where=text,
            got="no --model",
            expected="--model NAME, with one or more of: " + ", ".join(names),
        )
    return names


def load(text: str, model: str, given: Given | None) -> Source:
    return python.load(text, given) if is_python(text) else neml2.load(Path(text), model, given)
