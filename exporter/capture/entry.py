"""The ``forward`` that a host calls: checks shapes, takes any number of batch dimensions, calls the trace.

A trace knows one number of dimensions, and with another it gives wrong numbers without a word. The generated
``forward`` flattens the batch dimensions to the one that was traced and restores them in the outputs; inputs
whose batches differ are broadcast, as eager mode does. It is TorchScript source, so every loader has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jinja2 import Environment

from exporter.capture.boxes import METHOD
from exporter.contract import TensorSpec

_TEMPLATE = """
{%- set args = inputs | map(attribute="name") | join(", ") -%}
{%- if batched %}
def torchferry_broadcast(self, a: List[int], b: List[int]) -> List[int]:
    longer, shorter = a, b
    if len(a) < len(b):
        longer, shorter = b, a
    batch = list(longer)
    lead = len(longer) - len(shorter)
    for i in range(len(shorter)):
        if batch[lead + i] == 1:
            batch[lead + i] = shorter[i]
        elif shorter[i] != 1 and shorter[i] != batch[lead + i]:
            raise ValueError("the batch shapes {} and {} of the inputs do not broadcast".format(a, b))
    return batch
{% endif %}
def forward(self{% for x in inputs %}, {{ x.name }}: Tensor{% endfor %}) -> Tuple[{{ returns }}]:
{%- if batched %}
    if ({% for x in inputs %}{{ x.name }}.dim() == {{ x.ndim + 1 }} and {% endfor -%}
        {% for x in inputs if x.ndim %}{{ x.name }}.shape[1:] == {{ x.shape }} and {% endfor -%}
        {% for x in inputs[1:] %}{{ x.name }}.size(0) == {{ inputs[0].name }}.size(0) and {% endfor %}True):
        return self.{{ method }}({{ args }})
{%- for x in inputs %}
{%- if x.ndim %}
    if {{ x.name }}.dim() < {{ x.ndim }} or {{ x.name }}.shape[{{ x.name }}.dim() - {{ x.ndim }}:] != {{ x.shape }}:
        raise ValueError("input {} ({}): got shape {}, expected {}".format({{ loop.index0 }}, {{ x.text }}, {{ x.name }}.shape, "[*batch, {{ x.shape[1:-1] }}]"))
{%- endif %}
{%- endfor %}
    batch: List[int] = []
{%- for x in inputs %}
    batch = self.torchferry_broadcast(batch, {{ x.name }}.shape[:{{ x.name }}.dim() - {{ x.ndim }}])
{%- endfor %}
    rows = 1
    for size in batch:
        rows *= size
    outputs = self.{{ method }}({% for x in inputs %}
        {{ x.name }}.expand({{ x.whole }}).reshape({{ x.flat }}),{% endfor %}
    )
    return ({% for i in range(count) %}
        outputs[{{ i }}].reshape(batch + outputs[{{ i }}].shape[1:]),{% endfor %}
    )
{%- else %}
{%- for x in inputs %}
    if {% if x.ndim %}{{ x.name }}.shape != {{ x.shape }}{% else %}{{ x.name }}.dim() != 0{% endif %}:
        raise ValueError("input {} ({}): got shape {}, expected {}".format({{ loop.index0 }}, {{ x.text }}, {{ x.name }}.shape, "{{ x.shape }}"))
{%- endfor %}
    return self.{{ method }}({{ args }})
{%- endif %}
"""


def forward_source(inputs: Sequence[TensorSpec], outputs: int, batched: bool) -> str:
    """TorchScript source of ``forward`` (and its helper) for these inputs, as ``ScriptModule.define`` takes it."""
    names = argument_names([spec.name for spec in inputs])
    variables = [
        {
            "name": name,
            "text": _literal(spec.name),
            "ndim": len(spec.shape),
            "shape": str(list(spec.shape)),
            # TorchScript has no literal for an empty list of integers.
            "whole": f"batch + {list(spec.shape)}" if spec.shape else "batch",
            "flat": str(["rows", *spec.shape]).replace("'", ""),
        }
        for name, spec in zip(names, inputs, strict=True)
    ]
    template = Environment(keep_trailing_newline=True).from_string(_TEMPLATE)
    return template.render(
        inputs=variables,
        count=outputs,
        returns=", ".join(["Tensor"] * outputs),
        batched=batched,
        method=METHOD,
    )


def argument_names(names: Sequence[str]) -> list[str]:
    """Python identifiers for variable names: ``a~1`` becomes ``a_1``; unique, and no TorchScript word."""
    taken = {"self", "batch", "rows", "size", "outputs", "torch", "list", "len", "range"}
    result = []
    for name in names:
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        base = f"x_{base}" if not re.match(r"[A-Za-z]", base) else base
        unique, i = base, 2
        while unique in taken or _is_word(unique):
            unique, i = f"{base}_{i}", i + 1
        taken.add(unique)
        result.append(unique)
    return result


def _is_word(name: str) -> bool:
    import keyword

    return keyword.iskeyword(name) or name in ("print", "int", "float", "bool", "str", "Tensor")


def _literal(name: str) -> str:
    plain = "".join(c if c.isprintable() and c not in "\"\\{}" and c.isascii() else "?" for c in name)
    return f'"{plain}"'
