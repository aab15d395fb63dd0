"""``stackb probe``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stack_builder import progress
from stack_builder.cli.output import Format, emit
from stack_builder.diagnose import target as targets
from stack_builder.diagnose.probes import judge_driver, judge_probes
from stack_builder.errors import UsageError
from stack_builder.probe import runner
from stack_builder.report import Report
from stack_builder.report.model import Json
from stack_builder.terminal import printable


def command(
    target: Annotated[
        str | None, typer.Argument(help="venv:DIR, python:EXE or image:REF; default the active one.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="Architecture to compile for.")] = "sm_120",
    only: Annotated[list[str] | None, typer.Option(help="A probe by name; may be given several times.")] = None,
    gpus: Annotated[
        bool, typer.Option("--gpus/--no-gpus", help="With image:REF: give the container the GPUs.")
    ] = False,
    time_limit: Annotated[float, typer.Option(help="Seconds for each probe.")] = runner.TIME_LIMIT,
    strict: Annotated[bool, typer.Option(help="Exit 3 where a probe was skipped.")] = False,
    format: Annotated[Format, typer.Option(help="Of the report.")] = Format.TEXT,  # noqa: A002
) -> None:
    """Run small programs in a target's own interpreter: what is mapped, what compiles, what runs."""
    parsed = targets.parse(target, kinds=("venv", "python", "image"))
    say = progress.for_terminal()
    outcomes = []
    facts: dict[str, Json] = {}
    for outcome in runner.run_probes(_interpreter(parsed, gpus), gpu=gpu, only=only or (), limit=time_limit):
        say.note(
            f"{outcome.status:>13}  {outcome.probe}" + (f": {printable(outcome.reason)}" if outcome.reason else "")
        )
        outcomes.append(outcome)
        if outcome.probe == "gpu" and (driver := judge_driver(outcome.facts)):
            facts["driver"] = driver
            verdict = "enough" if driver["enough"] else "too old"
            say.note(f"{verdict:>13}  driver {driver['driver']}: CUDA {driver['cuda']} needs {driver['needed']}")
    findings, skipped = judge_probes(outcomes)
    facts |= {outcome.probe: dict(outcome.facts) for outcome in outcomes if outcome.status == "ok"}
    report = Report(parsed.as_report_target(), findings=findings, skipped=skipped, facts=facts)
    raise typer.Exit(emit(report, format, strict=strict))


def _interpreter(target: targets.TargetSpec, gpus: bool) -> runner.Interpreter:
    match target.kind:
        case "venv":
            return runner.LocalInterpreter(target.path / "bin" / "python3", activated=True)
        case "python":
            return runner.LocalInterpreter(Path(target.value))
        case "image":
            return runner.ContainerInterpreter(target.value, gpus=gpus)
        case _:  # the default stack, where no environment is at hand
            fix = "give venv:DIR, python:EXE or image:REF"
            raise UsageError(f"probes need an interpreter, and {target.kind}: has none", where=target.value, fix=fix)
