"""What an export is asked to do, as one value: built by the API, passed whole to the stages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exporter.archive.formats import FORMATS, KERNELS, check_suffix
from exporter.archive.input_files import InputValues
from exporter.archive.metadata_file import MetadataRules
from exporter.archive.variable_renaming import RenameRule
from exporter.archive.variable_rules import VariableRule
from exporter.backends.backend import WriteOptions
from exporter.common.errors import UsageError
from exporter.common.stopwatch import Watch, ignore_step
from exporter.model.eager.batch_choice import ShapeChoice
from exporter.model.implicit.newton_solver import OnFailure
from exporter.soundness.checked_capture import CaptureOptions
from runtime_checks.options import VerifyOptions

# Each check that runs holds the model once.
MAX_JOBS = 8


@dataclass(frozen=True)
class ExportOptions:
    """``models`` of the source, written to ``output`` in the ``formats``: a file, or a folder for several models.

    ``renames`` are rules for names in the contract, ``metadata`` and ``units`` for what is said of them there,
    ``inputs`` a file of warmup inputs or a dict by name, ``per_element`` patterns of parameters that become inputs,
    ``shapes`` whether a model without a signature has a batch, and open sizes, ``against`` an earlier archive;
    ``on_failure`` overrides what an implicit model returns for elements that do not converge; ``command`` is how the
    user asked for it. ``capture``, ``write`` and ``verify`` are the options of these stages; ``watch`` is told of each
    step. Raises ``UsageError`` for what contradicts itself."""

    models: tuple[str, ...] = ()
    output: Path | None = None
    formats: tuple[str, ...] = ("pt",)
    renames: tuple[RenameRule, ...] = ()
    metadata: MetadataRules = field(default_factory=MetadataRules)
    units: tuple[VariableRule, ...] = ()
    inputs: Path | InputValues | None = None
    per_element: tuple[str, ...] = ()
    shapes: ShapeChoice = field(default_factory=ShapeChoice)
    against: Path | None = None
    on_failure: OnFailure | None = None
    command: str = ""
    capture: CaptureOptions = field(default_factory=CaptureOptions)
    write: WriteOptions = field(default_factory=WriteOptions)
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    watch: Watch = ignore_step

    def __post_init__(self) -> None:
        if self.shapes.sizes == "open" and self.has_kernel:
            what, mend = "a kernel is for tensors of fixed shape, and has no open sizes", "leave --sizes out"
            raise UsageError(what, where="--sizes open", expected="formats without c and cuda", mend=mend)
        if self.against is not None and "pt" not in self.formats:
            raise UsageError("--against compares archives only", where="--against", expected="pt among the formats")
        output = self.output
        if output is not None and not output.is_dir() and not str(output).endswith("/") and len(self.models) < 2:
            check_suffix(output, self.formats)

    @property
    def has_kernel(self) -> bool:
        """Return whether a kernel is written."""
        return not set(KERNELS).isdisjoint(self.formats)

    @property
    def container_formats(self) -> tuple[str, ...]:
        """Return the formats that are written from the archive."""
        return tuple(name for name in self.formats if name != "pt")


def choose_jobs(jobs: int | None) -> int:
    """Return how many checks run at the same time; by default as many as this process has cores.

    Raises ``UsageError`` if that is none."""
    if jobs is None:
        has_affinity = hasattr(os, "sched_getaffinity")
        return min(MAX_JOBS, len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    if jobs < 1:
        raise UsageError("nothing could run", where="--jobs", got=str(jobs), expected="a number from 1 on")
    return jobs


def select_archive_runtimes(options: VerifyOptions, formats: Sequence[str]) -> VerifyOptions:
    """Return the options for the archive itself: a kernel runs in its own runtimes, whether they are named or not."""
    names, kernels = options.runtime_names, [name for name in formats if name in KERNELS]
    for runtime in KERNELS:
        if runtime in names and not any(runtime in FORMATS[name].runtimes for name in kernels):
            what, mend = f"runtime {runtime!r} runs kernels, and none is written", f"add --format pt,{runtime}"
            raise UsageError(what, where="--runtime", got=runtime, mend=f"{mend}, or leave out {runtime}")
    return options.with_runtimes([name for name in names if name not in KERNELS])
