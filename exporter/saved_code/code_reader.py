"""Reader of a file's code as graphs: what ``torch.jit.load`` and its compiler would make of it, without them.

Submodules are inlined, constants stand where they are used, and calls of the module's other methods stay calls, as in
``exporter/graph/reader.py``. What the compiler takes and this reader does not is an error that names its line."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exporter.common.errors import UnsupportedError
from exporter.saved_code import literals
from exporter.saved_code.code_records import Code, CodeFunction
from exporter.saved_code.ir import APART, CALL, Block, Graph, Input, Literal, Node
from exporter.saved_code.origin import Origin
from exporter.saved_code.overloads import (
    IMPLICIT_READS,
    Conversion,
    Default,
    NoOverloadError,
    Overload,
    Repeat,
    find_overload,
)
from exporter.saved_code.script_types import (
    ANY,
    BOOL,
    INT,
    NONE,
    STR,
    TENSOR,
    ScriptType,
    join_names,
    list_of,
    parse_type,
    unify,
)
from exporter.saved_code.tensors import format_literal

# What Python calls by a name of its own.
_BUILTINS = {"int": "aten::Int", "float": "aten::Float", "bool": "aten::Bool", "str": "aten::str"}
_BUILTINS |= {"complex": "aten::Complex", "ord": "aten::ord"}
# Operations of the methods that are read together, once all that they call is inlined, and statements and expressions
# that are read for them: a small file could ask for as many as it likes.
MAX_NODES, MAX_STEPS = 2**20, 2**23
# As many times as a while loop runs at most.
_ALWAYS = Literal(str(2**63 - 1), 2**63 - 1)
_TRUE = Literal("True", True)


@dataclass(frozen=True)
class ModuleRef:
    """A submodule in the code."""

    path: str
    class_name: str


@dataclass(frozen=True)
class FunctionRef:
    """A function in the code."""

    name: str


@dataclass(frozen=True)
class Value:
    """A value of the code: what stands for it in a graph, and its type."""

    operand: Input | ModuleRef | FunctionRef
    type: ScriptType


class Scope:
    """What names stand for in a function, or in a block of it, which also sees those around it."""

    def __init__(self, names: Mapping[str, Value], outer: Scope | None = None) -> None:
        self.names = dict(names)
        self._outer = outer

    def find(self, name: str) -> Value | None:
        """Return what a name stands for, or None."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope._outer
        return None


class NotReadError(Exception):
    """The code has something that this reader does not read."""


@dataclass
class Budget:
    """What has been read of a file so far."""

    nodes: int = 0
    steps: int = 0

    def spend(self, nodes: int, steps: int) -> None:
        """Count nodes and steps. Raises ``NotReadError`` beyond the limits."""
        self.nodes += nodes
        self.steps += steps
        if self.nodes > MAX_NODES:
            raise NotReadError(f"more than {MAX_NODES} operations in all that the methods call")
        if self.steps > MAX_STEPS:
            raise NotReadError(f"more than {MAX_STEPS} statements and expressions in all that the methods call")


@dataclass(frozen=True)
class ModuleContents:
    """What code refers to: classes and functions of the file, attributes by path, and constants by number.

    Its readers share one ``budget``."""

    code: Code
    get_attribute: Callable[[ModuleRef, str], Value]
    get_constant: Callable[[int], Value]
    budget: Budget = field(default_factory=Budget)


