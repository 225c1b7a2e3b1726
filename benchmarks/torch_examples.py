"""docs/results/torch-examples.md: what becomes of the examples that torch has for its own exporter.

python benchmarks/torch_examples.py > docs/results/torch-examples.md
"""

from __future__ import annotations

import copy
import inspect
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._export.db.examples import all_examples
from torch.utils import _pytree as pytree

import torchferry
from exporter.common.errors import TorchferryError
from exporter.model.argument_structures import ArgumentStructures
from exporter.model.eager.batch_choice import BatchChoice

HEAD = f"""# torch's own export examples

The examples that torch {torch.__version__} has for `torch.export` (`torch._export.db`), exported by `torchferry.export`
with their example arguments by name. Written by `benchmarks/torch_examples.py`. Where the error says to export with
`--batch no`, that was done, and the row says so. Beside the checks of the export, each file was called with the example
arguments, and held against the model itself, called as torch's users call it: "wrong" stands where they differ.

| example | result | seconds |
| --- | --- | ---: |"""


def name_arguments(case: Any) -> dict[str, Any]:
    """Return the example arguments by the names that ``forward`` has for them."""
    bound = inspect.signature(case.model.forward).bind(*case.example_args, **case.example_kwargs)
    return dict(bound.arguments)


def has_numbers_of_model(case: Any, path: Path) -> bool:
    """Return whether a file gives what the model gives for the example arguments."""
    expected = pytree.tree_leaves(copy.deepcopy(case.model)(*case.example_args, **case.example_kwargs))
    inputs = ArgumentStructures(name_arguments(case), "the example").tensors
    got = list(torchferry.load(path).call("forward", inputs).values())
    tensors = [value for value in expected if isinstance(value, torch.Tensor)]
    return len(got) == len(tensors) and all(torch.allclose(a, b) for a, b in zip(got, tensors, strict=True))


def export(case: Any, batch: BatchChoice, folder: Path) -> str:
    try:
        (exported,) = torchferry.export(
            copy.deepcopy(case.model), inputs=name_arguments(case), output=folder / "m.pt", batch=batch
        )
    except TorchferryError as error:
        text = f"{error.what}; {error.details.get('got', '')}".split("\n")[0]
        if batch == "auto" and "--batch no" in str(error.details.get("mend", "")):
            whole = export(case, "no", folder)
            return f"{whole}, with `--batch no`" if whole == "verified" else whole
        return text.replace("|", "\\|")
    return "verified" if has_numbers_of_model(case, exported.path) else "wrong"


def main() -> None:
    warnings.simplefilter("ignore")
    print(HEAD)
    results: list[str] = []
    examples = sorted(all_examples().items())
    for name, case in examples:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            result = export(case, "auto", Path(folder))
        results.append(result)
        print(f"| `{name}` | {result} | {time.perf_counter() - start:.1f} |", flush=True)
        sys.stderr.write(f"{name}: {result}\n")
    verified, wrong = (sum(result.startswith(word) for result in results) for word in ("verified", "wrong"))
    print(f"\n{verified} of {len(examples)} are verified, {wrong} are wrong.")


if __name__ == "__main__":
    main()
