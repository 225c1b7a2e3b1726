"""What the order of a graph's nodes matters for: writes to memory, errors, output, random numbers, attributes.

Which values share memory is taken from torch's schemas (``Tensor(a!)``, as aten/src/ATen/native/README.md defines them)
and from what goes into lists and tuples and comes out of them; what has no schema is taken to share it with all that
it is given. Sets of values that may share memory are joined as in Steensgaard, "Points-to analysis in almost linear
time", POPL '96: a set of containers has one more for what they hold, once something is taken out of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from exporter.graph.ir import Block, Graph, Held, Input, Node, walk

_ACTS = (
    *("prim::RaiseException", "prim::Print", "prim::SetAttr", "prim::fork", "prim::CallObject", "prim::CallMethod"),
    *("aten::wait", "aten::warn", "aten::manual_seed"),
)
# What changes how operations run that stand behind it: no operation passes it.
_MODES = ("prim::Enter", "prim::Exit", "aten::set_grad_enabled")
STATE, MODE = "state", "mode"
_INTO = ("prim::ListConstruct", "prim::TupleConstruct", "prim::DictConstruct")
_OUT_OF = ("prim::ListUnpack", "prim::TupleUnpack", "prim::TupleIndex", "prim::TupleSlice")
# Types whose values are never written to.
_PLAIN = ("int", "float", "bool", "str", "NoneType", "Device", "complex", "number", "Scalar", "Generator")
Key = int | str


@dataclass(frozen=True)
class Effects:
    """A method's graph with what each node does to memory, whether it has effects at all, and whether it writes to what
    it is given; ``held`` is memory of the module's tensors that it writes to, and the last two say whether it reads or
    writes to what the methods of the module write to."""

    graph: Graph
    acts: bool
    writes: bool
    held: frozenset[str]
    reads_state: bool = False
    writes_state: bool = False


def with_effects(graph: Graph, called: Callable[[str], Effects | None], state: frozenset[str]) -> Effects:
    """``called``: what is known of the method of a name; None for one that may do anything. ``state``: memory of the
    module's tensors that some method writes to; with its attributes it is one memory."""
    memory = _Memory(graph, called, state)
    marked = dataclasses.replace(graph, body=memory.marked(graph.body))
    written = {m for node in walk(marked.body) for m in node.writes}
    given = {m for v in graph.body.inputs for m in memory.reached(v)}
    tensors = [v for v in _inputs(marked.body) if isinstance(v, Held)]
    held = frozenset(v.memory for v in tensors if memory.reached(v) & written)
    acts = any(node.effect for node in marked.body.nodes)
    reads = any(STATE in node.reads for node in walk(marked.body)) or memory.gives_state(marked.body)
    return Effects(marked, acts, bool(written & given), held, reads, STATE in written)


def _inputs(block: Block) -> Iterator[Input]:
    for node in block.nodes:
        yield from node.inputs
        for inner in node.blocks:
            yield from _inputs(inner)
    yield from block.outputs


def with_names(graph: Graph, written: frozenset[str]) -> Graph:
    """Tensors whose memory some method writes to are known by their path: what they are once does not say which."""

    def named(value: Input) -> Input:
        if isinstance(value, Held) and value.memory in written:
            return dataclasses.replace(value, name=value.key)
        return value

    def in_block(block: Block) -> Block:
        nodes = tuple(
            dataclasses.replace(n, inputs=tuple(map(named, n.inputs)), blocks=tuple(map(in_block, n.blocks)))
            for n in block.nodes
        )
        return dataclasses.replace(block, nodes=nodes, outputs=tuple(map(named, block.outputs)))

    return dataclasses.replace(graph, body=in_block(graph.body)) if written else graph


@dataclass(frozen=True)
class _Alias:
    """By position: inputs that are written to, inputs that go into a container, and for each output the inputs whose
    memory it may share; ``wild`` outputs may be anything that a container among the inputs holds."""

    writes: tuple[int, ...]
    into: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...]
    wild: tuple[bool, ...]


@functools.cache
def _alias(schema: str) -> _Alias:
    parsed = torch._C.parse_schema(schema)
    sets = [a.alias_info for a in parsed.arguments]
    shares, wild = [], []
    for made in parsed.returns:
        names = set(made.alias_info.before_set) | set(made.alias_info.after_set) if made.alias_info else set()
        shares.append(tuple(i for i, a in enumerate(sets) if a is not None and names & set(a.before_set)))
        wild.append("*" in names)
    writes = tuple(i for i, a in enumerate(sets) if a is not None and a.is_write)
    into = tuple(i for i, a in enumerate(sets) if a is not None and "*" in a.after_set and not a.is_write)
    return _Alias(writes, into, tuple(shares), tuple(wild))


