"""Terms as C: a frame of rows of numbers, one for each lane, and functions that go from row to row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from exporter.backends.c_kernel.c_expressions import MEMORY, TYPES, expression, literal
from exporter.backends.c_kernel.direction_batching import Columns
from exporter.backends.c_kernel.expression_graph import (
    BOOL,
    COLUMNS,
    F64,
    I64,
    LU,
    NEWTON,
    READ,
    SEVERAL,
    SOLVED,
    TABLES,
    Term,
)
from exporter.backends.c_kernel.frame_layout import (
    ARRAYS,
    SMALL,
    TEMPLATES,
    UNROLLED,
    Emitted,
    comment,
    prepared,
    struct,
)
from exporter.backends.c_kernel.function_merging import Part, joined
from exporter.backends.c_kernel.lowering import Function
from exporter.backends.c_kernel.names import PARAMETER
from exporter.backends.c_kernel.register_copies import copied
from exporter.backends.c_kernel.schedule import CALLS, SCALARS, Slots, Step, held, place, reached, steps, uniform
from exporter.model.implicit import newton_solver


class Writer:
    """Writes one method."""

    def __init__(self, function: Function, shapes: Mapping[str, tuple[str, int]]) -> None:
        """``shapes``: kind and count of each input."""
        self.function, self.terms = function, function.terms
        self.slots = Slots()
        self.helpers: dict[str, None] = {}
        self.parts: list[Part] = []
        self.count = 0
        self.operations = 0
        self.names: dict[int, str] = {}
        self.inputs = {name: self.slots.take(kind, count) for name, (kind, count) in shapes.items()}
        self.statuses: list[str] = []
        self.unrolled: dict[int, None] = {}
        ends = [i for output in function.outputs for i in output]
        needed = reached(self.terms, ends, ())
        self.loops = {i: function.loops[self.terms[i].extra[0]] for i in needed if self.terms[i].op == NEWTON}
        self.everything = set(needed)
        used = set(ends)
        for loop in self.loops.values():
            used.update(loop.residual, loop.matrix)
            self.everything.update(reached(self.terms, [*loop.residual, *loop.matrix], self.everything))
        for one in [self.terms[i].extra[0] for i in self.everything if self.terms[i].op == COLUMNS]:
            used.update(one.tangents)
            self.everything.update(reached(self.terms, one.tangents, self.everything))
        # Where a block's numbers are meant to be from the start.
        self.meant: dict[int, int] = {}
        # Tables that are parameters as they stand are read in their place: nothing is made of their numbers.
        self.held = held(self.terms, self.everything)
        for i in self.everything:
            used.update(self._taken(self.terms[i]))
        self.own_uniform = dict.fromkeys(i for i in uniform(self.terms, self.everything) if i in used)
        # Where each table begins, in C, and those of constants.
        self.tables: dict[tuple[int, ...], str] = {}
        self.constants: list[str] = []
        for i in self.everything:
            term = self.terms[i]
            if term.op == "leaf" and term.extra[0] in self.inputs:
                array = ARRAYS[term.kind]
                self.names[i] = f"f->{array}[{self.inputs[str(term.extra[0])] + term.extra[1]}][l]"
        self.ends = ends

    def _taken(self, term: Term) -> Iterable[int]:
        """The numbers that a term takes, but for what the terms of its loop do, and for what is read in its place."""
        if term.op == NEWTON:
            loop = self.function.loops[term.extra[0]]
            return (*term.args[: loop.size], *loop.settings.values())
        if term.op == COLUMNS:
            return ()
        return term.args[:1] if term.op in TABLES and term.args[1:] in self.held else term.args

    def written(self) -> Emitted:
        name = self.function.method
        parameters = self._uniform()
        top = reached(self.terms, self.ends, self.own_uniform)
        kinds = [self.terms[output[0]].kind if output else F64 for output in self.function.outputs]
        outputs = []
        for output, kind in zip(self.function.outputs, kinds, strict=True):
            assert all(self.terms[i].kind == kind for i in output)
            first = self.slots.take(kind, len(output))
            self._meant(output, range(first, first + len(output)), top)
            outputs.append(first)
        calls = self._body(top, self.ends, name)
        for output, kind, first in zip(self.function.outputs, kinds, outputs, strict=True):
            placed = self._copied(output, range(first, first + len(output)), ARRAYS[kind])
            if placed:
                calls.append(self._part(name, placed))
        self.parts.append(Part(name, f"{name}_body", "".join(f"  {call}\n" for call in calls)))
        whole = joined(self.parts)
        same = struct(f"{name}_uniform", self._uniform_counts, lanes=False, pointers=len(self.held))
        operations = self.operations + whole.operations
        once = sum(self.terms[i].op != "leaf" for i in self.own_uniform)
        holds = (
            bool(self.loops) or "tf_factor" in self.helpers or any(self.terms[i].op == "where" for i in self.everything)
        )
        return Emitted(
            name,
            whole.text,
            self.prepare,
            struct(f"{name}_frame", self.slots.counts, lanes=True),
            "".join(self.constants) + whole.tables + same,
            operations + once,
            dict(self.slots.counts),
            dict(self._uniform_counts),
            tuple(dict.fromkeys(parameter.removeprefix(PARAMETER) for parameter, _ in self.held.values())),
            len(self.held),
            self.inputs,
            tuple(outputs),
            parameters,
            tuple(self.statuses),
            holds,
            tuple(self.helpers),
            tuple(self.unrolled),
            operations <= SMALL,
        )

    def _uniform(self) -> tuple[str, ...]:
        """What is computed once for a call. Gives the parameters that the method reads."""
        name, lines, parameters = self.function.method, [], {}
        slots = Slots()
        for k, (numbers, (parameter, first)) in enumerate(self.held.items()):
            kind = MEMORY[self.terms[numbers[0]].kind]
            number = parameters.setdefault(parameter.removeprefix(PARAMETER), len(parameters))
            lines.append(f"  g->t[{k}] = (const {kind} *)parameters[{number}] + {first};")
            self.tables[numbers] = f"(const {kind} *)g->t[{k}]"
        moved = self._tables(slots)
        for i in self.own_uniform:
            term = self.terms[i]
            slots.give(i, term.kind)
            array, at = ARRAYS[term.kind], slots.places[i][1]
            if term.op == "leaf":
                parameter = str(term.extra[0]).removeprefix(PARAMETER)
                number = parameters.setdefault(parameter, len(parameters))
                value = f"((const {MEMORY[term.kind]} *)parameters[{number}])[{term.extra[1]}]"
                value += " != 0" if term.kind == BOOL else ""
            else:
                value = self._expression(i)
            lines.append(f"  g->{array}[{at}] = {value};")
            self.names[i] = f"g->{array}[{at}]"
        lines += [f"  {to} = {self._name(i)};" for to, i in moved]
        self._uniform_counts = slots.counts
        self.prepare = prepared(name, lines)
        return tuple(parameters)

    def _tables(self, slots: Slots) -> list[tuple[str, int]]:
        """Places for the tables that are read, one number behind the other: constants in a table of their own, what is
        computed once for a call where it is computed. Gives what is to be copied from elsewhere."""
        moved = []
        for i in sorted(self.everything):
            numbers = self.terms[i].args[1:]
            if self.terms[i].op not in TABLES or numbers in self.tables:
                continue
            kind = self.terms[numbers[0]].kind
            if all(self.terms[n].op == "const" for n in numbers):
                name = self.tables[numbers] = f"{self.function.method}_table_{len(self.tables)}"
                values = ", ".join(self._name(n) for n in numbers)
                self.constants.append(f"static const {TYPES[kind]} {name}[] = {{ {values} }};\n")
                continue
            first = slots.take(kind, len(numbers))
            self.tables[numbers] = f"&g->{ARRAYS[kind]}[{first}]"
            for at, n in enumerate(numbers, first):
                if self.terms[n].op == "const" or n in slots.places:
                    moved.append((f"g->{ARRAYS[kind]}[{at}]", n))
                else:
                    slots.places[n] = (kind, at)
        return moved

    def _body(self, needed: Sequence[int], ends: Iterable[int], name: str) -> list[str]:
        """Functions for these terms; gives the calls of them in their order."""
        order = steps(self.terms, needed)
        place(self.terms, order, ends, self.slots, self.names)
        calls = []
        for step in order:
            if step.what == SCALARS:
                calls.append(self._loop(step, name, single=False))
            elif step.what == CALLS:
                calls.append(self._loop(step, name, single=True))
            else:
                calls.append(self._block(step.terms[0], name))
        return calls

    def _part(self, name: str, body: str, operations: int = 0) -> str:
        """A function of its own; gives the call of it."""
        function = f"{name}_{self.count}"
        self.count += 1
        self.parts.append(Part(self.function.method, function, body, operations))
        return f"TF_({function})(f, g);"

    def _loop(self, step: Step, name: str, *, single: bool) -> str:
        """One loop over the lanes for scalars; one for each call of libm."""
        local: dict[int, str] = {}
        lines: list[str] = []
        said = ""
        for i in step.terms:
            term = self.terms[i]
            text = self._expression(i, local)
            origin = self.terms.origins[i]
            if origin and origin != said:
                lines.append(f"    /* {comment(origin)} */")
                said = origin
            slot = self.slots.places.get(i)
            if slot is not None and i not in self.names:
                self.names[i] = f"f->{ARRAYS[slot[0]]}[{slot[1]}][l]"
            if single:
                lines.append(self._call(i, text))
                continue
            local[i] = f"v{i}"
            lines.append(f"    const {TYPES[term.kind]} v{i} = {text};")
            if slot is not None:
                lines.append(f"    {self.names[i]} = v{i};")
        body = "".join(f"{line}\n" for line in lines)
        if not single:
            body = f"  TF_SIMD\n  for (int l = 0; l < TF_NOW; l++) {{\n{body}  }}\n"
        return self._part(name, body, len(step.terms))

    def _call(self, i: int, text: str) -> str:
        """A loop for one call of libm. A power whose exponent is the same for all elements may turn out to be a
        product: of up to four factors, which is within 2 ULP of it."""
        term, to = self.terms[i], self.names[i]
        every = "for (int l = 0; l < TF_NOW; l++)"
        lines = []
        if term.op == "pow" and term.args[1] in self.own_uniform:
            x, exponent = self._name(term.args[0]), self._name(term.args[1])
            products = (x, f"{x} * {x}", f"{x} * {x} * {x}", f"({x} * {x}) * ({x} * {x})")
            for number, product in enumerate(products, 1):
                value = literal(float(number), self.terms[term.args[1]].kind)
                lines.append(
                    f"    if ({exponent} == {value})\n      TF_SIMD\n      {every} {to} = {product};\n    else"
                )
        return "\n".join([*lines, f"    {every} {to} = {text};"])

    def _name(self, i: int, local: Mapping[int, str] | None = None) -> str:
        term = self.terms[i]
        if term.op == "const":
            value = self.terms.value(i)
            return literal(value if value is not None else 0, term.kind)
        if local and i in local:
            return local[i]
        return self.names[i]

    def _expression(self, i: int, local: Mapping[int, str] | None = None) -> str:
        term = self.terms[i]
        if term.op == "singular":
            return self.names[-term.args[0]]
        if term.op in TABLES:
            table, count = self.tables[term.args[1:]], len(term.args) - 1
            first = self._name(term.args[0], local)
            if term.op == READ:
                return f"({table})[{first}]"
            self.helpers |= {"tf_below": None}
            return f"({TYPES[term.kind]})tf_below({table}, {count}, {first}, {int(term.extra[0])})"
        kinds = [self.terms[a].kind for a in term.args]
        text, helpers = expression(term.op, term.kind, kinds, [self._name(a, local) for a in term.args])
        self.helpers |= dict.fromkeys(helpers)
        return text

    def _block(self, i: int, name: str) -> str:
        write = {LU: self._factored, SOLVED: self._solution, NEWTON: self._newton, COLUMNS: self._columns}
        return write[self.terms[i].op](i, name)

    def _meant(self, ends: Sequence[int], rows: Sequence[int], needed: Sequence[int]) -> None:
        """Scalars that are computed for these rows are computed in their place; a block too that has them in order."""
        computed = set(needed)
        shifts: dict[int, set[int]] = {}
        for i, row in zip(ends, rows, strict=True):
            term = self.terms[i]
            if i in computed and i not in self.names and term.op not in (*SEVERAL, "pick", "singular", "leaf", "const"):
                self.slots.places.setdefault(i, (term.kind, row))
            if term.op == "pick" and self.terms[term.args[0]].op == COLUMNS:
                shifts.setdefault(term.args[0], set()).add(row - term.extra[0])
        for block, found in shifts.items():
            first, last = min(found), min(found) + self.terms[block].extra[0].count - 1
            if len(found) == 1 and block in computed and first in rows and last in rows:
                self.meant[block] = first

    def _copied(self, terms: Sequence[int], rows: Sequence[int], array: str = "d") -> str:
        return copied(array, rows, [self._name(t) for t in terms])

    def _picked(self, block: int, place_of: Sequence[str]) -> None:
        for t in self.everything:
            if self.terms[t].op == "pick" and self.terms[t].args[0] == block:
                place: int = self.terms[t].extra[0]
                self.names[t] = place_of[place]

    def _factored(self, i: int, name: str) -> str:
        """Rows: the factors, then the inverses of the diagonal. In ``names`` of ``-i``: whether it is singular."""
        self.helpers |= {"tf_factor": None}
        n = self.terms[i].extra[0]
        first = self.slots.take(F64, n * n + n)
        pivots = self.slots.take(BOOL, n + 1)
        self.slots.places[i] = ("lu", first)
        self.slots.places[-i] = ("pivots", pivots)
        self.names[-i] = f"f->b[{pivots + n}][l]"
        self.operations += n**3 // 3
        return self._part(
            name,
            self._copied(self.terms[i].args, range(first, first + n * n))
            + f"  TF_(tf_factor)({n}, &f->d[{first}], &f->d[{first + n * n}], &f->b[{pivots}], f->b[{pivots + n}]);\n",
        )

    def _solution(self, i: int, name: str) -> str:
        n, transposed = self.terms[i].extra[0], bool(self.terms[i].extra[1])
        factors, *sides = self.terms[i].args
        x = self.slots.take(F64, n)
        first, pivots = self.slots.places[factors][1], self.slots.places[-factors][1]
        run = "tf_solve_transposed" if transposed else "tf_solve"
        self.helpers |= {run: None}
        self.operations += n * n
        self._picked(i, [f"f->d[{x + k}][l]" for k in range(n)])
        return self._part(
            name,
            self._copied(sides, range(x, x + n))
            + f"  TF_({run})({n}, &f->d[{first}], &f->d[{first + n * n}], &f->b[{pivots}], &f->d[{x}]);\n",
        )

    def _newton(self, i: int, name: str) -> str:
        loop = self.loops[i]
        tangents = bool(self.terms[i].extra[1])
        n = loop.size
        unrolled = n <= UNROLLED
        if unrolled:
            self.unrolled[n] = None
        else:
            self.helpers |= dict.fromkeys(("tf_factor", "tf_solve"))
        d = {
            what: self.slots.take(F64, count)
            for what, count in (
                ("u", n),
                ("r", n),
                ("J", n * n),
                ("work", 2 * n if unrolled else 3 * n + n * n),
                ("kept", n * n if tangents else 0),
                ("norm", 1),
            )
        }
        whole = {what: self.slots.take(I64) for what in ("iterations", "status")}
        pivots = self.slots.take(BOOL, n + 1)
        for k, t in enumerate(loop.unknowns):
            self.names[t] = f"f->d[{d['u'] + k}][l]"
        parts = {}
        for what, ends in (("residual", loop.residual), ("jacobian", (*loop.residual, *loop.matrix))):
            rows = [*range(d["r"], d["r"] + n), *range(d["J"], d["J"] + len(ends) - n)]
            parts[what] = self._region(f"{name}_{what}", ends, rows)
        text = TEMPLATES.get_template("newton.c.jinja").render(
            loop=loop,
            n=n,
            at=d | whole | {"pivots": pivots},
            settings={k: self._name(t) for k, t in loop.settings.items()},
            guess=self._copied(self.terms[i].args[:n], range(d["u"], d["u"] + n)),
            tangents=tangents,
            unrolled=unrolled,
            statuses=newton_solver,
            **parts,
        )
        status = f"f->i[{whole['status']}][l]"
        self.statuses.append(status)
        places = [f"f->d[{d['u'] + k}][l]" for k in range(n)]
        places += [f"f->d[{d['J'] + k}][l]" for k in range(n * n)] if tangents else []
        places += [f"f->i[{whole['iterations']}][l]", f"f->d[{d['norm']}][l]", status]
        self._picked(i, places)
        return self._part(name, text)

    def _columns(self, i: int, name: str) -> str:
        one: Columns = self.terms[i].extra[0]
        tangents = len(one.tangents)
        found = self.meant.get(i)
        at = {
            "along": self.slots.take(F64, len(one.seeds)),
            "tangents": self.slots.take(F64, tangents),
            "found": self.slots.take(F64, one.count) if found is None else found,
        }
        for k, t in enumerate(one.seeds):
            self.names[t] = f"f->d[{at['along'] + k}][l]"
        along = self._region(f"{name}_along", one.tangents, range(at["tangents"], at["tangents"] + tangents))
        self._picked(i, [f"f->d[{at['found'] + k}][l]" for k in range(one.count)])
        return self._part(name, TEMPLATES.get_template("columns.c.jinja").render(one=one, at=at, along=along))

    def _region(self, name: str, ends: Sequence[int], rows: Sequence[int]) -> str:
        """The call of a function for ``ends`` in these rows, with the leaves of a loop as they are; terms outside of it
        are there already."""
        outside, kept = dict(self.names), dict(self.slots.places)
        factored = {i for i in kept if i >= 0 and self.terms[i].op == LU}
        known = {i for i in self.names if i >= 0} | self.own_uniform.keys() | factored
        needed = [i for i in reached(self.terms, ends, known) if self.terms[i].op != "const"]
        self._meant(ends, rows, needed)
        calls = self._body(needed, ends, name)
        call = self._part(name, "".join(f"  {call}\n" for call in calls) + self._copied(ends, rows))
        # Another part computes its own.
        self.names, self.slots.places = outside, kept
        return call
