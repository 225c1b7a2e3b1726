"""Material points under mixed control: of a pair such as strain and stress, each component is prescribed as one or the
other.

In every step the unknown components of the inputs are found by Newton's method, with the blocks of the file's method
``jacobian``: the residual is the difference of the controlled outputs from what the path asks of them, as in the
material-point drivers of constitutive libraries (MTest of MFront: Helfer et al., Introducing the open-source mfront
code generator, Computers & Mathematics with Applications 70, 2015)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.contract import Contract, block_name
from exporter.archive.input_files import InputValues, to_tensor
from exporter.archive.load_history import EXPECTED, INITIAL, PRESCRIBED, list_lag_names, parse_lag
from exporter.archive.tensor_spec import FLOATING
from exporter.common.errors import MismatchError, RunError, UsageError, suggest_names, summarize_error
from runtime_checks.component_names import Index, find_component, list_components
from runtime_checks.load_path import LoadPath
from runtime_checks.model import Model

# A point is at its loads where each is off by no more than these parts of the largest load, or of the stiffness.
TOLERANCE, SMALLEST = 1e-10, 1e-14
# Newton steps in a step of the path, and halvings of one that leads away.
ITERATIONS, HALVINGS = 25, 8
CONTROL_STATUS, CONTROL_ITERATIONS = "control_status", "control_iterations"
REACHED, NOT_REACHED, SINGULAR = 0, 1, 2
ALL = slice(None)
# A component: a variable and an index.
Place = tuple[str, Index]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class ControlPlan:
    """The components that are prescribed, by column: ``inputs`` and ``outputs`` by the path, ``points`` by the points.

    ``unknowns`` are components of inputs that are solved for, one for each of the ``outputs``."""

    inputs: Mapping[str, Place]
    outputs: Mapping[str, Place]
    unknowns: tuple[Place, ...]
    points: Mapping[str, Place]


def plan_control(contract: Contract, columns: Sequence[str], points: Sequence[str], where: str) -> ControlPlan:
    """Assign columns of a path, and of a table of points, to variables, and unknown inputs to controlled outputs.

    Raises ``UsageError`` for a column of no variable, a component that is prescribed twice or not at all, and an output
    that no block of the Jacobian leads to."""
    if not contract.batch.ndim:
        what, expected = "the file takes whole shapes, and no material points", "a file with a batch of elements"
        raise UsageError(what, where=where, got=contract.name, expected=expected)
    inputs, outputs = ({s.name: s.static_shape for s in side} for side in (contract.inputs, contract.outputs))
    for name in inputs:
        if parse_lag(name)[0] not in inputs | outputs:
            what, expected = f"nothing gives {name!r} its value", f"an input or an output {parse_lag(name)[0]!r}"
            raise UsageError(what, where=where, expected=expected, mend="rename the variables: export --rename")
    states = {n for n in inputs if n in outputs or parse_lag(n)[0] != n}
    taken: dict[Place, str] = {}

    def assign(names: Sequence[str], where: str) -> tuple[dict[str, Place], dict[str, Place]]:
        ins, outs = dict[str, Place](), dict[str, Place]()
        for text in names:
            name, _ = place = find_component(text, outputs | inputs, where)
            if name in states and name not in outputs:
                mend = "it is the value of the step before: leave it out, or give a start by --initial"
                raise UsageError(f"{text!r} is not prescribed in a step", where=where, got=text, mend=mend)
            if place in taken:
                what, got, mend = f"{text!r} is prescribed twice", f"{taken[place]}, {text}", "leave one of them out"
                raise UsageError(what, where=where, got=got, mend=mend)
            taken[place] = text
            (outs if name in outputs else ins)[text] = place
        return ins, outs

    (path_ins, path_outs), (point_ins, point_outs) = assign(columns, where), assign(points, "--points")
    if point_outs:
        what, expected = f"{next(iter(point_outs))!r} of a point is an output", "inputs, the same at every step"
        raise UsageError(what, where=where, expected=expected)
    unknowns: list[Place] = []
    for text, place in path_outs.items():
        unknowns.append(_find_unknown(contract, place, text, taken, states, where))
        taken[unknowns[-1]] = text
    missing = [
        text
        for name, shape in inputs.items()
        for text, index in list_components(name, shape)
        if name not in states and (name, index) not in taken
    ]
    if missing:
        what, got = f"{missing[0]!r} is not prescribed", f"nothing of {', '.join(missing[:8])}"
        expected = "a column for each component of each input, or of the output that it follows"
        raise UsageError(what, where=where, got=got, expected=expected)
    return ControlPlan(path_ins, path_outs, tuple(unknowns), point_ins)


def _find_unknown(
    contract: Contract, place: Place, text: str, taken: Mapping[Place, str], states: set[str], where: str
) -> Place:
    """Return the component of an input that is solved for so that this one of an output is as prescribed."""
    output, index = place
    spec = contract.methods.get("jacobian")
    blocks = [o for o in spec.outputs if not isinstance(o, str)] if spec is not None else []
    shape = contract.output_spec(output).shape
    names = {s.name for s in contract.inputs if s.name not in states and s.shape == shape}
    drivers = [wrt for name, wrt in blocks if name == output and wrt in names]
    if not drivers:
        what, got = f"the file has no tangent by which {text!r} could be controlled", "no block of the Jacobian"
        mend = f"export it with --derivative {output}:INPUT"
        raise UsageError(what, where=where, got=got, expected="a block of an input of its shape", mend=mend)
    free = [wrt for wrt in drivers if (wrt, index) not in taken]
    if not free:
        both = f"{taken[drivers[0], index]}, {text}"
        raise UsageError("a component is prescribed twice", where=where, got=both, mend="leave one of them out")
    return free[0], index


class MaterialPoints:
    """A batch of material points that follow a path."""

    def __init__(self, model: Model, path: LoadPath, points: Tensors, initial: InputValues) -> None:
        self.model, self.path, contract = model, path, model.contract
        self.plan = plan_control(contract, list(path.values), list(points), path.where)
        self.count = next((len(v) for v in points.values()), 1)
        self.inputs = {s.name: s for s in contract.inputs}
        self.outputs = {s.name: s for s in contract.outputs}
        self.points = points
        longest = max((parse_lag(name)[1] for name in self.inputs), default=1)
        self.initial = self._make_initial(initial)
        # Values of the steps before, the last one first.
        self.past = [self._make_past(lag) for lag in range(longest)]
        # How each point has ended that is lost.
        self.status = torch.full((self.count,), REACHED)
        loads = [float(path.values[c].abs().max()) for c in self.plan.outputs]
        names = [name for name, _ in self.plan.outputs.values()]
        self.loads = {name: max(load for n, load in zip(names, loads, strict=True) if n == name) for name in names}

    @property
    def alive(self) -> torch.Tensor:
        """Return which points have followed the path up to now."""
        return self.status == REACHED

    def run(self, advance: Callable[[int], object], look: Callable[[int, Tensors, Tensors], object]) -> Tensors:
        """Return values by name, ``(steps, points, *event)``: outputs, inputs that are no states, and the status.

        ``advance`` is told of each finished step, ``look`` of its inputs and values, too."""
        steps: list[Tensors] = []
        for step in range(self.path.steps):
            inputs = self._make_inputs(step)
            steps.append(self._take_step(step, inputs))
            look(step, inputs, steps[-1])
            advance(step)
        return {name: torch.stack([values[name] for values in steps]) for name in steps[0]}

    def _make_initial(self, given: InputValues) -> Tensors:
        """Return the values before the first step by name: those given, the start of the path, else zeros."""
        values: Tensors = {}
        specs = self.outputs | {n: s for n, s in self.inputs.items() if parse_lag(n)[0] == n}
        earlier = [lagged for name in self.inputs for lagged in list_lag_names(*parse_lag(name))]
        free = [n for n in (*specs, *earlier) if n not in self._list_prescribed()]
        for name in given:
            if name not in free:
                what, expected = f"there is no state {name!r}", suggest_names(name, free)
                raise UsageError(what, where="--initial", expected=expected)
        for name, spec in specs.items():
            values[name] = torch.zeros(self.count, *spec.static_shape, dtype=getattr(torch, spec.dtype))
            self._fill(values, name, {c: torch.tensor(v, dtype=torch.float64) for c, v in self.path.start.items()})
            self._fill(values, name, self.points)
        for name, raw in given.items():
            spec = specs[parse_lag(name)[0]]
            value = to_tensor(name, raw, spec.dtype)
            wanted = (self.count, *spec.static_shape)
            if tuple(value.shape) not in (wanted, spec.static_shape):
                what, got = f"the start of {name!r} has another shape", str(list(value.shape))
                expected = f"{list(spec.static_shape)}, or {list(wanted)}"
                raise UsageError(what, where="--initial", got=got, expected=expected)
            values[name] = value.expand(wanted).clone(memory_format=torch.contiguous_format)
        return values

    def _list_prescribed(self) -> set[str]:
        """Return the inputs that the path or the points give."""
        return {name for name, _ in (*self.plan.inputs.values(), *self.plan.points.values())}

    def _fill(self, values: Tensors, name: str, columns: Mapping[str, torch.Tensor]) -> None:
        """Put the values of columns into a variable that they are of."""
        for column, place in (*self.plan.inputs.items(), *self.plan.outputs.items(), *self.plan.points.items()):
            if place[0] == name and column in columns:
                numbers = columns[column].to(values[name].dtype)
                if bool((numbers != columns[column]).any()) and not numbers.is_floating_point():
                    what, where = f"{name!r} takes whole numbers", f"{self.path.where}, {column}"
                    mend = "give whole numbers, and one step between others"
                    raise UsageError(what, where=where, got=str(columns[column].tolist())[:60], mend=mend)
                values[name][(ALL, *place[1])] = numbers

    def _make_past(self, lag: int) -> Tensors:
        bases = [name for name in self.initial if parse_lag(name)[0] == name]
        return {base: self.initial.get(f"{base}~{lag + 1}", self.initial[base]) for base in bases}

    def _read_unknowns(self) -> torch.Tensor:
        columns = [self.past[0][name][(ALL, *index)] for name, index in self.plan.unknowns]
        return torch.stack(columns, -1).double()

    def _make_inputs(self, step: int) -> Tensors:
        """Return all inputs of a step, the unknown components as they were."""
        values: Tensors = {}
        now = {column: values[step] for column, values in self.path.values.items()}
        for name in self.inputs:
            base, lag = parse_lag(name)
            values[name] = self.past[lag - 1][base].clone()
            if base == name and name not in self.outputs:
                self._fill(values, name, now)
                self._fill(values, name, self.points)
        return values

    def _put_unknowns(self, values: Tensors, unknowns: torch.Tensor) -> None:
        for k, (name, index) in enumerate(self.plan.unknowns):
            values[name][(ALL, *index)] = unknowns[:, k].to(values[name].dtype)

    def _take_step(self, step: int, values: Tensors) -> Tensors:
        """Return the values at the end of a step; unknown components of the inputs ``values`` are found."""
        if self.plan.unknowns:
            results, status, iterations = self._solve(values, step)
        else:
            results = self._call("forward", values, step)
            status = iterations = torch.zeros(self.count, dtype=torch.int64)
        taken = {n: v.clone() for n, v in values.items() if parse_lag(n)[0] == n and n not in self.outputs}
        taken |= {name: self._expand(results, name).clone() for name in self.outputs}
        finite = torch.stack([_is_finite(taken[name]) for name in self.outputs]).all(0)
        status = torch.where(~finite & (status == REACHED), NOT_REACHED, status)
        self.status = torch.where(self.alive, status, self.status)
        # A point that is lost stays where it was, and has no numbers any more.
        for name, value in taken.items():
            before = self.past[0].get(name, value)
            value[~self.alive] = before[~self.alive].to(value.dtype)
        self.past = [taken, *self.past[:-1]]
        shown = {n: v.clone() for n, v in taken.items()}
        for name, value in shown.items():
            if (self.inputs | self.outputs)[name].dtype in FLOATING:
                value[~self.alive] = math.nan
        return {**shown, CONTROL_STATUS: self.status, CONTROL_ITERATIONS: iterations}

    def _solve(self, values: Tensors, step: int) -> tuple[Tensors, torch.Tensor, torch.Tensor]:
        """Solve for the unknown components; put them into ``values``. Return results, status and iterations."""
        wanted = torch.stack([self.path.values[c][step] for c in self.plan.outputs]).expand(self.count, -1)
        x = self._read_unknowns()
        results, residual, matrix = self._evaluate(values, x, wanted, step)
        status = torch.full((self.count,), NOT_REACHED)
        iterations = torch.zeros(self.count, dtype=torch.int64)
        for _ in range(ITERATIONS):
            active = self.alive & ~self._is_reached(results, residual, matrix)
            if not bool(active.any()):
                break
            dx, info = torch.linalg.solve_ex(matrix, -residual)
            good = (info == 0) & _is_finite(dx)
            status = torch.where(active & ~good, SINGULAR, status)
            active &= good
            if not bool(active.any()):
                break
            dx = torch.where(active[:, None], dx, 0.0)
            x, results, residual, matrix = self._descend(values, x, dx, wanted, residual, step)
            iterations += active.long()
        reached = self._is_reached(results, residual, matrix)
        return results, torch.where(reached, REACHED, status), iterations

    def _descend(
        self,
        values: Tensors,
        x: torch.Tensor,
        dx: torch.Tensor,
        wanted: torch.Tensor,
        residual: torch.Tensor,
        step: int,
    ) -> tuple[torch.Tensor, Tensors, torch.Tensor, torch.Tensor]:
        """Return the next iterate with its results: steps that lead away are halved, point by point."""
        fraction = torch.ones(self.count, 1, dtype=torch.float64)
        before = residual.norm(dim=-1)
        results, after, matrix = self._evaluate(values, x + dx, wanted, step)
        for _ in range(HALVINGS):
            worse = ~_is_finite(after) | ((after.norm(dim=-1) > 2 * before) & (dx != 0).any(-1))
            if not bool((worse & self.alive).any()):
                break
            fraction = torch.where(worse[:, None], fraction / 2, fraction)
            results, after, matrix = self._evaluate(values, x + fraction * dx, wanted, step)
        return x + fraction * dx, results, after, matrix

    def _call(self, method: str, values: Tensors, step: int) -> Tensors:
        try:
            return self.model.call_from_anywhere(method, values)
        except RuntimeError as error:
            raise RunError(f"step {step} fails", where=f"step {step}", got=summarize_error(error)) from error

    def _evaluate(
        self, values: Tensors, x: torch.Tensor, wanted: torch.Tensor, step: int
    ) -> tuple[Tensors, torch.Tensor, torch.Tensor]:
        """Return results, residual ``(points, n)`` and matrix ``(points, n, n)`` at these unknown components."""
        self._put_unknowns(values, x)
        results = self._call("jacobian", values, step)
        places = list(self.plan.outputs.values())
        got = [self._expand(results, name)[(ALL, *index)] for name, index in places]
        rows = [torch.stack([self._read_entry(results, o, u) for u in self.plan.unknowns], -1) for o in places]
        return results, torch.stack(got, -1).double() - wanted, torch.stack(rows, -2).double()

    def _expand(self, results: Tensors, name: str) -> torch.Tensor:
        """Return an output with the batch, also where it is the same for all points."""
        return results[name].expand(self.count, *self.outputs[name].static_shape)

    def _read_entry(self, results: Tensors, output: Place, unknown: Place) -> torch.Tensor:
        block = results.get(block_name(output[0], unknown[0]))
        if block is None:
            return torch.zeros(self.count, dtype=torch.float64)
        return block.expand(self.count, *block.shape[1:])[(ALL, *output[1], *unknown[1])]

    def _is_reached(self, results: Tensors, residual: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        # Each output has a scale of its own.
        limits = []
        for k, (name, _) in enumerate(self.plan.outputs.values()):
            value = self._expand(results, name).reshape(self.count, -1)
            scale = value.abs().amax(-1).double().clamp(min=self.loads[name])
            epsilon = torch.finfo(value.dtype).eps
            limits.append(max(TOLERANCE, 50 * epsilon) * scale + SMALLEST * matrix[:, k].abs().amax(-1))
        return (residual.abs() <= torch.stack(limits, -1)).all(-1) & _is_finite(residual)


def _is_finite(value: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(value.reshape(value.shape[0], -1)).all(-1)


def check_control(contract: Contract, path: LoadPath, points: Tensors, results: Tensors) -> None:
    """Compare every prescribed component of the points that are not lost with its column, found by name once more.

    Raises ``MismatchError``."""
    shapes = {s.name: s.static_shape for s in (*contract.inputs, *contract.outputs)}
    columns = {c: v[:, None] for c, v in path.values.items()} | {c: v[None] for c, v in points.items()}
    for column, values in columns.items():
        name, index = find_component(column, shapes, path.where)
        got = results[name][(ALL, ALL, *index)].double()
        wanted = values.expand(got.shape)
        largest = max(float(results[name].nan_to_num().abs().max()), float(wanted.abs().max()))
        dtype = results[name].dtype
        limit = max(1e-8, 100 * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0) * largest
        # NaN is no less than any limit.
        is_off = ~((got - wanted).abs() <= limit) & (results[CONTROL_STATUS] == REACHED)
        if bool(is_off.any()):
            step, point = is_off.nonzero()[0].tolist()
            what, where = "a prescribed component is not what the path says", f"{column}, step {step}, point {point}"
            figures = {"got": f"{got[step, point].item():g}", "expected": f"{wanted[step, point].item():g}"}
            raise MismatchError(what, check="control", where=where, **figures)


def to_history(points: MaterialPoints, results: Tensors) -> Tensors:
    """Return the run as a history of prescribed inputs, which any runtime of the file can go through."""
    lagged = {lag for name in points.inputs for lag in list_lag_names(*parse_lag(name)) if parse_lag(name)[0] != name}
    guesses = [n for n in points.inputs if n in points.outputs]
    states = {n: points.initial.get(n, points.initial[parse_lag(n)[0]]) for n in (*sorted(lagged), *guesses)}
    prescribed = {n: v for n, v in results.items() if n in points.inputs and n not in points.outputs}
    expected = {n: v for n, v in results.items() if n in points.outputs}
    sides = ((PRESCRIBED, prescribed), (INITIAL, states), (EXPECTED, expected))
    return {f"{side}/{name}": value.contiguous() for side, values in sides for name, value in values.items()}
