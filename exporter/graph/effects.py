"""Effects that fix the order of a graph's nodes: memory writes, errors, output, random numbers, attributes.

Which values share memory is taken from torch's schemas (``Tensor(a!)``, as aten/src/ATen/native/README.md defines them)
and from what goes into lists and tuples and comes out of them; an operator without a schema is assumed to share it with
all of its inputs. Sets of values that may share memory are joined as in Steensgaard, "Points-to analysis in almost
linear time", POPL '96: a set of containers has one more set for its contents, once something is taken out of them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from exporter.common.torch_internals import parse_schema
from exporter.saved_code.ir import Block, Graph, Input, Node, TensorConstant, replace_fields, walk_nodes

_ACTS = (
    *("prim::RaiseException", "prim::Print", "prim::SetAttr", "prim::fork", "prim::CallObject", "prim::CallMethod"),
    *("aten::wait", "aten::warn", "aten::manual_seed"),
)
# These change how later operations run: no operation moves across them.
_MODES = ("prim::Enter", "prim::Exit", "aten::set_grad_enabled")
STATE, MODE = "state", "mode"
_INTO = ("prim::ListConstruct", "prim::TupleConstruct", "prim::DictConstruct")
_OUT_OF = ("prim::ListUnpack", "prim::TupleUnpack", "prim::TupleIndex", "prim::TupleSlice")
# Types whose values are never written to.
_PLAIN = ("int", "float", "bool", "str", "NoneType", "Device", "complex", "number", "Scalar", "Generator")
Key = int | str


@dataclass(frozen=True)
class Effects:
    """A method's graph with each node's memory effects. ``has_effects``: there are any; ``writes``: it writes to its
    inputs; ``written_tensors``: memory of the module's tensors that it writes to; ``reads_state``, ``writes_state``:
    it reads or writes memory that the module's methods write to."""

    graph: Graph
    has_effects: bool
    writes: bool
    written_tensors: frozenset[str]
    reads_state: bool = False
    writes_state: bool = False


def annotate_effects(graph: Graph, find_callee: Callable[[str], Effects | None], state: frozenset[str]) -> Effects:
    """Return the graph with its effects. ``find_callee`` gives those of a method by name, None if it may do anything;
    ``state`` is the tensors' memory that some method writes to: with the module's attributes it counts as one memory.
    """
    memory = _AliasAnalysis(graph, find_callee, state)
    annotated = replace_fields(graph, body=memory.annotate(graph.body))
    written_memory = {m for node in walk_nodes(annotated.body) for m in node.writes}
    input_memory = {m for v in graph.body.inputs for m in memory.find_reachable(v)}
    tensors = [v for v in _iterate_inputs(annotated.body) if isinstance(v, TensorConstant)]
    written_tensors = frozenset(v.memory for v in tensors if memory.find_reachable(v) & written_memory)
    has_effects = any(node.effect for node in annotated.body.nodes)
    reads_state = any(STATE in node.reads for node in walk_nodes(annotated.body))
    reads_state = reads_state or memory.returns_state(annotated.body)
    writes_inputs = bool(written_memory & input_memory)
    return Effects(annotated, has_effects, writes_inputs, written_tensors, reads_state, STATE in written_memory)


def _iterate_inputs(block: Block) -> Iterator[Input]:
    for node in block.nodes:
        yield from node.inputs
        for inner in node.blocks:
            yield from _iterate_inputs(inner)
    yield from block.outputs


def name_written_tensors(graph: Graph, written_memory: frozenset[str]) -> Graph:
    """Name tensors whose memory some method writes to by their path: their first bytes do not identify them."""

    def name_tensor(value: Input) -> Input:
        if isinstance(value, TensorConstant) and value.memory in written_memory:
            return dataclasses.replace(value, name=value.key)
        return value

    def name_node(node: Node) -> Node:
        blocks = tuple(map(name_block, node.blocks))
        return replace_fields(node, inputs=tuple(map(name_tensor, node.inputs)), blocks=blocks)

    def name_block(block: Block) -> Block:
        nodes = tuple(map(name_node, block.nodes))
        return replace_fields(block, nodes=nodes, outputs=tuple(map(name_tensor, block.outputs)))

    return replace_fields(graph, body=name_block(graph.body)) if written_memory else graph


@dataclass(frozen=True)
class _AliasInfo:
    """Aliasing of an operator, by position: inputs that are written to, inputs that go into a container, and for each
    output the inputs whose memory it may share; ``wild`` outputs may be anything that an input container holds."""

    writes: tuple[int, ...]
    into: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...]
    wild: tuple[bool, ...]


