"""The ``forward`` that a host calls: checks shapes, takes any number of batch dimensions, calls the trace.

A trace knows one number of dimensions, and gives wrong numbers without an error for another. The generated ``forward``
passes inputs with one batch dimension of one size on as they are; for any other batch it flattens the batch dimensions
to the traced one and restores them in the outputs, and it broadcasts batches that differ, as eager mode does. It is
TorchScript source, so it works with every loader. The trace is called at one place only: torch inlines every call, and
what it takes to optimise a graph grows with its operations."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment

from exporter.archive.method_names import METHOD
from exporter.archive.tensor_spec import Shape, TensorSpec

_TEMPLATE = """
{%- set given = inputs | map(attribute="given") | join(", ") -%}
{%- macro signature(name) -%}
def {{ name }}(self{% for x in inputs %}, {{ x.name }}: Tensor{% endfor %}) -> Tuple[{{ returns }}]:
{%- endmacro -%}
{%- macro refuse(x, i, expected) -%}
raise ValueError(
            "input {} ({}): got shape {}, expected {}".format(
                {{ i }}, {{ x.text }}, {{ x.name }}.shape, "{{ expected }}"
            )
        )
{%- endmacro -%}
{%- if batched %}
{%- if helper %}
def broadcast_batch(self, shapes: List[List[int]]) -> List[int]:
    batch: List[int] = []
    for shape in shapes:
        longer, shorter = batch, shape
        if len(batch) < len(shape):
            longer, shorter = shape, batch
        result = list(longer)
        lead = len(longer) - len(shorter)
        for i in range(len(shorter)):
            if result[lead + i] == 1:
                result[lead + i] = shorter[i]
            elif shorter[i] != 1 and shorter[i] != result[lead + i]:
                raise ValueError("the batch shapes {} and {} of the inputs do not broadcast".format(batch, shape))
        batch = result
    return batch
{% endif %}
{{ signature(name) }}
    batch: List[int] = []
    is_traced = {{ traced | join(" and ") }}
    if not is_traced:
{%- for x in inputs if x.ndim %}
        if {{ x.name }}.dim() < {{ x.ndim }} or {{ x.name }}.shape[{{ x.name }}.dim() - {{ x.ndim }}:] != {{ x.shape }}:
            {{ refuse(x, x.index, "[*batch, " ~ x.shape[1:-1] ~ "]") }}
{%- endfor %}
        batch = self.broadcast_batch([{% for x in inputs %}
            {{ x.name }}.shape[:{{ x.name }}.dim() - {{ x.ndim }}],{% endfor %}
        ])
        rows = 1
        for size in batch:
            rows *= size
{%- for x in inputs %}
        {{ x.name }} = {{ x.name }}.expand({{ x.whole }}).reshape({{ x.flat }})
{%- endfor %}
    outputs = self.{{ method }}({{ given }})
    if not is_traced:
        outputs = ({% for i in range(count) %}
            outputs[{{ i }}].reshape(batch + outputs[{{ i }}].shape[1:]),{% endfor %}
        )
    return outputs
{%- else %}
{{ signature(name) }}
{%- for x in inputs %}
    if {{ x.misfit }}:
        {{ refuse(x, x.index, x.shape | replace("'", "")) }}
{%- endfor %}
    return self.{{ method }}({{ given }})
{%- endif %}
"""


def emit_forward_source(
    inputs: Sequence[TensorSpec],
    outputs: int,
    batched: bool,
    contiguous: bool = False,
    name: str = "forward",
    inner: str = METHOD,
) -> str:
    """Return TorchScript source of ``forward`` (and its helper) for these inputs, for ``ScriptModule.define``.

    A method with another ``name`` calls another traced method, ``inner``, in the same way.

    ``contiguous`` is for models that work on contiguous inputs only (``view``): others are copied first."""
    names = make_argument_names([spec.name for spec in inputs])
    size_expressions: dict[str, str] = {}
    variables: list[dict[str, Any]] = [
        {
            "name": name,
            "text": _quote(spec.name),
            "given": name + (".contiguous()" if contiguous else ""),
            "index": i,
            "ndim": len(spec.shape),
            "dims": spec.shape,
            "shape": str(list(spec.shape)),
            "misfit": _format_shape_mismatch(name, spec.shape, size_expressions),
            # TorchScript has no literal for an empty list of integers.
            "whole": f"batch + {list(spec.shape)}" if spec.shape else "batch",
            "flat": str(["rows", *spec.shape]).replace("'", ""),
        }
        for i, (name, spec) in enumerate(zip(names, inputs, strict=True))
    ]
    # Plain comparisons of integers: building lists of shapes would cost more than the direct call saves.
    traced = [f"{v['name']}.dim() == {v['ndim'] + 1}" for v in variables]
    traced += [f"{v['name']}.size(0) == {names[0]}.size(0)" for v in variables[1:]]
    traced += [f"{v['name']}.size({i}) == {d}" for v in variables for i, d in enumerate(v["dims"], 1)]
    template = Environment(keep_trailing_newline=True).from_string(_TEMPLATE)
    values = {"inputs": variables, "traced": traced, "count": outputs, "returns": ", ".join(["Tensor"] * outputs)}
    return template.render(values, batched=batched, method=inner, name=name, helper=name == "forward")


def emit_method_source(name: str, arguments: Sequence[str], lines: Sequence[str], results: Sequence[str]) -> str:
    """Return TorchScript source of a method that takes tensors and returns a tuple of tensors."""
    signature = ", ".join(f"{a}: Tensor" for a in arguments)
    returns = ", ".join(["Tensor"] * len(results))
    body = "\n    ".join([*lines, f"return ({', '.join(results)},)"])
    return f"def {name}(self, {signature}) -> Tuple[{returns}]:\n    {body}\n"


def _format_shape_mismatch(name: str, shape: Shape, size_expressions: dict[str, str]) -> str:
    """Return the condition that a whole input has another shape.

    ``size_expressions`` maps each open size seen so far to its expression."""
    conditions = [f"{name}.dim() != {len(shape)}"]
    for dim, size in enumerate(shape):
        actual = f"{name}.size({dim})"
        expected = size_expressions.setdefault(size, actual) if isinstance(size, str) else str(size)
        conditions += [f"{actual} != {expected}"] if expected != actual else []
    return " or ".join(conditions)


def make_argument_names(names: Sequence[str]) -> list[str]:
    """Return unique Python identifiers for variable names, none a TorchScript word: ``a~1`` becomes ``a_1``."""
    reserved = {"self", "batch", "rows", "size", "outputs", "torch", "list", "len", "range", *keyword.kwlist}
    reserved |= {"print", "int", "float", "bool", "str", "Tensor"}
    result = []
    for name in names:
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        # The prefix ``tf_`` is reserved for methods that are written around the traced ones.
        base = f"x_{base}" if not re.match(r"(?!tf_)[A-Za-z]", base) else base
        unique, i = base, 2
        while unique in reserved:
            unique, i = f"{base}_{i}", i + 1
        reserved.add(unique)
        result.append(unique)
    return result


def _quote(name: str) -> str:
    plain = "".join(c if c.isprintable() and c not in '"\\{}' and c.isascii() else "?" for c in name)
    return f'"{plain}"'
