"""Small residual image classifier with adaptive pooling, dict output."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        identity = x
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        if self.down is not None:
            identity = self.down(x)
        out += identity
        return F.relu(out)


class Sound(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        torch.manual_seed(12)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stages = nn.ModuleList([Block(8, 8), Block(8, 16, 2), Block(16, 16)])
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, classes)

    def forward(self, img):
        if img.dim() != 4:
            raise ValueError(f"expected (B, C, H, W), got {tuple(img.shape)}")
        h = self.stem(img)
        for stage in self.stages:
            h = stage(h)
        h = torch.flatten(self.pool(h), 1)
        logits = self.fc(h)
        return {"logits": logits, "prob": F.softmax(logits, dim=-1), "features": h}


def examples():
    torch.manual_seed(0)
    return {"img": torch.randn(4, 3, 16, 16)}
