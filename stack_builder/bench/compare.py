"""Arms against the baseline: ratio per level, crossover in clients and in running batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from stack_builder.bench.guards import capped
from stack_builder.bench.results import Results, RunResult
from stack_builder.bench.statistics import Crossover, Ratio, crossover, ratio


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """One arm at one level, over its valid runs.

    Attributes:
        level: clients, or requests per second.
        runs: valid ones.
        rejected: others.
        throughput: mean output tokens per second at full load; None without a valid run.
        low, high: smallest and largest of the runs.
        running: mean running batch; None if unknown.
        accept_length: mean; None if unknown.
        ttft, tpot, e2e: median over runs' p50, milliseconds.
        goodput: mean share that met the objective.
    """

    level: float
    runs: int
    rejected: int
    throughput: float | None
    low: float | None = None
    high: float | None = None
    running: float | None = None
    accept_length: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    goodput: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against the baseline.

    Attributes:
        arm: its name.
        baseline: the first arm's name.
        measure: what the ratio is of.
        ratios: by level; levels without a common round are missing.
        crossover: in clients.
        batch: the same in running batch size of the arm; None if the server does not tell it.
    """

    arm: str
    baseline: str
    measure: str
    ratios: dict[float, Ratio]
    crossover: Crossover
    batch: Crossover | None


def log_ratios(results: Results, arm: str, level: float, *, against: str | None = None) -> list[float]:
    """Log ratio of each round in which both the arm and the other, usually the baseline, have a valid run."""
    return list(log_ratios_by_round(results, arm, level, against=against or results.arms[0].name).values())


def log_ratios_by_round(results: Results, arm: str, level: float, *, against: str) -> dict[int, float]:
    """The same by the number of the round, ascending."""
    logs = {}
    for number in sorted({run.round for run in results.runs if run.level == level}):
        pair = [_valid(results.runs, name, level, number) for name in (arm, against)]
        values = [None if run is None else _measured(run, open_loop=results.settings.open_loop) for run in pair]
        if values[0] and values[1]:
            logs[number] = math.log(values[0] / values[1])
    return logs


def comparisons(results: Results) -> list[Comparison]:
    """Compare every arm with the first."""
    return [compare(results, arm.name, results.arms[0].name) for arm in results.arms[1:]]


def compare(results: Results, arm: str, against: str, *, proven: bool = True) -> Comparison:
    """Compare two arms; ``proven`` as in :func:`stack_builder.bench.statistics.crossover`."""
    levels = sorted({run.level for run in results.runs})
    logs = {level: found for level in levels if (found := log_ratios(results, arm, level, against=against))}
    seed = results.settings.seed
    cross = Crossover(reason="no level has a round in which both arms count")
    if results.settings.open_loop:
        cross = Crossover(reason="an open loop has no crossover in clients")
    elif logs:
        cross = crossover({round(level): found for level, found in logs.items()}, seed=seed, proven=proven)
    return Comparison(
        arm=arm,
        baseline=against,
        measure="1 / mean latency" if results.settings.open_loop else "output tok/s at full load",
        ratios={level: ratio(found, seed=seed) for level, found in logs.items()},
        crossover=cross,
        batch=_in_batch(results, arm, cross),
    )


def _in_batch(results: Results, arm: str, cross: Crossover) -> Crossover | None:
    points = [(level.level, level.running) for level in summaries(results, arm) if level.running is not None]
    if cross.value is None or cross.low is None or cross.high is None or len(points) < 2:
        return None
    low, value, high = (_interpolate(points, clients) for clients in (cross.low, cross.value, cross.high))
    return Crossover(value, low, high)


def _interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Piecewise linear through ascending points, held at the ends."""
    if x <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if x <= right:
            return low + (high - low) * (x - left) / (right - left)
    return points[-1][1]


def summaries(results: Results, arm: str) -> list[LevelSummary]:
    """One arm's levels, ascending."""
    levels = sorted({run.level for run in results.runs if run.arm == arm})
    return [_summary([run for run in results.runs if run.arm == arm and run.level == level], level) for level in levels]


def _summary(runs: Sequence[RunResult], level: float) -> LevelSummary:
    valid = [run for run in runs if run.valid]
    rates = [run.figures.full_throughput for run in valid]
    if not valid:
        return LevelSummary(level, 0, len(runs), None)
    return LevelSummary(
        level=level,
        runs=len(valid),
        rejected=len(runs) - len(valid),
        throughput=fmean(rates),
        low=min(rates),
        high=max(rates),
        running=_mean([run.running for run in valid]),
        accept_length=_mean([run.accept_length for run in valid]),
        ttft=_mean([run.figures.ttft.p50 if run.figures.ttft else None for run in valid]),
        tpot=_mean([run.figures.tpot.p50 if run.figures.tpot else None for run in valid]),
        e2e=_mean([run.figures.e2e.p50 if run.figures.e2e else None for run in valid]),
        goodput=_mean([run.figures.goodput.share if run.figures.goodput else None for run in valid]),
    )


def throughput(results: Results, arm: str, level: float) -> float:
    """Mean output tokens per second at full load over an arm's valid runs at one level; 0 without one."""
    rates = [run.figures.full_throughput for run in results.runs if (run.arm, run.level) == (arm, level) and run.valid]
    return fmean(rates) if rates else 0.0


def plateau(results: Results, arm: str) -> str | None:
    """Name the likely cause of a flat curve (:func:`stack_builder.bench.guards.capped`)."""
    rates = {level.level: level.throughput for level in summaries(results, arm) if level.throughput}
    limit = next(found.facts.limit for found in results.arms if found.name == arm)
    return None if results.settings.open_loop else capped(limit, sorted(rates), rates)


def _valid(runs: Sequence[RunResult], arm: str, level: float, number: int) -> RunResult | None:
    found = (run for run in runs if (run.arm, run.level, run.round) == (arm, level, number) and run.valid)
    return next(found, None)


def _measured(run: RunResult, *, open_loop: bool) -> float | None:
    if not open_loop:
        return run.figures.full_throughput or None
    return 1 / run.figures.e2e.mean if run.figures.e2e else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
