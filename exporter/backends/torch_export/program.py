"""The methods of an archive as programs of ``torch.export``, whose batch stays open."""

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
from exporter.archive.tensor_spec import open_sizes
from exporter.backends.torch_export import newton_while_loop
from exporter.backends.torch_export.graph_interpreter import Interpreter, text_of
from exporter.common.errors import TorchferryError, UnsupportedError, first_line
from exporter.graph.ir import Node
from exporter.graph.loading import captured_name
from exporter.graph.reader import read_apart, settable_names

# What a node of a program says of where it came from.
ORIGIN = "torchferry"
# Of the examples that are traced: no size of a model's own, and none that torch treats apart.
ROWS = (11, 13, 17, 19, 23, 29)
Instead = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Program:
    """One method of the contract. It takes the method's inputs, then the tensors ``parameters``, by the contract's
    names; ``notes`` say what it leaves out."""

    method: str
    exported: torch.export.ExportedProgram
    parameters: Mapping[str, torch.Tensor]
    notes: tuple[str, ...] = ()


class Said:
    """What a run says of itself: where it is, and what it left out. torch.export puts back what else a module has."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.place = ""


class Method(nn.Module):
    """Runs a method's captured graph; tensors of the file that cannot be set are buffers."""

    def __init__(
        self,
        module: torch.jit.ScriptModule,
        method: str,
        settable: Sequence[str],
        solvers: Sequence[Solver],
        instead: Instead,
    ) -> None:
        super().__init__()
        self._instead = instead
        loops = {s.path: functools.reduce(getattr, s.path.split("."), module) for s in solvers}
        parts = {path: [f"{path}.{part}.forward" for part in ("residual", "jacobian")] for path in loops}
        saved = read_apart(module, [method, *(p for of in parts.values() for p in of)], list(loops))
        used = [key for key in saved.tensors if key in settable]
        settings = {s.path: {n: f"{s.path}.{n}" for n in _settings(s)} for s in solvers}
        used += [key for by in settings.values() for key in by.values() if key not in used]
        values = dict(module.named_parameters()) | dict(module.named_buffers())
        self.settable = {key: values[key].detach().clone() for key in used}
        self._saved, self._method, self._loops, self._settings = saved, method, loops, settings
        # What residual and Jacobian of each loop read.
        self._reads = {path: list(read_apart(module, names).tensors) for path, names in parts.items()}
        self._held = {key: f"constant_{i}" for i, key in enumerate(k for k in saved.tensors if k not in used)}
        for key, place in self._held.items():
            self.register_buffer(place, saved.tensors[key].detach().clone())
        self.said = Said()

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = len(given) - len(self.settable)
        tensors = {key: getattr(self, place) for key, place in self._held.items()}
        tensors |= dict(zip(self.settable, given[count:], strict=True))
        return tuple(self._run(self._method, given[:count], tensors))

    def _run(self, method: str, inputs: Sequence[Any], tensors: Mapping[str, torch.Tensor]) -> Any:
        interpreter = Interpreter(
            self._saved, tensors, functools.partial(self._solved, tensors), self._within, self._instead
        )
        found = interpreter.run(method, inputs)
        self.said.notes += [note for note in interpreter.notes if note not in self.said.notes]
        return found

    def _within(self, node: Node) -> contextlib.AbstractContextManager[Any]:
        self.said.place = f"{node.operator} {text_of(node.origin)}".strip()
        return traceback.annotate({ORIGIN: text_of(node.origin)})

    def _solved(self, tensors: Mapping[str, torch.Tensor], path: str, given: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        u, held, tangents = given
        loop: Any = self._loops[path]
        # Each once: torch takes two names of one memory for an alias.
        keys = list(dict.fromkeys([*self._reads[path], *self._settings[path].values()]))

        def part(name: str, u: torch.Tensor, held: Sequence[torch.Tensor], constants: Sequence[torch.Tensor]) -> Any:
            return self._run(f"{path}.{name}.forward", [u, list(held)], dict(zip(keys, constants, strict=True)))

        made = newton_while_loop.Loop(
            functools.partial(part, "residual"),
            functools.partial(part, "jacobian"),
            tuple(tensors[key].clone() for key in keys),
            {name: keys.index(key) for name, key in self._settings[path].items()},
            bool(loop.strong_wolfe),
            "trials" in self._settings[path],
            bool(loop.fails_by_nan) or bool(loop.fails_by_raising),
            self._instead.get("aten::linalg_solve_ex", torch.linalg.solve_ex),
        )
        return made.solve(u, [t.clone() for t in held], tangents)


def _settings(solver: Solver) -> list[str]:
    """Those that a program has: a line search that the model does without cannot be set either."""
    search = ("trials", "cutback", "decrease")
    return [n for n in solver.settings if solver.settings["trials"] > 0 or n not in search]


def program(
    module: torch.jit.ScriptModule, contract: Contract, method: str, instead: Instead = MappingProxyType({})
) -> Program:
    """``instead``: functions in the place of operators that a container does not have, by name.

    Raises ``UnsupportedError``, with model and line, for what has no form outside TorchScript, or fixes the batch.
    """
    run = Method(
        module, captured_name(module, method), sorted(settable_names(contract) or ()), contract.solvers, instead
    )
    taken = [contract.taken(name) for name in contract.methods[method].inputs]
    sizes = dict(zip(open_sizes(contract.inputs), ROWS, strict=False))
    lead = ROWS[:1] if contract.batch.ndim else ()
    example = [torch.ones((*lead, *s.sized(sizes)), dtype=getattr(torch, s.dtype)) for s in taken]
    dynamic: list[dict[int, Any]] = [
        {i: torch.export.Dim.DYNAMIC for i, d in enumerate((*("batch" for _ in lead), *s.shape)) if isinstance(d, str)}
        for s in taken
    ]
    dynamic += [{} for _ in run.settable]
    try:
        with traceback.preserve_node_meta(), quiet_export():
            exported = torch.export.export(
                run, (*example, *run.settable.values()), dynamic_shapes=(tuple(dynamic),), strict=False
            )
    except TorchferryError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"torch.export does not take method {method!r}",
            check="torch.export",
            where=run.said.place,
            got=first_line(error),
            expected="operators whose shapes follow from those of the inputs, and a batch of any size",
        ) from error
    refuse_bounds(exported, method)
    return Program(method, exported, run.settable, tuple(run.said.notes))


def refuse_bounds(exported: torch.export.ExportedProgram, method: str) -> None:
    """Raises ``UnsupportedError`` where an open size could not have every value: what torch traced keeps one side of a
    comparison of sizes. torch itself treats 0 and 1 apart, which is what the batch sizes are checked for."""
    for symbol, known in exported.range_constraints.items():
        if known.lower > 2 or known.upper < 2**31:
            raise UnsupportedError(
                f"method {method!r} takes only some sizes",
                check="batch",
                got=f"{symbol} from {known.lower} to {known.upper}",
                expected="operators that take a batch, or an open size, of any size",
                mend="do not compare sizes, and do not slice beyond what an open size may be",
            )


@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """Without the warnings of torch.export about torch itself."""
    with warnings.catch_warnings():
        for text in (r"`isinstance\(treespec, LeafSpec\)` is deprecated",):
            warnings.filterwarnings("ignore", text, FutureWarning)
        yield


@contextlib.contextmanager
def quiet_logs(*names: str) -> Iterator[None]:
    """Without what these say of themselves: optional packages, slower ways."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
