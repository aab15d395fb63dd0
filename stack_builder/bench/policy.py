"""From measured arms to SGLang's own adaptive configuration.

The walk: at the lowest level take the best arm; of all arms with fewer steps (no speculation counts as 0), go on with
the one that overtakes it first, at the crossover that :mod:`stack_builder.bench.statistics` supports; repeat. Each arm
on the way becomes a row of the configuration, keyed by the running batch size at which it begins to be best. What no
interval supports becomes no row. Of two arms that speculate, the one with fewer steps must be proven better somewhere
above its row, the other need not be below it: there, either is as good as the measurement can tell. Against the
baseline, both are asked for.

SGLang pads the running batch to the next CUDA graph's before it looks for the largest key that is not above it
(``AdaptiveSpeculativeParams._route``), so a switch happens up to one graph size early.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Literal

from packaging.version import InvalidVersion, Version

from stack_builder import resources
from stack_builder.bench.compare import Comparison, compare, throughput
from stack_builder.bench.results import ArmResult, Results
from stack_builder.bench.statistics import Crossover, Says
from stack_builder.errors import UsageError

_ALGORITHMS = ("EAGLE", "EAGLE3")


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What a release offers; a row of ``checks/bench/adaptive.toml``."""

    since: Version
    mechanism: Literal["none", "acceptance", "batch"]
    lowest_step: int = 0
    refuses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """From a batch size on, so many steps.

    Attributes:
        batch: smallest running batch.
        steps: draft steps; 0 is no speculation.
        arm: that was measured with them.
        clients: crossover in clients; None for the first row.
        proven: whether the row before was shown to be better below the crossover, and not only no worse.
    """

    batch: int
    steps: int
    arm: str
    clients: Crossover | None = None
    proven: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """What follows from a bench for one release.

    Attributes:
        version: of SGLang.
        rows: ascending; a single row is a static choice.
        config: for ``--speculative-adaptive-config``; None where the release has no mechanism, or none is needed.
        arguments: launch arguments, without the path of the configuration and the model's.
        launches: for a release without mechanism: arguments below and above the threshold.
        notes: what the user must know.
    """

    version: str
    rows: tuple[Row, ...]
    config: str | None
    arguments: tuple[str, ...]
    launches: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[str, ...] = ()


@cache
def mechanisms() -> tuple[Mechanism, ...]:
    """Rows of ``checks/bench/adaptive.toml``, oldest first."""
    rows = resources.table("bench", "adaptive.toml")["release"]
    return tuple(Mechanism(**{**row, "since": Version(row["since"])}) for row in rows)


def mechanism(version: str) -> Mechanism:
    """Give what a release offers.

    Raises:
        UsageError: not a version, or older than what is known.
    """
    try:
        parsed = Version(version)
    except InvalidVersion as error:
        raise UsageError("is not a version", where=version, fix="give SGLang's version, such as 0.5.23") from error
    known = [row for row in mechanisms() if row.since <= parsed]
    if not known:
        raise UsageError(f"nothing is known before SGLang {mechanisms()[0].since}", where=version)
    return known[-1]


def make_policy(results: Results, version: str | None = None) -> Policy:
    """Turn results into a policy.

    Args:
        results: of arms with and without speculation.
        version: of SGLang; default: what the speculative arms report.

    Raises:
        UsageError: no speculative arm, unknown version, nothing supported by an interval, or arguments with which
            that release would fall back to static speculation in silence.
    """
    steps = _steps(results.arms)
    if not any(steps.values()):
        raise UsageError(
            "no arm speculates with a known number of steps", fix="bench an EAGLE-3 arm beside the baseline"
        )
    measured = next((arm.facts.version for arm in results.arms if steps.get(arm.name)), None)
    release = version or measured
    if release is None:
        raise UsageError("the servers did not tell their version", where="--sglang-version", fix="give it")
    offered = mechanism(release)
    rows, notes = _walk(results, steps), []
    if measured is not None and measured != release:
        notes.append(f"measured with SGLang {measured}; where speculation pays may differ in {release}")
    usable = {name: count for name, count in steps.items() if count >= offered.lowest_step}
    if rows[-1].steps < offered.lowest_step and len(rows) > 1 and len(usable) > 1:
        off = rows[-1]
        rows = _walk(results, usable)
        notes.append(
            f"SGLang {release} cannot stop drafting; from a batch of {off.batch} a server without it is faster"
        )
        if len(rows) == 1:
            rows = (*rows, off)
    limit = _limit(results, rows)
    if len(rows) == 1:
        return _constant(results, steps, release, rows[0], limit, notes)
    if offered.mechanism != "batch" or rows[-1].steps < offered.lowest_step:
        return _two_servers(release, rows, limit, offered, notes)
    speculating = next(arm for arm in results.arms if arm.name == rows[0].arm)
    _refuse(speculating, offered, release)
    return _adaptive(release, rows, limit, speculating, results, notes)


