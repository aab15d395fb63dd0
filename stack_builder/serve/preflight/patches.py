"""Where the stack's patches stand in an environment; an image says so in its labels (see ``lock``)."""

from __future__ import annotations

from dataclasses import replace

from stack_builder.diagnose.patches import judge, site
from stack_builder.diagnose.patches.judge import Seen
from stack_builder.diagnose.target import TargetSpec
from stack_builder.patchset import model
from stack_builder.patchset.model import Hardware
from stack_builder.patchset.states import State
from stack_builder.report import Finding, Severity
from stack_builder.serve.place import Environment
from stack_builder.serve.preflight.launch import Launch, Said


def check(launch: Launch) -> Said:
    """Every patch of the series has to be applied, or solved upstream; nothing else may be patched."""
    if not isinstance(launch.place, Environment):
        return Said()
    target = TargetSpec("venv", str(launch.place.folder))
    wanted = model.series(launch.spec.patches.series, launch.folder)
    names = {patch.spec.distribution for patch in (*wanted, *model.available().values())}
    place = site.find(target, {"sglang"})
    distributions = {} if place.interrupted else place.distributions()  # half-changed files have no state
    hardware = Hardware(launch.architecture)
    seen = [
        one
        for name in sorted(names & distributions.keys())
        for one in judge.look(name, distributions, wanted, hardware)
        if one.status is None or one.status.state is not State.OBSOLETE
    ]
    report = judge.judge(target.as_report_target(), seen, asked=True, installed=True, interrupted=place.interrupted)
    states = {one.patch.id: one.status.state.value for one in seen if one.status is not None}
    return Said(tuple(_weighed(found, seen, launch) for found in report.findings), facts={"patches": states})


def _weighed(finding: Finding, seen: list[Seen], launch: Launch) -> Finding:
    """A patch that is not applied stops the launch, unless it would change nothing here; say what to run."""
    target, stack = launch.place.target, launch.stack
    match finding.rule:
        case "PATCH006":
            state = next(one.status.state for one in seen if one.status and one.patch.id == finding.evidence["patch"])
            severity = Severity.WARNING if state is State.NO_EFFECT else Severity.ERROR
            return replace(finding, severity=severity, fix=(f"Run stackb patch apply {target} --stack {stack}",))
        case "PATCH005":
            return replace(finding, fix=(f"Run stackb patch apply {target} --stack {stack}: it ends what was begun",))
        case "PATCH007":
            revert = f"Run stackb patch revert {target} --patch {finding.evidence['patch']}"
            return replace(finding, fix=(revert, *finding.fix[:1]))
        case _:
            return finding
