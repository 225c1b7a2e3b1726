"""A loss with its gradients, and steps of optimisers, each as one file: forward pass, backward pass and hooks.

    torchferry export examples/train_step.py:loss_and_grad -o loss_and_grad.pt
    torchferry inspect loss_and_grad.pt --autograd

A host that trains or calibrates calls the file and needs no autograd. The number of samples ``n`` is open.
"""

import torch
from torch import nn

from torchferry import declare


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 8, dtype=torch.float64)
        self.outer = nn.Linear(8, 2, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


torch.manual_seed(0)
network = Network()


@declare({"x": ("n", 3), "target": ("n", 2)})
def loss_and_grad(x: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """Mean squared error, and its gradient by every parameter, which a host may change: ``set_parameter``."""
    network.zero_grad()
    loss = nn.functional.mse_loss(network(x), target)
    loss.backward()
    gradients = {f"d loss / d {name}": p.grad for name, p in network.named_parameters()}
    return {"loss": loss.detach()} | {name: g for name, g in gradients.items() if g is not None}


@declare(
    {"x": ("n", 3), "target": ("n", 2), "weight": (2, 3), "velocity": (2, 3), "rate": ()},
    {"loss": (), "new_weight": (2, 3), "new_velocity": (2, 3)},
)
def momentum_step(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, velocity: torch.Tensor, rate: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of ``torch.optim.SGD`` with momentum. What a step changes goes in and comes out, as any state does."""
    moved = weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([moved], lr=1.0, momentum=0.9)
    optimizer.state[moved]["momentum_buffer"] = velocity.clone()
    loss = nn.functional.mse_loss(x @ moved.T, target)
    # A gradient that is scaled is a rate that the host can set.
    moved.register_hook(lambda gradient: gradient * rate)
    loss.backward()
    optimizer.step()
    return loss.detach(), moved.detach(), optimizer.state[moved]["momentum_buffer"]
