"""Each guard, with what must trip it and what must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stack_builder.bench.clocks import Clock, throttles
from stack_builder.bench.guards import Seen, capped, incomparable, judge, notes
from stack_builder.bench.metrics import Figures
from stack_builder.bench.results import ArmResult
from stack_builder.bench.server import ServerFacts, Watch
from stack_builder.diagnose import catalogue

GOOD = Figures(4, 4, {}, (), 1.0, 40, 256, 256.0, 1.0, 256.0, None, None, None, None, None, None)
EAGLE = ServerFacts("0.5.23", 64, {"speculative_algorithm": "EAGLE3"})
SEEN = Seen(8, 64, GOOD, EAGLE, Watch([8] * 6, [0] * 6, 0.0, 2.5, 256.0))


def rules(seen: Seen) -> list[str]:
    return [reason.rule for reason in judge(seen)]


def test_a_clean_run_counts() -> None:
    assert rules(SEEN) == []
    assert notes(SEEN) == ()


@pytest.mark.parametrize(
    ("seen", "rule"),
    [
        (replace(SEEN, figures=replace(GOOD, requests=5, errors={"reset": 1})), "BENCH001"),
        (replace(SEEN, figures=replace(GOOD, completed=0, tokens=0)), "BENCH001"),
        (replace(SEEN, watch=replace(SEEN.watch, retracted=2.0)), "BENCH002"),
        (replace(SEEN, watch=replace(SEEN.watch, accept_length=1.02)), "BENCH004"),
        (replace(SEEN, figures=replace(GOOD, accept_length=1.0)), "BENCH004"),
        (replace(SEEN, clocks=(Clock(0, "0", 1200, 0x20),)), "BENCH005"),
        (replace(SEEN, watch=replace(SEEN.watch, waiting=[3] * 6)), "BENCH006"),
        (replace(SEEN, tokens=128), "BENCH010"),
    ],
)
def test_a_run_is_rejected(seen: Seen, rule: str) -> None:
    assert rules(seen) == [rule]


def test_an_interrupted_run_of_nothing_is_not_called_a_failure() -> None:
    nothing = replace(GOOD, requests=0, completed=0, tokens=0)
    assert rules(replace(SEEN, figures=nothing)) == ["BENCH001"]
    assert rules(replace(SEEN, figures=nothing, interrupted=True)) == []


def test_adaptive_speculation_may_be_off() -> None:
    facts = replace(EAGLE, arguments={**EAGLE.arguments, "speculative_adaptive": True})
    assert rules(replace(SEEN, facts=facts, watch=replace(SEEN.watch, accept_length=1.0))) == []


def test_a_queue_above_the_limit_is_a_note() -> None:
    seen = replace(SEEN, clients=100, watch=replace(SEEN.watch, waiting=[36] * 6))
    assert rules(seen) == []
    assert [note.rule for note in notes(seen)] == ["BENCH007"]


def test_what_could_not_be_looked_at_is_said() -> None:
    seen = replace(SEEN, facts=replace(EAGLE, limit=None), watch=Watch())
    assert [note.rule for note in notes(seen)] == ["BENCH008"]
    assert notes(seen)[0].detail.count(",") == 2
    busy = replace(SEEN, watch=replace(SEEN.watch, tokens=300.0))
    assert [note.rule for note in notes(busy)] == ["BENCH013"]
    assert notes(replace(busy, figures=replace(GOOD, errors={"cancelled": 1}))) == ()
    assert [note.rule for note in notes(replace(SEEN, cpu=0.95))] == ["BENCH009"]
    lucky = replace(SEEN, figures=replace(GOOD, seconds=2.07, full_seconds=0.63))
    assert [(note.rule, note.detail) for note in notes(lucky)] == [
        ("BENCH014", "every client was busy for 0.63 s of 2.07 s")
    ]
    assert notes(replace(lucky, clients=None)) == ()  # an open loop has no such time
    assert [note.rule for note in notes(replace(SEEN, clocks=(Clock(0, "0", 1500, 0x4),)))] == ["BENCH011"]


def test_reasons_of_nvml() -> None:
    assert throttles((Clock(0, "0", 1500, 0x1 | 0x4),)) == ()
    assert throttles((Clock(0, "0", 1500, 0x40), Clock(1, "0", 900, 0x80))) == (
        "hardware thermal slowdown",
        "power brake",
    )


def test_arms_under_different_limits_part_above_the_smaller() -> None:
    arms = (ArmResult("base", "", ServerFacts("0.5.9", 2048)), ArmResult("eagle", "", ServerFacts("0.5.9", 48)))
    assert incomparable(arms, "eagle", 48) == ()
    assert [reason.rule for reason in incomparable(arms, "eagle", 70)] == ["BENCH003"]
    assert incomparable(arms, "base", 70) == ()


def test_the_plateau_of_the_founding_report_is_named() -> None:
    table = {1: 77.5, 2: 125.1, 5: 183.2, 10: 239.6, 30: 299.5, 70: 337.7, 100: 338.8, 250: 340.9}
    text = capped(None, sorted(table), table)
    assert text is not None
    assert "cap of 48 running requests" in text
    growing = {**table, 250: 500.0}
    assert capped(None, sorted(growing), growing) is None
    assert capped(256, sorted(table), table) is None


@pytest.mark.parametrize("number", range(1, 14))
def test_every_guard_is_in_the_catalogue(number: int) -> None:
    assert catalogue.rule(f"BENCH{number:03}").why
