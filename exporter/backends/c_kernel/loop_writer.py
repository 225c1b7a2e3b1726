"""A Newton loop as C: a frame of its own, so that the methods that have the loop share its functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from exporter.backends.c_kernel.expression_graph import BOOL, F64, I64, LU, NEWTON, ExprGraph
from exporter.backends.c_kernel.frame_layout import ARRAYS, TEMPLATES, UNROLLED, LoopCode
from exporter.backends.c_kernel.frame_writer import FrameWriter
from exporter.backends.c_kernel.function_merging import Part
from exporter.backends.c_kernel.lowering import LoweredMethod
from exporter.backends.c_kernel.newton_loop import SETTLED, TIGHT, NewtonLoop, Reduction, list_outer_inputs
from exporter.backends.c_kernel.schedule import find_uniform_nodes, reachable_nodes
from exporter.model.implicit import newton_solver

_LOCAL = re.compile(r"\bv\d+\b")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def write_loops(lowered_methods: Sequence[LoweredMethod]) -> dict[int, LoopCode]:
    """Write each Newton loop of these methods once, by its number. Loops whose text is the same have one name."""
    # The methods of a file are nodes of one graph.
    graph = lowered_methods[0].graph
    ends = [i for lowered in lowered_methods for output in lowered.outputs for i in output]
    matrices: dict[int, bool] = {}
    for i in reachable_nodes(graph, ends, ()):
        if graph[i].op == NEWTON:
            index, has_matrix = graph[i].extra
            matrices[index] = matrices.get(index, False) or bool(has_matrix)
    loops = {index: loop for lowered in lowered_methods for index, loop in lowered.loops.items()}
    names: dict[str, str] = {}
    written = {}
    for number, (index, has_matrix) in enumerate(sorted(matrices.items())):
        name = f"tf_loop_{number}"
        code = LoopWriter(name, graph, loops[index], index, has_matrix=has_matrix).write()
        written[index] = replace(code, name=names.setdefault(_normalize_text(code), name))
    return written


def _normalize_text(code: LoopCode) -> str:
    """Return the text without its name and comments, locals numbered by first occurrence."""
    parts = (code.text, code.prepare, code.frame, code.uniform)
    plain = _COMMENT.sub("", "\n".join(parts)).replace(code.name, "tf_loop")
    numbers: dict[str, int] = {}
    return _LOCAL.sub(lambda match: f"v{numbers.setdefault(match[0], len(numbers))}", plain)


class LoopWriter(FrameWriter):
    """Writer of one loop; with ``has_matrix`` its function may be asked for the matrix at the solution."""

    def __init__(self, name: str, graph: ExprGraph, loop: NewtonLoop, index: int, *, has_matrix: bool) -> None:
        """Plan what is read from outside, and what is the same for all elements."""
        ends = [*loop.ends, *loop.settings.values()]
        uniform_nodes = {*find_uniform_nodes(graph, ends)}
        self.outer_inputs = list_outer_inputs(graph, loop, index)
        self.read = [i for i in self.outer_inputs if graph[i].op != "const" and i not in uniform_nodes]
        super().__init__(name, graph, ends, self.read)
        self.loop, self.has_matrix = loop, has_matrix
        self.plan_uniform()

    def write(self) -> LoopCode:
        """Return the C text of the loop."""
        guess = self.allocator.take(F64, self.loop.size)
        inputs = {i: self._take_input(i) for i in self.read}
        self.emit_uniform()
        uniform_places = {i: self.names[i].removeprefix("g->") for i in self.uniform_nodes}
        results = self._emit_newton(guess)
        return LoopCode(
            **self.collect_code(),
            member=self.name,
            has_matrix=self.has_matrix,
            guess=guess,
            inputs=tuple(inputs.get(i, ()) for i in self.outer_inputs),
            results=results,
            uniform_places=uniform_places,
        )

    def _take_input(self, i: int) -> tuple[tuple[str, int, int], ...]:
        """Reserve the registers of a node from outside: a number, or the factors of a matrix."""
        node = self.graph[i]
        if node.op != LU:
            register = self.allocator.take(node.dtype)
            self.names[i] = f"f->{ARRAYS[node.dtype]}[{register}][l]"
            return ((node.dtype, register, 1),)
        first, pivots = self.take_factors(i)
        n = node.extra[0]
        return (F64, first, n * n + n), (BOOL, pivots, n + 1)

    def _emit_newton(self, guess: int) -> tuple[str, ...]:
        """Add the function of the loop, and return the places of its results."""
        loop = self.loop
        n = loop.size
        unrolled = n <= UNROLLED
        if unrolled:
            self.unrolled_sizes[n] = None
        else:
            self.helpers |= dict.fromkeys(("tf_factor", "tf_solve"))
        # Of the step: the number of each unknown, and whether they can be trusted.
        work, kept = n if unrolled else 2 * n + n * n, n * n + n if self.has_matrix else 0
        counts = {"u": n, "r": n, "J": n * n, "step": n + 1, "work": work, "kept": kept, "norm": 1}
        reduction = loop.reduction
        counts |= {"tears": len(reduction.tears), "change": len(reduction.tears)} if reduction else {}
        doubles = {part: self.allocator.take(F64, count) for part, count in counts.items()}
        integers = {part: self.allocator.take(I64) for part in ("iterations", "status")}
        pivots = self.allocator.take(BOOL, n + 1)
        for k, t in enumerate(loop.unknowns):
            self.names[t] = f"f->d[{doubles['u'] + k}][l]"
        regions = {"residual": (0, ()), "jacobian": (doubles["J"], loop.matrix)}
        if loop.step:
            regions["step"] = (doubles["step"], loop.step)
        parts = {}
        for part, (first, ends) in regions.items():
            registers = [*range(doubles["r"], doubles["r"] + n), *range(first, first + len(ends))]
            parts[part] = self.emit_region(f"{self.name}_{part}", [*loop.residual, *ends], registers)
        if reduction:
            parts |= self._emit_reduction(reduction, doubles)
        text = TEMPLATES.get_template("newton.c.jinja").render(
            loop=loop,
            n=n,
            at=doubles | integers | {"pivots": pivots, "guess": guess},
            settings={k: self.name_node(t) for k, t in loop.settings.items()},
            tangents=self.has_matrix,
            unrolled=unrolled,
            statuses=newton_solver,
            settled=SETTLED,
            tight=TIGHT,
            **parts,
        )
        more = ", const int with_matrix" if self.has_matrix else ""
        self.functions.append(Part(self.name, self.name, text, parameters=more))
        numbers = [*range(doubles["u"], doubles["u"] + n), *range(doubles["J"], doubles["J"] + n * n)]
        scalars = (f"i[{integers['iterations']}]", f"d[{doubles['norm']}]", f"i[{integers['status']}]")
        return (*(f"d[{k}]" for k in numbers), *scalars)

    def _emit_reduction(self, reduction: Reduction, doubles: Mapping[str, int]) -> dict[str, str]:
        """Emit the regions of a reduced system, and return the calls of them."""
        for k, t in enumerate(reduction.tears):
            self.names[t] = f"f->d[{doubles['tears'] + k}][l]"
        regions = {"starts": ("tears", reduction.starts), "reduced": ("change", reduction.step)}
        regions["solution"] = ("u", reduction.solution)
        return {
            part: self.emit_region(f"{self.name}_{part}", ends, range(doubles[to], doubles[to] + len(ends)))
            for part, (to, ends) in regions.items()
        }
