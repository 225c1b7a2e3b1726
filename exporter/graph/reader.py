"""torch's graphs as plain values: submodules inlined, constants where they are used, every node with its origin.

A method's calls of the module's other methods stay calls, so that each graph stands by itself and none is there twice.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from exporter.archive.contract import Contract
from exporter.archive.zip_records import zipped
from exporter.graph.effects import Effects, with_effects, with_names
from exporter.graph.ir import Block, Graph, Input, Literal, Node
from exporter.graph.node_origin import origin_of
from exporter.graph.recursion import deep
from exporter.graph.submodules import set_attributes, submodules
from exporter.graph.tensors import Tensors, literal
from exporter.graph.torch_nodes import SCALAR_TYPES

# What a call of a module's method is while torch inlines functions.
_CALL = "torchferry::call"
CALL = "prim::CallMethod"
# The call of a method of something else than the module itself, of which nothing is known.
OBJECT_CALL = "prim::CallObject"
# The call of a submodule that is read apart; its path follows in brackets.
APART = "torchferry::apart"
# Of the types that torch writes: class names that it met before have a number, and a class is its path.
_MANGLED = re.compile(r"___torch_mangle_\d+\.")


@dataclass(frozen=True)
class Saved:
    """A module's methods as graphs, by name, and the tensors that they hold, by ``Held.key``."""

    graphs: Mapping[str, Graph]
    tensors: Mapping[str, torch.Tensor]


@deep
def read(module: torch.jit.ScriptModule, settable: Collection[str] | None = None) -> Saved:
    """All methods of the top module. ``settable`` are the parameters whose names matter; None: all of them."""
    names = {n for n, _ in module.named_parameters()} if settable is None else settable
    tensors = Tensors(module, frozenset(names), set_attributes(module))
    plain = {name: _Reader(tensors).method(name, module._c) for name in sorted(module._c._method_names())}
    plain |= {name: _Reader(tensors).graph(name, graph) for name, graph in _hooks(module._c)}
    if any(node.kind == OBJECT_CALL for graph in plain.values() for node in graph):
        # Of any of them, for all that is known.
        for path, child in submodules(module._c, ""):
            for name in child._method_names() if path else ():
                plain[f"{path}.{name}"] = _Reader(tensors).graph(f"{path}.{name}", _with_calls(child, name), path)
    # What some method writes to is known by its path, and one memory, whoever reads it when.
    first = _effects(plain, frozenset())
    state = frozenset[str]().union(*(one.held for one in first.values()))
    found = _effects({name: with_names(graph, state) for name, graph in plain.items()}, state)
    return Saved({name: found[name].graph for name in plain}, tensors.values)


@deep
def read_apart(module: torch.jit.ScriptModule, methods: Collection[str], apart: Collection[str] = ()) -> Saved:
    """These methods and those that they call, to be run one node after the other: without effects.

    The submodules at the paths ``apart`` are not inlined: a call of one is a node ``APART``.
    """
    tensors = Tensors(module, frozenset(n for n, _ in module.named_parameters()), set_attributes(module))
    graphs: dict[str, Graph] = {}
    left = list(methods)
    while left:
        name = left.pop()
        if name not in graphs:
            path, _, own = name.rpartition(".")
            held = tensors.attribute(path)
            of: Any = held._c if isinstance(held, torch.jit.ScriptModule) else held
            reader = _Reader(tensors, frozenset(apart) - {path})
            graphs[name] = reader.graph(name, _with_calls(of, own), path)
            left += [called(node) for node in graphs[name] if node.kind == CALL]
    return Saved(graphs, tensors.values)


def called(node: Node) -> str:
    """The method that a node ``CALL`` calls, the path that a node ``APART`` does."""
    return node.operator.partition("[")[2].removesuffix("]").removeprefix("name=").strip("'")


def _effects(plain: Mapping[str, Graph], state: frozenset[str]) -> dict[str, Effects]:
    found: dict[str, Effects] = {}

    def effects(name: str) -> Effects | None:
        # TorchScript has no recursion.
        if name in plain and name not in found:
            found[name] = with_effects(plain[name], effects, state)
        return found.get(name)

    for name in plain:
        effects(name)
    return found


