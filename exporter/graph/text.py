"""The text of a module's graphs, one section a method, as it stands in the archive."""

from __future__ import annotations

import torch


def graph_text(module: torch.jit.ScriptModule) -> str:
    """Inlined graphs of the methods that a host can call, values renumbered, without source paths."""
    sections = []
    for method in sorted(module._c._method_names()):
        graph = module._c._get_method(method).graph.copy()
        torch._C._jit_pass_inline(graph)
        canonical = torch._C._jit_pass_canonicalize(graph, False)
        sections.append(f"# {method}\n{canonical.str(False)}")
    return "\n".join(sections)
