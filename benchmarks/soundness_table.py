"""docs/results/soundness.md: each class of hazard, what torch says of it, and what torchferry says.

python benchmarks/soundness_table.py > docs/results/soundness.md
"""

from __future__ import annotations

import io
import re
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import torch
from torch.jit._trace import TracerWarning, TracingCheckError

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from gate_specimens import findings_of, load, source_of  # noqa: E402

from exporter.common.errors import TorchferryError  # noqa: E402

HAZARDS = ROOT / "tests" / "exporter" / "soundness" / "hazards"
HEAD = """# What a trace loses, and who says so

`torch.jit.trace` with its own `check_trace` on the model's examples, and `torchferry check` on the same model. Written
by `benchmarks/soundness_table.py`; the models are in `tests/exporter/soundness/hazards/`, each with a sound twin that
passes.

| hazard | torch says | torchferry refuses by |
| --- | --- | --- |"""


def torch_says(path: Path) -> str:
    specimen = load(path)
    model, examples = specimen.Hazard().eval(), specimen.examples()
    with warnings.catch_warnings(record=True) as heard, torch.no_grad(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            traced = torch.jit.trace(model, tuple(examples.values()), strict=False)
            torch.jit.save(traced, io.BytesIO())
        except TracingCheckError:
            return "check_trace fails"
        except Exception as error:
            return f"raises {type(error).__name__}"
    if any(issubclass(w.category, TracerWarning) for w in heard):
        return "TracerWarning"
    return "nothing"


def torchferry_says(path: Path, kind: str) -> str:
    with redirect_stdout(io.StringIO()):
        try:
            findings_of(source_of(path, kind))
        except TorchferryError as error:
            line = re.search(r"\.py:(\d+)", error.details.get("where", ""))
            text = path.read_text().splitlines()[int(line[1]) - 1] if line else ""
            return f"{error.details.get('check')}: `{text.split('#')[0].strip()}`"
    return "**nothing**"


def main() -> None:
    print(HEAD)
    before = torch.get_default_dtype()
    silent = caught = refused = 0
    paths = sorted(HAZARDS.glob("*.py"))
    for path in paths:
        theirs = torch_says(path)
        torch.set_default_dtype(before)
        ours = torchferry_says(path, "Hazard")
        twin = torchferry_says(path, "Sound")
        torch.set_default_dtype(before)
        silent += theirs == "nothing"
        caught += ours != "**nothing**"
        refused += twin != "**nothing**"
        summary = (load(path).__doc__ or "").strip().splitlines()[0].rstrip(".")
        print(f"| {summary} | {theirs} | {ours.replace('|', chr(92) + '|')} |", flush=True)
    print(
        f"\n{len(paths)} hazards: torch says nothing of {silent}, torchferry refuses {caught}. "
        f"Of their {len(paths)} sound twins it refuses {refused}."
    )


if __name__ == "__main__":
    main()
