"""Check under another hash seed in a new interpreter: the order of a ``set`` of texts differs from process to process.

The check runs only where the code builds a set, iterates over a stored one, or calls ``hash``: a new interpreter takes
seconds. The model is passed to it by pickle."""

from __future__ import annotations

import concurrent.futures
import dis
import importlib.util
import itertools
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

from exporter.archive.contract import Finding
from exporter.common.errors import summarize_error
from exporter.common.forking import ForkFailedError
from exporter.common.temporary_folders import temporary_folder
from exporter.model.eager.evaluation import eager_context, find_forward_line
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import EagerContext, Outputs, describe_mismatch, make_refusal, run_eager
from exporter.soundness.footprint import Footprint, is_user_file

CHECK = "hash seed"
# Two texts keep their order at one seed with probability 1/2, at all of them with 1/16.
SEEDS = (1, 2, 3, 4)
_BUILD = {"BUILD_SET", "SET_ADD", "SET_UPDATE"}


def check(context: EagerContext) -> list[Finding]:
    """Check that outputs do not depend on the order of a set."""
    where = context.room(_find_first_set_line, context.inputs)
    if not where:
        return []
    # A room may be ended at any time, and would leave a folder of its own behind.
    with temporary_folder() as folder:
        return context.room(_check, context.inputs, where, folder, context.room.limit)


def _find_first_set_line(source: Source, inputs: Inputs) -> str:
    with Footprint() as footprint:
        run_eager(source, inputs)
    return find_set_line(source, footprint)


def find_set_line(source: Source, footprint: Footprint) -> str:
    """Return the first line of this code which builds a set, or that of a model with one; empty for none."""
    # The sets of an installed library do not count.
    footprint = footprint.without_libraries()
    for code in footprint.codes:
        steps = list(dis.get_instructions(code))
        builds = [i for i, following in itertools.pairwise(steps) if i.opname in _BUILD or _names_set(i, following)]
        if builds:
            line = max((n for start, _, n in code.co_lines() if n and start <= builds[0].offset), default=0)
            return f"{code.co_filename}:{line or code.co_firstlineno}"
    # The fingerprint of a set, as ``footprint.Leaf`` has it.
    fingerprints = footprint.read_fingerprints(source.parameter_module).values()
    return find_forward_line(source) if any(re.match(r"(frozen)?set of (?!0|1$)", f) for f in fingerprints) else ""


def _names_set(step: dis.Instruction, following: dis.Instruction) -> bool:
    """Return whether a step names a set, or iterates over a constant one; a membership test does not count."""
    constant = isinstance(step.argval, frozenset) and following.opname != "CONTAINS_OP"
    return step.opname.startswith("LOAD_") and (constant or step.argval in ("set", "frozenset", "hash"))


def _check(source: Source, inputs: Inputs, where: str, folder: Path, limit: float) -> list[Finding]:
    reference = run_eager(source, inputs)
    try:
        payload = pickle.dumps((source, inputs))
    except Exception as error:
        raise ForkFailedError(f"the model cannot be passed to a new interpreter: {summarize_error(error)}") from None
    model_file = folder / "model"
    model_file.write_bytes(pickle.dumps((sys.path, _find_module_files(source), payload)))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda seed: _run_interpreter(model_file, seed, limit), SEEDS))
    for seed, outputs in zip(SEEDS, answers, strict=True):
        mismatch = _compare_outputs(outputs, reference)
        if mismatch:
            what = "outputs depend on the order of a set, which differs from process to process"
            mend = "use a tuple or a dict, or sorted(...); no hash() of a text"
            return [make_refusal(CHECK, what, where, f"with PYTHONHASHSEED={seed}: {mismatch}", mend)]
    return []


def _find_module_files(source: Source) -> dict[str, str]:
    """Return the user's modules that define the model's classes, by name: they may not be on the search path."""
    names = {cls.__module__ for m in source.parameter_module.modules() for cls in type(m).__mro__}
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return {name: file for name, file in files.items() if file and is_user_file(file) and name != "__main__"}


def _run_interpreter(model_file: Path, seed: int, limit: float) -> Outputs:
    command = [sys.executable, "-c", f"from {__name__} import answer; answer({str(model_file)!r}, {seed})"]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise ForkFailedError(f"a new interpreter did not end within {limit:g} s") from None
    if process.returncode:
        last_line = (process.stderr.splitlines() or ["?"])[-1]
        raise ForkFailedError(f"the model cannot be passed to a new interpreter: {last_line}")
    return pickle.loads(model_file.with_suffix(f".{seed}").read_bytes())


def answer(model_file: str, seed: int) -> None:
    """Run the model in the new interpreter and write its outputs beside the model."""
    path, files, payload = pickle.loads(Path(model_file).read_bytes())
    sys.path[:] = path
    for name, file in files.items():
        try:
            importlib.import_module(name)
        except ImportError:
            spec = importlib.util.spec_from_file_location(name, file)
            if spec is not None and spec.loader is not None:
                sys.modules[name] = module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
    source, inputs = pickle.loads(payload)
    with eager_context(source):
        outputs = run_eager(source, inputs)
    Path(model_file).with_suffix(f".{seed}").write_bytes(pickle.dumps(outputs))


def _compare_outputs(outputs: Outputs, reference: Outputs) -> str:
    if isinstance(outputs, str) or isinstance(reference, str):
        return "" if isinstance(outputs, str) and isinstance(reference, str) else f"{outputs} against {reference}"[:200]
    if list(outputs) != list(reference):
        return f"outputs {', '.join(outputs)} against {', '.join(reference)}"
    mismatches = ((name, describe_mismatch(value, reference[name])) for name, value in outputs.items())
    return next((f"output {name!r}: {text}" for name, text in mismatches if text), "")
