"""Rows of the cases in other batches: what they are held to."""

import torch
from project import ARTIFACTS

from exporter.archive import pt_archive
from runtime_checks import verification
from runtime_checks.checks.batch_invariance import batch_invariance_checks
from runtime_checks.checks.expectation import Expectation
from runtime_checks.comparison import find_scale
from runtime_checks.runners.base import CallResult


def test_a_few_rows_are_held_to_the_scale_of_all():
    """The first rows of the return map are elastic: what they have of plastic strain is rounding, as on a GPU."""
    opened = pt_archive.read(ARTIFACTS / "return_map.pt")
    cases = [case for case in opened.cases() if case.method == "forward" and not case.is_extreme]
    names = opened.contract.methods["forward"].outputs
    column = list(names).index("ep")
    scale = find_scale(torch.cat([case.outputs[column] for case in cases]))
    planned = [e for e in batch_invariance_checks(opened.contract, cases) if isinstance(e, Expectation)]
    planned = [e for e in planned if e.call.method == "forward" and e.outputs[column].numel()]
    small = [e for e in planned if find_scale(e.outputs[column]) < 1e-3 * scale]
    assert small
    for expectation in small:
        assert expectation.scales[column] == scale
        for error, passes in ((1e-15 * scale, True), (1e-3 * scale, False)):
            outputs = tuple(v + error * (i == column) for i, v in enumerate(expectation.outputs))
            judged = verification._judge_call(expectation, CallResult(outputs), opened.contract)
            assert judged[column].passed is passes, expectation.label