@functools.cache
def _parse_alias_info(schema: str) -> _AliasInfo:
    parsed = parse_schema(schema)
    sets = [a.alias_info for a in parsed.arguments]
    shares, wild = [], []
    for output in parsed.returns:
        names = set(output.alias_info.before_set) | set(output.alias_info.after_set) if output.alias_info else set()
        shares.append(tuple(i for i, a in enumerate(sets) if a is not None and names & set(a.before_set)))
        wild.append("*" in names)
    writes = tuple(i for i, a in enumerate(sets) if a is not None and a.is_write)
    into = tuple(i for i, a in enumerate(sets) if a is not None and "*" in a.after_set and not a.is_write)
    return _AliasInfo(writes, into, tuple(shares), tuple(wild))


def _is_container(type_text: str) -> bool:
    # A tensor of profiled type is written as float64[3].
    return type_text.startswith(("List[", "Tuple[", "Dict[", "Optional[List", "Optional[Dict", "Optional[Tuple"))


class _AliasAnalysis:
    def __init__(self, graph: Graph, find_callee: Callable[[str], Effects | None], state: frozenset[str]) -> None:
        self._find_effects = find_callee
        self._state = state
        self._has_modes = any(node.kind in _MODES for node in walk_nodes(graph.body))
        self._parent: dict[Key, Key] = {}
        self._content: dict[Key, Key] = {}
        # Elements of containers that nothing was taken out of.
        self._loose: dict[Key, set[Key]] = {}
        self._plain = {i for i, t in zip(graph.body.inputs, graph.types, strict=True) if t in _PLAIN}
        self._containers = {i for i, t in zip(graph.body.inputs, graph.types, strict=True) if _is_container(t)}
        # Memory that some node writes to; the state counts as written whichever method does it.
        self._written: set[Key] = {STATE}
        self._join_block(graph.body)
        # From here on no sets are joined.
        self._written = {self._find_root(key) for key in self._written}
        self._reachable: dict[Key, frozenset[Key]] = {}

    def annotate(self, block: Block) -> Block:
        return replace_fields(block, nodes=tuple(self._annotate_node(node) for node in block.nodes))

    def find_reachable(self, value: Input) -> frozenset[Key]:
        """Return the memory that reading the value reads, contents included, as far as something writes to it."""
        if (key := self._get_key(value)) is None:
            return frozenset()
        start = self._find_root(key)
        if start not in self._reachable:
            self._reachable[start] = frozenset(self._find_roots_from(start) & self._written)
        return self._reachable[start]

    def _find_roots_from(self, start: Key) -> set[Key]:
        roots, todo = set[Key](), [start]
        while todo:
            root = self._find_root(todo.pop())
            if root not in roots:
                roots.add(root)
                todo += [self._content[root]] if root in self._content else self._loose.get(root, ())
        return roots

    def returns_state(self, block: Block) -> bool:
        return any(STATE in self._rename_state(self.find_reachable(v)) for v in block.outputs)

    def _rename_state(self, memory: Iterable[Key]) -> set[Key]:
        """Return the memory with the module's own state under its name."""
        return {STATE if key == self._find_root(STATE) else key for key in memory}

    def _annotate_node(self, node: Node) -> Node:
        kind, blocks = node.kind, tuple(map(self.annotate, node.blocks))
        inner = [n for b in blocks for n in b.nodes]
        # What the nodes of the blocks read and write is known by now.
        values = (*node.inputs, *(v for b in blocks for v in b.outputs))
        read = self._rename_state({m for v in values for m in self.find_reachable(v)})
        writes = self._rename_state({self._find_root(key) for key in self._list_targets(node)})
        read, writes = read.union(*(n.reads for n in inner)), writes.union(*(n.writes for n in inner))
        acts = node.effect or kind in _ACTS or any(n.effect for n in inner)
        if kind == "prim::CallMethod":
            callee = self._find_callee(node)
            acts = callee is None or callee.has_effects
            read |= {STATE} if callee is None or callee.reads_state else set()
            writes |= {STATE} if callee is None or callee.writes_state else set()
        if kind in ("prim::GetAttr", "prim::SetAttr", "prim::CallObject"):
            read.add(STATE)
        if kind in ("prim::SetAttr", "prim::CallObject"):
            writes.add(STATE)
        if self._has_modes:
            read.add(MODE)
        if kind in _MODES:
            writes.add(MODE)
        has_effect = acts or bool(writes)
        if not blocks and (read, writes, has_effect) == (node.reads, node.writes, node.effect):
            return node
        return replace_fields(node, blocks=blocks, effect=has_effect, reads=frozenset(read), writes=frozenset(writes))

    def _find_callee(self, node: Node) -> Effects | None:
        """Return the known effects of a method that is called."""
        return self._find_effects(node.operator.partition("name='")[2].partition("'")[0])

    def _list_targets(self, node: Node) -> list[Key]:
        """List the memory that the node itself writes to."""
        targets: Sequence[Input] = ()
        if node.schema:
            targets = [node.inputs[i] for i in _parse_alias_info(node.schema).writes]
        elif node.kind == "prim::CallObject":
            targets = node.inputs
        elif node.kind == "prim::CallMethod":
            callee = self._find_callee(node)
            targets = node.inputs if callee is None or callee.writes else ()
        return [key for value in targets if (key := self._get_key(value)) is not None]

    def _get_key(self, value: Input) -> Key | None:
        if isinstance(value, TensorConstant):
            return STATE if value.memory in self._state else value.memory
        return value if isinstance(value, int) and value not in self._plain else None

    def _find_root(self, key: Key) -> Key:
        while (parent := self._parent.get(key, key)) != key:
            self._parent[key] = self._parent.get(parent, parent)
            key = parent
        return key

    def _join(self, left: Key | None, right: Key | None) -> None:
        todo = [(left, right)]
        while todo:
            left, right = todo.pop()
            if left is None or right is None or (a := self._find_root(left)) == (b := self._find_root(right)):
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

    def _get_content(self, value: Input) -> Key | None:
        """Return the set of what the value holds, if it is a container."""
        key = self._get_key(value)
        if key is None:
            return None
        root = self._find_root(key)
        if root not in self._content:
            self._content[root] = f"in {root}"
            for element in self._loose.pop(root, set()):
                self._join(self._content[root], element)
        return self._content[root]

    def _put(self, container: Input, element: Input) -> None:
        into, key = self._get_key(container), self._get_key(element)
        if into is None or key is None:
            return
        root = self._find_root(into)
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
                        for argument in node.inputs:
                            self._join(self._get_key(value), self._get_key(argument))
                    continue
                # Values that enter a block, go round a loop (after its count and its condition), or leave it.
                loop = node.kind == "prim::Loop"
                around = [node.outputs, inner.outputs[loop:], *((inner.inputs[1:], node.inputs[2:]) if loop else ())]
                for passed in itertools.zip_longest(*around):
                    for left, right in itertools.pairwise(v for v in passed if v is not None):
                        self._join(self._get_key(left), self._get_key(right))
            if not node.blocks:
                self._join_node(node)
            self._written.update(self._list_targets(node))

    def _join_node(self, node: Node) -> None:
        if node.schema:
            self._join_by_schema(node, _parse_alias_info(node.schema))
        elif node.kind in _INTO:
            for value in node.inputs:
                self._put(node.outputs[0], value)
        elif node.kind in ("prim::GetAttr", "prim::SetAttr", "prim::CallObject"):
            # All attributes, of the module and of objects, are one memory.
            for value in (*node.inputs, *node.outputs):
                self._join(self._get_key(value), STATE)
                self._join(self._get_content(value), STATE)
        elif node.kind in _OUT_OF:
            for output in node.outputs:
                self._join(self._get_key(output), self._get_content(node.inputs[0]))
        else:
            for output in node.outputs:
                for value in node.inputs:
                    self._join(self._get_key(output), self._get_key(value))
                    self._join(self._get_content(output), self._get_key(value))

    def _join_by_schema(self, node: Node, alias: _AliasInfo) -> None:
        lists = [v for v in node.inputs if v in self._containers]
        for i in alias.writes:
            for j in alias.into:
                self._put(node.inputs[i], node.inputs[j])
            # One list is appended to another.
            for value in lists if node.inputs[i] in lists and not alias.into else ():
                self._join(self._get_content(node.inputs[i]), self._get_content(value))
        for output, type_text, shares, wild in zip(node.outputs, node.types, alias.shares, alias.wild, strict=False):
            container = _is_container(type_text)
            for i in shares:
                self._join(self._get_key(output), self._get_key(node.inputs[i]))
                # Pieces of a tensor; a returned list holds what it held.
                if container and node.inputs[i] not in lists:
                    self._join(self._get_content(output), self._get_key(node.inputs[i]))
            for value in lists if wild or container else ():
                self._join(self._get_content(output) if container else self._get_key(output), self._get_content(value))