def _steps(arms: Sequence[ArmResult]) -> dict[str, int]:
    """Draft steps by arm; adaptive arms have no one number and are left out."""
    found: dict[str, int] = {}
    for arm in arms:
        count = arm.facts.arguments.get("speculative_num_steps")
        if arm.facts.adaptive:
            continue
        if not arm.facts.speculates:
            found[arm.name] = 0
        elif isinstance(count, int) and count > 0:
            found[arm.name] = count
    return found


def _walk(results: Results, steps: Mapping[str, int]) -> tuple[Row, ...]:
    lowest = min(run.level for run in results.runs) if results.runs else 0.0
    rates = {name: throughput(results, name, lowest) for name in steps}
    if not any(rates.values()):
        raise UsageError("no valid run at the lowest level", fix="look at the rejected runs: stackb history")
    current = max(rates, key=lambda name: rates[name])
    rows = [Row(1, steps[current], current)]
    while fewer := [name for name in steps if steps[name] < steps[current]]:
        found = [compare(results, current, name) for name in fewer]
        crossings = [(compared, True) for compared in found if compared.crossover.value is not None]
        crossings += [
            (weaker, False)
            for compared in found
            if compared.crossover.value is None and steps[compared.baseline] > 0
            if (weaker := compare(results, current, compared.baseline, proven=False)).crossover.value is not None
        ]
        if not crossings:
            _check_static(found, current)
            break
        first, proven = min(crossings, key=lambda crossing: crossing[0].crossover.value or math.inf)
        current = first.baseline
        if first.crossover.value == lowest:  # never better: the arm with fewer steps takes its row
            rows[-1] = replace(rows[-1], steps=steps[current], arm=current)
        else:
            rows.append(Row(_batch(first, rows[-1].batch), steps[current], current, first.crossover, proven))
    return tuple(rows)


def _check_static(found: Sequence[Comparison], current: str) -> None:
    """An arm may stay best to the end only if no level says otherwise."""
    for compared in found:
        worse = [level for level, seen in compared.ratios.items() if seen.says is Says.NOT]
        sure = any(seen.says is Says.PAYS for seen in compared.ratios.values())
        if worse or not sure:
            raise UsageError(
                f"{current} against {compared.baseline}: no threshold is supported: {compared.crossover.reason}",
                fix="bench with more --repeats, or levels nearer to where the curves meet",
            )


def _batch(compared: Comparison, above: int) -> int:
    """The key: the running batch at the crossover, or the clients where the server did not tell its batch."""
    cross = compared.batch or compared.crossover
    assert cross.value is not None
    return max(math.ceil(cross.value), above + 1)


def _limit(results: Results, rows: Sequence[Row]) -> int:
    """Enough for every level and for the last row: EAGLE's own 48 would leave rows above it unreachable."""
    levels = [math.ceil(run.level) for run in results.runs]
    known = [arm.facts.limit for arm in results.arms if arm.facts.limit is not None]
    return max(min(known, default=0), rows[-1].batch, *levels) if not results.settings.open_loop else rows[-1].batch