def _hooks(module: Any) -> Iterator[tuple[str, Any]]:
    """Of the top module, which its caller runs; those of submodules are called in the graphs."""
    for kind, hooks in (("pre-hook", module._get_forward_pre_hooks()), ("hook", module._get_forward_hooks())):
        for i, hook in enumerate(hooks):
            graph = hook.graph.copy()
            torch._C._jit_pass_inline(graph)
            yield f"{kind} {i}", graph


def reloaded(records: Mapping[str, bytes], contract: Contract) -> Saved:
    """What ``torch.jit.load`` makes of these records: not all that is in memory is in a file."""
    module = torch.jit.load(io.BytesIO(zipped(records)), map_location="cpu")
    return read(module, settable_names(contract))


def settable_names(contract: Contract | None) -> set[str] | None:
    """Tensors of the file that a host can set: parameters, and settings of solvers; None where no contract says it."""
    if contract is None:
        return None
    return {p.name for p in contract.parameters} | {f"{s.path}.{n}" for s in contract.solvers for n in s.settings}


@deep
def read_graph(graph: Any, module: torch.jit.ScriptModule, method: str) -> Graph:
    """A graph of torch's that has been inlined already, as its executor has it."""
    tensors = Tensors(module, frozenset(n for n, _ in module.named_parameters()), set_attributes(module))
    return with_effects(_Reader(tensors).graph(method, graph), lambda name: None, frozenset()).graph


def _with_calls(module: Any, method: str) -> Any:
    """torch's graph of a method, of its own ``ScriptModule``, with functions inlined, and calls of modules' methods
    still in it: torch forgets of what stands in inner blocks which module it came from."""
    graph = module._get_method(method).graph.copy()
    own = next(graph.inputs()).debugName()
    for node in list(graph.findAllNodes(CALL)):
        of = next(node.inputs())
        root, path = of, []
        while root.node().kind() == "prim::GetAttr":
            path.insert(0, root.node().s("name"))
            root = next(root.node().inputs())
        if root.debugName() == own and of.type().kind() in ("ClassType", "InterfaceType"):
            held = functools.reduce(lambda parent, name: parent.getattr(name), path, module)
            if isinstance(held, torch.ScriptModule):
                _stand_in(graph, node)
    torch._C._jit_pass_inline(graph)
    return graph


def _stand_in(graph: Any, node: Any) -> None:
    outputs = list(node.outputs())
    call = graph.create(_CALL, list(node.inputs()), len(outputs))
    call.s_("name", node.s("name"))
    call.copyMetadata(node)
    call.insertBefore(node)
    for old, new in zip(outputs, call.outputs(), strict=True):
        new.setType(old.type())
        old.replaceAllUsesWith(new)
    node.destroy()


class _Module:
    """A submodule in a graph."""

    def __init__(self, path: str) -> None:
        self.path = path


