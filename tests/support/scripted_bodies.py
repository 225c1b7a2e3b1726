"""Bodies of methods in TorchScript, and modules that are compiled of them."""

from __future__ import annotations

import textwrap

import torch
from torch import nn

from exporter.common.torch_hooks import ignore_deprecations

F = torch.float64


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0, 3.0], dtype=F))
        self.register_buffer("count", torch.tensor(3))


def scripted(body: str) -> torch.jit.ScriptModule:
    # A class of its own: TorchScript gives modules of one class one set of methods.
    with ignore_deprecations():
        module = torch.jit.script(type("Own", (Held,), {})())
        text = textwrap.indent(textwrap.dedent(body).strip(), "    ")
        module.define(f"def forward(self, x: Tensor, y: Tensor) -> Tuple[Tensor]:\n{text}\n")
    return module


BODIES = [
    "return (x + 2 * y - x / y * 0.5,)",
    """
    n = x.size(0) * -7
    return (x * (n // 4) + y * (n % 4) + 2 ** 3,)""",
    "return (x.reshape([x.size(0) // 2, -1]).sum(-1).repeat(2),)",
    """
    z = x.clone()
    z[1] = 5.0
    z[:, 0] += y[:, 0]
    return (z,)""",
    """
    z = x.clone()
    w = z[0]
    w.mul_(2.0)
    return (z + w,)""",
    """
    parts = [x, y]
    parts.append(x * y)
    for k in range(3):
        parts[k] = parts[k] + k
    return (torch.cat(parts[1:]),)""",
    """
    a, b = x.shape[0], y.shape[1]
    z = torch.zeros([a, b], dtype=x.dtype)
    if a > b and b == 2:
        z = z + min(a, b) / max(a, b)
    return (z + x,)""",
    """
    total = x
    k = 0
    while k < 4:
        total = total * 0.5 + y
        k += 1
    return (total,)""",
    "return (x * self.scale + self.count,)",
    "return (torch.where(x > y, x, y).to(torch.float32),)",
    "return (x[-2:, ::2] + y[:2, :1] + x[None, 0, :][:, 1:],)",
    "return (torch.bmm(x.unsqueeze(2), y.unsqueeze(1)).mean([1, 2]),)",
    """
    i = (x * 10).to(torch.int64)
    return (torch.div(i, 3, rounding_mode='floor') + i % 4 + torch.fmod(i, 4) + (i >> 1),)""",
    """
    v, i = x.sort(-1, True)
    return (v + i,)""",
    """
    t = list(x.size())
    t.append(1)
    return (x.reshape(t) + float(len(t)),)""",
    "return (torch.combinations(x[:, 0], 3, True) - torch.combinations(y[:, 1], 3)[:1],)",
    """
    order = [3, 1, 2]
    order.sort()
    order.remove(2)
    more = order.copy()
    more.append(5)
    more.reverse()
    return (x * order[1] + y * more[0] + len(order),)""",
    """
    left = [4, 2]
    left.remove(4)
    return (x * left[0],)""",
    """
    n: Dict[str, Tensor] = {}
    n['a'] = x
    n['b'] = y * 2
    total = n['a']
    for k in n.keys():
        total = total + n[k]
    return (total,)""",
    "return (torch.full([2, 2], 0.1, dtype=x.dtype) + torch.arange(2, dtype=x.dtype) + x[:2],)",
]
X = torch.tensor([[0.5, -1.25], [2.0, 0.75], [-3.5, 1.5], [0.25, -0.5]], dtype=F)
Y = torch.tensor([[1.5, 0.25], [-2.0, 3.0], [0.5, -1.0], [4.0, 2.0]], dtype=F)
