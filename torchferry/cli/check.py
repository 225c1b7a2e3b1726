"""``torchferry check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

from typer import Option

from torchferry.cli.options import (
    AllowOption,
    BatchOption,
    BudgetOption,
    DriverOption,
    DtypeOption,
    InputsOption,
    JobsOption,
    JsonOption,
    LoadOption,
    ModelOption,
    OverridesArgument,
    PerElementOption,
    SeedOption,
    SizesOption,
    SourceArgument,
    ThoroughOption,
)
from torchferry.cli.output import out, print_findings, print_json
from torchferry.cli.progress import show_steps
from torchferry.cli.startup import pause_collection

if TYPE_CHECKING:
    from exporter.model.eager.batch_choice import BatchChoice, SizeChoice


def command(
    source: SourceArgument,
    overrides: OverridesArgument = None,
    model: ModelOption = None,
    load: LoadOption = None,
    driver: DriverOption = None,
    dtype: DtypeOption = "",
    inputs: InputsOption = None,
    per_element: PerElementOption = None,
    batch: BatchOption = "auto",
    sizes: SizesOption = "auto",
    seed: SeedOption = 0,
    allow: AllowOption = None,
    second_opinion: Annotated[
        bool, Option("--second-opinion", help="Also ask torch.export; its answer decides nothing.")
    ] = False,
    thorough: ThoroughOption = False,
    budget: BudgetOption = None,
    jobs: JobsOption = None,
    json: JsonOption = False,
) -> None:
    """Run the soundness gate alone: would a capture of the model keep its meaning?

    Nothing is written. Exit code 3 if a finding is unsound.

    Examples:

      torchferry check net.py:make_model

      torchferry check model.i --model eq --json

      torchferry check net.py:make_model --allow 'data read:the branch is never taken in this solver'
    """
    with pause_collection():
        from torchferry import api

    with show_steps(is_silent=json) as display:
        reports = api.check(
            source,
            overrides=overrides or [],
            extensions=load or [],
            drivers=driver or [],
            dtype=dtype,
            models=model or [],
            inputs=inputs,
            per_element=per_element or [],
            batch=cast("BatchChoice", batch),
            sizes=cast("SizeChoice", sizes),
            seed=seed,
            allow=allow or [],
            second_opinion=second_opinion,
            thorough=thorough,
            budget=budget,
            jobs=jobs,
            watch=display.show,
        )
    if json:
        print_json([c.as_dict() for c in reports])
        return
    for report in reports:
        print_findings(report.name, report.findings)
        out.print(f"{report.name}: sound, by {len(report.checks)} checks in {report.seconds:.1f} s")
        if report.not_run:
            out.print(f"{report.name}: not run, and not counted: {', '.join(report.not_run)}", style="yellow")