class _Reader:
    """One graph. Values are numbered in torch's own order."""

    def __init__(self, tensors: Tensors, apart: Collection[str] = ()) -> None:
        self._tensors = tensors
        self._apart = apart
        self._known: dict[int, Input | _Module] = {}
        self._types: dict[int, str] = {}
        self._count = 0
        # The submodule whose method is read.
        self._within = ""
        # Whether it is a graph that notes types when it runs.
        self._seen = False

    def method(self, name: str, module: Any) -> Graph:
        """With the defaults of the arguments: who leaves one out gets it."""
        found = self.graph(name, _with_calls(module, name))
        _, *arguments = module._get_method(name).schema.arguments
        types = tuple(
            f"{t} = {literal(a.default_value)}" if a.has_default_value() else t
            for t, a in zip(found.types, arguments, strict=True)
        )
        return dataclasses.replace(found, types=types)

    def graph(self, method: str, graph: Any, path: str = "") -> Graph:
        own, *inputs = graph.inputs()
        if own.type().kind() == "ClassType":
            self._known[own.unique()] = _Module(path)
        else:
            # An optimised graph of a plain function.
            inputs = [own, *inputs]
        body = self._block(inputs, graph.nodes(), graph.outputs())
        types = tuple(self._types[i] for i in body.inputs)
        return Graph(method, self._typed(body) if self._seen else body, types)

    def _typed(self, block: Block) -> Block:
        """With the types that were seen behind the nodes."""
        nodes = tuple(
            dataclasses.replace(
                node, types=tuple(self._types[i] for i in node.outputs), blocks=tuple(map(self._typed, node.blocks))
            )
            for node in block.nodes
        )
        return dataclasses.replace(block, nodes=nodes)

    def _new(self, value: Any) -> int:
        number, self._count = self._count, self._count + 1
        self._known[value.unique()] = number
        self._types[number] = _type(value.type())
        return number

    def _block(self, inputs: Any, nodes: Any, outputs: Any) -> Block:
        taken = tuple(self._new(v) for v in inputs)
        found = [made for node in nodes for made in self._node(node)]
        returned = tuple(self._input(v) for v in outputs)
        return Block(taken, tuple(found), returned, tuple(self._types[i] for i in taken))

    def _subgraphs(self, node: Any) -> tuple[Block, ...]:
        """Graphs in an attribute, of what is forked or fused: they know nothing of the values around them."""
        found = []
        for name in node.attributeNames():
            if node.kindOf(name) != "g":
                continue
            graph, outside = node.g(name).copy(), self._known
            torch._C._jit_pass_inline(graph)
            given = [outside[v.unique()] for v in node.inputs()]
            # A module is passed on as it is.
            pairs = list(zip(graph.inputs(), given, strict=False))
            self._known = {v.unique(): g for v, g in pairs if isinstance(g, _Module)}
            inputs = [v for v in graph.inputs() if v.unique() not in self._known]
            found.append(self._block(inputs, graph.nodes(), graph.outputs()))
            self._known = outside
        return tuple(found)

    def _input(self, value: Any) -> Input:
        found = self._known[value.unique()]
        # A module that is passed on as it is: to a method of an interface, or to isinstance.
        return Literal(f"self.{found.path}".rstrip(".")) if isinstance(found, _Module) else found

    def _node(self, node: Any) -> Iterator[Node]:
        kind = node.kind()
        if kind == "prim::Constant":
            self._known[node.output().unique()] = self._constant(node)
            return
        if kind == "prim::profile":
            self._profiled(node)
            return
        if kind == "prim::GetAttr":
            found = self._attribute(node)
            if found is not None:
                self._known[node.output().unique()] = found
                return
        if kind == _CALL and isinstance(of := self._known[next(node.inputs()).unique()], _Module) and of.path:
            if of.path in self._apart:
                yield self._called_apart(node, of.path)
            else:
                yield from self._inlined(node, of.path)
            return
        inputs = tuple(self._input(v) for v in node.inputs())
        if kind == "prim::ListConstruct" and all(isinstance(i, Literal) for i in inputs) and not _is_changed(node):
            # Of the type too: TorchScript knows what an empty list is a list of.
            parts = [i for i in inputs if isinstance(i, Literal)]
            text = ", ".join(i.text for i in parts)
            empty = "" if inputs else f":{_type(node.output().type())}"
            self._known[node.output().unique()] = Literal(f"[{text}]{empty}", [i.value for i in parts])
            return
        yield self._made(node, kind, inputs)

    def _inlined(self, node: Any, path: str) -> list[Node]:
        """The nodes of a submodule's method, with the values that it is given."""
        graph = _with_calls(self._tensors.attribute(path), node.s("name"))
        own, *inputs = graph.inputs()
        _, *given = (self._known[v.unique()] for v in node.inputs())
        outside, within = self._known, self._within
        self._within = path
        self._known = {own.unique(): _Module(path), **{v.unique(): g for v, g in zip(inputs, given, strict=True)}}
        found = [made for inner in graph.nodes() for made in self._node(inner)]
        returned = [self._known[v.unique()] for v in graph.outputs()]
        self._known, self._within = outside, within
        self._known.update({v.unique(): g for v, g in zip(node.outputs(), returned, strict=True)})
        return found

    def _called_apart(self, node: Any, path: str) -> Node:
        _, *given = (self._input(v) for v in node.inputs())
        outputs = tuple(self._new(v) for v in node.outputs())
        types = tuple(self._types[i] for i in outputs)
        origin = dataclasses.replace(origin_of(node), module=path)
        return Node(f"{APART}[{path}]", tuple(given), outputs, types, origin=origin)

    def _made(self, node: Any, kind: str, inputs: tuple[Input, ...]) -> Node:
        origin = origin_of(node)
        origin = dataclasses.replace(origin, module=origin.module or self._within)
        blocks = tuple(self._block(b.inputs(), b.nodes(), b.outputs()) for b in node.blocks())
        blocks += self._subgraphs(node)
        outputs = tuple(self._new(v) for v in node.outputs())
        schema = node.schema()
        schema = "" if schema == "(no schema)" else schema
        # Its first input is the module.
        inputs, kind = (inputs[1:], CALL) if kind == _CALL else (inputs, OBJECT_CALL if kind == CALL else kind)
        operator = schema.partition("(")[0] or kind
        return Node(
            operator + _attributes(node) + self._said(node),
            inputs,
            outputs,
            tuple(self._types[i] for i in outputs),
            blocks,
            schema,
            effect=bool(node.isNondeterministic()),
            origin=origin,
        )

    def _constant(self, node: Any) -> Input:
        if node.output().type().kind() == "TensorType" and not node.mustBeNone():
            return self._tensors.held(node.t("value"))
        value = None if node.mustBeNone() else node.output().toIValue()
        return Literal(literal(value), value)

    def _profiled(self, node: Any) -> None:
        """A profiled value is the value, with another type."""
        for value, made in zip(node.inputs(), node.outputs(), strict=False):
            found = self._known[made.unique()] = self._known[value.unique()]
            if isinstance(found, int) and node.hasAttribute("profiled_type"):
                self._seen = True
                self._types[found] = _type(node.ty("profiled_type"))

    def _attribute(self, node: Any) -> Input | _Module | None:
        """None for an attribute that a method sets: when it is read matters."""
        of = self._known[next(node.inputs()).unique()]
        if not isinstance(of, _Module):
            return None
        path = f"{of.path}.{node.s('name')}".lstrip(".")
        if path in self._tensors.changing:
            return None
        value = self._tensors.attribute(path)
        if isinstance(value, torch.ScriptModule):
            return _Module(path)
        if isinstance(value, torch.Tensor):
            return self._tensors.at(path)
        # What a method may write to is read where it is read; the value that it has is said with it.
        return None if isinstance(value, (list, dict, torch.ScriptObject)) else Literal(literal(value), value)

    def _said(self, node: Any) -> str:
        """The value of an attribute that is read where it is read, unless a method sets it."""
        of = self._known[next(node.inputs()).unique()] if node.kind() == "prim::GetAttr" else None
        if not isinstance(of, _Module):
            return ""
        path = f"{of.path}.{node.s('name')}".lstrip(".")
        return f" of {of.path or 'self'}: {literal(self._tensors.attribute(path))}"