def _is_container(kind: str) -> bool:
    # A tensor whose type was seen is written as float64[3].
    return kind.startswith(("List[", "Tuple[", "Dict[", "Optional[List", "Optional[Dict", "Optional[Tuple"))


class _Memory:
    def __init__(self, graph: Graph, called: Callable[[str], Effects | None], state: frozenset[str]) -> None:
        self._called = called
        self._state = state
        self._has_modes = any(node.kind in _MODES for node in walk(graph.body))
        self._parent: dict[Key, Key] = {}
        self._content: dict[Key, Key] = {}
        # What was put into containers that nothing was taken out of.
        self._loose: dict[Key, set[Key]] = {}
        self._plain = {i for i, t in zip(graph.body.inputs, graph.types, strict=True) if t in _PLAIN}
        self._containers = {i for i, t in zip(graph.body.inputs, graph.types, strict=True) if _is_container(t)}
        # Whichever method writes to it.
        self._written: set[Key] = {STATE}
        self._join_block(graph.body)
        self._written = {self._root(key) for key in self._written}

    def marked(self, block: Block) -> Block:
        return dataclasses.replace(block, nodes=tuple(self._marked(node) for node in block.nodes))

    def reached(self, value: Input) -> set[Key]:
        """The memory that reading the value reads: its own, and what it holds; of it, what is written to somewhere."""
        found: set[Key] = set()
        key = self._key(value)
        todo = [key] if key is not None else []
        while todo:
            root = self._root(todo.pop())
            if root not in found:
                found.add(root)
                todo += [self._content[root]] if root in self._content else self._loose.get(root, ())
        return found & self._written

    def gives_state(self, block: Block) -> bool:
        return any(STATE in self._stated(self.reached(v)) for v in block.outputs)

    def _stated(self, memory: set[Key]) -> set[Key]:
        """With the module's own state under its name."""
        return {STATE if key == self._root(STATE) else key for key in memory}

    def _marked(self, node: Node) -> Node:
        blocks = tuple(map(self.marked, node.blocks))
        inner = [n for b in blocks for n in b.nodes]
        read = {m for v in (*node.inputs, *(v for b in blocks for v in _inputs(b))) for m in self.reached(v)}
        read = self._stated(read).union(*(n.reads for n in inner))
        writes = self._stated({self._root(key) for key in self._targets(node)}).union(*(n.writes for n in inner))
        acts = node.effect or node.kind in _ACTS or any(n.effect for n in inner)
        if node.kind == "prim::CallMethod":
            found = self._known(node)
            acts = found is None or found.acts
            read |= {STATE} if found is None or found.reads_state else set()
            writes |= {STATE} if found is None or found.writes_state else set()
        if node.kind in ("prim::GetAttr", "prim::SetAttr", "prim::CallObject"):
            read.add(STATE)
        if node.kind in ("prim::SetAttr", "prim::CallObject"):
            writes.add(STATE)
        if self._has_modes:
            read.add(MODE)
        if node.kind in _MODES:
            writes.add(MODE)
        return dataclasses.replace(
            node, blocks=blocks, effect=acts or bool(writes), reads=frozenset(read), writes=frozenset(writes)
        )

    def _known(self, node: Node) -> Effects | None:
        """What is known of a method that is called."""
        return self._called(node.operator.partition("name='")[2].partition("'")[0])

    def _targets(self, node: Node) -> Iterator[Key]:
        """What the node writes to by itself."""
        given: Iterator[Input] = iter(())
        if node.schema:
            given = (node.inputs[i] for i in _alias(node.schema).writes)
        elif node.kind == "prim::CallObject":
            given = iter(node.inputs)
        elif node.kind == "prim::CallMethod":
            found = self._known(node)
            given = iter(node.inputs) if found is None or found.writes else given
        yield from (key for value in given if (key := self._key(value)) is not None)

    def _key(self, value: Input) -> Key | None:
        if isinstance(value, Held):
            return STATE if value.memory in self._state else value.memory
        return value if isinstance(value, int) and value not in self._plain else None

    def _root(self, key: Key) -> Key:
        while (parent := self._parent.get(key, key)) != key:
            self._parent[key] = self._parent.get(parent, parent)
            key = parent
        return key

    def _join(self, one: Key | None, other: Key | None) -> None:
        todo = [(one, other)]
        while todo:
            one, other = todo.pop()
            if one is None or other is None or (a := self._root(one)) == (b := self._root(other)):
                continue
            self._parent[a] = b
            inside, theirs = self._content.pop(a, None), self._content.get(b)
            if inside is not None and theirs is not None:
                todo.append((inside, theirs))
            elif inside is not None:
                self._content[b] = inside
            loose = self._loose.pop(a, set()) | self._loose.pop(b, set())
            if b in self._content:
                todo += [(self._content[b], element) for element in loose]
            elif loose:
                self._loose[b] = loose

    def _inside(self, value: Input) -> Key | None:
        """The set of what the value holds, if it is a container."""
        key = self._key(value)
        if key is None:
            return None
        root = self._root(key)
        if root not in self._content:
            self._content[root] = f"in {root}"
            for element in self._loose.pop(root, set()):
                self._join(self._content[root], element)
        return self._content[root]

    def _put(self, container: Input, element: Input) -> None:
        into, key = self._key(container), self._key(element)
        if into is None or key is None:
            return
        root = self._root(into)
        if root in self._content:
            self._join(self._content[root], key)
        else:
            self._loose.setdefault(root, set()).add(key)

    def _join_block(self, block: Block) -> None:
        for node in block.nodes:
            self._plain |= {o for o, t in zip(node.outputs, node.types, strict=True) if t in _PLAIN}
            self._containers |= {o for o, t in zip(node.outputs, node.types, strict=True) if _is_container(t)}
            for inner in node.blocks:
                self._plain |= {i for i, t in zip(inner.inputs, inner.types, strict=False) if t in _PLAIN}
                self._containers |= {i for i, t in zip(inner.inputs, inner.types, strict=False) if _is_container(t)}
                self._join_block(inner)
                if node.kind not in ("prim::If", "prim::Loop"):
                    # A graph of its own.
                    for value in (*inner.inputs, *inner.outputs, *node.outputs):
                        for given in node.inputs:
                            self._join(self._key(value), self._key(given))
                    continue
                # What goes into a block, round a loop (behind its count and its condition), or out of it.
                loop = node.kind == "prim::Loop"
                around = [node.outputs, inner.outputs[loop:], *((inner.inputs[1:], node.inputs[2:]) if loop else ())]
                for passed in itertools.zip_longest(*around):
                    for one, other in itertools.pairwise(v for v in passed if v is not None):
                        self._join(self._key(one), self._key(other))
            if not node.blocks:
                self._join_node(node)
            self._written |= set(self._targets(node))

    def _join_node(self, node: Node) -> None:
        if node.schema:
            self._join_by_schema(node, _alias(node.schema))
        elif node.kind in _INTO:
            for value in node.inputs:
                self._put(node.outputs[0], value)
        elif node.kind in ("prim::GetAttr", "prim::SetAttr", "prim::CallObject"):
            # All attributes, of the module and of objects, are one memory.
            for value in (*node.inputs, *node.outputs):
                self._join(self._key(value), STATE)
                self._join(self._inside(value), STATE)
        elif node.kind in _OUT_OF:
            for made in node.outputs:
                self._join(self._key(made), self._inside(node.inputs[0]))
        else:
            for made in node.outputs:
                for value in node.inputs:
                    self._join(self._key(made), self._key(value))
                    self._join(self._inside(made), self._key(value))

    def _join_by_schema(self, node: Node, alias: _Alias) -> None:
        lists = [v for v in node.inputs if v in self._containers]
        for i in alias.writes:
            for j in alias.into:
                self._put(node.inputs[i], node.inputs[j])
            # One list put behind another.
            for value in lists if node.inputs[i] in lists and not alias.into else ():
                self._join(self._inside(node.inputs[i]), self._inside(value))
        for made, kind, shares, wild in zip(node.outputs, node.types, alias.shares, alias.wild, strict=False):
            container = _is_container(kind)
            for i in shares:
                self._join(self._key(made), self._key(node.inputs[i]))
                # Pieces of a tensor; a list that is given back holds what it held.
                if container and node.inputs[i] not in lists:
                    self._join(self._inside(made), self._key(node.inputs[i]))
            for value in lists if wild or container else ():
                self._join(self._inside(made) if container else self._key(made), self._inside(value))
