"""Two networks for images, with random weights, in float64, on images of 96 x 96.

MobileNetV3-small: Howard et al., "Searching for MobileNetV3" (2019), table 2. ResNet-18: He et al., "Deep residual
learning for image recognition" (2016), table 1.
"""

import itertools
from collections.abc import Callable

import torch
from torch import nn

SIZE = 96
Example = tuple[nn.Module, dict[str, torch.Tensor]]
# Kernel, expanded channels, channels, squeeze-and-excite, hard swish, stride.
ROWS = (
    (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1), (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1), (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2), (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)  # fmt: skip


def convolve(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Build a convolution with its normalization."""
    convolution = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(after)]


class Excitation(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(8, (channels // 4 + 4) // 8 * 8)
        layers = (nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), nn.ReLU(), nn.Conv2d(inner, channels, 1))
        self.scale = nn.Sequential(*layers, nn.Hardsigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale(x)


class Residual(nn.Module):
    """Layers beside a shortcut, which may have a projection of its own."""

    def __init__(self, layers: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.layers, self.shortcut, self.after = layers, shortcut, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.layers(x) + self.shortcut(x))


def build_bottleneck(
    before: int, kernel: int, wide: int, after: int, excites: bool, swishes: bool, stride: int
) -> nn.Module:
    activation = nn.Hardswish if swishes else nn.ReLU
    layers = [*convolve(before, wide, 1), activation()] if wide != before else []
    layers += [*convolve(wide, wide, kernel, stride, wide), *[Excitation(wide)] * excites, activation()]
    block = nn.Sequential(*layers, *convolve(wide, after, 1))
    return Residual(block, nn.Identity(), nn.Identity()) if stride == 1 and before == after else block


def build_mobilenet() -> nn.Module:
    """Build MobileNetV3-small."""
    channels = [16, *(row[2] for row in ROWS)]
    blocks = [build_bottleneck(before, *row) for before, row in zip(channels, ROWS, strict=False)]
    head = [*convolve(96, 576, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    classifier = [nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, 1000)]
    return nn.Sequential(*convolve(3, 16, 3, 2), nn.Hardswish(), *blocks, *head, *classifier)


def build_resnet() -> nn.Module:
    """Build ResNet-18."""
    channels = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = []
    for before, after in itertools.pairwise(channels):
        stride = 1 if before == after else 2
        layers = nn.Sequential(*convolve(before, after, 3, stride), nn.ReLU(), *convolve(after, after, 3))
        shortcut = nn.Identity() if stride == 1 else nn.Sequential(*convolve(before, after, 1, stride))
        blocks.append(Residual(layers, shortcut, nn.ReLU()))
    stem = [*convolve(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def make_example(build: Callable[[], nn.Module]) -> Example:
    """Make a network with seeded weights, in eval mode, and two images."""
    torch.manual_seed(0)
    return build().double().eval(), {"input": torch.rand(2, 3, SIZE, SIZE, dtype=torch.float64)}


def make_mobilenet() -> Example:
    """Make MobileNetV3-small."""
    return make_example(build_mobilenet)


def make_resnet() -> Example:
    """Make ResNet-18."""
    return make_example(build_resnet)
