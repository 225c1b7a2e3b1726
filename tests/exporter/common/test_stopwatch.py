"""The stopwatch of long commands."""

from exporter.common.stopwatch import Stopwatch


def test_parts_of_another_stopwatch_are_added():
    steps = []
    clock, other = Stopwatch(steps.append), Stopwatch()
    for watch in (clock, other):
        with watch("soundness"):
            watch.report("soundness", "dtype", 1, 2, 1.5)
    with other("capture"):
        other.report("capture", "trace", 1, 1, 2.0)
    told = list(steps)
    clock.add_parts(other.parts)
    assert clock.parts == {("soundness", "dtype"): 3.0, ("capture", "trace"): 2.0}
    # What is over is not shown again.
    assert steps == told
