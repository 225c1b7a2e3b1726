"""A new interpreter with another hash seed: the order of a ``set`` of texts is another one in every process of Python.

Asked only where code that runs builds a set, walks through one that is kept, or calls ``hash``: a new interpreter takes
seconds. The model goes there by pickle.
"""

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
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path

from exporter.archive.contract import Finding
from exporter.common.errors import first_line
from exporter.common.forking import NotRun
from exporter.model.eager.evaluation import forward_line, inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager, Outputs, eager, unlike
from exporter.soundness.footprint import Footprint, is_users

CHECK = "hash seed"
# Two texts keep their order at one of them in two: at all of them in 16.
SEEDS = (1, 2, 3, 4)
SECONDS = 120.0
_BUILD = {"BUILD_SET", "SET_ADD", "SET_UPDATE"}


def check(eager_mode: Eager) -> list[Finding]:
    where = eager_mode.room(_lead, eager_mode.inputs)
    return eager_mode.room(_check, eager_mode.inputs, where) if where else []


def _lead(source: Source, inputs: Inputs) -> str:
    """The first line of the code that runs which builds a set, or is of a model that keeps one; empty for none."""
    with inference_conditions(source), Footprint() as footprint:
        eager(source, inputs)
    # What an installed library walks through, or keeps, is its own affair.
    footprint.codes = {c: names for c, names in footprint.codes.items() if "site-packages" not in c.co_filename}
    for code in footprint.codes:
        steps = list(dis.get_instructions(code))
        builds = [i for i, then in itertools.pairwise(steps) if i.opname in _BUILD or _names_one(i, then)]
        if builds:
            line = max((n for start, _, n in code.co_lines() if n and start <= builds[0].offset), default=0)
            return f"{code.co_filename}:{line or code.co_firstlineno}"
    kept = [label for label, leaf in footprint.state(source.named).items() if _is_set(leaf.fingerprint)]
    return forward_line(source) if kept else ""


def _names_one(step: dis.Instruction, then: dis.Instruction) -> bool:
    """A set by name, or a constant one that is walked through; to ask whether it holds something is another matter."""
    constant = isinstance(step.argval, frozenset) and then.opname != "CONTAINS_OP"
    return step.opname.startswith("LOAD_") and (constant or step.argval in ("set", "frozenset", "hash"))


def _is_set(fingerprint: str) -> bool:
    """As ``footprint.Leaf`` has it."""
    return bool(re.match(r"(frozen)?set of (?!0|1$)", fingerprint))


def _check(source: Source, inputs: Inputs, where: str) -> list[Finding]:
    with inference_conditions(source):
        here = eager(source, inputs)
    try:
        packed = pickle.dumps((source, inputs))
    except Exception as error:
        raise NotRun(f"a new interpreter cannot be given the model: {first_line(error)}") from None
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "model")
        given.write_bytes(pickle.dumps((sys.path, _files(source), packed)))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda seed: _ask(given, seed), SEEDS))
    for seed, there in zip(SEEDS, answers, strict=True):
        apart = _apart(there, here)
        if apart:
            return [
                Finding(
                    CHECK,
                    "outputs depend on the order of a set, which is another one in every process",
                    where,
                    severity="unsound",
                    evidence=f"with PYTHONHASHSEED={seed}: {apart}",
                    mend="use a tuple or a dict, or sorted(...); no hash() of a text",
                )
            ]
    return []


def _files(source: Source) -> dict[str, str]:
    """Modules of the user's that the model's classes come from, by name: they may not be on the search path."""
    names = {kind.__module__ for m in source.named.modules() for kind in type(m).__mro__}
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return {name: file for name, file in files.items() if file and is_users(file) and name != "__main__"}


def _ask(given: Path, seed: int) -> Outputs:
    command = [sys.executable, "-c", f"from {__name__} import answer; answer({str(given)!r}, {seed})"]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotRun(f"a new interpreter came to no end within {SECONDS:g} s") from None
    if done.returncode:
        raise NotRun(f"a new interpreter cannot be given the model: {(done.stderr.splitlines() or ['?'])[-1]}")
    return pickle.loads(given.with_suffix(f".{seed}").read_bytes())


def answer(given: str, seed: int) -> None:
    """What the new interpreter does."""
    path, files, packed = pickle.loads(Path(given).read_bytes())
    sys.path[:] = path
    _load(files)
    source, inputs = pickle.loads(packed)
    with inference_conditions(source):
        outputs = eager(source, inputs)
    Path(given).with_suffix(f".{seed}").write_bytes(pickle.dumps(outputs))


def _load(files: Mapping[str, str]) -> None:
    for name, file in files.items():
        try:
            importlib.import_module(name)
        except ImportError:
            spec = importlib.util.spec_from_file_location(name, file)
            if spec is not None and spec.loader is not None:
                module: types.ModuleType = importlib.util.module_from_spec(spec)
                sys.modules[name] = module
                spec.loader.exec_module(module)


def _apart(there: Outputs, here: Outputs) -> str:
    if isinstance(there, str) or isinstance(here, str):
        return "" if isinstance(there, str) and isinstance(here, str) else f"{there} against {here}"[:200]
    if list(there) != list(here):
        return f"outputs {', '.join(there)} against {', '.join(here)}"
    return next((f"output {n!r}: {text}" for n, v in there.items() if (text := unlike(v, here[n]))), "")
