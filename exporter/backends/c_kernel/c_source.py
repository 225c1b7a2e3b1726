"""The C sources of a model: one function for each method, over batches with strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from exporter import __version__
from exporter.archive.contract import Contract, block_name
from exporter.archive.kernel_container import identifier, identifiers
from exporter.archive.tensor_spec import TensorSpec
from exporter.backends.c_kernel.c_expressions import HELPERS, MEMORY, TYPES, literal
from exporter.backends.c_kernel.c_writer import Writer
from exporter.backends.c_kernel.expression_graph import BOOL, F64, too_big
from exporter.backends.c_kernel.frame_layout import ARRAYS, LANES, TEMPLATES, Emitted, comment
from exporter.backends.c_kernel.lowering import Function, Lowered

SIZES = {"float64": 8, "float32": 4, "int64": 8, "int32": 4, "bool": 1}
# A frame that is larger is not put on the stack.
STACK = 2**18
# Of inputs and outputs of an element: the place of each is noted on the stack.
NUMBERS = 2**16
# Bytes of inputs and outputs that a processor has beside it; of more, blocks are sent for, so many before their
# turn: 0.6 to 0.8 of the time of an explicit model at 100,000 elements (0.57 of its Jacobian's).
NEAR, AHEAD = 2**23, 2
# More operations than this take a compiler minutes.
MOST = 100_000
FAILURES = {"nan": "NaN", "last": "those of its last iterate", "raise": "NaN"}


@dataclass(frozen=True)
class Source:
    """``files`` by name; ``operations`` and bytes of ``workspace`` by method; ``name`` begins every C name;
    ``parameters`` are the contract's, as they are in the file."""

    name: str
    files: Mapping[str, str]
    operations: Mapping[str, int]
    workspace: Mapping[str, int]
    parameters: Mapping[str, torch.Tensor]
    notes: tuple[str, ...]


def source(module: torch.jit.ScriptModule, contract: Contract, *, finite_math: bool = False) -> Source:
    """Raises ``UnsupportedError``, with model and line, for what has no form as a kernel."""
    lowered = Lowered(module, contract, finite_math=finite_math)
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    values = {p.name: held[p.name].detach().clone() for p in contract.parameters}
    # Derivatives may be made of ``forward``.
    order = sorted(contract.methods, key=lambda name: name != "forward")
    made = {name: lowered.method(name) for name in order}
    functions = {name: made[name] for name in contract.methods}
    return rendered(contract, functions, values)


def _emitted(function: Function, contract: Contract) -> Emitted:
    taken = {name: contract.taken(name) for name in function.inputs}
    made = Writer(function, {name: (s.dtype, prod(s.fixed)) for name, s in taken.items()}).written()
    if made.operations > MOST:
        got, expected = f"{made.operations} operations", f"at most {MOST}, which take a compiler some minutes"
        raise too_big(f"method {function.method!r}", got, expected)
    return made


