"""ONNX's tests of its operators as an exam: functions of torch that give what ONNX has published."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from project import skip_checks
from torch.utils import _pytree as pytree

from exams.cells import VERIFIED, WRONG
from exams.examination import Case, examine
from exams.judgement import SINGLE, explain_difference
from exams.onnx_equivalents import BUILDERS, NodeCall
from exams.suites import onnx_nodes


@pytest.mark.thorough
def test_many_operators_have_an_equivalent():
    names = onnx_nodes.list_cases()
    assert len(names) > 100
    assert {"Conv", "Einsum", "Gather", "LayerNormalization", "Slice", "SoftmaxCrossEntropyLoss"} <= {*names}


@pytest.mark.parametrize("name", ["Gather", "Slice", "ConvTranspose", "ReduceProd", "LayerNormalization", "Mod"])
def test_they_give_what_is_published(name):
    case = onnx_nodes.make_case(name, 100)
    assert case.samples
    for sample in case.samples:
        results = pytree.tree_leaves(sample.function(*sample.fresh[0]))
        texts = [explain_difference(a, b, SINGLE) for a, b in zip(sample.published, results, strict=True)]
        assert not any(texts)


def test_other_outputs_than_the_published_ones_are_wrong():
    case = onnx_nodes.make_case("Softsign", 1)
    (sample,) = case.samples
    spoilt = dataclasses.replace(sample, published=tuple(t * 1.001 for t in sample.published))
    with skip_checks():
        cells, wrong = examine([Case([s], ("pt", "published")) for s in (sample, spoilt)], [{}, {}])
    assert cells == {"pt": VERIFIED, "published": VERIFIED}
    assert wrong["published"].startswith(WRONG)


def test_what_nobody_published_is_not_verified():
    (sample,) = onnx_nodes.make_case("Softsign", 1).samples
    (cells,) = examine([Case([dataclasses.replace(sample, published=())], ("pt", "published"))], [{}])
    assert cells["published"] == "refused: nothing is published of it"


@pytest.mark.parametrize(
    ("name", "attributes", "tensors"),
    [
        ("ArgMax", {"select_last_index": 1}, [torch.ones(2)]),
        ("CumSum", {"reverse": 1}, [torch.ones(2), torch.tensor([0])]),
        ("GatherElements", {}, [torch.ones(2), torch.tensor([-1])]),
        ("Slice", {}, [torch.ones(2), torch.tensor([1]), torch.tensor([0]), torch.tensor([0]), torch.tensor([-1])]),
        ("Conv", {"auto_pad": "SAME_UPPER"}, [torch.ones(1, 1, 3), torch.ones(1, 1, 2)]),
        ("MaxPool", {"kernel_shape": [2], "pads": [0, 1]}, [torch.ones(1, 1, 3)]),
    ],
)
def test_what_torch_does_not_have_is_left_out(name, attributes, tensors):
    with pytest.raises(LookupError):
        BUILDERS[name](NodeCall(name, attributes, tensors))
