"""Classifiers of pictures: timm (https://github.com/huggingface/pytorch-image-models)."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from exams.networks.catalogue import LARGE, Catalogue, Network, draw_numbers

SIZE = 64
# The smallest of their kinds.
NAMES = {
    "lcnet_035": {},
    "mobilenetv3_small_050": {},
    "mnasnet_small": {},
    "tinynet_e": {},
    "ghostnet_050": {},
    "resnet10t": {},
    "regnetx_002": {},
    "repvgg_a0": {},
    "convnext_atto": {},
    "edgenext_xx_small": {},
    "vit_tiny_patch16_224": {"img_size": SIZE},
    "mixer_s32_224": {"img_size": SIZE},
}


def _make(name: str) -> Network:
    timm: Any = importlib.import_module("timm")

    model = timm.create_model(name, pretrained=False, num_classes=10, **NAMES[name]).eval()
    return Network(model, draw_numbers(3, SIZE, SIZE, dtype=torch.float32), pipelines=LARGE)


CATALOGUE: Catalogue = {f"timm {name}": functools.partial(_make, name) for name in NAMES}
