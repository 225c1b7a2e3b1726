"""Reader of torch's graphs as plain values: submodules inlined, constants where used, every node with its origin.

A method's calls of the module's other methods stay calls, so that each graph stands alone and none is there twice."""

from __future__ import annotations

import dataclasses
import functools
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.archive.contract import Contract
from exporter.archive.zip_records import write_zip
from exporter.common.recursion import with_deep_recursion
from exporter.common.script_loading import list_blocks, list_inputs, list_outputs
from exporter.common.torch_internals import inline_calls
from exporter.graph.effects import Effects, annotate_effects, name_written_tensors
from exporter.graph.module_tensors import ModuleTensors
from exporter.graph.renumbering import renumber_node
from exporter.graph.submodules import find_mutated_attributes, iterate_submodules
from exporter.graph.torch_nodes import SCALAR_TYPES
from exporter.saved_code.ir import APART, CALL, Block, Graph, Input, Literal, Node, SavedGraphs, get_callee
from exporter.saved_code.origin import find_origin
from exporter.saved_code.tensors import format_literal

# Stands for a call of a module's method while torch inlines functions.
_CALL = "torchferry::call"
# The call of a method of another object than the module itself, of which nothing is known.
OBJECT_CALL = "prim::CallObject"
# In torch's type texts a class is its path, and a repeated class name has a number.
_MANGLED = re.compile(r"___torch_mangle_\d+\.")


@with_deep_recursion
def read(module: torch.jit.ScriptModule, settable: Collection[str] | None = None) -> SavedGraphs:
    """Read all methods of the top module; ``settable``: parameters whose names matter, None for all of them."""
    names = {n for n, _ in module.named_parameters()} if settable is None else settable
    tensors = ModuleTensors(module, frozenset(names), find_mutated_attributes(module))
    calls: _KnownCalls = {}

    def make_reader() -> _GraphReader:
        return _GraphReader(tensors, calls)

    graphs = {name: make_reader().read_method(name, module._c) for name in sorted(module._c._method_names())}
    graphs |= {name: make_reader().read_graph(name, graph) for name, graph in _iterate_hooks(module._c)}
    if any(node.kind == OBJECT_CALL for graph in graphs.values() for node in graph):
        # It may be a method of any submodule.
        for path, child in iterate_submodules(module._c, ""):
            for name in child._method_names() if path else ():
                graph_name, graph = f"{path}.{name}", _inline_functions(child, name)
                graphs[graph_name] = make_reader().read_graph(graph_name, graph, path)
    # Tensors that some method writes to are named by their path, and are one memory for all readers.
    first_effects = _compute_effects(graphs, frozenset())
    state = frozenset[str]().union(*(method_effects.written_tensors for method_effects in first_effects.values()))
    effects_by_name = first_effects
    if state:
        named = {name: name_written_tensors(graph, state) for name, graph in graphs.items()}
        effects_by_name = _compute_effects(named, state)
    return SavedGraphs({name: effects_by_name[name].graph for name in graphs}, tensors.values)


@with_deep_recursion
def read_methods(module: torch.jit.ScriptModule, methods: Collection[str], apart: Collection[str] = ()) -> SavedGraphs:
    """Read these methods and those that they call, without effects, to be run node by node.

    The submodules at the paths ``apart`` are not inlined: a call of one is a node ``APART``."""
    tensors = ModuleTensors(module, frozenset(n for n, _ in module.named_parameters()), find_mutated_attributes(module))
    graphs: dict[str, Graph] = {}
    pending = list(methods)
    while pending:
        name = pending.pop()
        if name not in graphs:
            path, _, method_name = name.rpartition(".")
            attribute = tensors.get_attribute(path)
            owner: Any = attribute._c if isinstance(attribute, torch.jit.ScriptModule) else attribute
            reader = _GraphReader(tensors, {}, frozenset(apart) - {path})
            graphs[name] = reader.read_graph(name, _inline_functions(owner, method_name), path)
            pending += [get_callee(node) for node in graphs[name] if node.kind == CALL]
    return SavedGraphs(graphs, tensors.values)


