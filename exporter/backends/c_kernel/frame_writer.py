"""Functions in C on a frame of registers, one number per lane each: what methods and Newton loops have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from exporter.backends.c_kernel.c_expressions import MEMORY, TYPES, format_expression, format_literal
from exporter.backends.c_kernel.direction_batching import DirectionLoop
from exporter.backends.c_kernel.expression_graph import (
    BOOL,
    COLUMNS,
    F64,
    LU,
    PARAMETER,
    READ,
    SEVERAL,
    SOLVED,
    TABLES,
    ExprGraph,
    ExprNode,
)
from exporter.backends.c_kernel.frame_layout import ARRAYS, TEMPLATES, LoopCode, emit_prepare, format_struct
from exporter.backends.c_kernel.function_merging import Part, merge_functions
from exporter.backends.c_kernel.register_loops import emit_copies, emit_repeated
from exporter.backends.c_kernel.schedule import (
    CALLS,
    SCALARS,
    RegisterAllocator,
    Step,
    allocate_registers,
    find_parameter_tables,
    find_uniform_nodes,
    reachable_nodes,
    schedule_steps,
)
from exporter.common.c_text import escape_comment


class FrameWriter:
    """Writer of functions on one frame. ``loops`` are those that it calls, whose frames are in its own."""

    def __init__(self, name: str, graph: ExprGraph, ends: Sequence[int], inputs: Collection[int] = ()) -> None:
        """Find the nodes that ``ends`` need besides ``inputs``."""
        self.name, self.graph = name, graph
        self.allocator = RegisterAllocator()
        self.helpers: dict[str, None] = {}
        self.functions: list[Part] = []
        self.function_count = 0
        self.operations = 0
        self.names: dict[int, str] = {}
        self.unrolled_sizes: dict[int, None] = {}
        # Registers that a block is to put its numbers into at once.
        self.block_registers: dict[int, int] = {}
        # The C expression of each table's start, and the tables of constants.
        self.tables: dict[tuple[int, ...], str] = {}
        self.constants: list[str] = []
        # By member of the frame.
        self.loops: dict[str, LoopCode] = {}
        self.all_nodes = set(reachable_nodes(graph, ends, inputs))
        self.used = set(ends)
        for direction_loop in [graph[i].extra[0] for i in self.all_nodes if graph[i].op == COLUMNS]:
            self.used.update(direction_loop.tangents)
            self.all_nodes.update(reachable_nodes(graph, direction_loop.tangents, {*self.all_nodes, *inputs}))

    def plan_uniform(self) -> None:
        """Find what is the same for all elements, and not known to a loop that is called."""
        # Tables that are parameters, unchanged, are read in the caller's memory: no nodes are made of their numbers.
        self.parameter_tables = find_parameter_tables(self.graph, self.all_nodes)
        for i in self.all_nodes:
            self.used.update(self.list_arguments(self.graph[i]))
        nodes = find_uniform_nodes(self.graph, self.all_nodes)
        self.uniform_nodes = dict.fromkeys(i for i in nodes if i in self.used and i not in self.names)

    def list_arguments(self, node: ExprNode) -> Iterable[int]:
        """Return the nodes that a node reads itself, without those of its loop or of a table read in place."""
        if node.op == COLUMNS:
            return ()
        return node.args[:1] if node.op in TABLES and node.args[1:] in self.parameter_tables else node.args

    def collect_code(self) -> dict[str, Any]:
        """Return the fields of ``FrameCode``."""
        merged = merge_functions(self.functions)
        tables = len(self.parameter_tables)
        loops = tuple(self.loops.values())
        inner = {loop.member: f"{loop.name}_frame" for loop in loops}
        inner_uniform = {loop.member: f"{loop.name}_uniform" for loop in loops if loop.has_uniform}
        written = {loop.name: loop for loop in loops}.values()
        uniform_operations = sum(self.graph[i].op != "leaf" for i in self.uniform_nodes)
        operations = self.operations + merged.operations + uniform_operations
        table_parameters = [parameter.removeprefix(PARAMETER) for parameter, _ in self.parameter_tables.values()]
        table_parameters += [parameter for loop in loops for parameter in loop.table_parameters]
        structure = format_struct(
            f"{self.name}_uniform", self.uniform_allocator.counts, lanes=False, pointers=tables, inner=inner_uniform
        )
        return {
            "name": self.name,
            "text": merged.text,
            "prepare": self.prepare,
            "frame": format_struct(f"{self.name}_frame", self.allocator.counts, lanes=True, inner=inner),
            "uniform": "".join(self.constants) + merged.tables + structure,
            "operations": operations + sum(loop.operations for loop in written),
            "uniform_operations": uniform_operations + sum(loop.uniform_operations for loop in written),
            "register_counts": dict(self.allocator.counts),
            "uniform_counts": dict(self.uniform_allocator.counts),
            "table_parameters": tuple(dict.fromkeys(table_parameters)),
            "table_count": tables,
            "parameters": self.parameters,
            "helpers": tuple(dict.fromkeys((*self.helpers, *(h for c in loops for h in c.helpers)))),
            "unrolled_sizes": tuple(
                dict.fromkeys((*self.unrolled_sizes, *(n for c in loops for n in c.unrolled_sizes)))
            ),
            "loops": loops,
        }

    def emit_uniform(self) -> None:
        """Emit what is computed once for a call, and find the parameters that are read."""
        name, lines = self.name, []
        parameters: dict[str, int] = {}
        allocator = RegisterAllocator()
        for loop in self.loops.values():
            if loop.has_uniform:
                numbers = [parameters.setdefault(p, len(parameters)) for p in loop.parameters]
                lines.append(_emit_inner_prepare(loop, numbers))
        for k, (numbers, (parameter, first)) in enumerate(self.parameter_tables.items()):
            c_type = MEMORY[self.graph[numbers[0]].dtype]
            number = parameters.setdefault(parameter.removeprefix(PARAMETER), len(parameters))
            lines.append(f"  g->t[{k}] = (const {c_type} *)parameters[{number}] + {first};")
            self.tables[numbers] = f"(const {c_type} *)g->t[{k}]"
        copies = self._place_tables(allocator)
        for i in self.uniform_nodes:
            node = self.graph[i]
            allocator.assign(i, node.dtype)
            array, register = ARRAYS[node.dtype], allocator.places[i][1]
            if node.op == "leaf":
                parameter = str(node.extra[0]).removeprefix(PARAMETER)
                number = parameters.setdefault(parameter, len(parameters))
                value = f"((const {MEMORY[node.dtype]} *)parameters[{number}])[{node.extra[1]}]"
                value += " != 0" if node.dtype == BOOL else ""
            else:
                value = self._format_node(i)
            lines.append(f"  g->{array}[{register}] = {value};")
            self.names[i] = f"g->{array}[{register}]"
        lines += [f"  {to} = {self.name_node(i)};" for to, i in copies]
        self.uniform_allocator = allocator
        self.prepare = emit_prepare(name, lines)
        self.parameters = tuple(parameters)

    def _place_tables(self, allocator: RegisterAllocator) -> list[tuple[str, int]]:
        """Place the tables that are read, each contiguous: constants in a static table, uniform values where they are
        computed. Returns the values that must be copied from elsewhere."""
        copies = []
        for i in sorted(self.all_nodes):
            numbers = self.graph[i].args[1:]
            if self.graph[i].op not in TABLES or numbers in self.tables:
                continue
            dtype = self.graph[numbers[0]].dtype
            if all(self.graph[n].op == "const" for n in numbers):
                name = self.tables[numbers] = f"{self.name}_table_{len(self.tables)}"
                values = ", ".join(self.name_node(n) for n in numbers)
                self.constants.append(f"TF_TABLE {TYPES[dtype]} {name}[] = {{ {values} }};\n")
                continue
            first = allocator.take(dtype, len(numbers))
            self.tables[numbers] = f"&g->{ARRAYS[dtype]}[{first}]"
            for register, n in enumerate(numbers, first):
                if self.graph[n].op == "const" or n in allocator.places or n in self.names:
                    copies.append((f"g->{ARRAYS[dtype]}[{register}]", n))
                else:
                    allocator.places[n] = (dtype, register)
        return copies

    def emit_steps(self, needed: Sequence[int], ends: Iterable[int], name: str) -> list[str]:
        """Add functions for these nodes and return the calls of them, in order."""
        order = schedule_steps(self.graph, needed)
        allocate_registers(self.graph, order, ends, self.allocator, self.names)
        calls = []
        for step in order:
            if step.category == SCALARS:
                calls.append(self._emit_loop(step, name, single=False))
            elif step.category == CALLS:
                calls.append(self._emit_loop(step, name, single=True))
            else:
                calls.append(self.emit_block(step.nodes[0], name))
        return calls

    def add_function(self, name: str, body: str, operations: int = 0, attributes: str = "") -> str:
        """Add a function and return the call of it."""
        function = f"{name}_{self.function_count}"
        self.function_count += 1
        self.functions.append(Part(self.name, function, body, operations, attributes=attributes))
        return f"TF_({function})(f, g);"

    def _emit_loop(self, step: Step, name: str, *, single: bool) -> str:
        """Emit one loop over the lanes for scalars; one for each call of libm."""
        local: dict[int, str] = {}
        lines: list[str] = []
        last_origin = ""
        for i in step.nodes:
            node = self.graph[i]
            text = self._format_node(i, local)
            origin = self.graph.origins[i]
            if origin and origin != last_origin:
                lines.append(f"    /* {escape_comment(origin)} */")
                last_origin = origin
            register = self.allocator.places.get(i)
            if register is not None and i not in self.names:
                self.names[i] = f"f->{ARRAYS[register[0]]}[{register[1]}][l]"
            if single:
                lines.append(self._emit_call(i, text))
                continue
            local[i] = f"v{i}"
            lines.append(f"    const {TYPES[node.dtype]} v{i} = {text};")
            if register is not None:
                lines.append(f"    {self.names[i]} = v{i};")
        body = "".join(f"{line}\n" for line in (emit_repeated(lines) if single else lines))
        if not single:
            body = f"  TF_SIMD\n  for (int l = 0; l < TF_NOW; l++) {{\n{body}  }}\n"
        return self.add_function(name, body, len(step.nodes))

    def _emit_call(self, i: int, text: str) -> str:
        """Emit a loop for one call of libm. A power whose exponent is the same for all elements may turn out to be a
        product: of up to four factors, which is within 2 ULP of it."""
        node, target = self.graph[i], self.names[i]
        every = "for (int l = 0; l < TF_NOW; l++)"
        lines = []
        if node.op == "pow" and self.names.get(node.args[1], "").startswith("g->"):
            x, exponent = self.name_node(node.args[0]), self.name_node(node.args[1])
            products = (x, f"{x} * {x}", f"{x} * {x} * {x}", f"({x} * {x}) * ({x} * {x})")
            for number, product in enumerate(products, 1):
                value = format_literal(float(number), self.graph[node.args[1]].dtype)
                condition = f"    if ({exponent} == {value})"
                lines.append(f"{condition}\n      TF_SIMD\n      {every} {target} = {product};\n    else")
        return "\n".join([*lines, f"    {every} {target} = {text};"])

    def name_node(self, i: int, local: Mapping[int, str] | None = None) -> str:
        """Return the C expression of a node's number."""
        node = self.graph[i]
        if node.op == "const":
            value = self.graph.constant_value(i)
            return format_literal(value if value is not None else 0, node.dtype)
        if local and i in local:
            return local[i]
        return self.names[i]

    def _format_node(self, i: int, local: Mapping[int, str] | None = None) -> str:
        node = self.graph[i]
        if node.op == "singular":
            return self.names[-node.args[0]]
        if node.op in TABLES:
            table, count = self.tables[node.args[1:]], len(node.args) - 1
            first = self.name_node(node.args[0], local)
            if node.op == READ:
                return f"({table})[{first}]"
            self.helpers |= {"tf_below": None}
            return f"({TYPES[node.dtype]})tf_below({table}, {count}, {first}, {int(node.extra[0])})"
        dtypes = [self.graph[a].dtype for a in node.args]
        text, helpers = format_expression(node.op, node.dtype, dtypes, [self.name_node(a, local) for a in node.args])
        self.helpers |= dict.fromkeys(helpers)
        return text

    def emit_block(self, i: int, name: str) -> str:
        """Add the function of a block, and return the call of it."""
        write = {LU: self._emit_lu, SOLVED: self._emit_solve, COLUMNS: self._emit_direction_loop}
        return write[self.graph[i].op](i, name)

    def list_available(self) -> set[int]:
        """Return the nodes that are in registers, and those that are the same for all elements."""
        return {i for i in self.names if i >= 0} | self.uniform_nodes.keys()

    def assign_registers(self, ends: Sequence[int], registers: Sequence[int], needed: Sequence[int]) -> None:
        """Compute scalars in the registers where they are wanted; also a block wanted there in order."""
        computed = set(needed)
        shifts: dict[int, set[int]] = {}
        for i, register in zip(ends, registers, strict=True):
            node = self.graph[i]
            if i in computed and i not in self.names and node.op not in (*SEVERAL, "pick", "singular", "leaf", "const"):
                self.allocator.places.setdefault(i, (node.dtype, register))
            if node.op == "pick" and self.graph[node.args[0]].op == COLUMNS:
                shifts.setdefault(node.args[0], set()).add(register - node.extra[0])
        for block, offsets in shifts.items():
            first, last = min(offsets), min(offsets) + self.graph[block].extra[0].count - 1
            if len(offsets) == 1 and block in computed and first in registers and last in registers:
                self.block_registers[block] = first

    def emit_copies(self, nodes: Sequence[int], registers: Sequence[int], array: str = "d") -> str:
        """Return statements that copy nodes into registers."""
        return emit_copies(array, registers, [self.name_node(t) for t in nodes])

    def name_picks(self, block: int, pick_names: Sequence[str]) -> None:
        """Name the numbers that are picked from a block."""
        for pick in self.all_nodes:
            if self.graph[pick].op == "pick" and self.graph[pick].args[0] == block:
                index: int = self.graph[pick].extra[0]
                self.names[pick] = pick_names[index]

    def take_factors(self, i: int) -> tuple[int, int]:
        """Reserve the registers of an LU factorisation: of its numbers, and of its pivots with the singularity flag."""
        n = self.graph[i].extra[0]
        first = self.allocator.take(F64, n * n + n)
        pivots = self.allocator.take(BOOL, n + 1)
        self.allocator.places[i] = ("lu", first)
        self.allocator.places[-i] = ("pivots", pivots)
        self.names[-i] = f"f->b[{pivots + n}][l]"
        return first, pivots

    def _emit_lu(self, i: int, name: str) -> str:
        """Emit an LU factorisation: factors, then inverses of the diagonal; ``names[-i]`` is the singularity flag."""
        self.helpers |= {"tf_factor": None}
        n = self.graph[i].extra[0]
        first, pivots = self.take_factors(i)
        self.operations += n**3 // 3
        copies = self.emit_copies(self.graph[i].args, range(first, first + n * n))
        call = f"TF_(tf_factor)({n}, &f->d[{first}], &f->d[{first + n * n}], &f->b[{pivots}], f->b[{pivots + n}])"
        return self.add_function(name, f"{copies}  {call};\n")

    def _emit_solve(self, i: int, name: str) -> str:
        n, transposed = self.graph[i].extra[0], bool(self.graph[i].extra[1])
        factors, *sides = self.graph[i].args
        x = self.allocator.take(F64, n)
        first, pivots = self.allocator.places[factors][1], self.allocator.places[-factors][1]
        run = "tf_solve_transposed" if transposed else "tf_solve"
        self.helpers |= {run: None}
        self.operations += n * n
        self.name_picks(i, [f"f->d[{x + k}][l]" for k in range(n)])
        copies = self.emit_copies(sides, range(x, x + n))
        call = f"TF_({run})({n}, &f->d[{first}], &f->d[{first + n * n}], &f->b[{pivots}], &f->d[{x}])"
        return self.add_function(name, f"{copies}  {call};\n")

    def _emit_direction_loop(self, i: int, name: str) -> str:
        direction_loop: DirectionLoop = self.graph[i].extra[0]
        tangents = len(direction_loop.tangents)
        register = self.block_registers.get(i)
        registers = {
            "along": self.allocator.take(F64, len(direction_loop.seeds)),
            "tangents": self.allocator.take(F64, tangents),
            "found": self.allocator.take(F64, direction_loop.count) if register is None else register,
        }
        for k, t in enumerate(direction_loop.seeds):
            self.names[t] = f"f->d[{registers['along'] + k}][l]"
        first = registers["tangents"]
        along = self.emit_region(f"{name}_along", direction_loop.tangents, range(first, first + tangents))
        self.name_picks(i, [f"f->d[{registers['found'] + k}][l]" for k in range(direction_loop.count)])
        template = TEMPLATES.get_template("columns.c.jinja")
        return self.add_function(name, template.render(one=direction_loop, at=registers, along=along))

    def emit_region(self, name: str, ends: Sequence[int], registers: Sequence[int]) -> str:
        """Return the call of a function that computes ``ends`` into these registers from the leaves of a loop; nodes
        outside of the loop are there already."""
        outer_names, outer_places = dict(self.names), dict(self.allocator.places)
        lu_nodes = {i for i in outer_places if i >= 0 and self.graph[i].op == LU}
        available = self.list_available() | lu_nodes
        needed = [i for i in reachable_nodes(self.graph, ends, available) if self.graph[i].op != "const"]
        self.assign_registers(ends, registers, needed)
        calls = self.emit_steps(needed, ends, name)
        call = self.add_function(name, "".join(f"  {call}\n" for call in calls) + self.emit_copies(ends, registers))
        # Another region computes its own nodes.
        self.names, self.allocator.places = outer_names, outer_places
        return call


def _emit_inner_prepare(loop: LoopCode, numbers: Sequence[int]) -> str:
    """Return the call that fills the uniform values of a loop, from these of the caller's parameters."""
    call = f"{loop.name}_prepare(&g->{loop.member}, %s);"
    if not numbers:
        return f"  {call % '0'}"
    chosen = ", ".join(f"parameters[{number}]" for number in numbers)
    return f"  const void *const {loop.member}[] = {{ {chosen} }};\n  {call % loop.member}"
