"""docs/results/torch-examples.md: what becomes of the examples that torch has for its own exporter.

python benchmarks/torch_examples.py > docs/results/torch-examples.md
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._export.db.examples import all_examples

import torchferry
from exporter.common.errors import TorchferryError
from exporter.model.eager.batch_choice import BatchChoice

HEAD = f"""# torch's own export examples

The examples that torch {torch.__version__} has for `torch.export` (`torch._export.db`), exported by `torchferry.export`
with their example arguments by name. Written by `benchmarks/torch_examples.py`. Where the error says to export with
`--batch no`, that was done, and the row says so.

| example | result | seconds |
| --- | --- | ---: |"""


def name_arguments(case: Any) -> dict[str, Any]:
    """Return the example arguments by the names that ``forward`` has for them."""
    bound = inspect.signature(case.model.forward).bind(*case.example_args, **case.example_kwargs)
    return dict(bound.arguments)


def export(case: Any, batch: BatchChoice, folder: Path) -> str:
    try:
        torchferry.export(case.model, inputs=name_arguments(case), output=folder / "m.pt", batch=batch)
    except TorchferryError as error:
        text = f"{error.what}; {error.details.get('got', '')}".split("\n")[0]
        if batch == "auto" and "--batch no" in str(error.details.get("mend", "")):
            whole = export(case, "no", folder)
            return f"{whole}, with `--batch no`" if whole == "verified" else whole
        return text.replace("|", "\\|")
    return "verified"


def main() -> None:
    warnings.simplefilter("ignore")
    print(HEAD)
    verified = 0
    examples = sorted(all_examples().items())
    for name, case in examples:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            result = export(case, "auto", Path(folder))
        verified += result.startswith("verified")
        print(f"| `{name}` | {result} | {time.perf_counter() - start:.1f} |", flush=True)
        sys.stderr.write(f"{name}: {result}\n")
    print(f"\n{verified} of {len(examples)} are verified.")


if __name__ == "__main__":
    main()
