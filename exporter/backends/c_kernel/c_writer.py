"""A lowered method as C: a frame of registers, one number per lane each, and functions from register to register."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from exporter.backends.c_kernel.c_expressions import MEMORY, TYPES, format_expression, format_literal
from exporter.backends.c_kernel.direction_batching import DirectionLoop
from exporter.backends.c_kernel.expression_graph import (
    BOOL,
    COLUMNS,
    F64,
    I64,
    LU,
    NEWTON,
    PARAMETER,
    READ,
    SEVERAL,
    SOLVED,
    TABLES,
    ExprNode,
)
from exporter.backends.c_kernel.frame_layout import (
    ARRAYS,
    SMALL,
    TEMPLATES,
    UNROLLED,
    MethodCode,
    emit_prepare,
    format_struct,
)
from exporter.backends.c_kernel.function_merging import Part, merge_functions
from exporter.backends.c_kernel.lowering import LoweredMethod
from exporter.backends.c_kernel.newton_loop import SETTLED, TIGHT, Reduction
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
from exporter.model.implicit import newton_solver


class CWriter:
    """Writer of one method."""

    def __init__(self, lowered: LoweredMethod, shapes: Mapping[str, tuple[str, int]]) -> None:
        """Plan the registers; ``shapes`` has the dtype and the count of each input."""
        self.lowered, self.graph = lowered, lowered.graph
        self.allocator = RegisterAllocator()
        self.helpers: dict[str, None] = {}
        self.functions: list[Part] = []
        self.function_count = 0
        self.operations = 0
        self.names: dict[int, str] = {}
        self.inputs = {name: self.allocator.take(dtype, count) for name, (dtype, count) in shapes.items()}
        self.statuses: list[str] = []
        self.unrolled_sizes: dict[int, None] = {}
        ends = [i for output in lowered.outputs for i in output]
        needed = reachable_nodes(self.graph, ends, ())
        self.loops = {i: lowered.loops[self.graph[i].extra[0]] for i in needed if self.graph[i].op == NEWTON}
        self.all_nodes = set(needed)
        used = set(ends)
        for loop in self.loops.values():
            used.update(loop.ends)
            self.all_nodes.update(reachable_nodes(self.graph, loop.ends, self.all_nodes))
        for direction_loop in [self.graph[i].extra[0] for i in self.all_nodes if self.graph[i].op == COLUMNS]:
            used.update(direction_loop.tangents)
            self.all_nodes.update(reachable_nodes(self.graph, direction_loop.tangents, self.all_nodes))
        # Registers that a block is to put its numbers into at once.
        self.block_registers: dict[int, int] = {}
        # Tables that are parameters, unchanged, are read in the caller's memory: no nodes are made of their numbers.
        self.parameter_tables = find_parameter_tables(self.graph, self.all_nodes)
        for i in self.all_nodes:
            used.update(self._list_arguments(self.graph[i]))
        self.uniform_nodes = dict.fromkeys(i for i in find_uniform_nodes(self.graph, self.all_nodes) if i in used)
        # The C expression of each table's start, and the tables of constants.
        self.tables: dict[tuple[int, ...], str] = {}
        self.constants: list[str] = []
        for i in self.all_nodes:
            node = self.graph[i]
            if node.op == "leaf" and node.extra[0] in self.inputs:
                array = ARRAYS[node.dtype]
                self.names[i] = f"f->{array}[{self.inputs[str(node.extra[0])] + node.extra[1]}][l]"
        self.ends = ends

    def _list_arguments(self, node: ExprNode) -> Iterable[int]:
        """Return the nodes that a node reads itself, without those of its loop or of a table read in place."""
        if node.op == NEWTON:
            loop = self.lowered.loops[node.extra[0]]
            return (*node.args[: loop.size], *loop.settings.values())
        if node.op == COLUMNS:
            return ()
        return node.args[:1] if node.op in TABLES and node.args[1:] in self.parameter_tables else node.args

    def write(self) -> MethodCode:
        """Return the C text of the method."""
        name = self.lowered.method
        parameters = self._emit_uniform()
        top = reachable_nodes(self.graph, self.ends, self.uniform_nodes)
        dtypes = [self.graph[output[0]].dtype if output else F64 for output in self.lowered.outputs]
        outputs = []
        for output, dtype in zip(self.lowered.outputs, dtypes, strict=True):
            assert all(self.graph[i].dtype == dtype for i in output)
            first = self.allocator.take(dtype, len(output))
            self._assign_registers(output, range(first, first + len(output)), top)
            outputs.append(first)
        calls = self._emit_steps(top, self.ends, name)
        for output, dtype, first in zip(self.lowered.outputs, dtypes, outputs, strict=True):
            copies = self._emit_copies(output, range(first, first + len(output)), ARRAYS[dtype])
            if copies:
                calls.append(self._add_function(name, copies))
        self.functions.append(Part(name, f"{name}_body", "".join(f"  {call}\n" for call in calls)))
        merged = merge_functions(self.functions)
        tables = len(self.parameter_tables)
        uniform_struct = format_struct(f"{name}_uniform", self._uniform_counts, lanes=False, pointers=tables)
        operations = self.operations + merged.operations
        uniform_operations = sum(self.graph[i].op != "leaf" for i in self.uniform_nodes)
        selects = any(self.graph[i].op == "where" for i in self.all_nodes)
        holds_environment = bool(self.loops) or "tf_factor" in self.helpers or selects
        return MethodCode(
            name,
            merged.text,
            self.prepare,
            format_struct(f"{name}_frame", self.allocator.counts, lanes=True),
            "".join(self.constants) + merged.tables + uniform_struct,
            operations + uniform_operations,
            dict(self.allocator.counts),
            dict(self._uniform_counts),
            tuple(dict.fromkeys(parameter.removeprefix(PARAMETER) for parameter, _ in self.parameter_tables.values())),
            len(self.parameter_tables),
            self.inputs,
            tuple(outputs),
            parameters,
            tuple(self.statuses),
            holds_environment,
            tuple(self.helpers),
            tuple(self.unrolled_sizes),
            operations <= SMALL,
        )

    def _emit_uniform(self) -> tuple[str, ...]:
        """Emit what is computed once for a call, and return the parameters that the method reads."""
        name, lines, parameters = self.lowered.method, [], {}
        allocator = RegisterAllocator()
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
        lines += [f"  {to} = {self._name_node(i)};" for to, i in copies]
        self._uniform_counts = allocator.counts
        self.prepare = emit_prepare(name, lines)
        return tuple(parameters)

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
                name = self.tables[numbers] = f"{self.lowered.method}_table_{len(self.tables)}"
                values = ", ".join(self._name_node(n) for n in numbers)
                self.constants.append(f"TF_TABLE {TYPES[dtype]} {name}[] = {{ {values} }};\n")
                continue
            first = allocator.take(dtype, len(numbers))
            self.tables[numbers] = f"&g->{ARRAYS[dtype]}[{first}]"
            for register, n in enumerate(numbers, first):
                if self.graph[n].op == "const" or n in allocator.places:
                    copies.append((f"g->{ARRAYS[dtype]}[{register}]", n))
                else:
                    allocator.places[n] = (dtype, register)
        return copies

    def _emit_steps(self, needed: Sequence[int], ends: Iterable[int], name: str) -> list[str]:
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
                calls.append(self._emit_block(step.nodes[0], name))
        return calls

    def _add_function(self, name: str, body: str, operations: int = 0) -> str:
        """Add a function and return the call of it."""
        function = f"{name}_{self.function_count}"
        self.function_count += 1
        self.functions.append(Part(self.lowered.method, function, body, operations))
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
        return self._add_function(name, body, len(step.nodes))

    def _emit_call(self, i: int, text: str) -> str:
        """Emit a loop for one call of libm. A power whose exponent is the same for all elements may turn out to be a
        product: of up to four factors, which is within 2 ULP of it."""
        node, target = self.graph[i], self.names[i]
        every = "for (int l = 0; l < TF_NOW; l++)"
        lines = []
        if node.op == "pow" and node.args[1] in self.uniform_nodes:
            x, exponent = self._name_node(node.args[0]), self._name_node(node.args[1])
            products = (x, f"{x} * {x}", f"{x} * {x} * {x}", f"({x} * {x}) * ({x} * {x})")
            for number, product in enumerate(products, 1):
                value = format_literal(float(number), self.graph[node.args[1]].dtype)
                condition = f"    if ({exponent} == {value})"
                lines.append(f"{condition}\n      TF_SIMD\n      {every} {target} = {product};\n    else")
        return "\n".join([*lines, f"    {every} {target} = {text};"])

    def _name_node(self, i: int, local: Mapping[int, str] | None = None) -> str:
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
            first = self._name_node(node.args[0], local)
            if node.op == READ:
                return f"({table})[{first}]"
            self.helpers |= {"tf_below": None}
            return f"({TYPES[node.dtype]})tf_below({table}, {count}, {first}, {int(node.extra[0])})"
        dtypes = [self.graph[a].dtype for a in node.args]
        text, helpers = format_expression(node.op, node.dtype, dtypes, [self._name_node(a, local) for a in node.args])
        self.helpers |= dict.fromkeys(helpers)
        return text

    def _emit_block(self, i: int, name: str) -> str:
        write = {LU: self._emit_lu, SOLVED: self._emit_solve, NEWTON: self._emit_newton}
        write[COLUMNS] = self._emit_direction_loop
        return write[self.graph[i].op](i, name)

    def _assign_registers(self, ends: Sequence[int], registers: Sequence[int], needed: Sequence[int]) -> None:
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

    def _emit_copies(self, nodes: Sequence[int], registers: Sequence[int], array: str = "d") -> str:
        return emit_copies(array, registers, [self._name_node(t) for t in nodes])

    def _name_picks(self, block: int, pick_names: Sequence[str]) -> None:
        for pick in self.all_nodes:
            if self.graph[pick].op == "pick" and self.graph[pick].args[0] == block:
                index: int = self.graph[pick].extra[0]
                self.names[pick] = pick_names[index]

    def _emit_lu(self, i: int, name: str) -> str:
        """Emit an LU factorisation: factors, then inverses of the diagonal; ``names[-i]`` is the singularity flag."""
        self.helpers |= {"tf_factor": None}
        n = self.graph[i].extra[0]
        first = self.allocator.take(F64, n * n + n)
        pivots = self.allocator.take(BOOL, n + 1)
        self.allocator.places[i] = ("lu", first)
        self.allocator.places[-i] = ("pivots", pivots)
        self.names[-i] = f"f->b[{pivots + n}][l]"
        self.operations += n**3 // 3
        copies = self._emit_copies(self.graph[i].args, range(first, first + n * n))
        call = f"TF_(tf_factor)({n}, &f->d[{first}], &f->d[{first + n * n}], &f->b[{pivots}], f->b[{pivots + n}])"
        return self._add_function(name, f"{copies}  {call};\n")

    def _emit_solve(self, i: int, name: str) -> str:
        n, transposed = self.graph[i].extra[0], bool(self.graph[i].extra[1])
        factors, *sides = self.graph[i].args
        x = self.allocator.take(F64, n)
        first, pivots = self.allocator.places[factors][1], self.allocator.places[-factors][1]
        run = "tf_solve_transposed" if transposed else "tf_solve"
        self.helpers |= {run: None}
        self.operations += n * n
        self._name_picks(i, [f"f->d[{x + k}][l]" for k in range(n)])
        copies = self._emit_copies(sides, range(x, x + n))
        call = f"TF_({run})({n}, &f->d[{first}], &f->d[{first + n * n}], &f->b[{pivots}], &f->d[{x}])"
        return self._add_function(name, f"{copies}  {call};\n")

    def _emit_newton(self, i: int, name: str) -> str:
        loop = self.loops[i]
        tangents = bool(self.graph[i].extra[1])
        n = loop.size
        unrolled = n <= UNROLLED
        if unrolled:
            self.unrolled_sizes[n] = None
        else:
            self.helpers |= dict.fromkeys(("tf_factor", "tf_solve"))
        # Of the step: the number of each unknown, and whether they can be trusted.
        work, kept = n if unrolled else 2 * n + n * n, n * n + n if tangents else 0
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
            parts[part] = self._emit_region(f"{name}_{part}", [*loop.residual, *ends], registers)
        if reduction:
            parts |= self._emit_reduction(reduction, doubles, name)
        text = TEMPLATES.get_template("newton.c.jinja").render(
            loop=loop,
            n=n,
            at=doubles | integers | {"pivots": pivots},
            settings={k: self._name_node(t) for k, t in loop.settings.items()},
            guess=self._emit_copies(self.graph[i].args[:n], range(doubles["u"], doubles["u"] + n)),
            tangents=tangents,
            unrolled=unrolled,
            statuses=newton_solver,
            settled=SETTLED,
            tight=TIGHT,
            **parts,
        )
        status = f"f->i[{integers['status']}][l]"
        self.statuses.append(status)
        pick_names = [f"f->d[{doubles['u'] + k}][l]" for k in range(n)]
        pick_names += [f"f->d[{doubles['J'] + k}][l]" for k in range(n * n)] if tangents else []
        pick_names += [f"f->i[{integers['iterations']}][l]", f"f->d[{doubles['norm']}][l]", status]
        self._name_picks(i, pick_names)
        return self._add_function(name, text)

    def _emit_reduction(self, reduction: Reduction, doubles: Mapping[str, int], name: str) -> dict[str, str]:
        """Emit the regions of a reduced system, and return the calls of them."""
        for k, t in enumerate(reduction.tears):
            self.names[t] = f"f->d[{doubles['tears'] + k}][l]"
        regions = {"starts": ("tears", reduction.starts), "reduced": ("change", reduction.step)}
        regions["solution"] = ("u", reduction.solution)
        return {
            part: self._emit_region(f"{name}_{part}", ends, range(doubles[to], doubles[to] + len(ends)))
            for part, (to, ends) in regions.items()
        }

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
        along = self._emit_region(f"{name}_along", direction_loop.tangents, range(first, first + tangents))
        self._name_picks(i, [f"f->d[{registers['found'] + k}][l]" for k in range(direction_loop.count)])
        template = TEMPLATES.get_template("columns.c.jinja")
        return self._add_function(name, template.render(one=direction_loop, at=registers, along=along))

    def _emit_region(self, name: str, ends: Sequence[int], registers: Sequence[int]) -> str:
        """Return the call of a function that computes ``ends`` into these registers from the leaves of a loop; nodes
        outside of the loop are there already."""
        outer_names, outer_places = dict(self.names), dict(self.allocator.places)
        lu_nodes = {i for i in outer_places if i >= 0 and self.graph[i].op == LU}
        available = {i for i in self.names if i >= 0} | self.uniform_nodes.keys() | lu_nodes
        needed = [i for i in reachable_nodes(self.graph, ends, available) if self.graph[i].op != "const"]
        self._assign_registers(ends, registers, needed)
        calls = self._emit_steps(needed, ends, name)
        call = self._add_function(name, "".join(f"  {call}\n" for call in calls) + self._emit_copies(ends, registers))
        # Another region computes its own nodes.
        self.names, self.allocator.places = outer_names, outer_places
        return call
