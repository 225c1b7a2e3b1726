"""Groups that torch's executor fuses: what they hold, what leads past them, and what stays apart."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re

import pytest
import torch
from project import ARTIFACTS

from exporter.common.errors import UsageError
from exporter.graph import fusion
from exporter.graph.executor_stages import StagedGraph, compute_stage, fuse_on_cpu
from exporter.graph.fusion import describe_support, find_fusion
from exporter.graph.loading import open_file
from torchferry.cli import graph as graph_command
from torchferry.cli.app import run


def fuse(name: str, method: str = "forward") -> StagedGraph:
    return compute_stage(open_file(ARTIFACTS / f"{name}.pt"), method, "optimized", is_fused=True)


def test_three_rates_are_one_kernel():
    staged = fuse("rates")
    result = find_fusion(staged.graph, staged.names)
    (group,) = result.groups
    assert (group.operations, group.has_fallback, result.apart) == (7, True, {})
    # Whatever their order: each input is checked, under its name, with all that a kernel depends on.
    assert sorted(group.checks) == [f"%{name}: float64[3] strides=[1] cpu" for name in sorted(staged.names)]
    operators = sorted(re.findall(r"aten::\w+", " ".join(row.text for row in group.rows)))
    assert operators == ["aten::div"] * 3 + ["aten::sub"] * 4
    assert {row.module for row in group.rows} == {"", "rate_a", "rate_b", "rate_c"}
    assert group.rows[-1].text.count("%") == 3


def test_products_of_matrices_stay_apart():
    staged = fuse("loss_and_grad")
    result = find_fusion(staged.graph, staged.names)
    assert [re.findall(r"aten::\w+", " ".join(r.text for r in g.rows)) for g in result.groups] == [
        ["aten::add", "aten::tanh"]
    ]
    assert result.apart["aten::mm"] == 5
    # A tensor of the file has its name, and is checked as any other.
    assert result.groups[0].checks[0] == "$network.inner.bias:float64[8]: float64[8] strides=[1] cpu"


def test_groups_in_a_loop_are_found_and_no_operation_is_lost():
    staged, plain = fuse("bar"), compute_stage(open_file(ARTIFACTS / "bar.pt"), "forward", "optimized")
    result = find_fusion(staged.graph, staged.names)
    assert len(result.groups) > 5
    assert not find_fusion(plain.graph, plain.names).groups
    assert sum(find_fusion(plain.graph).apart.values()) <= sum(result.apart.values()) + sum(
        g.operations for g in result.groups
    )


def test_without_a_fallback_none_is_claimed():
    staged = fuse("rates")
    body = staged.graph.body
    place = next(i for i, node in enumerate(body.nodes) if node.blocks)
    taken, other = body.nodes[place].blocks
    cut = dataclasses.replace(body.nodes[place], blocks=(taken, dataclasses.replace(other, nodes=())))
    nodes = (*body.nodes[:place], cut, *body.nodes[place + 1 :])
    graph = dataclasses.replace(staged.graph, body=dataclasses.replace(body, nodes=nodes))
    assert [group.has_fallback for group in find_fusion(graph).groups] == [False]


def test_the_fuser_is_left_as_it_was():
    compiler = torch._C
    names = (
        "_jit_can_fuse_on_cpu",
        "_jit_texpr_fuser_enabled",
        "_jit_get_te_must_use_llvm_cpu",
        "_jit_texpr_fallback_allowed",
    )

    def read() -> list[bool]:
        return [getattr(compiler, name)() for name in names]

    before = read()
    fuse("rates")
    assert read() == before
    with contextlib.suppress(ValueError), fuse_on_cpu():
        assert read() == [True, True, False, True]
        raise ValueError
    assert read() == before


@pytest.mark.parametrize(
    ("cpu", "llvm", "says"),
    [(True, True, "on the CPU and on"), (False, True, "by default"), (False, False, "without LLVM")],
)
def test_where_this_torch_fuses(monkeypatch, cpu, llvm, says):
    monkeypatch.setattr(fusion, "can_fuse_on_cpu", lambda: cpu)
    monkeypatch.setattr(fusion, "has_llvm", lambda: llvm)
    assert says in describe_support()


def test_only_the_optimized_graph_is_fused():
    for stage, has_passes in (("raw", False), ("profiling", False), ("", True), ("optimized", True)):
        with pytest.raises(UsageError, match="only the optimized graph is fused"):
            graph_command._choose_stage(stage, is_fused=True, has_passes=has_passes)
    assert graph_command._choose_stage("", is_fused=True, has_passes=False) == "optimized"
    assert graph_command._choose_stage("", is_fused=False, has_passes=False) == "raw"


def test_the_command(capfd):
    assert run(["graph", str(ARTIFACTS / "rates.pt"), "--fusion"]) == 0
    shown = capfd.readouterr().out
    for text in ("fused: 7 of 7 operations, in 1 kernel\n", "kernel 1: 7 operations, if\n    %c", "(else the fallback"):
        assert text in shown
    assert run(["graph", str(ARTIFACTS / "loss_and_grad.pt"), "--fusion", "--json"]) == 0
    values = json.loads(capfd.readouterr().out)
    assert values["stage"] == "optimized"
    assert values["fusion"]["apart"]["aten::mm"] == 5
    assert values["fusion"]["groups"][0]["operations"] == 2
