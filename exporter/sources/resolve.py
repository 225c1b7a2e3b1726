"""From what the user typed to sources: which kind it is, which models it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exporter.contract import TensorSpec
from exporter.errors import UsageError
from exporter.given import Given
from exporter.sources import neml2, python
from exporter.sources.source import Listing, Source


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
    names = neml2.model_names(Path(text))
    if models:
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


def listings(text: str, models: Sequence[str]) -> list[Listing]:
    """Name, inputs and outputs of the chosen models (of all, for an input file with none chosen)."""
    if not is_python(text):
        names = models or neml2.model_names(Path(text))
        return [neml2.listing(Path(text), name) for name in names]
    chosen_models(text, models)
    source = python.load(text, None)
    outputs = source.outputs or _outputs_by_running(source)
    parameters = {n: tuple(p.shape) for n, p in source.named.named_parameters()}
    return [Listing(source.name, type(source.module).__name__, source.inputs, outputs, parameters)]


def _outputs_by_running(source: Source) -> tuple[TensorSpec, ...]:
    from exporter.warmup import warm_up

    return warm_up(source, seed=0).output_specs
