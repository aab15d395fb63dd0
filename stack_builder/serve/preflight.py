"""Before anything starts: arguments, gates, model and draft, environment, memory. Nothing is imported or run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.arch import parse_gpu
from stack_builder.diagnose.doctor import examine
from stack_builder.diagnose.host import HostFacts, collect_host
from stack_builder.diagnose.memory import MemoryFacts, judge_memory, weight_bytes
from stack_builder.diagnose.sglang.check import check_launch
from stack_builder.diagnose.sglang.locate import of_stack, source_of
from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import MachineError
from stack_builder.report import Finding, Report, Severity, Skipped, Target
from stack_builder.report.model import Json
from stack_builder.serve.plan import LaunchPlan
from stack_builder.sglang.source import SourceTree
from stack_builder.stack.spec import StackSpec


def preflight(plan: LaunchPlan, spec: StackSpec, *, venv: Path | None, gpu: str | None) -> Report:
    """Check a launch.

    Args:
        plan: what would be started.
        spec: its stack.
        venv: environment that it would run in; None for the stack's image.
        gpu: architecture such as ``sm_120``; None takes the first GPU of this machine, else the stack's first.

    Returns:
        a report; an error in it means that the server would not start, or not do what was asked.
    """
    host = collect_host()
    architecture = gpu or (host.devices[0].architecture if host.devices else spec.stack.gpu[0])
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    tree = _source(plan, venv, skipped)
    if tree is not None:
        judged, unjudged = check_launch(
            tree, _on_this_side(plan), environment=plan.env, gpu=architecture, model=_folder(plan.request.model)
        )
        findings += judged
        skipped += unjudged
        findings += _release(tree, spec)
    if venv is not None:
        report = examine(TargetSpec("venv", str(venv)), gpu=parse_gpu(architecture))
        findings += report.counted  # its notes are for who asks the doctor
        skipped += report.skipped
    memory = _memory(plan, host)
    findings += () if memory is None else judge_memory(memory)
    facts: dict[str, Json] = {"gpu": architecture, "sglang": None if tree is None else tree.version}
    return Report(Target("launch", plan.request.stack), tuple(findings), tuple(skipped), facts)


def stops(report: Report) -> bool:
    """Whether a preflight report stands in the way of a start."""
    return any(finding.severity is Severity.ERROR for finding in report.findings)


def _source(plan: LaunchPlan, venv: Path | None, skipped: list[Skipped]) -> SourceTree | None:
    if venv is not None:
        return source_of(TargetSpec("venv", str(venv)))
    try:
        return of_stack(plan.request.stack)
    except MachineError as error:
        # An image can be here without its wheels. What it would have told is skipped, not passed.
        skipped.append(catalogue.skipped("SGL001", str(error)))
        return None


def _release(tree: SourceTree, spec: StackSpec) -> tuple[Finding, ...]:
    wanted = spec.requires.get("sglang")
    if wanted is None or wanted.removeprefix("==") == tree.version:
        return ()
    detail = f"the stack is for sglang{wanted}, the environment has {tree.version}"
    return (catalogue.finding("RUN011", detail=detail, distribution=f"sglang {tree.version}"),)


def _on_this_side(plan: LaunchPlan) -> tuple[str, ...]:
    """The server's arguments with paths of this machine in place of those in a container."""
    inside: Mapping[str, str] = {mount.inside: str(mount.host) for mount in plan.mounts}
    return tuple(inside.get(word, word) for word in plan.server_arguments)


def _folder(model: str | None) -> Path | None:
    folder = Path(model) if model else None
    return folder if folder is not None and folder.is_dir() else None


def _memory(plan: LaunchPlan, host: HostFacts) -> MemoryFacts | None:
    folders = [folder for folder in map(_folder, (plan.request.model, plan.request.draft)) if folder is not None]
    weights = sum(weight_bytes(folder) for folder in folders)
    per_gpu = host.devices[0].memory if host.devices else None
    if not weights or per_gpu is None:
        return None
    ranks = _value(plan, "--tp-size", "--tp", "--tensor-parallel-size")
    fraction = _value(plan, "--mem-fraction-static")
    return MemoryFacts(weights, int(ranks or 1), per_gpu, fraction)


def _value(plan: LaunchPlan, *options: str) -> float | None:
    words = plan.server_arguments
    for number, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in options:
            text = value if equals else words[number + 1] if number + 1 < len(words) else ""
            try:
                return float(text)
            except ValueError:  # check_launch says so
                return None
    return None
