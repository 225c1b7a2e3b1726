"""Scripts are judged by the texts of their graphs where these leave no doubt, and else operation by operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from project import ARTIFACTS
from scripted_bodies import scripted

from exporter.common import script_loading
from exporter.common.script_loading import KIND, OPERATORS, is_harmless_text, iterate_nodes, load_script
from runtime_checks.runners.children.package_loading import NODE, count_graph_nodes

# What a stranger writes into a constant.
TEXTS = [
    "plain",
    "aten::save(",
    "\n  %1 : int = aten::save(%2)",
    '"] (aten::add',
    "^f(%1)",
    "__torch__.torch.classes.x",
]


def list_functions(path: Path) -> list[Any]:
    functions: Any = torch._C.CompilationUnit()
    import_module: Any = torch._C.import_ir_module
    import_module(functions, str(path), torch.device("cpu"), {}, False)
    return functions.get_functions()


def save_script(path: Path, body: str) -> Path:
    scripted(body).save(str(path))
    return path


@pytest.mark.parametrize("path", sorted(ARTIFACTS.glob("*.pt")), ids=lambda path: path.stem)
def test_a_text_has_each_operation(path):
    for function in list_functions(path):
        text, nodes = function.graph.str(False), list(iterate_nodes(function.graph))
        assert set(KIND.findall(text)) == {node.kind() for node in nodes}
        assert len(NODE.findall(text)) == len(nodes)
        assert is_harmless_text(text)


@pytest.mark.parametrize("text", TEXTS)
def test_constants_are_no_operations(tmp_path, monkeypatch, text):
    path = save_script(tmp_path / "m.pt", f"assert x.dim() > 0, {text!r}\nreturn (x + y,)")
    functions = list_functions(path)
    is_read = {function.name: is_harmless_text(function.graph.str(False)) for function in functions}
    # What looks like a listed operation hides nothing.
    assert is_read["forward"] == (text in ("plain", '"] (aten::add'))
    assert load_script(str(path))(torch.ones(1), torch.ones(1))[0].item() == 2.0
    module = torch.jit.load(str(path))
    assert count_graph_nodes(module) == len(list(iterate_nodes(module.graph)))
    # The control: the same file, where one of its operations is not listed.
    monkeypatch.setattr(script_loading, "OPERATORS", OPERATORS - {"aten::dim"})
    with pytest.raises(ValueError, match="forward calls aten::dim, which is no operator that only computes"):
        load_script(str(path))


@pytest.mark.parametrize("place", ["y = torch.from_file('f')", "if x.dim() > 0:\n    y = torch.from_file('f')"])
def test_an_operation_that_acts_is_refused_wherever_it_is(tmp_path, place):
    path = save_script(tmp_path / "m.pt", f"{place}\nreturn (x + y,)")
    with pytest.raises(ValueError, match="forward calls aten::from_file"):
        load_script(str(path))
