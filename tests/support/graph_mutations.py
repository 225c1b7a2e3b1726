"""Single changes of the reference archives' graphs, as torch's own graphs hold them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from project import ROOT

from exporter.archive import pt_archive
from exporter.archive.zip_records import write_zip
from exporter.capture.serialization import serialize_module
from exporter.common.script_loading import iterate_nodes
from exporter.common.torch_hooks import ignore_deprecations
from exporter.graph.loading import load_module
from exporter.graph.reader import list_settable_tensors, read
from exporter.saved_code.ir import SavedGraphs

FOLDER = ROOT / "artifacts"


def module_of(name: str) -> torch.jit.ScriptModule:
    return load_module(FOLDER / f"{name}.pt")


def graph_of(module: Any, path: str, method: str) -> Any:
    """The method's graph; where the submodule has none of that name, that of the top module."""
    for part in path.split(".") if path else ():
        module = getattr(module, part)
    return module._c._get_method(method).graph


def saved_of(module: torch.jit.ScriptModule, name: str) -> SavedGraphs:
    """As it is read from the file that the module is saved to."""
    with ignore_deprecations():
        again = torch.jit.load(io.BytesIO(write_zip(serialize_module(module))))
    return read(again, list_settable_tensors(pt_archive.read(FOLDER / f"{name}.pt").contract))


def find(graph: Any, kind: str, position: int = 0) -> Any:
    return [n for n in iterate_nodes(graph) if n.kind() == kind][position]


def literal(graph: Any, node: Any, value: Any) -> Any:
    """A constant before the node, typed as torch types it."""
    with graph.insert_point_guard(node):
        return graph.insertConstant(value)


def replaced(graph: Any, node: Any, kind: str, inputs: list[Any] | None = None) -> Any:
    result = graph.create(kind, list(node.inputs()) if inputs is None else inputs, node.outputsSize())
    result.copyMetadata(node)
    result.insertBefore(node)
    for old, new in zip(list(node.outputs()), result.outputs(), strict=True):
        new.setType(old.type())
        old.replaceAllUsesWith(new)
    node.destroy()
    return result


@dataclass(frozen=True)
class Mutant:
    """``change`` of the graph of one method of one submodule; ``expected`` is said of it, at ``path``."""

    name: str
    archive: str
    path: str
    method: str
    change: Callable[[Any], Any]
    expected: tuple[str, ...]
    # The top module's method that shows the change, and how many lines may be said of it.
    shown_in: str = "forward_batch"
    most: int = 2
    # The submodule that a captured backward pass says of the node.
    module: str | None = None


MUTANTS: list[Mutant] = []