class CodeReader:
    """Reader of one method. Values are numbered in the order of the code."""

    def __init__(self, contents: ModuleContents, apart: Collection[str] = ()) -> None:
        self._contents = contents
        self._apart = apart
        self._count = 0
        self._nodes: list[Node] = []
        # The module whose method is read, and the place of the statement.
        self._top = ModuleRef("", "")
        self._origin = Origin("")

    def read_method(self, name: str, module: ModuleRef, function: CodeFunction) -> Graph:
        """Read a method of a module as a graph. Raises ``UnsupportedError``, with record and line."""
        self._top = module
        self._origin = Origin("", module=module.path, where=f"{function.where}:{function.line}")
        # Code that somebody changed fails anywhere.
        try:
            (self_name, _), *arguments = function.arguments
            inputs = {argument: self._make_value(t) for argument, t in arguments}
            scope = Scope({self_name: Value(module, ScriptType(module.class_name)), **inputs})
            result = self._as_input(self._run_body(function.body, scope))
        except (NotReadError, NoOverloadError, ValueError, TypeError, LookupError, AttributeError) as error:
            what, expected = "the code has something that is read by torch.jit alone", "operators, branches and loops"
            where, mend = f"{name}, {self._origin.where}", "open the file with a torch that has torch.jit"
            raise UnsupportedError(
                what, check="code", where=where, got=str(error), expected=expected, mend=mend
            ) from None
        numbers = tuple(v.operand for v in inputs.values() if isinstance(v.operand, int))
        types = tuple(str(v.type) for v in inputs.values())
        return Graph(name, Block(numbers, tuple(self._nodes), (result,), types), types)

    # Statements.

    def _run_body(self, body: Sequence[ast.stmt], scope: Scope) -> Value:
        """Read statements up to the last, which gives the result."""
        for statement in body:
            if isinstance(statement, ast.Return):
                self._note_line(statement)
                return self._read(statement.value, scope) if statement.value else _none()
            self._run_statement(statement, scope)
        return _none()

    def _note_line(self, statement: ast.stmt) -> None:
        self._contents.budget.spend(0, 1)
        record, _, _ = self._origin.where.rpartition(":")
        self._origin = Origin("", module=self._origin.module, where=f"{record}:{statement.lineno}")

    def _run_statement(self, statement: ast.stmt, scope: Scope) -> None:
        self._note_line(statement)
        if isinstance(statement, ast.Assign):
            self._assign(statement, scope)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            value = self._convert(self._read(statement.value, scope), parse_type(statement.annotation))
            scope.names[statement.target.id] = value
        elif isinstance(statement, ast.If):
            self._run_if(statement, scope)
        elif isinstance(statement, (ast.For, ast.While)):
            self._run_loop(statement, scope)
        elif isinstance(statement, ast.Expr):
            self._read_results(statement.value, scope)
        elif not isinstance(statement, ast.Pass):
            raise NotReadError(ast.unparse(statement)[:100])

    def _assign(self, statement: ast.Assign, scope: Scope) -> None:
        (target,) = statement.targets
        if isinstance(target, ast.Name):
            scope.names[target.id] = self._read(statement.value, scope)
            return
        if not isinstance(target, ast.Tuple):
            raise NotReadError(ast.unparse(statement)[:100])
        names = [join_names(element) for element in target.elts]
        if isinstance(statement.value, ast.Tuple):
            values = [self._read(element, scope) for element in statement.value.elts]
        else:
            values = self._read_results(statement.value, scope)
            if len(values) == 1:
                values = self._unpack(values[0], len(names))
        if len(values) != len(names):
            raise NotReadError(f"{len(values)} values for {len(names)} names")
        scope.names.update(zip(names, values, strict=True))

    def _unpack(self, value: Value, count: int) -> Sequence[Value]:
        """Return the elements of a tuple or a list."""
        types = self._list_elements(value.type)
        if types is not None:
            return self._add_node("prim::TupleUnpack", [value], types)
        if value.type.name == "List":
            return self._add_node("prim::ListUnpack", [value], value.type.arguments * count)
        return [value]

    def _list_elements(self, script_type: ScriptType) -> Sequence[ScriptType] | None:
        """Return the types of the elements of a tuple; None for another type."""
        if script_type.name == "Tuple":
            return script_type.arguments
        code_class = self._contents.code.classes.get(script_type.name)
        return tuple(code_class.attributes.values()) if code_class and code_class.is_tuple else None

    def _run_if(self, statement: ast.If, scope: Scope) -> None:
        condition = self._read(statement.test, scope)
        origin = self._origin
        branches = [self._read_block(part, scope) for part in (statement.body, statement.orelse)]
        results = _list_results(*(inner for _, inner in branches))
        types = [unify(*pair) for pair in zip(*([v.type for v in values.values()] for values in results), strict=True)]
        blocks = tuple(
            Block((), tuple(nodes), tuple(map(self._as_input, values.values())))
            for (nodes, _), values in zip(branches, results, strict=True)
        )
        self._origin = origin
        outputs = self._add_node("prim::If", [condition], types, blocks=blocks)
        scope.names.update(zip(results[0], outputs, strict=True))

    def _read_block(self, body: Sequence[ast.stmt], scope: Scope) -> tuple[list[Node], Scope]:
        """Read statements into nodes of their own; return them and what the names stand for at their end."""
        outside, self._nodes, inner = self._nodes, [], Scope({}, scope)
        for statement in body:
            self._run_statement(statement, inner)
        nodes, self._nodes = self._nodes, outside
        return nodes, inner

    def _run_loop(self, statement: ast.For | ast.While, scope: Scope) -> None:
        if statement.orelse:
            raise NotReadError("the else of a loop")
        if isinstance(statement, ast.For):
            count, condition = self._read_range(statement, scope), Value(_TRUE, BOOL)
        else:
            count, condition = Value(_ALWAYS, INT), self._read(statement.test, scope)
        origin = self._origin
        assigned = {name: scope.find(name) for name in _list_assigned(statement.body)}
        before = {name: value for name, value in assigned.items() if value is not None}
        index = self._make_value(INT)
        inside = [self._make_value(v.type) for v in before.values()]
        inner = Scope(dict(zip(before, inside, strict=True)), scope)
        if isinstance(statement, ast.For):
            inner.names[join_names(statement.target)] = index
        outside, self._nodes = self._nodes, []
        for part in statement.body:
            self._run_statement(part, inner)
        again = self._read(statement.test, inner) if isinstance(statement, ast.While) else condition
        outputs = (again, *(inner.names[name] for name in before))
        numbers = tuple(v.operand for v in (index, *inside) if isinstance(v.operand, int))
        types = tuple(str(v.type) for v in (index, *inside))
        body = Block(numbers, tuple(self._nodes), tuple(map(self._as_input, outputs)), types)
        self._nodes, self._origin = outside, origin
        types_after = [v.type for v in before.values()]
        results = self._add_node("prim::Loop", [count, condition, *before.values()], types_after, blocks=(body,))
        scope.names.update(zip(before, results, strict=True))

    def _read_range(self, statement: ast.For, scope: Scope) -> Value:
        call = statement.iter
        if not isinstance(call, ast.Call) or join_names(call.func) != "range" or len(call.args) != 1:
            raise NotReadError(ast.unparse(call)[:100])
        return self._read(call.args[0], scope)

    # Expressions.

    def _read(self, node: ast.expr, scope: Scope) -> Value:
        """Read an expression of one value; several results of an operator are a tuple."""
        values = self._read_results(node, scope)
        if len(values) == 1:
            return values[0]
        types = tuple(v.type for v in values)
        return self._add_node("prim::TupleConstruct", values, [ScriptType("Tuple", types)])[0]

    def _read_results(self, node: ast.expr, scope: Scope) -> Sequence[Value]:
        self._contents.budget.spend(0, 1)
        if isinstance(node, ast.Call):
            return self._read_call(node, scope)
        literal = literals.read_literal(node)
        if literal is not None:
            return [Value(*literal)]
        if isinstance(node, ast.Name):
            value = scope.find(node.id)
            if value is None:
                raise NotReadError(f"the name {node.id}")
            return [value]
        if isinstance(node, ast.Attribute):
            return [self._read_attribute(node, scope)]
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._build_sequence(node, scope)]
        if isinstance(node, ast.Subscript):
            return [self._read_element(node, scope)]
        if isinstance(node, ast.Dict):
            return [self._build_dict(node, scope)]
        raise NotReadError(ast.unparse(node)[:100])

    def _read_attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        if isinstance(node.value, ast.Name) and node.value.id == "CONSTANTS":
            number = node.attr.removeprefix("c")
            return self._contents.get_constant(int(number) if number.isdecimal() else -1)
        if _find_root(node) == "__torch__":
            return Value(FunctionRef(join_names(node)), ANY)
        return self._get_attribute(self._read(node.value, scope), node.attr)

    def _get_attribute(self, owner: Value, name: str) -> Value:
        if not isinstance(owner.operand, ModuleRef):
            types = self._list_elements(owner.type) if owner.type.name != "Tuple" else None
            names = list(self._contents.code.classes[owner.type.name].attributes) if types else []
            if types is None or name not in names:
                raise NotReadError(f"the attribute {name} of a value of type {owner.type}")
            place = names.index(name)
            return self._add_node("prim::TupleIndex", [owner, _integer(place)], [types[place]])[0]
        return self._contents.get_attribute(owner.operand, name)

    def _build_sequence(self, node: ast.List | ast.Tuple, scope: Scope, element: ScriptType | None = None) -> Value:
        values = [self._read(e, scope) for e in node.elts]
        if isinstance(node, ast.Tuple):
            types = tuple(v.type for v in values)
            return self._add_node("prim::TupleConstruct", values, [ScriptType("Tuple", types)])[0]
        element = element or (values[0].type if values else TENSOR)
        for value in values:
            element = unify(element, value.type)
        return self._add_node("prim::ListConstruct", values, [list_of(element)])[0]

    def _build_dict(self, node: ast.Dict, scope: Scope, script_type: ScriptType | None = None) -> Value:
        values = [self._read(e, scope) for pair in zip(node.keys, node.values, strict=True) for e in pair if e]
        first = ScriptType("Dict", tuple(v.type for v in values[:2]) or (STR, TENSOR))
        return self._add_node("prim::DictConstruct", values, [script_type or first])[0]

    def _read_element(self, node: ast.Subscript, scope: Scope) -> Value:
        owner = self._read(node.value, scope)
        elements = self._list_elements(owner.type)
        if isinstance(node.slice, ast.Slice):
            ends = [self._read(e, scope) if e else _none() for e in (node.slice.lower, node.slice.upper)]
            if elements is None or node.slice.step is not None:
                raise NotReadError(ast.unparse(node)[:100])
            first, last = (literals.get_integer(e.operand) for e in ends)
            types = tuple(elements[first:last])
            return self._add_node("prim::TupleSlice", [owner, *ends], [ScriptType("Tuple", types)])[0]
        index = self._read(node.slice, scope)
        if elements is not None:
            place = literals.get_integer(index.operand)
            if place is None or not -len(elements) <= place < len(elements):
                raise NotReadError(f"the element {ast.unparse(node.slice)} of a {owner.type}")
            return self._add_node("prim::TupleIndex", [owner, index], [elements[place]])[0]
        if owner.type == TENSOR:
            return self._call_operator("aten::select", [owner, _integer(0), index], {})[0]
        return self._call_operator("aten::__getitem__", [owner, index], {})[0]

    # Calls.

    def _read_call(self, node: ast.Call, scope: Scope) -> Sequence[Value]:
        function = node.func
        if isinstance(function, ast.Attribute) and _find_root(function) not in ("torch", "ops", "__torch__"):
            return self._call_method(node, function, scope)
        name = join_names(function)
        local = scope.find(name)
        if local is not None and isinstance(local.operand, FunctionRef):
            name = local.operand.name
        if name in _SPECIAL:
            return [_SPECIAL[name](self, node, scope)]
        if name.startswith("__torch__."):
            return [self._call_function(name, node, scope)]
        kind = _BUILTINS.get(name) or _name_operator(name)
        places = [self._read_argument(a, scope) for a in node.args]
        names = {k.arg or "": self._read_argument(k.value, scope) for k in node.keywords}
        return self._call_operator(kind, places, names)

    def _read_argument(self, node: ast.expr, scope: Scope) -> Value:
        """Read an argument of an operator: a list of numbers that stands in the call is a constant."""
        values = [literals.read_literal(e) for e in node.elts] if isinstance(node, ast.List) else []
        if not values or None in values:
            return self._read(node, scope)
        elements = [v for v in values if v is not None]
        numbers = [literal.value for literal, _ in elements]
        return Value(Literal(format_literal(numbers), numbers), list_of(elements[0][1]))

    def _call_operator(self, kind: str, places: Sequence[Value], names: Mapping[str, Value]) -> Sequence[Value]:
        types = tuple(v.type for v in places)
        overload = find_overload(kind, types, tuple((name, v.type) for name, v in names.items()))
        inputs = [self._choose(choice, places, names) for choice in overload.choices]
        operator = overload.operator
        if kind in ("aten::tensor", "aten::as_tensor"):
            element = inputs[0].type
            while element.name == "List" and element.arguments:
                (element,) = element.arguments
            operator = f"{operator}[{element}]"
        return self._add_node(operator, inputs, overload.results, overload=overload)

    def _choose(self, choice: Any, places: Sequence[Value], names: Mapping[str, Value]) -> Value:
        if isinstance(choice, Default):
            return Value(Literal(format_literal(choice.value), choice.value), ANY)
        place = choice.place if isinstance(choice, (Repeat, Conversion)) else choice
        value = names[place] if isinstance(place, str) else places[place]
        if isinstance(choice, Repeat):
            return self._add_node("prim::ListConstruct", [value] * choice.count, [list_of(value.type)])[0]
        if isinstance(choice, Conversion):
            return self._add_node(choice.operator, [value], [choice.result])[0]
        return value

    def _call_method(self, node: ast.Call, function: ast.Attribute, scope: Scope) -> Sequence[Value]:
        owner = self._read(function.value, scope)
        if not isinstance(owner.operand, ModuleRef):
            raise NotReadError(f"the method {function.attr} of a value of type {owner.type}")
        code_class = self._contents.code.classes.get(owner.operand.class_name)
        method = code_class.methods.get(function.attr) if code_class else None
        if method is None:
            raise NotReadError(f"the method {function.attr} of {owner.operand.class_name}")
        arguments = self._read_arguments(method, node, scope, owner)
        passed = [v for v in list(arguments.values())[1:] if not isinstance(v.operand, ModuleRef)]
        if owner.operand.path in self._apart:
            return self._add_node(f"{APART}[{owner.operand.path}]", passed, [method.result])
        if owner.operand == self._top and len(passed) == len(arguments) - 1:
            name = f"{self._top.path}.{function.attr}".lstrip(".")
            return self._add_node(f"{CALL}[name='{name}']", passed, [method.result])
        return [self._inline(method, arguments, owner.operand.path)]

    def _call_function(self, name: str, node: ast.Call, scope: Scope) -> Value:
        function = self._contents.code.functions.get(name)
        if self._list_elements(ScriptType(name)) is not None:
            return self._add_node(
                "prim::TupleConstruct", [self._read(a, scope) for a in node.args], [ScriptType(name)]
            )[0]
        if function is None:
            raise NotReadError(f"the call of {name}")
        return self._inline(function, self._read_arguments(function, node, scope), self._origin.module)

    def _inline(self, function: CodeFunction, arguments: Mapping[str, Value], path: str) -> Value:
        outside = self._origin
        self._origin = Origin("", module=path, where=f"{function.where}:{function.line}")
        result = self._run_body(function.body, Scope(arguments))
        self._origin = outside
        return result

    def _read_arguments(self, function: CodeFunction, node: ast.Call, scope: Scope, *first: Value) -> dict[str, Value]:
        values = [*first, *(self._read(a, scope) for a in node.args)]
        names = [name for name, _ in function.arguments]
        if len(values) > len(names) or not {k.arg for k in node.keywords} <= set(names[len(values) :]):
            raise NotReadError(f"the arguments of {ast.unparse(node.func)[:100]}")
        arguments = {name: v for (name, _), v in zip(function.arguments, values, strict=False)}
        arguments |= {k.arg or "": self._read(k.value, scope) for k in node.keywords}
        for name, _ in function.arguments:
            if name not in arguments:
                if name not in function.defaults:
                    raise NotReadError(f"a call without its argument {name}")
                arguments[name] = self._read(function.defaults[name], Scope({}))
        return {name: arguments[name] for name, _ in function.arguments}

    def annotate(self, node: ast.Call, scope: Scope) -> Value:
        """Read a value with its type: ``annotate(List[int], [])``."""
        script_type = parse_type(node.args[0])
        content = node.args[1]
        if isinstance(content, ast.List) and script_type.name == "List":
            value = self._build_sequence(content, scope, script_type.arguments[0])
        elif isinstance(content, ast.Dict):
            value = self._build_dict(content, scope, script_type)
        else:
            value = self._read(content, scope)
        return self._convert(value, script_type)

    def _convert(self, value: Value, script_type: ScriptType) -> Value:
        """Return a value as of a wider type, or the number that a tensor holds."""
        if value.type == TENSOR and script_type in IMPLICIT_READS:
            return self._add_node(IMPLICIT_READS[script_type], [value], [script_type])[0]
        return Value(value.operand, script_type)

    def cast(self, node: ast.Call, scope: Scope) -> Value:
        """Read a value that is of a narrower type here: ``unchecked_cast(int, x)``."""
        return Value(self._read(node.args[1], scope).operand, parse_type(node.args[0]))

    def leave_open(self, node: ast.Call, scope: Scope) -> Value:
        """Read a value that nobody uses: ``uninitialized(Tensor)``."""
        return self._add_node("prim::Uninitialized", [], [parse_type(node.args[0])])[0]

    def get_named(self, node: ast.Call, scope: Scope) -> Value:
        """Read an attribute whose name is none in Python: ``getattr(self, "0")``."""
        literal = literals.read_literal(node.args[1])
        return self._get_attribute(self._read(node.args[0], scope), str(literal[0].value if literal else ""))

    # Nodes.

    def _make_value(self, script_type: ScriptType) -> Value:
        self._count += 1
        # A node has the texts of its types.
        self._contents.budget.spend(0, script_type.size)
        return Value(self._count - 1, script_type)

    def _as_input(self, value: Value) -> Input:
        if isinstance(value.operand, ModuleRef):
            raise NotReadError(f"the module {value.operand.path or 'self'} as a value")
        if isinstance(value.operand, FunctionRef):
            raise NotReadError(f"the function {value.operand.name} as a value")
        return value.operand

    def _add_node(
        self,
        operator: str,
        inputs: Sequence[Value],
        types: Sequence[ScriptType],
        blocks: tuple[Block, ...] = (),
        overload: Overload | None = None,
    ) -> Sequence[Value]:
        self._contents.budget.spend(1, 0)
        operands = tuple(map(self._as_input, inputs))
        outputs = [self._make_value(t) for t in types]
        numbers = tuple(v.operand for v in outputs if isinstance(v.operand, int))
        texts, schema = tuple(str(t) for t in types), overload.schema if overload else ""
        self._nodes.append(Node(operator, operands, numbers, texts, blocks, schema, origin=self._origin))
        return outputs


