"""Transformers of two small layers: Hugging Face (https://github.com/huggingface/transformers)."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import nn

from exams.laws import make_causality
from exams.networks.catalogue import LARGE, Catalogue, Network
from exams.samples import Tensors

VOCABULARY, LENGTH = 100, 7
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_LLAMA = {**_BERT, "num_key_value_heads": 1}
_T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
# Classes of the configuration and of the model, options, and whether a token sees those before it alone.
MODELS: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "bert": ("BertConfig", "BertModel", _BERT, False),
    "electra": ("ElectraConfig", "ElectraModel", {**_BERT, "embedding_size": 16}, False),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
        False,
    ),
    "t5 encoder": ("T5Config", "T5EncoderModel", _T5, False),
    "gpt2": ("GPT2Config", "GPT2Model", _GPT, True),
    "llama": ("LlamaConfig", "LlamaModel", _LLAMA, True),
}


class _States(nn.Module):
    """The last hidden states for some tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens).last_hidden_state


def _draw(generator: torch.Generator, rows: int) -> Tensors:
    return (torch.randint(0, VOCABULARY, (rows, LENGTH), generator=generator),)


def _make(name: str) -> Network:
    transformers: Any = importlib.import_module("transformers")

    configuration, model_class, options, is_causal = MODELS[name]
    config = getattr(transformers, configuration)(vocab_size=VOCABULARY, use_cache=False, **options)
    model = getattr(transformers, model_class)(config).eval()
    laws = {"causality": make_causality(1)} if is_causal else {}
    return Network(_States(model), _draw, pipelines=LARGE, laws=laws)


CATALOGUE: Catalogue = {f"transformers {name}": functools.partial(_make, name) for name in MODELS}
