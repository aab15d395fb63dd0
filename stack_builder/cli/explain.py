"""``stackb explain [FILE|-]``: an error text or a server log -> cause, evidence, fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from stack_builder.cli.output import Format, emit
from stack_builder.diagnose import target as targets
from stack_builder.diagnose.explain import confirm, explain
from stack_builder.errors import UsageError
from stack_builder.report import Report
from stack_builder.stack.gpu import Gpu


def command(
    file: Annotated[str, typer.Argument(help="A file, or - for standard input.")] = "-",
    target: Annotated[
        str | None, typer.Option(help="Where the text comes from: hold its claims against a static check of it.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="With --target, judge for this architecture, such as sm_120.")] = None,
    format: Annotated[Format, typer.Option(help="Of the report.")] = Format.TEXT,  # noqa: A002
) -> None:
    """Read an error text or a whole server log: ranked causes, evidence lines, fix; what to look at next.

    Ends with 0 when the text shows a server that runs and no failure, 1 when a cause was found, 3 when it could not
    be told: no known error text occurs.
    """
    if gpu is not None and target is None:
        raise UsageError("--gpu needs --target", fix="name the environment that the text comes from")
    report = _explained(file)
    if target is not None:
        report = _confirmed(report, target, gpu)
    raise typer.Exit(emit(report, format, strict=True))


def _confirmed(report: Report, target: str, gpu: str | None) -> Report:
    from stack_builder.diagnose.doctor import examine

    return confirm(report, examine(targets.parse(target), gpu=None if gpu is None else Gpu.parse(gpu)))


def _explained(file: str) -> Report:
    if file == "-":
        if sys.stdin is None or sys.stdin.isatty():  # None: the shell closed it (<&-)
            raise UsageError("nothing to read", fix="give a file, or pipe the text in")
        return explain(sys.stdin.buffer, "-")
    if not file:
        raise UsageError("the name of the file is empty", fix="give a log, or - and pipe the text in")
    path = Path(file)
    if path.is_dir():
        raise UsageError("is a folder", where=file, fix="give the log file itself")
    if not path.exists():
        raise UsageError("no such file", where=file)
    with path.open("rb") as stream:
        return explain(stream, file)
