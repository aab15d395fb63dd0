"""``stackb doctor``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from stack_builder import progress
from stack_builder.cache.lock import in_use
from stack_builder.cli.output import Format, emit
from stack_builder.diagnose import target as targets
from stack_builder.errors import UsageError
from stack_builder.stack.gpu import Gpu

_PACKED = ("stack", "wheels", "oci", "image")


@in_use()
def command(
    target: Annotated[
        str | None,
        typer.Argument(help=f"{targets.HELP} Default: the active environment, ./.venv, or the default stack."),
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Judge for this architecture, such as sm_120.")] = None,
    wheels: Annotated[
        Path | None, typer.Option("--from", help="With stack:NAME, a folder to take wheels from before the store.")
    ] = None,
    host: Annotated[bool, typer.Option("--host/--no-host", help="Look at this machine, too.")] = True,
    model: Annotated[Path | None, typer.Option(help="Check this model's folder against the target's SGLang.")] = None,
    draft: Annotated[Path | None, typer.Option(help="With --model, the folder of its EAGLE-3 draft.")] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, help="With --model, the GPUs that share it.")] = 1,
    strict: Annotated[bool, typer.Option(help="Exit 3 where a rule was skipped.")] = False,
    format: Annotated[Format, typer.Option(help="Of the report.")] = Format.TEXT,  # noqa: A002
) -> None:
    """Check that torch, kernels and CUDA libraries of a target fit together, without loading them."""
    if draft is not None and model is None:
        raise UsageError("--draft without --model", fix="give the folder of the model as well")
    from stack_builder.diagnose.doctor import examine  # not needed by --help

    parsed = targets.parse(target)
    if parsed.kind in _PACKED:
        progress.for_terminal().note(
            f"reading {parsed.kind}:{parsed.value}; a first check reads every byte of its libraries"
        )
    report = examine(parsed, gpu=None if gpu is None else Gpu.parse(gpu), host=host, wheels=wheels)
    if model is not None:
        from stack_builder.diagnose.sglang.locate import source_of  # not needed by other checks
        from stack_builder.diagnose.sglang.pair import judge_model

        found, skipped = judge_model(source_of(parsed, wheels=wheels), model, draft, tensor_parallel=tp)
        report = replace(report, findings=(*report.findings, *found), skipped=(*report.skipped, *skipped))
    raise typer.Exit(emit(report, format, strict=strict))
