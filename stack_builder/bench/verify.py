"""Does the policy keep its promise: at no level below the better static arm by more than the interval?"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from stack_builder.bench.compare import log_ratios_by_round, throughput
from stack_builder.bench.policy import Policy
from stack_builder.bench.results import Results, level_text
from stack_builder.bench.statistics import CONFIDENCE, Ratio, Says, ratio
from stack_builder.bench.tables import Table, interval_text

TOLERANCE = 0.05  # a loss that need not be excluded before a level counts as settled
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
        run it. The last row is the geometric mean over all levels, whose noise is the least.
    """
    facts = next(arm.facts for arm in results.arms if arm.name == policy_arm)
    problems = []
    if facts.version is not None and not facts.adaptive:
        problems.append(
            f"{policy_arm}: the server runs static speculation; look for 'speculative_adaptive disabled' in its log"
        )
    rows = []
    for level in sorted({run.level for run in results.runs}):
        better, seen = _against_better(results, policy_arm, level)
        if seen is None:
            rows.append((level_text(level), better, "-", "-", "not measured"))
            problems.append(f"at {level_text(level)}: no round in which both {policy_arm} and {better} count")
            continue
        rows.append((level_text(level), better, f"{seen.value:.3f}", interval_text(seen), _verdict(seen)))
        if seen.says is Says.NOT:
            problems.append(
                f"at {level_text(level)}: {policy_arm} reaches {seen.value:.3f} of {better} ({interval_text(seen)})"
            )
    whole = _over_all(results, policy_arm)
    if whole is not None:
        rows.append(("all", "of each", f"{whole.value:.3f}", interval_text(whole), _verdict(whole)))
        if whole.says is Says.NOT:
            problems.append(
                f"over all levels: {policy_arm} reaches {whole.value:.3f} of the better ({interval_text(whole)})"
            )
    heads = ("level", "better static arm", "policy / it", "interval, 95 % for all", "verdict")
    return Table("the policy against the better static arm", heads, tuple(rows)), problems


def unsettled(policy_arm: str) -> Callable[[Results, float], bool]:
    """Whether a level needs more rounds: the policy may lose more than :data:`TOLERANCE` there, or may not.

    That two arms are equal can only be told up to a bound; a policy that does what it should equals one of the others
    at every level, so intervals that hold 1 are what is hoped for, and no reason to go on.
    """

    def wanting(results: Results, level: float) -> bool:
        seen = _against_better(results, policy_arm, level)[1]
        if seen is None or seen.low is None:
            return True
        return seen.says is not Says.NOT and seen.low < 1 - TOLERANCE

    return wanting


def _against_better(results: Results, policy_arm: str, level: float) -> tuple[str, Ratio | None]:
    """The better static arm at a level, and the policy's throughput over its; None without a common round."""
    better, logs = _logs(results, policy_arm, level)
    return better, _ratio(results, list(logs.values())) if logs else None


def _over_all(results: Results, policy_arm: str) -> Ratio | None:
    """The policy over the better arm of each level: mean over the levels of each round that all of them have."""
    found = [_logs(results, policy_arm, level)[1] for level in {run.level for run in results.runs}]
    rounds = set.intersection(*(set(logs) for logs in found)) if len(found) > 1 else set()
    means = [fmean(logs[number] for logs in found) for number in sorted(rounds)]
    return _ratio(results, means) if means else None


def _logs(results: Results, policy_arm: str, level: float) -> tuple[str, dict[int, float]]:
    static = [arm.name for arm in results.arms if arm.name != policy_arm]
    better = max(static, key=lambda name: throughput(results, name, level))
    return better, log_ratios_by_round(results, policy_arm, level, against=better)


def _ratio(results: Results, logs: list[float]) -> Ratio:
    """All levels are looked at, and then their mean, and the better arm was picked by its result: all at once."""
    levels = len({run.level for run in results.runs})
    confidence = 1 - (1 - CONFIDENCE) / (levels + 1 if levels > 1 else 1)
    return ratio(logs, seed=results.settings.seed, confidence=confidence)


def _verdict(seen: Ratio) -> str:
    if seen.says is Says.OPEN:
        return "open" if seen.low is None else f"equal, or up to {1 - seen.low:.0%} below"
    return "better" if seen.says is Says.PAYS else "worse"
