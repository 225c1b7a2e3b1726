"""A method of an archive as scalar terms of one element of the batch, with proof that elements do not see each other.

The graph is run on terms for two elements: a term that speaks of both is refused where it is made. It is run again for
three, in another order: the same element must have the same terms, wherever it stands and however many there are.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from exporter.archive.contract import TANGENT, Contract, Solver
from exporter.archive.tensor_spec import open_sizes
from exporter.backends.c_kernel import forward_mode
from exporter.backends.c_kernel.expression_graph import COLUMNS, F64, I64, MIXED, NEWTON, Terms
from exporter.backends.c_kernel.names import leaf_name
from exporter.backends.c_kernel.newton_loop import Loop, outside, region
from exporter.backends.c_kernel.rules.linear_systems import NO_ERRORS
from exporter.backends.c_kernel.schedule import reached
from exporter.backends.c_kernel.symbolic_tensor import Lowering, Symbol
from exporter.backends.torch_export.graph_interpreter import Interpreter, text_of
from exporter.common.errors import TorchferryError, UnsupportedError, first_line
from exporter.graph.ir import Node
from exporter.graph.loading import captured_name
from exporter.graph.reader import Saved, read_apart, settable_names


@dataclass(frozen=True)
class Function:
    """What a method computes of one element: ``outputs`` are terms, flattened, in the contract's order. ``parameters``
    are those that it reads, by name, with their values in the file."""

    method: str
    terms: Terms
    inputs: tuple[str, ...]
    outputs: tuple[tuple[int, ...], ...]
    parameters: Mapping[str, torch.Tensor]
    loops: Mapping[int, Loop]
    notes: tuple[str, ...] = ()
    # Where its derivatives are from.
    how: str = ""


class Lowered:
    """The methods of one archive, in one table of terms."""

    def __init__(self, module: torch.jit.ScriptModule, contract: Contract, *, finite_math: bool = False) -> None:
        refuse_open(contract)
        self.terms = Terms(finite_math=finite_math)
        self.loops: dict[int, Loop] = {}
        self._outputs: dict[str, list[tuple[int, ...]]] = {}
        self._module, self._contract = module, contract
        self._lowering = Lowering(self.terms)
        self._held: dict[str, Symbol] = {}
        self._solves: dict[tuple[Any, ...], int] = {}
        # What was left out of residuals.
        self._notes: list[str] = []
        self._solvers = {s.path: s for s in contract.solvers}
        values = dict(module.named_parameters()) | dict(module.named_buffers())
        settable = sorted(settable_names(contract) or ())
        self._values = {n: values[n].detach().clone() for n in settable if n in values}

    def method(self, method: str) -> Function:
        """Raises ``UnsupportedError``, with model and line, for what a kernel cannot be."""
        notes: list[str] = []
        with torch.no_grad(), self._named(method):
            outputs, how = self._forward_mode(method), "forward mode"
            # A loop over directions stands for more terms than a captured graph should have.
            if outputs is None or not any(self.terms[i].op == COLUMNS for i in self._needed(outputs)):
                try:
                    captured, notes = self._proven(method)
                except UnsupportedError:
                    if outputs is None:
                        raise
                else:
                    if outputs is None or self._cost(captured) < self._cost(outputs):
                        outputs, how = captured, "captured"
        self._outputs[method] = outputs
        taken = self._contract.methods[method].inputs
        return Function(
            method, self.terms, taken, tuple(outputs), self._values, dict(self.loops), (*notes, *self._notes), how
        )

    def _proven(self, method: str) -> tuple[list[tuple[int, ...]], list[str]]:
        """The graph that was captured, of one element whatever stands around it."""
        saved = self._saved(method)
        batched = bool(self._contract.batch.ndim)
        first, notes = self._run(saved, method, (0, 1) if batched else ())
        again, _ = self._run(saved, method, (1, 2, 0)) if batched else (first, [])
        for spec, one, other in zip(self._contract.methods[method].outputs, first, again, strict=True):
            at_start, at_end = (one[0], other[-1]) if batched else (one, other)
            own = all(self.terms.rows[i] in (0, 1) for i in at_start.reshape(-1).tolist())
            if not own or not torch.equal(at_start, at_end):
                raise UnsupportedError(
                    "what is computed of an element depends on the batch around it",
                    check="kernel",
                    where=f"method {method!r}, output {spec!r}",
                    expected="the same operations at every place of a batch of any size",
                    mend="use the .pt: a kernel is a loop over elements",
                )
        return [tuple((one[0] if batched else one).reshape(-1).tolist()) for one in first], notes

    def _forward_mode(self, method: str) -> list[tuple[int, ...]] | None:
        """Derivatives of what ``forward`` computes, where the method has some and every operation a rule."""
        forward = self._outputs.get("forward")
        spec = self._contract.methods[method]
        if forward is None or not any(not isinstance(o, str) or o.startswith(TANGENT) for o in spec.outputs):
            return None
        try:
            return forward_mode.derivatives(self.terms, self.loops, self._contract, method, forward)
        except forward_mode.NoRuleError:
            return None

    def _needed(self, outputs: Sequence[Sequence[int]]) -> list[int]:
        return reached(self.terms, [i for ends in outputs for i in ends], ())

    def _cost(self, outputs: Sequence[Sequence[int]]) -> int:
        """Operations; those of a loop as often as it may well run."""
        needed = self._needed(outputs)
        loops = [self.terms[i] for i in needed if self.terms[i].op == NEWTON]
        inner = sum(len(region(self.terms, self.loops[t.extra[0]].matrix, t.extra[0])) for t in loops)
        return len(needed) + 6 * inner

    def _saved(self, method: str) -> Saved:
        loops = list(self._solvers)
        parts = [f"{path}.{part}.forward" for path in loops for part in ("residual", "jacobian")]
        return read_apart(self._module, [captured_name(self._module, method), *parts], loops)

    @contextlib.contextmanager
    def _named(self, method: str) -> Iterator[None]:
        try:
            yield
        except TorchferryError as error:
            error.details["where"] = error.details.get("where") or self.terms.origin or f"method {method!r}"
            raise
        except Exception as error:
            raise UnsupportedError(
                f"method {method!r} has no form as a kernel",
                check="kernel",
                where=self.terms.origin,
                got=first_line(error),
                expected="operators on tensors whose shapes are known",
                mend="use the .pt",
            ) from error

    def _run(self, saved: Saved, method: str, rows: Sequence[int]) -> tuple[list[torch.Tensor], list[str]]:
        interpreter = self._interpreter(saved)
        given = []
        for name in self._contract.methods[method].inputs:
            spec = self._contract.taken(name)
            dtype = getattr(torch, spec.dtype)
            if rows:
                each = [self._lowering.leaves(name, spec.fixed, dtype, 1 << row) for row in rows]
                given.append(Symbol(torch.stack(each), dtype))
            else:
                given.append(Symbol(self._lowering.leaves(name, spec.fixed, dtype, 1), dtype))
        with self._lowering:
            found = interpreter.run(captured_name(self._module, method), given)
        outputs = []
        for name, value in zip(self._contract.methods[method].outputs, found, strict=True):
            spec = self._contract.returned(name)
            if value.factorised is not None:
                raise self._lowering.refused("the factors of a matrix as an output")
            typed = self._lowering.cast(value, getattr(torch, spec.dtype))
            if any(self.terms[i].op == MIXED for i in typed.ids.reshape(-1).tolist()):
                self.terms.refuse_mixed("an output")
            outputs.append(typed.ids.expand((*((len(rows),) if rows else ()), *spec.fixed)))
        return outputs, interpreter.notes

    def _interpreter(self, saved: Saved) -> Interpreter:
        tensors = {key: self._tensor(key, saved) for key in saved.tensors}

        def solved(path: str, given: Sequence[Any]) -> tuple[Symbol, ...]:
            # What is computed here are terms, not tensors of them.
            with _disable_current_modes():
                return self._solved(saved, path, given)

        return Interpreter(saved, tensors, solved, self._within, NO_ERRORS)

    def _tensor(self, key: str, saved: Saved) -> Symbol:
        if key not in self._held:
            value = self._values.get(key)
            if value is None:
                self._held[key] = self._lowering.symbol(saved.tensors[key])
            else:
                ids = self._lowering.leaves(leaf_name(key), value.shape, value.dtype)
                self._held[key] = Symbol(ids, value.dtype)
        # A tensor that the graph writes to is its own.
        return Symbol(self._held[key].ids.clone(), self._held[key].dtype)

    def _within(self, node: Node) -> contextlib.AbstractContextManager[Any]:
        # A line without a place has the place of the line before it.
        self.terms.origin = text_of(node.origin) or self.terms.origin
        return contextlib.nullcontext()

    def _solved(self, saved: Saved, path: str, given: Sequence[Any]) -> tuple[Symbol, ...]:
        """What ``Newton.forward`` gives, of each element."""
        u, held, tangents = given
        guess: Symbol = u
        loop: Any = functools.reduce(getattr, path.split("."), self._module)
        batched = int(loop.batched)
        solver = self._solvers[path]
        found = [
            self._solve(
                saved,
                solver,
                loop,
                row,
                [t.ids[i] if k < batched else t.ids for k, t in enumerate(held)],
                held,
                bool(tangents),
            )
            for i, row in enumerate(guess.ids)
        ]
        n = guess.ids.shape[-1]
        parts = list(zip(*found, strict=True))
        stacked = [torch.tensor(p, dtype=torch.int64) for p in parts]
        matrix = stacked[1].reshape(-1, n, n) if tangents else stacked[1].reshape(0, n, n)
        return (
            Symbol(stacked[0], guess.dtype),
            Symbol(matrix, guess.dtype),
            Symbol(stacked[2][:, 0], torch.int64),
            Symbol(stacked[3][:, 0], guess.dtype),
            Symbol(stacked[4][:, 0], torch.int64),
            Symbol(stacked[5][:, 0], guess.dtype),
        )

    def _solve(
        self,
        saved: Saved,
        solver: Solver,
        loop: Any,
        guess: torch.Tensor,
        held: Sequence[torch.Tensor],
        symbols: Sequence[Symbol],
        tangents: bool,
    ) -> tuple[list[int], ...]:
        terms = self.terms
        u0 = guess.reshape(-1).tolist()
        flat = [i for t in held for i in t.reshape(-1).tolist()]
        key = (solver.path, tuple(u0), tuple(flat))
        if key not in self._solves:
            self._solves[key] = self._looped(saved, solver, loop, key, held, symbols)
        index = self._solves[key]
        one = self.loops[index]
        n = one.size
        outside = self.outside(index)
        kinds = [F64] * n + ([F64] * (n * n) if tangents else []) + [I64, F64, I64]
        picks = terms.picks(NEWTON, (*u0, *outside), (index, tangents), kinds)
        u, rest = picks[:n], picks[n:]
        matrix, (iterations, norm, status) = (rest[: n * n], rest[n * n :]) if tangents else ([], rest)
        factor = terms.constant(1.0, F64)
        if one.on_failure != "last":
            good = terms.make("eq", (status, terms.constant(0, I64)), "bool")
            factor = terms.make("where", (good, factor, terms.constant(float("nan"), F64)), F64)
        return u, matrix, [iterations], [norm], [status], [factor]

    def _looped(
        self,
        saved: Saved,
        solver: Solver,
        loop: Any,
        key: tuple[Any, ...],
        held: Sequence[torch.Tensor],
        symbols: Sequence[Symbol],
    ) -> int:
        terms, lowering = self.terms, self._lowering
        index = self.terms.loop()
        path, u0, flat = key
        dtype = torch.float64
        if any(terms.loops[i] for i in (*u0, *flat)):
            raise lowering.refused("a Newton loop within another one", "loops that stand side by side")
        if any(terms[i].kind != F64 for i in u0):
            raise lowering.refused(f"a Newton loop in {terms[u0[0]].kind}", "float64")
        rows = functools.reduce(lambda a, i: a | terms.rows[i], [*u0, *flat], 0)
        unknowns = lowering.leaves(f"unknowns:{index}", (len(u0),), dtype, rows, 1 << index)
        batched = int(loop.batched)
        given = [
            Symbol(t.clone()[None] if k < batched else t.clone(), s.dtype)
            for k, (t, s) in enumerate(zip(held, symbols, strict=True))
        ]
        interpreter = self._interpreter(saved)
        at = Symbol(unknowns[None], dtype)
        with lowering:
            found = interpreter.run(f"{path}.residual.forward", [at, given])
        residual = found.ids.reshape(-1).tolist()

        def captured() -> list[int]:
            with lowering:
                found, _ = interpreter.run(f"{path}.jacobian.forward", [at, given])
            return found.ids.reshape(-1).tolist()

        settings = {}
        for name, value in solver.settings.items():
            full = f"{path}.{name}"
            held_value = self._values.get(full)
            kind = I64 if name in ("max_its", "trials") else F64
            if held_value is None:
                settings[name] = terms.constant(value, kind)
            else:
                settings[name] = int(lowering.leaves(leaf_name(full), (), held_value.dtype))
        matrix = self._sparser(residual, captured, unknowns.tolist(), index)
        self._notes += interpreter.notes
        trials = settings["trials"]
        self.loops[index] = Loop(
            path,
            tuple(unknowns.tolist()),
            tuple(residual),
            tuple(matrix),
            settings,
            bool(loop.strong_wolfe),
            solver.settings.get("trials", 0) > 0 or terms.value(trials) is None,
            solver.on_failure,
        )
        return index

    def _sparser(
        self, residual: list[int], captured: Callable[[], list[int]], unknowns: list[int], index: int
    ) -> list[int]:
        """The matrix as it was captured, or by forward mode: what takes fewer operations."""
        try:
            own = forward_mode.matrix(self.terms, self.loops, residual, unknowns)
        except forward_mode.NoRuleError:
            return captured()
        if any(self.terms[i].op == COLUMNS for i in region(self.terms, own, index)):
            return own
        other = captured()
        counts = [len(region(self.terms, [*residual, *ends], index)) for ends in (own, other)]
        return own if counts[0] <= counts[1] else other

    def outside(self, index: int) -> tuple[int, ...]:
        """The terms that a loop reads and that do not change in it."""
        loop = self.loops[index]
        read = outside(self.terms, [*loop.residual, *loop.matrix], index)
        return tuple(dict.fromkeys((*read, *loop.settings.values())))


def refuse_open(contract: Contract) -> None:
    """Raises ``UnsupportedError`` where tensors have sizes that only a call knows."""
    names = open_sizes(contract.inputs)
    if names:
        raise UnsupportedError(
            "a kernel is for tensors of fixed shape",
            check="kernel",
            where=contract.name,
            got=f"open sizes {', '.join(names)}",
            expected="a batch of small tensors",
            mend="use the .pt",
        )
