"""C sources of a model: one function for each method, over batches with strides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from exporter import __version__
from exporter.archive.contract import Contract
from exporter.archive.metadata import format_texts
from exporter.archive.tensor_spec import TensorSpec
from exporter.backends.backend import KernelOptions
from exporter.backends.c_kernel.c_expressions import HELPERS, MEMORY, TYPES, format_literal
from exporter.backends.c_kernel.cuda_source import render_cuda_sources
from exporter.backends.c_kernel.expression_graph import F64, too_big_error
from exporter.backends.c_kernel.frame_layout import ARRAYS, LANES, SIZES, TEMPLATES, LoopCode, MethodCode
from exporter.backends.c_kernel.loop_writer import write_loops
from exporter.backends.c_kernel.lowering import ArchiveLowering, LoweredMethod
from exporter.backends.c_kernel.method_writer import MethodWriter
from exporter.common.c_text import escape_comment, to_c_identifier, to_c_identifiers
from exporter.graph.loading import LoadedModule

# A larger frame is not put on the stack.
STACK = 2**18
# Most input and output numbers of an element: the offset of each is kept on the stack.
NUMBERS = 2**16
# Bytes of inputs and outputs that fit into a processor's caches; beyond, blocks are prefetched, so many ahead: 0.6 to
# 0.8 of the time of an explicit model at 100,000 elements (0.57 of its Jacobian's).
NEAR, AHEAD = 2**23, 2
# More operations than this take a compiler minutes.
MOST = 100_000
FAILURES = {"nan": "NaN", "last": "those of its last iterate", "raise": "NaN"}


@dataclass(frozen=True)
class CSource:
    """C sources: ``files`` by name; ``operations`` and bytes of ``workspace`` by method; ``name`` begins every C name;
    ``parameters`` are the contract's, as they are in the file; ``reductions`` say which Newton loops solve for what."""

    name: str
    files: Mapping[str, str]
    operations: Mapping[str, int]
    workspace: Mapping[str, int]
    parameters: Mapping[str, torch.Tensor]
    notes: tuple[str, ...]
    reductions: tuple[str, ...]


def generate_sources(module: LoadedModule, contract: Contract, options: KernelOptions) -> CSource:
    """Generate the C sources. Raises ``UnsupportedError``, with model and line, for a model that cannot be a kernel."""
    lowering = ArchiveLowering(module, contract, options)
    tensors = {**module.named_parameters, **module.named_buffers}
    values = {p.name: tensors[p.name].detach().clone() for p in contract.parameters}
    # Derivatives may be made from ``forward``, which comes first.
    order = sorted(contract.methods, key=lambda name: name != "forward")
    lowered_methods = {name: lowering.lower_method(name) for name in order}
    functions = {name: lowered_methods[name] for name in contract.methods}
    return render_sources(contract, functions, values, has_cuda=options.has_cuda)


def _emit_method(lowered: LoweredMethod, contract: Contract, loops: Mapping[int, LoopCode]) -> MethodCode:
    specs = {name: contract.input_spec(name) for name in lowered.inputs}
    code = MethodWriter(lowered, {name: (s.dtype, prod(s.static_shape)) for name, s in specs.items()}, loops).write()
    if code.operations > MOST:
        got, expected = f"{code.operations} operations", f"at most {MOST}, which take a compiler some minutes"
        raise too_big_error(f"method {lowered.method!r}", got, expected)
    return code


# Headers of C99, and of what its compilers and systems have besides.
_HEADERS = (
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic "
    "stdbool stddef stdint stdio stdlib stdnoreturn string strings tgmath threads time uchar unistd wchar wctype omp "
    "features alloca malloc memory"
)
# What the header has behind the model's name, beside the parameters.
_CODES = ("OK", "NOT_CONVERGED", "PARAMETERS", "array")


def render_sources(
    contract: Contract,
    lowered_methods: Mapping[str, LoweredMethod],
    values: Mapping[str, torch.Tensor],
    *,
    has_cuda: bool = False,
) -> CSource:
    """Render the sources of lowered methods, with ``has_cuda`` for GPUs too; ``values`` are those of all parameters."""
    loops = write_loops([*lowered_methods.values()])
    emitted = {name: _emit_method(lowered, contract, loops) for name, lowered in lowered_methods.items()}
    name = to_c_identifier(contract.name)
    if name in _HEADERS.split():
        # Its own header would stand before the one of C.
        name += "_model"
    methods = [_describe_method(contract, lowered_methods[m], code, values) for m, code in emitted.items()]
    helpers = dict.fromkeys(h for code in emitted.values() for h in code.helpers)
    unrolled = sorted({n for code in emitted.values() for n in code.unrolled_sizes})
    context: dict[str, Any] = {
        "contract": contract,
        "version": __version__,
        "name": name,
        "upper": name.upper(),
        "guard": f"TORCHFERRY_{name.upper()}_H",
        "methods": methods,
        "newton_loops": _describe_loops([*loops.values()], [*emitted.values()]),
        "lanes": LANES,
        "ahead": AHEAD,
        "held": any(m["held"] for m in methods),
        "holds": any(code.holds_environment for code in emitted.values()),
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
        "parameters": _describe_parameters(contract, values, {place for m in methods for place in m["parameters"]}),
    }
    templates = {f"{name}.h": "model.h", f"{name}_lanes.h": "lanes.h", f"{name}.c": "model.c"}
    files = {file: TEMPLATES.get_template(f"{t}.jinja").render(context) for file, t in templates.items()}
    if has_cuda:
        files |= render_cuda_sources(context)
    notes = tuple(dict.fromkeys(note for lowered in lowered_methods.values() for note in lowered.notes))
    operations = {m: code.operations for m, code in emitted.items()}
    workspace = {m["method"]: m["workspace"] for m in methods}
    reduced = [loop for lowered in lowered_methods.values() for loop in lowered.loops.values() if loop.reduction]
    reductions = tuple(dict.fromkeys(loop.describe_reduction() for loop in reduced))
    return CSource(name, files, operations, workspace, values, notes, reductions)


