"""Methods of an archive as programs of ``torch.export``, with a dynamic batch size."""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.fx import traceback

from exporter.archive.contract import Contract, Solver
from exporter.archive.tensor_spec import list_dynamic_sizes
from exporter.backends.torch_export import newton_while_loop
from exporter.backends.torch_export.graph_interpreter import TracedInterpreter, format_origin
from exporter.common import torch_internals
from exporter.common.errors import TorchferryError, UnsupportedError, summarize_error
from exporter.graph.loading import LoadedModule, resolve_captured_method
from exporter.graph.reader import list_settable_tensors
from exporter.saved_code.ir import Node

# Metadata key of a program's node for its origin.
ORIGIN = "torchferry"
# Sizes of traced examples: unlikely sizes of a model, and none that torch specialises.
EXAMPLE_SIZES = (11, 13, 17, 19, 23, 29)
Overrides = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Program:
    """One method of the contract. It takes the method's inputs, then the tensors ``parameters``, by the contract's
    names; ``notes`` say what it leaves out."""

    method: str
    exported: torch.export.ExportedProgram
    parameters: Mapping[str, torch.Tensor]
    notes: tuple[str, ...] = ()


class RunState:
    """State of a run: its position, and what it left out. torch.export restores all other attributes of a module."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.location = ""


class MethodModule(nn.Module):
    """Module that runs a method's captured graph; tensors of the file that cannot be set are buffers."""

    def __init__(
        self,
        module: LoadedModule,
        method: str,
        settable: Sequence[str],
        solvers: Sequence[Solver],
        overrides: Overrides,
    ) -> None:
        super().__init__()
        self._overrides = overrides
        loops = [s.path for s in solvers]
        parts = {path: [f"{path}.{part}.forward" for part in ("residual", "jacobian")] for path in loops}
        names = [method, *(p for part_methods in parts.values() for p in part_methods)]
        saved = module.read_methods(names, loops)
        used = [key for key in saved.tensors if key in settable]
        settings = {s.path: {n: f"{s.path}.{n}" for n in _list_settings(s)} for s in solvers}
        used += [key for solver_settings in settings.values() for key in solver_settings.values() if key not in used]
        values = {**module.named_parameters, **module.named_buffers}
        self.settable = {key: values[key].detach().clone() for key in used}
        self._saved, self._method, self._settings = saved, method, settings
        flags = ("strong_wolfe", "fails_by_nan", "fails_by_raising")
        self._flags = {path: {n: bool(module.get_value(f"{path}.{n}")) for n in flags} for path in loops}
        # Tensors that residual and Jacobian of each loop read.
        self._reads = {path: list(module.read_methods(names).tensors) for path, names in parts.items()}
        self._constant_names = {key: f"constant_{i}" for i, key in enumerate(k for k in saved.tensors if k not in used)}
        for key, buffer_name in self._constant_names.items():
            self.register_buffer(buffer_name, saved.tensors[key].detach().clone())
        self.run_state = RunState()

    # The parameter's name stands in the files that torch.export writes.
    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the method on its inputs, followed by the settable tensors."""
        count = len(values) - len(self.settable)
        tensors = {key: getattr(self, buffer_name) for key, buffer_name in self._constant_names.items()}
        tensors |= dict(zip(self.settable, values[count:], strict=True))
        return tuple(self._run(self._method, values[:count], tensors))

    def _run(self, method: str, inputs: Sequence[Any], tensors: Mapping[str, torch.Tensor]) -> Any:
        solve = functools.partial(self._solve, tensors)
        interpreter = TracedInterpreter(self._saved, tensors, solve, self._annotate_node, self._overrides)
        result = interpreter.run(method, inputs)
        self.run_state.notes += [note for note in interpreter.notes if note not in self.run_state.notes]
        return result

    def _annotate_node(self, node: Node) -> contextlib.AbstractContextManager[Any]:
        self.run_state.location = f"{node.operator} {format_origin(node.origin)}".strip()
        return traceback.annotate({ORIGIN: format_origin(node.origin)})

    def _solve(self, tensors: Mapping[str, torch.Tensor], path: str, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        u, fixed, tangents = args
        flags = self._flags[path]
        # Each once: torch treats two names of one memory as an alias.
        keys = list(dict.fromkeys([*self._reads[path], *self._settings[path].values()]))

        def evaluate(name: str, u: torch.Tensor, fixed: Sequence[Any], constants: Sequence[torch.Tensor]) -> Any:
            return self._run(f"{path}.{name}.forward", [u, list(fixed)], dict(zip(keys, constants, strict=True)))

        solver_loop = newton_while_loop.NewtonLoop(
            functools.partial(evaluate, "residual"),
            functools.partial(evaluate, "jacobian"),
            tuple(tensors[key].clone() for key in keys),
            {name: keys.index(key) for name, key in self._settings[path].items()},
            flags["strong_wolfe"],
            "trials" in self._settings[path],
            flags["fails_by_nan"] or flags["fails_by_raising"],
            self._overrides.get("aten::linalg_solve_ex", torch.linalg.solve_ex),
        )
        return solver_loop.solve(u, tuple(t.clone() for t in fixed), tangents)


def _list_settings(solver: Solver) -> list[str]:
    """Return the settings that a program has: an unused line search cannot be set either."""
    search = ("trials", "cutback", "decrease")
    return [n for n in solver.settings if solver.settings["trials"] > 0 or n not in search]


def export_program(
    module: LoadedModule, contract: Contract, method: str, overrides: Overrides = MappingProxyType({})
) -> Program:
    """Export a method as a program; ``overrides`` replace operators that a format does not have, by name.

    Raises ``UnsupportedError``, with model and line, for what has no form outside TorchScript, or fixes the batch."""
    captured, settable = (
        resolve_captured_method(module.method_names, method),
        sorted(list_settable_tensors(contract) or ()),
    )
    method_module = MethodModule(module, captured, settable, contract.solvers, overrides)
    input_specs = [contract.input_spec(name) for name in contract.methods[method].inputs]
    sizes = dict(zip(list_dynamic_sizes(contract.inputs), EXAMPLE_SIZES, strict=False))
    batch_shape = EXAMPLE_SIZES[:1] if contract.batch.ndim else ()
    example = [torch.ones((*batch_shape, *s.resolve_shape(sizes)), dtype=getattr(torch, s.dtype)) for s in input_specs]
    shapes = [(*("batch" for _ in batch_shape), *s.shape) for s in input_specs]
    dynamic = [{i: torch.export.Dim.DYNAMIC for i, d in enumerate(shape) if isinstance(d, str)} for shape in shapes]
    dynamic += [{} for _ in method_module.settable]
    try:
        with traceback.preserve_node_meta(), quiet_export():
            arguments = (*example, *method_module.settable.values())
            dynamic_shapes = (tuple(dynamic),)
            exported = torch.export.export(method_module, arguments, dynamic_shapes=dynamic_shapes, strict=False)
    except TorchferryError:
        raise
    except Exception as error:
        what, where = f"torch.export does not support method {method!r}", method_module.run_state.location
        got = summarize_error(error)
        expected = "operators whose shapes follow from those of the inputs, and a batch of any size"
        raise UnsupportedError(what, check="torch.export", where=where, got=got, expected=expected) from error
    check_bounds(exported, method)
    _shorten_messages(exported)
    return Program(method, exported, method_module.settable, tuple(method_module.run_state.notes))


def check_bounds(exported: torch.export.ExportedProgram, method: str) -> None:
    """Raise ``UnsupportedError`` if a dynamic size could not have every value: the trace keeps one side of a comparison
    of sizes. torch itself specialises 0 and 1, which the checks of batch sizes cover.

    A size that depends on data has the bounds of what is counted."""
    for symbol, bounds in exported.range_constraints.items():
        if torch_internals.symbol_is_type(symbol, torch_internals.SymT.UNBACKED_INT):
            continue
        if bounds.lower > 2 or bounds.upper < 2**31:
            what, got = f"method {method!r} takes only some sizes", f"{symbol} from {bounds.lower} to {bounds.upper}"
            expected = "operators that take a batch, or an open size, of any size"
            mend = "do not compare sizes, and do not slice beyond what an open size may be"
            raise UnsupportedError(what, check="batch", got=got, expected=expected, mend=mend)


def _shorten_messages(exported: torch.export.ExportedProgram) -> None:
    """Give the checks of sizes that depend on data one plain text: torch's are expressions, which no reader takes."""
    for node in exported.graph.nodes:
        if node.target is torch.ops.aten._assert_scalar.default:
            node.args = (node.args[0], "a size that depends on data is out of its range")


@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """Suppress warnings of torch.export about torch itself."""
    with warnings.catch_warnings():
        for text in (r"`isinstance\(treespec, LeafSpec\)` is deprecated",):
            warnings.filterwarnings("ignore", text, FutureWarning)
        yield


@contextlib.contextmanager
def quiet_logs(*names: str) -> Iterator[None]:
    """Suppress these loggers' messages on optional packages and slower ways."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