_SPECIAL: Mapping[str, Callable[[CodeReader, ast.Call, Scope], Value]] = {
    "annotate": CodeReader.annotate,
    "unchecked_cast": CodeReader.cast,
    "uninitialized": CodeReader.leave_open,
    "getattr": CodeReader.get_named,
    "torch.device": lambda reader, node, scope: Value(*literals.read_device(node)),
}


def _none() -> Value:
    return Value(Literal("None", None), NONE)


def _integer(number: int) -> Value:
    return Value(Literal(str(number), number), INT)


def _find_root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _name_operator(name: str) -> str:
    space, _, rest = name.partition(".")
    if space == "torch" and rest and "." not in rest:
        return f"aten::{rest}"
    library, _, operator = rest.partition(".")
    if space == "ops" and operator and "." not in operator:
        return f"{library}::{operator}"
    raise NotReadError(f"the call of {name}")


def _list_results(first: Scope, second: Scope) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return what the two sides of a branch give names that stand for something after it: in both, or before it too."""
    names = dict.fromkeys([*first.names, *second.names])
    pairs = {name: (first.find(name), second.find(name)) for name in names}
    known = {name: (a, b) for name, (a, b) in pairs.items() if a is not None and b is not None}
    return {name: a for name, (a, _) in known.items()}, {name: b for name, (_, b) in known.items()}


def _list_assigned(body: Sequence[ast.stmt]) -> list[str]:
    """List the names that statements assign, those within them included."""
    names: list[str] = []
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.append(node.id)
    return names