def _refuse(arm: ArmResult, offered: Mechanism, release: str) -> None:
    """Stop where that release would print one warning and speculate statically."""
    arguments = arm.facts.arguments
    if arguments.get("speculative_algorithm") not in _ALGORITHMS:
        reason = f"speculative_algorithm {arguments.get('speculative_algorithm')}"
    elif arguments.get("speculative_eagle_topk") not in (None, 1):
        reason = f"speculative_eagle_topk {arguments.get('speculative_eagle_topk')}"
    else:
        reason = next((what for name, what in offered.refuses.items() if arguments.get(name) is True), "")
    if reason:
        raise UsageError(
            f"SGLang {release} would fall back to static speculation without an error: {reason}",
            where=f"arm {arm.name}",
            fix="bench an arm with --speculative-eagle-topk 1 and without that option",
        )


def _adaptive(
    release: str, rows: tuple[Row, ...], limit: int, arm: ArmResult, results: Results, notes: list[str]
) -> Policy:
    """One server that switches by itself. A single candidate in each row leaves nothing to its acceptance average."""
    config = {str(row.batch): {"candidate_steps": [row.steps]} for row in rows}
    own = arm.facts.limit
    if own is not None and own < rows[-1].batch:
        notes.append(f"with --max-running-requests {own} the row of batch {rows[-1].batch} would never be reached")
    if not any(run.running for run in results.runs):
        notes.append("the servers did not tell their batch size; keys are clients, which a batch cannot exceed")
    notes += [
        f"below a batch of {row.batch}, {before.arm} was not shown to be better than {row.arm}, only no worse"
        for before, row in pairwise(rows)
        if not row.proven
    ]
    if rows[-1].steps == 0:
        notes.append(
            "a server without drafts still keeps the draft's cache warm; SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1 "
            "saves that, for a cold draft when the load falls; even so one H200 gave up to 8 % less than the baseline "
            "(docs/bench/h200): check with --verify"
        )
    return Policy(
        version=release,
        rows=rows,
        config=json.dumps(config, indent=2) + "\n",
        arguments=("--speculative-adaptive", *_static_arguments(rows[0].steps, limit)),
        notes=tuple(notes),
    )


def _constant(
    results: Results, steps: Mapping[str, int], release: str, row: Row, limit: int, notes: Sequence[str]
) -> Policy:
    """No level supports another arm than the one that is best at the lowest; says where that is all one knows."""
    if row.steps == 0:
        note = "speculation never pays here: serve without it"
    else:
        against = [compare(results, row.arm, name) for name, count in steps.items() if count < row.steps]
        open_levels = sorted(
            {f"{level:g}" for found in against for level, ratio in found.ratios.items() if ratio.says is Says.OPEN},
            key=float,
        )
        note = "speculation pays at every level measured: leave it on"
        if open_levels:
            note = f"no level was found where speculation doesn't pay; open at {', '.join(open_levels)} clients"
    return Policy(release, (row,), None, _static_arguments(row.steps, limit), notes=(*notes, note))


def _two_servers(release: str, rows: tuple[Row, ...], limit: int, offered: Mechanism, notes: Sequence[str]) -> Policy:
    """A launch line on each side of a threshold, for a release that cannot switch by itself."""
    has = {"none": "no adaptive speculation", "acceptance": "adaptive speculation by acceptance only, not by load"}
    what = has.get(offered.mechanism, "adaptive speculation that cannot stop drafting")
    newer = next(row.since for row in mechanisms() if row.mechanism == "batch" and row.lowest_step == 0)
    advice = f"SGLang {release} has {what}: run one server a line and route by load, or move to {newer} or newer"
    launches = tuple((f"from a batch of {row.batch}", _static_arguments(row.steps, limit)) for row in rows)
    return Policy(release, rows, None, (), launches, (*notes, advice))


def _static_arguments(steps: int, limit: int) -> tuple[str, ...]:
    bound = ("--max-running-requests", str(limit))
    if steps == 0:
        return bound
    return (
        *("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", str(steps)),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(steps + 1)),
        *bound,
    )