def _is_changed(node: Any) -> bool:
    """Whether something may write to the list that the node makes: anything but a reader that is known."""
    return any(u.user.kind() in _WRITERS or not u.user.kind().startswith("aten::") for u in node.output().uses())


_CHANGES = ("append", "_set_item", "extend", "insert", "pop", "clear", "reverse", "sort", "Delete")
_WRITERS = {f"aten::{name}" for name in _CHANGES}


def _type(kind: Any) -> str:
    """A tensor of which the executor has seen dtype and shape is ``float64[5, 3]``."""
    if kind.kind() == "TensorType" and kind.scalarType() and kind.sizes() is not None:
        return f"{str(SCALAR_TYPES.get(kind.scalarType(), kind.scalarType())).removeprefix('torch.')}{kind.sizes()}"
    return _MANGLED.sub("", str(kind))


def _attributes(node: Any) -> str:
    """In brackets, sorted by name: those of the nodes that are not constants."""
    found = []
    for name in sorted(node.attributeNames()):
        how = node.kindOf(name)
        # Graphs are read as blocks; a warning's number is that of a process.
        if how in ("g", "gs") or name == "warn_id":
            continue
        value = node.ty(name) if how == "ty" else getattr(node, how)(name)
        text = _MANGLED.sub("", str(value)) if how in ("ty", "tys") else literal(value)
        found.append(f"{name}={text}")
    return f"[{', '.join(found)}]" if found else ""
