"""What is kept of one run, and said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from stack_builder.bench import guards
from stack_builder.bench.clocks import Clock
from stack_builder.bench.results import Reason, RunResult


def of_run(seen: guards.Seen, *, arm: str, level: float, number: int, order: int, at: datetime) -> RunResult:
    """Judge one run.

    Args:
        seen: the run from all sides.
        arm: whose it is.
        level: clients, or requests per second.
        number: of its round, from 0.
        order: its place among all runs of the bench, from 0.
        at: when it began, in UTC.
    """
    return RunResult(
        arm=arm,
        level=level,
        round=number,
        order=order,
        at=iso(at),
        figures=seen.figures,
        running=seen.watch.mean_running,
        waiting=sum(seen.watch.waiting) / len(seen.watch.waiting) if seen.watch.waiting else None,
        retracted=seen.watch.retracted,
        accept_length=seen.accept_length,
        server_tokens=seen.watch.tokens,
        mhz=_mean_clock(seen.clocks),
        rejected=guards.judge(seen),
        notes=guards.notes(seen),
    )


def cut(result: RunResult, *, alone: bool) -> RunResult:
    """Mark a run that Ctrl-C ended: it spoils a pair's round, but a server alone may be judged by what it did."""
    done, sent = result.figures.completed, result.figures.requests
    reason = Reason("BENCH012", f"{done} of {sent} requests were complete")
    if alone and done:
        return replace(result, notes=(*result.notes, reason))
    return replace(result, rejected=(*result.rejected, reason))


def _mean_clock(clocks: Sequence[Clock]) -> float | None:
    return sum(clock.mhz for clock in clocks) / len(clocks) if clocks else None


def line(label: str, result: RunResult) -> str:
    """What the user reads while runs come in."""
    if result.rejected:
        return f"{label}: rejected: {'; '.join(reason.detail for reason in result.rejected)}"
    shown = [f"{result.figures.full_throughput:.1f} tok/s"]
    if result.figures.ttft and result.figures.tpot:
        shown.append(f"TTFT {result.figures.ttft.p50:.0f} ms, TPOT {result.figures.tpot.p50:.2f} ms")
    if result.running is not None:
        shown.append(f"batch {result.running:.1f}")
    if result.accept_length is not None:
        shown.append(f"accept length {result.accept_length:.2f}")
    return f"{label}: {', '.join(shown)}"


def iso(time_: datetime) -> str:
    """Seconds, in UTC."""
    return time_.strftime("%Y-%m-%dT%H:%M:%SZ")
