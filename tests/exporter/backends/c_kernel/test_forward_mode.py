"""Derivatives of terms against CasADi's, which knows nothing of ours."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import casadi
import numpy
import pytest
from casadi_oracle import Oracle, values
from hypothesis import given, settings
from hypothesis import strategies as st
from project import ROOT

import torchferry
from exporter.archive import pt_archive
from exporter.archive.contract import block_name
from exporter.backends.c_kernel import forward_mode
from exporter.backends.c_kernel.expression_graph import BOOL, F64, LU, PARAMETER, SOLVED, ExprGraph
from exporter.backends.c_kernel.lowering import ArchiveLowering
from exporter.backends.c_kernel.rules.derivatives import DERIVATIVES
from exporter.graph.loading import ScriptedModule, load_module

ARTIFACTS = ROOT / "artifacts"
UNARY = ("neg", "sqrt", "exp", "expm1", "log", "log10", "log2", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
         "sinh", "cosh", "tanh", "abs", "erf", "exp2")  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "pow", "atan2", "max", "min")
LEAVES = 3


def close(got: numpy.ndarray, wanted: numpy.ndarray) -> bool:
    largest = numpy.abs(wanted[numpy.isfinite(wanted)]).max(initial=1.0)
    return got.shape == wanted.shape and numpy.allclose(got, wanted, rtol=1e-9, atol=1e-11 * largest, equal_nan=True)


def leaves() -> tuple[ExprGraph, list[int]]:
    terms = ExprGraph()
    return terms, [terms.add_leaf("x", k, F64, 1) for k in range(LEAVES)]


def agrees(terms: ExprGraph, wrt: list[int], ends: list[int], numbers: list[float]) -> bool:
    """Our tangents, computed by CasADi, against those that it makes of ``ends`` itself."""
    symbols = [casadi.MX.sym(f"x{k}") for k in range(len(wrt))]
    known: dict[int, Any] = dict(zip(wrt, symbols, strict=True))
    wanted = casadi.jacobian(Oracle(terms, {}, known).of(ends), casadi.vertcat(*symbols))
    own = forward_mode.build_jacobian(terms, {}, ends, wrt)
    got = Oracle(terms, {}, known).of(own)
    result = values(symbols, got, numbers).reshape(len(ends), len(wrt))
    return close(result, values(symbols, casadi.densify(wanted), numbers))


@pytest.mark.parametrize("op", [*UNARY, *BINARY])
def test_each_rule(op):
    terms, x = leaves()
    end = terms.add(op, x[: 1 if op in UNARY else 2], F64)
    assert agrees(terms, x, [end], [0.3, 0.7, 0.4])
    assert agrees(terms, x, [end], [0.9, 0.2, 0.4])


def test_a_rule_that_is_wrong_is_seen(monkeypatch):
    monkeypatch.setitem(DERIVATIVES, "cos", DERIVATIVES["sin"])
    terms, x = leaves()
    assert not agrees(terms, x, [terms.add("cos", x[:1], F64)], [0.3, 0.7, 0.4])


@st.composite
def graphs(draw) -> list[tuple[str, list[int]]]:
    """Operations on what is there by then."""
    operations = []
    for position in range(draw(st.integers(1, 25))):
        op = draw(st.sampled_from([*UNARY, *BINARY, "where"]))
        count = {"where": 4}.get(op, 1 if op in UNARY else 2)
        operations.append((op, [draw(st.integers(0, LEAVES + position - 1)) for _ in range(count)]))
    return operations


def add_operation(terms: ExprGraph, op: str, args: list[int]) -> int:
    if op != "where":
        return terms.add(op, args, F64)
    return terms.add("where", (terms.add("lt", args[:2], BOOL), *args[2:]), F64)


def alone(op: str, args: list[float]) -> tuple[float, bool]:
    """What an operation gives, and whether it is smooth there, and so flat that rounding stays small."""
    terms = ExprGraph()
    leaves = [terms.add_leaf("x", k, F64, 1) for k in range(len(args))]
    symbols = [casadi.MX.sym(f"x{k}") for k in range(len(args))]
    column = Oracle(terms, {}, dict(zip(leaves, symbols, strict=True))).of([add_operation(terms, op, leaves)])
    slope = values(symbols, casadi.densify(casadi.jacobian(column, casadi.vertcat(*symbols))), args)
    value = float(values(symbols, column, args)[0, 0])
    kinked = op in ("max", "min", "where") and abs(args[0] - args[1]) < 1e-6
    kinked |= op in ("abs", "sqrt", "log", "log2", "log10", "asin", "acos", "pow", "div") and abs(args[-1]) < 1e-3
    kinked |= op == "atan2" and max(map(abs, args)) < 1e-3
    return value, bool(numpy.isfinite([value, *slope.ravel()]).all() and abs(slope).max() < 100.0) and not kinked


@settings(max_examples=150, deadline=None)
@given(graphs(), st.lists(st.floats(0.1, 0.9), min_size=LEAVES, max_size=LEAVES))
def test_random_graphs(graph, numbers):
    terms, x = leaves()
    ends, here = list(x), list(numbers)
    for op, name in graph:
        value, smooth = alone(op, [here[i] for i in name])
        # Where it leaves the reals the two need not agree.
        ends.append(add_operation(terms, op, [ends[i] for i in name]) if smooth else x[0])
        here.append(value if smooth else numbers[0])
    assert agrees(terms, x, ends, numbers)


@pytest.mark.parametrize("transposed", [False, True])
def test_linear_systems(transposed):
    terms, x = leaves()
    entries = [terms.add("add", (x[0], terms.add_constant(2.0, F64)), F64), terms.add("mul", (x[0], x[1]), F64),
               terms.add("sin", x[2:], F64), terms.add("exp", x[1:2], F64)]  # fmt: skip
    factors = terms.add(LU, entries, F64, (2,))
    ends = terms.unpack(SOLVED, (factors, x[1], x[2]), (2, transposed), [F64, F64])
    assert agrees(terms, x, ends, [0.3, 0.7, 0.4])


@pytest.mark.parametrize("name", ["perzyna", "return_map", "robertson"])
def test_models_as_they_are_compiled(name, tmp_path):
    """The kernel's numbers against CasADi's derivative of the terms of ``forward``, Newton loops by its rootfinder."""
    path = Path(shutil.copy(ARTIFACTS / f"{name}.pt", tmp_path))
    torchferry.convert(path, tmp_path / "kernel", to="c")
    kernel = torchferry.load(tmp_path / "kernel")
    contract = pt_archive.read(path).contract
    lowered = ArchiveLowering(ScriptedModule(load_module(path)), contract)
    forward = lowered.lower_method("forward")
    terms = forward.graph
    case = next(c for c in pt_archive.read(path).cases() if c.method == "forward" and c.name.startswith("batch_7"))
    names = contract.methods["forward"].inputs
    inputs = {n: v.numpy() for n, v in zip(names, case.inputs, strict=True)}
    blocks = kernel.call("jacobian", inputs)
    symbols, numbers, known = [], [], {}
    for i, term in enumerate(terms.nodes):
        if term.op != "leaf" or not (term.extra[2] == 1 or term.extra[0].startswith(PARAMETER)):
            continue
        leaf_name, place, _ = term.extra
        if leaf_name.startswith(PARAMETER):
            known[i] = casadi.MX(float(forward.parameters[leaf_name.removeprefix(PARAMETER)].reshape(-1)[place]))
        elif leaf_name in inputs:
            known[i] = casadi.MX.sym(f"{leaf_name}_{place}")
            symbols.append(known[i])
            numbers.append((leaf_name, place))
    outputs = dict(zip(contract.methods["forward"].outputs, forward.outputs, strict=True))
    oracle = Oracle(terms, forward.loops, known)
    compared = 0
    for row in (0, 3):
        row_values = [float(inputs[leaf_name][row].reshape(-1)[place]) for leaf_name, place in numbers]
        for output_name, wrt in (o for o in contract.methods["jacobian"].outputs if not isinstance(o, str)):
            if wrt not in inputs:
                continue
            columns = [s for s, (n, _) in zip(symbols, numbers, strict=True) if n == wrt]
            places = [place for n, place in numbers if n == wrt]
            block = casadi.jacobian(oracle.of(list(outputs[output_name])), casadi.vertcat(*columns))
            result = values(symbols, casadi.densify(block), row_values)
            got = blocks[block_name(output_name, wrt)][row].reshape(len(outputs[output_name]), -1)
            full = numpy.zeros(got.shape)
            full[:, places] = result
            assert numpy.isfinite(got).all()
            assert close(got, full), (name, output_name, wrt)
            compared += 1
    assert compared >= 2
