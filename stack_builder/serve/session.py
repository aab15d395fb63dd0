"""One server from launch to end: ready, proven, attached, stopped; explained when it dies."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.explain import explain
from stack_builder.diagnose.running import RunningFacts, activity, judge_running, skipped
from stack_builder.errors import MachineError, UsageError
from stack_builder.progress import Progress
from stack_builder.report import Report, Target
from stack_builder.report.model import Json
from stack_builder.serve import servers
from stack_builder.serve.activity import collect
from stack_builder.serve.client import ServerClient
from stack_builder.serve.launchers import Launcher, Server
from stack_builder.serve.plan import LaunchPlan
from stack_builder.serve.processes import check_port
from stack_builder.serve.readiness import LogTail, Readiness, ServerDiedError, wait_ready
from stack_builder.terminal import printable

_POLL = 0.25  # seconds


@dataclass(frozen=True, slots=True)
class Started:
    """A server that is ready, and what it showed."""

    server: Server
    readiness: Readiness
    facts: RunningFacts
    report: Report


class StartFailedError(MachineError):
    """The server did not become ready; carries the report that explains it."""

    def __init__(self, what: str, report: Report, *, where: object = None, fix: str | None = None) -> None:
        super().__init__(what, where=where, fix=fix)
        self.report = report


def start(plan: LaunchPlan, launcher: Launcher, log: Path, *, patience: float, progress: Progress) -> Started:
    """Launch, wait until ready, and collect what is active.

    On every way out but success the server and all its children are gone.

    Raises:
        StartFailedError: it died or went silent; its report holds the cause.
        MachineError: the port is taken, the interpreter or the engine is missing.
    """
    port = plan.request.port
    check_port(port)
    server: Server | None = None
    try:
        with _signals_held_back():
            server = launcher.launch(plan, log)
            stack, command = plan.request.stack, plan.shell()
            servers.write(servers.entry_for(server, stack=stack, url=plan.url, port=port, log=log, command=command))
        with ServerClient(plan.url, api_key=plan.request.api_key) as client:
            readiness = wait_ready(server, client, log, port=port, patience=patience, progress=progress)
            progress.note(f"ready after {readiness.seconds:.1f} s; measuring what is active …")
            facts = collect(client, plan, log)
    except BaseException as error:
        if server is None:
            raise
        servers.stop(server, port)
        if isinstance(error, ServerDiedError | MachineError):
            report = _explained("RUN007", str(error), plan, log)
            raise StartFailedError(error.what, report, where=error.where, fix=error.fix) from error
        raise
    return Started(server, readiness, facts, running_report(plan, facts, readiness))


def attach(started: Started, plan: LaunchPlan, log: Path, show: Callable[[], object]) -> Report | None:
    """Show the report, then stream the log until the server ends or the user interrupts.

    On every way out the server and all its children are gone.

    Returns:
        None after SIGINT (the server was stopped), else the report on why it ended.
    """
    port, lines = plan.request.port, LogTail(log)
    try:
        show()
        while started.server.alive:
            _show(lines)
            time.sleep(_POLL)
        _show(lines)
    except KeyboardInterrupt:
        servers.stop(started.server, port)
        return None
    except BaseException:
        servers.stop(started.server, port)
        raise
    code = started.server.exit_code
    servers.stop(started.server, port)
    ending = "its process is gone" if code is None else f"exit code {code}" if code >= 0 else f"signal {-code}"
    return _explained("RUN006", ending, plan, log)


def running_report(plan: LaunchPlan, facts: RunningFacts, readiness: Readiness) -> Report:
    """Requested against active, as a report."""
    length = None if facts.acceptance is None else facts.acceptance.length
    figures = facts.figures
    shown: dict[str, Json] = {
        "url": plan.url,
        "ready_after_s": round(readiness.seconds, 1),
        "speculation": plan.request.spec,
        "accept_length": None if length is None else round(length, 3),
        "accept_length_by": {source.value: round(value, 3) for source, value in figures.accept_length.items()},
        "running_requests_by": {source.value: value for source, value in figures.running.items()},
        "tokens_per_second_by": {source.value: round(value, 1) for source, value in figures.throughput.items()},
        "max_running_requests": facts.limit,
        "attention_backend": facts.resolved.get("attention_backend"),
        "activity": [
            {
                "feature": row.id,
                "requested": row.requested,
                "state": row.state.value,
                "source": row.source.value,
                "evidence": row.evidence,
            }
            for row in activity(facts)
        ],
    }
    return Report(Target("server", plan.url), judge_running(facts), skipped(facts), shown)


def _explained(rule: str, ending: str, plan: LaunchPlan, log: Path) -> Report:
    target = Target("server", plan.url)
    facts: dict[str, Json] = {
        "log": str(log),
        "command": shlex.join(plan.masked_argv()),
        "environment": dict(plan.env),
    }
    try:
        with log.open("rb") as stream:
            explained = explain(stream, str(log))
    except UsageError:  # it wrote nothing
        head = catalogue.finding(rule, detail=f"{ending}; it wrote nothing", object=str(log))
        return Report(target, findings=(head,), facts=facts)
    head = catalogue.finding(
        rule, detail=ending, object=str(log), cause=explained.findings[0].cause if explained.findings else None
    )
    return Report(target, (head, *explained.findings), explained.skipped, {**facts, **explained.facts})


def _show(lines: LogTail) -> None:
    for line in lines.new():
        sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM count at the end only: a server that runs before anybody knows it would be left behind."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _frame: came.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end a server that starts, or is attached, as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
