import io

import pytest
import torch
from rich.console import Console

from exporter.archive.contract import Bounds
from exporter.common.errors import MismatchError
from runtime_checks.comparison import compare_tensors
from runtime_checks.report import FAILED, PASSED, CheckResult, OutputResult, Report, RuntimeReport, render


def make_report(*legs):
    """Build a report of a model named "spring" from (checks, outputs) of each runtime."""
    reports = tuple(RuntimeReport(f"runtime {i}", "cpu", c, o, {}) for i, (c, o) in enumerate(legs))
    return Report("spring.pt", "spring", reports, (), {})


def test_a_report_whose_runtimes_pass_raises_nothing():
    report = make_report(((CheckResult("batches", PASSED, 3),), ()))
    assert report.passed
    report.raise_if_failed()


@pytest.mark.parametrize(
    ("legs", "named"),
    [([], "no runtime ran"), ([((CheckResult("batches", PASSED),), ()), ((), ())], "runtime 1, cpu")],
)
def test_a_report_without_a_check_is_an_error_that_names_the_runtime(legs, named):
    report = make_report(*legs)
    assert not report.passed
    with pytest.raises(MismatchError, match="nothing was checked of 'spring'") as error:
        report.raise_if_failed()
    assert named in error.value.details["got"]
    assert error.value.report is report


def test_a_failed_check_is_an_error_with_the_worst_elements_and_the_report():
    got, expected = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])
    exact = Bounds(0.0, 0.0)
    worst = OutputResult("force", compare_tensors(got, expected, exact), "batch 2", exact, False)
    report = make_report(((CheckResult("batches", FAILED, 1, "batch 2"), CheckResult("seeds", FAILED)), (worst,)))
    with pytest.raises(MismatchError, match="does not agree with eager mode") as error:
        report.raise_if_failed()
    assert error.value.details["where"] == "check 'batches': batch 2; also 'seeds'"
    assert error.value.details["got"] == "'force' at batch 2 [1]: 2.0"
    assert error.value.details["expected"] == "3.0"
    assert error.value.report is report


def test_the_inputs_of_a_worst_element_are_shown_where_it_fails():
    """They may be long; where an output passes, nobody has to look at them."""
    bounds = Bounds(1e-3, 1e-3)
    passing, failing = (
        OutputResult(
            name, compare_tensors(torch.tensor([got]), torch.tensor([1.0]), bounds), place, bounds, False, {"x": x}
        )
        for name, got, place, x in (("close", 1.0001, "batch 2", 17.5), ("far", 3.0, "batch 3", 18.5))
    )
    console = Console(width=200, file=io.StringIO())
    console.print(render(make_report(((CheckResult("batches", FAILED, 1, "batch 3"),), (passing, failing)))))
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "far at batch 3 [0]: x=18.5" in text
    assert "batch 2 [0]" in text
    assert "17.5" not in text
