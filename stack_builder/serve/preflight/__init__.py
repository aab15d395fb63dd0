"""Before anything starts: every check that needs neither an import nor a process of the target.

Each module holds one question about a :class:`~stack_builder.serve.preflight.launch.Launch` and answers it with what
was found and what could not be told.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from stack_builder.report import Finding, Report, Severity, Target
from stack_builder.report.model import Json
from stack_builder.serve.preflight import environment, launch_line, lock, memory, patches, port, room
from stack_builder.serve.preflight.launch import CANNOT_START, Check, Launch, Said

__all__ = ["CANNOT_START", "CHECKS", "Launch", "preflight", "stops"]

CHECKS: dict[str, Check] = {
    "lock": lock.check,
    "environment": environment.check,
    "patches": patches.check,
    "launch line": launch_line.check,
    "memory": memory.check,
    "room": room.check,
    "port": port.check,
}


def preflight(launch: Launch) -> Report:
    """Run every check.

    Returns:
        a report without notes; an error in it means that the server would not start, or not do what was asked, and the
        fact :data:`CANNOT_START` that there is nothing to start.

    Raises:
        UsageError: there is no SGLang where it shall run, or a model's folder holds no readable ``config.json``.
    """
    said = Said()
    for check in CHECKS.values():
        said += check(launch)
    facts: dict[str, Json] = {"gpu": launch.architecture, "checked": list(CHECKS), **said.facts}
    if launch.absent:
        facts[CANNOT_START] = launch.absent
    report = Report(Target("launch", launch.plan.request.stack), facts=facts)
    return replace(report, findings=_once(said.findings), skipped=tuple(dict.fromkeys(said.skipped)))


def stops(report: Report, despite: Collection[str] = ()) -> tuple[Finding, ...]:
    """The findings that stand in the way of a start: errors, but for those of the rules in ``despite``."""
    return tuple(f for f in report.findings if f.severity is Severity.ERROR and f.rule not in despite)


def _once(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Leave out notes, which are for whoever asks the check itself, and what two checks found alike."""
    kept: list[Finding] = []
    for finding in findings:
        if finding.severity is not Severity.NOTE and finding not in kept:
            kept.append(finding)
    return tuple(kept)