def _describe_parameters(
    contract: Contract, values: Mapping[str, torch.Tensor], read: Collection[int]
) -> list[dict[str, Any]]:
    # Names in front of which the header puts the same word; functions and types where the model's is of capitals.
    taken = (*_CODES, *contract.methods)
    starts = ("ERROR_", *(f"{m.upper()}_" for m in contract.methods), *(f"{m}_" for m in contract.methods))
    c_names = list[str]()
    for identifier in to_c_identifiers([*values]):
        c_name = f"_{identifier}" if identifier.startswith(starts) else identifier
        while c_name in c_names or c_name in taken:
            c_name += "_"
        c_names.append(c_name)
    return [
        {
            "identifier": c_name,
            "said": escape_comment(f"{p.name}, {_format_shape(p.shape)}{p.dtype}{format_texts(p)}"),
            "kind": p.dtype,
            "read": place in read,
            "bytes": values[p.name].nbytes,
            "numbers": ", ".join(format_literal(v, p.dtype) for v in values[p.name].reshape(-1).tolist()),
        }
        for place, (p, c_name) in enumerate(zip(contract.parameters, c_names, strict=True))
    ]


def _describe_loops(loops: Sequence[LoopCode], methods: Sequence[MethodCode]) -> list[dict[str, Any]]:
    """Describe each loop once, with what the methods that have it are."""
    small = {loop.name for m in methods if m.is_small for loop in m.loops}
    inlined = {loop.name for m in methods if m.is_inlined_on_gpu for loop in m.loops}
    described = {}
    for loop in loops:
        facts = {"emitted": loop, "is_small": loop.name in small, "is_inlined_on_gpu": loop.name in inlined}
        described.setdefault(loop.name, facts)
    return [*described.values()]


def _describe_method(
    contract: Contract, lowered: LoweredMethod, code: MethodCode, values: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    order = list(values)
    spec = contract.methods[lowered.method]

    def describe(names: Sequence[str], specs: Iterable[TensorSpec], registers: Iterable[int]) -> list[dict[str, Any]]:
        return [_describe_variable(*row) for row in zip(names, specs, registers, strict=True)]

    registers = [code.inputs[name] for name in spec.inputs]
    input_variables = describe(spec.inputs, map(contract.input_spec, spec.inputs), registers)
    output_variables = describe(spec.output_names, map(contract.output_spec, spec.outputs), code.outputs)
    first = 0
    for group in (input_variables, output_variables):
        for place, (v, c_name) in enumerate(zip(group, to_c_identifiers([v["name"] for v in group]), strict=True)):
            v["identifier"], v["first"], v["place"] = c_name, first, place
            first += v["count"]
    if first > NUMBERS:
        got = f"{first} numbers of inputs and outputs for each element"
        raise too_big_error(f"method {lowered.method!r}", got, f"at most {NUMBERS}")
    frame = LANES * code.frame_bytes
    size = frame + code.uniform_bytes
    return {
        "method": lowered.method,
        "inputs": input_variables,
        "outputs": output_variables,
        "parameters": [order.index(p) for p in code.parameters],
        # Position among ``parameters``, and bytes.
        "held": [(code.parameters.index(p), values[p].nbytes) for p in code.table_parameters],
        "workspace": size if size > STACK else 0,
        "frame": frame,
        "numbers": max(first, 1),
        "filled": first > 0,
        "near": NEAR // max(1, sum(v["size"] * v["count"] for v in (*input_variables, *output_variables))),
        "emitted": code,
    }


def _describe_variable(name: str, spec: TensorSpec, slot: int) -> dict[str, Any]:
    return {
        "name": name,
        "said": escape_comment(f"{name}, {_format_shape(spec.static_shape)}{spec.dtype}{format_texts(spec)}"),
        "kind": spec.dtype,
        "size": SIZES[spec.dtype],
        "shape": list(spec.static_shape),
        "count": prod(spec.static_shape),
        "slot": slot,
        "array": ARRAYS[spec.dtype],
    }


def _format_shape(shape: Sequence[Any]) -> str:
    return f"{' x '.join(map(str, shape))} " if shape else ""