def mutant(
    archive: str,
    path: str,
    method: str,
    *expected: str,
    shown_in: str = "forward_batch",
    most: int = 2,
    module: str | None = None,
):
    def taken(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
        MUTANTS.append(Mutant(change.__name__, archive, path, method, change, expected, shown_in, most, module))
        return change

    return taken


def swap(kind: str, sibling: str, position: int = 0) -> Callable[[Any], Any]:
    return lambda graph: replaced(graph, find(graph, kind, position), sibling)


# Operators for their siblings.
for _archive, _path, _method, _kind, _other in (
    ("rates", "rate_b", "forward", "aten::div", "aten::mul"),
    ("rates", "rate_c", "forward", "aten::sub", "aten::add"),
    ("composed", "Elasticity", "forward", "aten::rsub", "aten::sub"),
    ("perzyna", "rate", "forward", "aten::abs", "aten::neg"),
    ("perzyna", "rate", "forward", "aten::sign", "aten::sgn"),
    ("perzyna", "mises", "forward", "aten::sqrt", "aten::rsqrt"),
    ("bar", "", "forward_batch", "aten::log", "aten::log1p"),
    ("bar", "law", "forward", "aten::gt", "aten::ge"),
    ("momentum_step", "", "forward_batch", "aten::mul_", "aten::div_"),
    ("return_map", "newton.residual", "graph", "aten::sqrt", "aten::exp"),
):
    MUTANTS.append(
        Mutant(
            f"{_path} {_kind} becomes {_other}",
            _archive,
            _path,
            _method,
            swap(_kind, _other),
            ("changed", _other, "it was", _kind),
            # The residual stands in the loop's file three times, before it, in it and in its line search.
            most=6 if _archive == "return_map" else 2,
        )
    )


@mutant("rates", "rate_a", "forward", "changed", "aten::sub", "'self'")
def arguments_of_a_difference_swapped(graph):
    node = find(graph, "aten::sub")
    a, b, *_ = node.inputs()
    node.replaceInput(0, b)
    node.replaceInput(1, a)


@mutant("rates", "rate_b", "forward", "changed", "aten::div", "'self'")
def arguments_of_a_quotient_swapped(graph):
    node = find(graph, "aten::div")
    a, b = node.inputs()
    node.replaceInput(0, b)
    node.replaceInput(1, a)


@mutant("rates", "rate_c", "forward", "changed", "aten::sub", "'other' is input")
def another_input_read(graph):
    find(graph, "aten::sub").replaceInput(1, list(graph.inputs())[3])


@mutant("rates", "rate_a", "forward", "changed", "aten::sub", "'alpha' is 2; it was 1")
def factor_of_a_difference(graph):
    node = find(graph, "aten::sub")
    node.replaceInput(2, literal(graph, node, 2))


@mutant("composed", "Elasticity", "forward", "changed", "aten::slice", "'end' is 2; it was 3")
def end_of_a_slice(graph):
    node = find(graph, "aten::slice")
    node.replaceInput(3, literal(graph, node, 2))


@mutant("composed", "Elasticity", "forward", "changed", "aten::slice", "'dim' is 0; it was 1")
def dimension_of_a_slice(graph):
    node = find(graph, "aten::slice")
    node.replaceInput(1, literal(graph, node, 0))


@mutant("composed", "Energy", "forward", "changed", "aten::sum", "'dim' is [-2]; it was [-1]")
def dimension_of_a_sum(graph):
    node = find(graph, "aten::sum")
    node.replaceInput(1, literal(graph, node, [-2]))


@mutant("composed", "Energy", "forward", "changed", "aten::sum", "'keepdim' is True; it was False")
def dimensions_kept(graph):
    node = find(graph, "aten::sum")
    node.replaceInput(2, literal(graph, node, True))


@mutant("composed", "Energy", "forward", "changed", "aten::sum", "'dtype' is 6; it was None")
def dtype_of_a_sum(graph):
    node = find(graph, "aten::sum")
    node.replaceInput(3, literal(graph, node, 6))


@mutant("return_map", "", "newton_info_batch", "changed", "aten::to", "'dtype'", shown_in="newton_info_batch")
def dtype_of_a_cast(graph):
    node = find(graph, "aten::to")
    node.replaceInput(1, literal(graph, node, 6))


@mutant("return_map", "", "newton_info_batch", "gone", "aten::to", shown_in="newton_info_batch")
def a_cast_removed(graph):
    node = find(graph, "aten::to")
    node.output().replaceAllUsesWith(next(node.inputs()))
    node.destroy()


@mutant("perzyna", "mises", "forward", "changed", "aten::select", "'index' is 2; it was")
def index_of_a_component(graph):
    node = find(graph, "aten::select")
    node.replaceInput(2, literal(graph, node, 2))


@mutant("perzyna", "", "blocks_batch", "changed", "aten::movedim", shown_in="blocks_batch")
def a_transposed_jacobian(graph):
    node = find(graph, "aten::movedim")
    _, source, destination = node.inputs()
    node.replaceInput(1, destination)
    node.replaceInput(2, source)


@mutant("perzyna", "", "blocks_batch", "changed", "aten::reshape", shown_in="blocks_batch", most=4)
def order_of_a_shape(graph):
    node = find(graph, "aten::reshape")
    shape = list(node.inputsAt(1).node().inputs())
    result = node.inputsAt(1).node()
    result.replaceInput(0, shape[1])
    result.replaceInput(1, shape[0])


@mutant("rates", "rate_a", "forward", "added", "aten::sub", most=3)
def a_node_duplicated(graph):
    node = find(graph, "aten::sub")
    copy = graph.create("aten::sub", list(node.inputs()), 1)
    copy.copyMetadata(node)
    copy.insertAfter(node)
    copy.output().setType(node.output().type())
    # Both are used: the quotient is of the copy, the copy's own use is one more.
    quotient = find(graph, "aten::div")
    more = graph.create("aten::add", [node.output(), copy.output(), literal(graph, quotient, 0)], 1)
    more.output().setType(node.output().type())
    more.insertBefore(quotient)
    quotient.replaceInput([v.debugName() for v in quotient.inputs()].index(node.output().debugName()), more.output())


@mutant("bar", "", "forward_batch", "added", "aten::neg", most=5)
def a_node_more(graph):
    node = find(graph, "aten::log")
    result = graph.create("aten::neg", [node.output()], 1)
    result.output().setType(node.output().type())
    result.insertAfter(node)
    node.output().replaceAllUsesAfterNodeWith(result, result.output())


@mutant("bar", "", "forward_batch", "gone", "aten::log", most=5)
def a_node_less(graph):
    node = find(graph, "aten::log")
    node.output().replaceAllUsesWith(next(node.inputs()))
    node.destroy()


@mutant("bar", "law", "forward", "gone", "aten::clone", most=3)
def a_copy_less(graph):
    node = find(graph, "aten::clone")
    node.output().replaceAllUsesWith(next(node.inputs()))
    node.destroy()


@mutant("bar", "law", "forward", "changed", "aten::gt", "'other' is 0.020000000000000004; it was 0.02")
def a_threshold_one_ulp_off(graph):
    node = find(graph, "aten::gt")
    node.replaceInput(1, literal(graph, node, 0.020000000000000004))


@mutant("bar", "law", "forward", "changed", "prim::If", "aten::__not__")
def a_condition_inverted(graph):
    node = find(graph, "prim::If")
    inverted = graph.create("aten::__not__", [next(node.inputs())], 1)
    inverted.output().setType(next(node.inputs()).type())
    inverted.insertBefore(node)
    node.replaceInput(0, inverted.output())


@mutant("momentum_step", "", "forward_batch", "changed", "aten::add_", "order", most=3)
def two_writes_in_another_order(graph):
    first = find(graph, "aten::mul_")
    second = find(graph, "aten::add_")
    # Both write to one tensor; each takes it as it is.
    second.moveBefore(first)
    second.replaceInput(0, next(first.inputs()))


@mutant("momentum_step", "", "forward_batch", "changed", "aten::mul.Scalar", "it was", "aten::mul_")
def a_write_that_becomes_a_product(graph):
    replaced(graph, find(graph, "aten::mul_"), "aten::mul")


@mutant("momentum_step", "", "forward_batch", "changed", "prim::TupleConstruct", "argument")
def outputs_swapped(graph):
    node = find(graph, "prim::TupleConstruct")
    a, b, *_ = node.inputs()
    node.replaceInput(0, b)
    node.replaceInput(1, a)


@mutant("loss_and_grad", "", "forward_batch", "changed", "aten::mse_loss", "'reduction' is 2; it was 1")
def reduction_of_a_loss(graph):
    node = find(graph, "aten::mse_loss")
    node.replaceInput(2, literal(graph, node, 2))


@mutant("loss_and_grad", "", "forward_batch", "changed", "aten::tanh_backward", module="network")
def a_gradient_of_another_value(graph):
    node = find(graph, "aten::tanh_backward")
    node.replaceInput(1, next(node.inputs()))


@mutant("robertson", "", "forward_batch", "changed", "prim::ListConstruct")
def order_of_a_stack(graph):
    node = find(graph, "aten::stack").inputsAt(0).node()
    a, b, *_ = node.inputs()
    node.replaceInput(0, b)
    node.replaceInput(1, a)


@mutant("return_map", "newton", "stepped", "changed", "aten::lt", "it was", "aten::le", most=6)
def a_loop_that_stops_early(graph):
    replaced(graph, find(graph, "aten::le"), "aten::lt")


@mutant("rates", "", "forward", "changed", "aten::eq", "5", shown_in="forward")
def another_number_of_dimensions(graph):
    node = find(graph, "aten::eq")
    node.replaceInput(1, literal(graph, node, 5))


def tensors() -> Iterator[tuple[str, str]]:
    """Parameters and constants, of which one number is changed by one ULP."""
    for name, key in (
        ("perzyna", "rate.eta"),
        ("robertson", "k"),
        ("return_map", "newton.abs_tol"),
        ("loss_and_grad", "network.inner.weight"),
    ):
        yield name, key
    for name in ("composed", "perzyna"):
        constants = [k for k, v in module_of(name).state_dict().items() if "constant" in k and v.is_floating_point()]
        yield name, constants[0]
