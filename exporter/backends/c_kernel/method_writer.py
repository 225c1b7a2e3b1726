"""A lowered method as C: functions on a frame that has its inputs, its outputs and the frames of its Newton loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from exporter.backends.c_kernel.expression_graph import F64, LU, NEWTON, ExprNode
from exporter.backends.c_kernel.frame_layout import ARRAYS, LoopCode, MethodCode
from exporter.backends.c_kernel.frame_writer import FrameWriter
from exporter.backends.c_kernel.function_merging import Part
from exporter.backends.c_kernel.lowering import LoweredMethod
from exporter.backends.c_kernel.register_loops import emit_copies
from exporter.backends.c_kernel.schedule import reachable_nodes


class MethodWriter(FrameWriter):
    """Writer of one method."""

    def __init__(
        self, lowered: LoweredMethod, shapes: Mapping[str, tuple[str, int]], loops: Mapping[int, LoopCode]
    ) -> None:
        """Plan the registers; ``shapes`` has the dtype and the count of each input, ``loops`` all Newton loops."""
        self.lowered = lowered
        graph = lowered.graph
        self.ends = [i for output in lowered.outputs for i in output]
        self.loop_codes = loops
        calls = [graph[i].extra for i in reachable_nodes(graph, self.ends, ()) if graph[i].op == NEWTON]
        called = {index: loops[index] for index, _ in calls}
        # Where a method calls a loop with its matrix and without, both calls write the same frame: both have it.
        self.with_matrix = {index for index, has_matrix in calls if has_matrix}
        # Loops know these numbers themselves.
        known = {i: f"g->{loop.member}.{place}" for loop in called.values() for i, place in loop.uniform_places.items()}
        super().__init__(lowered.method, graph, self.ends, known)
        self.loops = {loop.member: loop for loop in called.values()}
        self.names |= known
        self.statuses: dict[str, None] = {}
        self.inputs = {name: self.allocator.take(dtype, count) for name, (dtype, count) in shapes.items()}
        for i in self.all_nodes:
            node = graph[i]
            if node.op == "leaf" and node.extra[0] in self.inputs:
                array = ARRAYS[node.dtype]
                self.names[i] = f"f->{array}[{self.inputs[str(node.extra[0])] + node.extra[1]}][l]"
        self.plan_uniform()

    def list_arguments(self, node: ExprNode) -> Iterable[int]:
        """Return the nodes that a node reads itself: those that a loop is given, not those that it has."""
        if node.op != NEWTON:
            return super().list_arguments(node)
        loop = self.loop_codes[node.extra[0]]
        first = len(node.args) - len(loop.inputs)
        passed = (i for i, places in zip(node.args[first:], loop.inputs, strict=True) if places)
        return (*node.args[:first], *passed)

    def write(self) -> MethodCode:
        """Return the C text of the method."""
        name = self.lowered.method
        self.emit_uniform()
        top = reachable_nodes(self.graph, self.ends, self.list_available())
        dtypes = [self.graph[output[0]].dtype if output else F64 for output in self.lowered.outputs]
        outputs = []
        for output, dtype in zip(self.lowered.outputs, dtypes, strict=True):
            assert all(self.graph[i].dtype == dtype for i in output)
            first = self.allocator.take(dtype, len(output))
            self.assign_registers(output, range(first, first + len(output)), top)
            outputs.append(first)
        calls = self.emit_steps(top, self.ends, name)
        for output, dtype, first in zip(self.lowered.outputs, dtypes, outputs, strict=True):
            copies = self.emit_copies(output, range(first, first + len(output)), ARRAYS[dtype])
            if copies:
                calls.append(self.add_function(name, copies))
        self.functions.append(Part(name, f"{name}_body", "".join(f"  {call}\n" for call in calls)))
        code = self.collect_code()
        selects = any(self.graph[i].op == "where" for i in self.all_nodes)
        return MethodCode(
            **code,
            inputs=self.inputs,
            outputs=tuple(outputs),
            statuses=tuple(self.statuses),
            holds_environment=bool(self.loops) or "tf_factor" in self.helpers or selects,
        )

    def emit_block(self, i: int, name: str) -> str:
        """Add the function of a block, and return the call of it."""
        return self._emit_newton(i, name) if self.graph[i].op == NEWTON else super().emit_block(i, name)

    def _emit_newton(self, i: int, name: str) -> str:
        """Add a function that gives a Newton loop what it reads, and calls it."""
        index, has_matrix = self.graph[i].extra
        loop = self.loop_codes[index]
        arguments = self.graph[i].args
        n = len(arguments) - len(loop.inputs)
        targets: dict[str, dict[int, str]] = {
            "d": {loop.guess + k: self.name_node(t) for k, t in enumerate(arguments[:n])}
        }
        for t, places in zip(arguments[n:], loop.inputs, strict=True):
            for dtype, first, count in places:
                values = self._list_values(t, dtype, count)
                targets.setdefault(ARRAYS[dtype], {}).update(zip(range(first, first + count), values, strict=True))
        text = "".join(
            emit_copies(f"{loop.member}.{array}", list(values), list(values.values()))
            for array, values in targets.items()
        )
        uniform = f"&g->{loop.member}" if loop.has_uniform else "0"
        matrix = f", {int(index in self.with_matrix)}" if loop.has_matrix else ""
        results = [f"f->{loop.member}.{place}[l]" for place in loop.results]
        self.statuses[results[-1]] = None
        self.name_picks(i, results if has_matrix else [*results[:n], *results[-3:]])
        call = f"  TF_({loop.name})(&f->{loop.member}, {uniform}{matrix});\n"
        # A hundred copies in one function with what computes them take gcc ten times as long.
        return self.add_function(name, text + call, attributes="TF_ALONE ")

    def _list_values(self, i: int, dtype: str, count: int) -> list[str]:
        """Return the numbers of a node: one, or those of a matrix's factors of this dtype."""
        if self.graph[i].op != LU:
            return [self.name_node(i)]
        first = self.allocator.places[i if dtype == F64 else -i][1]
        return [f"f->{ARRAYS[dtype]}[{first + k}][l]" for k in range(count)]