def rendered(contract: Contract, functions: Mapping[str, Function], values: Mapping[str, torch.Tensor]) -> Source:
    """The sources of methods that are lowered; ``values`` are those of all parameters."""
    emitted = {name: _emitted(function, contract) for name, function in functions.items()}
    name = identifier(contract.name)
    order = list(values)
    methods = [_method(contract, functions[m], one, values) for m, one in emitted.items()]
    read = {place for m in methods for place in m["parameters"]}
    helpers = dict.fromkeys(h for one in emitted.values() for h in one.helpers)
    unrolled = sorted({n for one in emitted.values() for n in one.unrolled})
    given: dict[str, Any] = {
        "contract": contract,
        "version": __version__,
        "name": name,
        "upper": name.upper(),
        "guard": f"TORCHFERRY_{name.upper()}_H",
        "methods": methods,
        "lanes": LANES,
        "ahead": AHEAD,
        "held": any(m["held"] for m in methods),
        "holds": any(one.holds_environment for one in emitted.values()),
        "rank": max((len(v["shape"]) for m in methods for v in (*m["inputs"], *m["outputs"])), default=0),
        "loaded": sorted({v["kind"] for m in methods for v in m["inputs"] if v["count"]}),
        "stored": sorted({v["kind"] for m in methods for v in m["outputs"] if v["count"]}),
        "taken": sorted({(v["kind"], v["count"]) for m in methods for v in m["inputs"] if v["count"]}),
        "given": sorted({(v["kind"], v["count"]) for m in methods for v in m["outputs"] if v["count"]}),
        "wide": any(v["kind"] == F64 and v["count"] > 3 for m in methods for v in (*m["inputs"], *m["outputs"])),
        "types": TYPES,
        "memory": MEMORY,
        "helpers": [HELPERS[h] for h in helpers if h in HELPERS],
        "solve": TEMPLATES.get_template("solve.c.jinja").render(helpers=helpers, unrolled=unrolled),
        "solvers": contract.solvers,
        "failure": " or ".join(dict.fromkeys(FAILURES[s.on_failure] for s in contract.solvers)),
        "parameters": [
            {
                "identifier": identified,
                "said": comment(f"{p.name}, {_shape(p.shape)}{p.dtype}"),
                "kind": p.dtype,
                "read": place in read,
                "numbers": ", ".join(literal(v, p.dtype) for v in values[p.name].reshape(-1).tolist()),
            }
            for place, (p, identified) in enumerate(zip(contract.parameters, identifiers(order), strict=True))
        ],
    }
    files = {
        f"{name}.h": TEMPLATES.get_template("model.h.jinja").render(given),
        f"{name}_lanes.h": TEMPLATES.get_template("lanes.h.jinja").render(given),
        f"{name}.c": TEMPLATES.get_template("model.c.jinja").render(given),
    }
    notes = tuple(dict.fromkeys(note for f in functions.values() for note in f.notes))
    operations = {m: one.operations for m, one in emitted.items()}
    return Source(
        name,
        files,
        operations,
        {m["method"]: m["workspace"] for m in methods},
        values,
        notes,
    )


def _method(
    contract: Contract, function: Function, emitted: Emitted, values: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    order = list(values)
    spec = contract.methods[function.method]
    outputs = [o if isinstance(o, str) else block_name(*o) for o in spec.outputs]
    taken = [_variable(n, contract.taken(n), emitted.inputs[n]) for n in spec.inputs]
    given = [
        _variable(n, contract.returned(o), at) for n, o, at in zip(outputs, spec.outputs, emitted.outputs, strict=True)
    ]
    first = 0
    for group in (taken, given):
        for place, (v, one) in enumerate(zip(group, identifiers([v["name"] for v in group]), strict=True)):
            v["identifier"], v["first"], v["place"] = one, first, place
            first += v["count"]
    if first > NUMBERS:
        got = f"{first} numbers of inputs and outputs for each element"
        raise too_big(f"method {function.method!r}", got, f"at most {NUMBERS}")
    frame = LANES * _bytes(emitted.rows)
    size = frame + _bytes(emitted.same) + 8 * emitted.pointers
    return {
        "method": function.method,
        "inputs": taken,
        "outputs": given,
        "parameters": [order.index(p) for p in emitted.parameters],
        # Place among those, and bytes.
        "held": [(emitted.parameters.index(p), values[p].nbytes) for p in emitted.held],
        "workspace": size if size > STACK else 0,
        "frame": frame,
        "numbers": max(first, 1),
        "filled": first > 0,
        "near": NEAR // max(1, sum(v["size"] * v["count"] for v in (*taken, *given))),
        "emitted": emitted,
    }


def _bytes(counts: Mapping[str, int]) -> int:
    sizes = SIZES | {BOOL: 4}
    return sum(-(-sizes[kind] * count // 8) * 8 for kind, count in counts.items())


def _variable(name: str, spec: TensorSpec, slot: int) -> dict[str, Any]:
    return {
        "name": name,
        "said": comment(f"{name}, {_shape(spec.fixed)}{spec.dtype}"),
        "kind": spec.dtype,
        "size": SIZES[spec.dtype],
        "shape": list(spec.fixed),
        "count": prod(spec.fixed),
        "slot": slot,
        "array": ARRAYS[spec.dtype],
    }


def _shape(shape: Sequence[Any]) -> str:
    return f"{' x '.join(map(str, shape))} " if shape else ""
