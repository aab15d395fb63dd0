"""Does the policy keep its promise: at no level below the better static arm by more than the interval?"""

from __future__ import annotations

from stack_builder.bench.compare import log_ratios, summaries
from stack_builder.bench.policy import Policy
from stack_builder.bench.results import Results, level_text
from stack_builder.bench.statistics import CONFIDENCE, Ratio, Says, ratio
from stack_builder.bench.tables import Table

_BESIDE = 1.25  # how far below and above a threshold to look, as a factor


def levels_around(levels: tuple[float, ...], policy: Policy) -> tuple[float, ...]:
    """Add levels just below and above each threshold: a table in the engine is most often wrong there."""
    found = set(levels)
    for row in policy.rows:
        if row.clients is not None and row.clients.value is not None:
            found |= {float(max(1, round(row.clients.value / _BESIDE))), float(round(row.clients.value * _BESIDE))}
    return tuple(sorted(found))


def judge_policy(results: Results, policy_arm: str) -> tuple[Table, list[str]]:
    """Compare the policy with the better static arm at each level.

    Args:
        results: of the static arms and the policy.
        policy_arm: name of the arm that runs the policy.

    Returns:
        a table, and a line for each level at which the policy is worse beyond doubt, and for a server that does not
        run it.
    """
    facts = next(arm.facts for arm in results.arms if arm.name == policy_arm)
    problems = []
    if facts.version is not None and not facts.adaptive:
        problems.append(
            f"{policy_arm}: the server runs static speculation; look for 'speculative_adaptive disabled' in its log"
        )
    static = [arm.name for arm in results.arms if arm.name != policy_arm]
    rows = []
    levels = sorted({run.level for run in results.runs})
    # all levels are looked at, and the better arm of each was picked by its result: a claim must hold for all at once
    confidence = 1 - (1 - CONFIDENCE) / max(len(levels), 1)
    for level in levels:
        better = max(static, key=lambda name: _rate(results, name, level))
        logs = log_ratios(results, policy_arm, level, against=better)
        if not logs:
            rows.append((level_text(level), better, "-", "-", "not measured"))
            problems.append(f"at {level_text(level)}: no round in which both {policy_arm} and {better} count")
            continue
        seen = ratio(logs, seed=results.settings.seed, confidence=confidence)
        rows.append((level_text(level), better, f"{seen.value:.3f}", _interval(seen), _verdict(seen)))
        if seen.says is Says.NOT:
            problems.append(
                f"at {level_text(level)}: {policy_arm} reaches {seen.value:.3f} of {better} ({_interval(seen)})"
            )
    heads = ("level", "better static arm", "policy / it", "interval, 95 % for all", "verdict")
    return Table("the policy against the better static arm", heads, tuple(rows)), problems


def _rate(results: Results, arm: str, level: float) -> float:
    return next((seen.throughput or 0.0 for seen in summaries(results, arm) if seen.level == level), 0.0)


def _interval(seen: Ratio) -> str:
    return "-" if seen.low is None or seen.high is None else f"{seen.low:.3f} to {seen.high:.3f}"


def _verdict(seen: Ratio) -> str:
    return {Says.PAYS: "better", Says.NOT: "worse", Says.OPEN: "equal within the interval"}[seen.says]