def _compute_effects(graphs: Mapping[str, Graph], state: frozenset[str]) -> dict[str, Effects]:
    results: dict[str, Effects] = {}

    def find_effects(name: str) -> Effects | None:
        # TorchScript has no recursion.
        if name in graphs and name not in results:
            results[name] = annotate_effects(graphs[name], find_effects, state)
        return results.get(name)

    for name in graphs:
        find_effects(name)
    return results


def _iterate_hooks(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the top module's hooks, which its caller runs; those of submodules are called in the graphs."""
    for hook_type, hooks in (("pre-hook", module._get_forward_pre_hooks()), ("hook", module._get_forward_hooks())):
        for i, hook in enumerate(hooks):
            graph = hook.graph.copy()
            inline_calls(graph)
            yield f"{hook_type} {i}", graph


def reload_graphs(records: Mapping[str, bytes], contract: Contract) -> SavedGraphs:
    """Return what ``torch.jit.load`` makes of these records: a file does not hold everything in memory."""
    module = torch.jit.load(io.BytesIO(write_zip(records)), map_location="cpu")
    return read(module, list_settable_tensors(contract))


def list_settable_tensors(contract: Contract | None) -> set[str] | None:
    """Return the settable tensors of a file: parameters and solver settings; None without a contract."""
    if contract is None:
        return None
    return {p.name for p in contract.parameters} | contract.solver_settings


@with_deep_recursion
def read_graph(graph: Any, module: torch.jit.ScriptModule, method: str) -> Graph:
    """Read a torch graph that is inlined already, as its executor has it."""
    tensors = ModuleTensors(module, frozenset(n for n, _ in module.named_parameters()), find_mutated_attributes(module))
    return annotate_effects(_GraphReader(tensors, {}).read_graph(method, graph), lambda name: None, frozenset()).graph


def _inline_functions(module: Any, method: str) -> Any:
    """Return torch's graph of a method of its own ``ScriptModule`` with functions inlined but methods still called:
    torch forgets which module the nodes of inner blocks came from."""
    graph = module._get_method(method).graph.copy()
    self_name = next(graph.inputs()).debugName()
    for node in list(graph.findAllNodes(CALL)):
        receiver = node.inputsAt(0)
        root, path = receiver, []
        while root.node().kind() == "prim::GetAttr":
            path.insert(0, root.node().s("name"))
            root = root.node().inputsAt(0)
        if root.debugName() == self_name and receiver.type().kind() in ("ClassType", "InterfaceType"):
            attribute = functools.reduce(lambda parent, name: parent.getattr(name), path, module)
            if isinstance(attribute, torch.ScriptModule):
                _replace_call(graph, node)
    inline_calls(graph)
    return graph


def _replace_call(graph: Any, node: Any) -> None:
    outputs = list_outputs(node)
    call = graph.create(_CALL, list_inputs(node), len(outputs))
    call.s_("name", node.s("name"))
    call.copyMetadata(node)
    call.insertBefore(node)
    for old, new in zip(outputs, call.outputs(), strict=True):
        new.setType(old.type())
        old.replaceAllUsesWith(new)
    node.destroy()


class _ModuleRef:
    """A submodule in a graph."""

    def __init__(self, path: str) -> None:
        self.path = path


@dataclass(frozen=True)
class _Call:
    """What the call of a submodule's method was read as: its arguments, and the ``nodes`` and ``outputs`` whose own
    values have the numbers from ``first`` on, of these ``types``."""

    arguments: tuple[Input | _ModuleRef, ...]
    first: int
    nodes: tuple[Node, ...]
    outputs: tuple[Input | _ModuleRef, ...]
    types: tuple[str, ...]


# By submodule, method and arguments: torch's graphs are slow to read, and methods of a file share most of theirs.
_KnownCalls = dict[tuple[str, ...], _Call]


class _GraphReader:
    """Reader of one graph. Values are numbered in torch's own order."""

    def __init__(self, tensors: ModuleTensors, calls: _KnownCalls, apart: Collection[str] = ()) -> None:
        self._tensors = tensors
        self._calls = calls
        self._apart = apart
        self._values: dict[int, Input | _ModuleRef] = {}
        self._types: dict[int, str] = {}
        self._count = 0
        # The submodule whose method is being read.
        self._current_module = ""
        # Whether the graph has profiled types.
        self._is_profiled = False

    def read_method(self, name: str, module: Any) -> Graph:
        """Read a method with the defaults of its arguments, which a caller that leaves one out gets."""
        graph = self.read_graph(name, _inline_functions(module, name))
        _, *arguments = module._get_method(name).schema.arguments
        pairs = zip(graph.types, arguments, strict=True)
        types = tuple(f"{t} = {format_literal(a.default_value)}" if a.has_default_value() else t for t, a in pairs)
        return dataclasses.replace(graph, types=types)

    def read_graph(self, method: str, graph: Any, path: str = "") -> Graph:
        first_input, *inputs = graph.inputs()
        if first_input.type().kind() == "ClassType":
            self._values[first_input.unique()] = _ModuleRef(path)
        else:
            # An optimised graph of a plain function.
            inputs = [first_input, *inputs]
        body = self._read_block(inputs, graph.nodes(), graph.outputs())
        types = tuple(self._types[i] for i in body.inputs)
        return Graph(method, self._apply_types(body) if self._is_profiled else body, types)

    def _apply_types(self, block: Block) -> Block:
        """Return the block with the types that were profiled after the nodes."""

        def apply_to_node(node: Node) -> Node:
            types, blocks = (self._types[i] for i in node.outputs), map(self._apply_types, node.blocks)
            return dataclasses.replace(node, types=tuple(types), blocks=tuple(blocks))

        nodes = tuple(map(apply_to_node, block.nodes))
        return dataclasses.replace(block, nodes=nodes)

    def _add_value(self, value: Any) -> int:
        number, self._count = self._count, self._count + 1
        self._values[value.unique()] = number
        self._types[number] = _format_type(value.type())
        return number

    def _read_block(self, inputs: Any, nodes: Any, outputs: Any) -> Block:
        input_ids = tuple(self._add_value(v) for v in inputs)
        new_nodes = [new_node for node in nodes for new_node in self._read_node(node)]
        output_values = tuple(self._get_input(v) for v in outputs)
        return Block(input_ids, tuple(new_nodes), output_values, tuple(self._types[i] for i in input_ids))

    def _read_subgraphs(self, node: Any) -> tuple[Block, ...]:
        """Read graphs in attributes, of forked or fused code: they do not see the values around them."""
        blocks = []
        for name in node.attributeNames():
            if node.kindOf(name) != "g":
                continue
            graph, outside = node.g(name).copy(), self._values
            inline_calls(graph)
            arguments = [outside[v.unique()] for v in list_inputs(node)]
            # A module is passed on as it is.
            pairs = list(zip(graph.inputs(), arguments, strict=False))
            self._values = {v.unique(): g for v, g in pairs if isinstance(g, _ModuleRef)}
            inputs = [v for v in graph.inputs() if v.unique() not in self._values]
            blocks.append(self._read_block(inputs, graph.nodes(), graph.outputs()))
            self._values = outside
        return tuple(blocks)

    def _get_input(self, value: Any) -> Input:
        known_value = self._values[value.unique()]
        # A module passed on as it is: to a method of an interface, or to isinstance.
        return Literal(f"self.{known_value.path}".rstrip(".")) if isinstance(known_value, _ModuleRef) else known_value

    def _read_node(self, node: Any) -> Iterator[Node]:
        node_kind = node.kind()
        if node_kind == "prim::Constant":
            self._values[node.output().unique()] = self._read_constant(node)
            return
        if node_kind == "prim::profile":
            self._read_profile(node)
            return
        if node_kind == "prim::GetAttr":
            attribute = self._read_attribute(node)
            if attribute is not None:
                self._values[node.output().unique()] = attribute
                return
        receiver = self._values[node.inputsAt(0).unique()] if node_kind == _CALL else None
        if isinstance(receiver, _ModuleRef) and receiver.path:
            if receiver.path in self._apart:
                yield self._make_apart_call(node, receiver.path)
            else:
                yield from self._inline_call(node, receiver.path)
            return
        inputs = tuple(self._get_input(v) for v in list_inputs(node))
        if node_kind == "prim::ListConstruct" and all(isinstance(i, Literal) for i in inputs) and not _is_changed(node):
            # With the type: TorchScript knows the element type of an empty list.
            parts = [i for i in inputs if isinstance(i, Literal)]
            text = ", ".join(i.text for i in parts)
            empty = "" if inputs else f":{_format_type(node.output().type())}"
            self._values[node.output().unique()] = Literal(f"[{text}]{empty}", [i.value for i in parts])
            return
        yield self._make_node(node, node_kind, inputs)

    def _inline_call(self, node: Any, path: str) -> Sequence[Node]:
        """Read the nodes of a submodule's method, with the values passed to it."""
        _, *arguments = (self._values[v.unique()] for v in list_inputs(node))
        key = (path, node.s("name"), *_describe_arguments(arguments))
        known = self._calls.get(key)
        if known is None:
            call = self._calls[key] = self._read_call(path, node.s("name"), tuple(arguments))
        else:
            call = self._repeat_call(known, arguments)
        self._values.update({v.unique(): g for v, g in zip(list_outputs(node), call.outputs, strict=True)})
        return call.nodes

    def _read_call(self, path: str, method: str, arguments: tuple[Input | _ModuleRef, ...]) -> _Call:
        graph, first = _inline_functions(self._tensors.get_attribute(path), method), self._count
        self_value, *inputs = graph.inputs()
        outside, within = self._values, self._current_module
        self._current_module = path
        self._values = {v.unique(): g for v, g in zip(inputs, arguments, strict=True)}
        self._values[self_value.unique()] = _ModuleRef(path)
        new_nodes = tuple(new_node for inner in graph.nodes() for new_node in self._read_node(inner))
        outputs = tuple(self._values[v.unique()] for v in graph.outputs())
        self._values, self._current_module = outside, within
        return _Call(arguments, first, new_nodes, outputs, tuple(self._types[i] for i in range(first, self._count)))

    def _repeat_call(self, call: _Call, arguments: Sequence[Input | _ModuleRef]) -> _Call:
        shift = self._count - call.first
        pairs = zip(call.arguments, arguments, strict=True)
        passed = {old: new for old, new in pairs if isinstance(old, int) and isinstance(new, int)}

        def renumber(value: int) -> int:
            return passed.get(value, value + shift)

        self._types.update(enumerate(call.types, self._count))
        self._count += len(call.types)
        nodes = tuple(renumber_node(node, renumber) for node in call.nodes)
        outputs = tuple(renumber(value) if isinstance(value, int) else value for value in call.outputs)
        return _Call(tuple(arguments), call.first + shift, nodes, outputs, call.types)

    def _make_apart_call(self, node: Any, path: str) -> Node:
        _, *arguments = (self._get_input(v) for v in list_inputs(node))
        outputs = tuple(self._add_value(v) for v in list_outputs(node))
        types = tuple(self._types[i] for i in outputs)
        origin = dataclasses.replace(find_origin(node), module=path)
        return Node(f"{APART}[{path}]", tuple(arguments), outputs, types, origin=origin)

    def _make_node(self, node: Any, node_kind: str, inputs: tuple[Input, ...]) -> Node:
        origin = find_origin(node)
        origin = dataclasses.replace(origin, module=origin.module or self._current_module)
        blocks = tuple(self._read_block(b.inputs(), b.nodes(), b.outputs()) for b in list_blocks(node))
        blocks += self._read_subgraphs(node)
        outputs = tuple(self._add_value(v) for v in list_outputs(node))
        schema = node.schema()
        schema = "" if schema == "(no schema)" else schema
        if node_kind == _CALL:
            # Its first input is the module.
            inputs, node_kind = inputs[1:], CALL
        elif node_kind == CALL:
            node_kind = OBJECT_CALL
        operator = (schema.partition("(")[0] or node_kind) + _format_attributes(node) + self._describe_attribute(node)
        types, has_effect = tuple(self._types[i] for i in outputs), bool(node.isNondeterministic())
        return Node(operator, inputs, outputs, types, blocks, schema, effect=has_effect, origin=origin)

    def _read_constant(self, node: Any) -> Input:
        if node.output().type().kind() == "TensorType" and not node.mustBeNone():
            return self._tensors.add(node.t("value"))
        if node.output().type().kind() == "FunctionType":
            return Literal(node.s("name"))
        value = None if node.mustBeNone() else node.output().toIValue()
        return Literal(format_literal(value), value)

    def _read_profile(self, node: Any) -> None:
        """Alias a profiled value to its input, with another type."""
        for value, output in zip(list_inputs(node), list_outputs(node), strict=False):
            known_value = self._values[output.unique()] = self._values[value.unique()]
            if isinstance(known_value, int) and node.hasAttribute("profiled_type"):
                self._is_profiled = True
                self._types[known_value] = _format_type(node.ty("profiled_type"))

    def _read_attribute(self, node: Any) -> Input | _ModuleRef | None:
        """Return an attribute; None if a method sets it: then the time of the read matters."""
        owner = self._values[node.inputsAt(0).unique()]
        if not isinstance(owner, _ModuleRef):
            return None
        path = f"{owner.path}.{node.s('name')}".lstrip(".")
        if path in self._tensors.mutated_paths:
            return None
        value = self._tensors.get_attribute(path)
        if isinstance(value, torch.ScriptModule):
            return _ModuleRef(path)
        if isinstance(value, torch.Tensor):
            return self._tensors.get(path)
        # An object that a method may write to is read in place; its value becomes part of the text.
        return None if isinstance(value, (list, dict, torch.ScriptObject)) else Literal(format_literal(value), value)

    def _describe_attribute(self, node: Any) -> str:
        """Return the value of an attribute that is read in place, unless a method sets it."""
        owner = self._values[node.inputsAt(0).unique()] if node.kind() == "prim::GetAttr" else None
        if not isinstance(owner, _ModuleRef):
            return ""
        path = f"{owner.path}.{node.s('name')}".lstrip(".")
        return f" of {owner.path or 'self'}: {format_literal(self._tensors.get_attribute(path))}"


def _describe_arguments(arguments: Sequence[Input | _ModuleRef]) -> Iterator[str]:
    """Yield a text for each argument of a call: values of the graph by their places only, constants as they are."""
    for argument in arguments:
        if isinstance(argument, int):
            yield f"value {arguments.index(argument)}"
        elif isinstance(argument, _ModuleRef):
            yield f"module {argument.path}"
        else:
            yield f"literal {argument.text}" if isinstance(argument, Literal) else f"tensor {argument.key} {argument}"


def _is_changed(node: Any) -> bool:
    """Return whether anything but known readers uses the list that the node makes, and may write to it."""
    return any(u.user.kind() in _WRITERS or not u.user.kind().startswith("aten::") for u in node.output().uses())


_CHANGES = ("append", "_set_item", "extend", "insert", "pop", "remove", "clear", "reverse", "sort", "Delete", "add_")
_WRITERS = {f"aten::{name}" for name in (*_CHANGES, "mul_")}


def _format_type(torch_type: Any) -> str:
    """Return the type's text; a tensor with profiled dtype and shape is ``float64[5, 3]``."""
    if torch_type.kind() == "TensorType" and torch_type.scalarType() and torch_type.sizes() is not None:
        scalar_type = SCALAR_TYPES.get(torch_type.scalarType(), torch_type.scalarType())
        return f"{str(scalar_type).removeprefix('torch.')}{torch_type.sizes()}"
    return _MANGLED.sub("", str(torch_type))


def _format_checked_type(torch_type: Any) -> str:
    """Return a type, with strides and device where it is that of a tensor whose sizes are known."""
    text = _format_type(torch_type)
    is_known = text != str(torch_type) and torch_type.kind() == "TensorType"
    return f"{text} strides={torch_type.strides()} {torch_type.device()}" if is_known else text


def _format_attributes(node: Any) -> str:
    """Return the attributes of a node that is no constant, in brackets, sorted by name."""
    texts = []
    for name in sorted(node.attributeNames()):
        attribute_kind = node.kindOf(name)
        # Graphs are read as blocks; a warning's number belongs to one process.
        if attribute_kind in ("g", "gs") or name == "warn_id":
            continue
        value = node.ty(name) if attribute_kind == "ty" else getattr(node, attribute_kind)(name)
        if attribute_kind == "tys":
            text = f"[{', '.join(map(_format_checked_type, value))}]"
        else:
            text = _MANGLED.sub("", str(value)) if attribute_kind == "ty" else format_literal(value)
        texts.append(f"{name}={text}")
    return f"[{', '.join(texts)}]" if texts else ""
