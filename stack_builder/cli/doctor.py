"""``stackb doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stack_builder.cli.output import Format, emit
from stack_builder.diagnose import target as targets
from stack_builder.diagnose.arch import parse_gpu
from stack_builder.diagnose.doctor import examine


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
    strict: Annotated[bool, typer.Option(help="Exit 3 where a rule was skipped.")] = False,
    format: Annotated[Format, typer.Option(help="Of the report.")] = Format.TEXT,  # noqa: A002
) -> None:
    """Check that torch, kernels and CUDA libraries of a target fit together, without loading them."""
    parsed = targets.parse(target)
    report = examine(parsed, gpu=parse_gpu(gpu) if gpu else None, host=host, wheels=wheels)
    raise typer.Exit(emit(report, format, strict=strict))
