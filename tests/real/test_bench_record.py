"""A bench on an H200 (docs/bench/h200/), held to account: the policy, the server's log, the promise."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from stack_builder.bench.compare import comparisons, log_ratios
from stack_builder.bench.policy import make_policy
from stack_builder.bench.results import Results, leave_out, read
from stack_builder.bench.verify import judge_policy

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "bench" / "h200"
LEVELS = {1, 2, 5, 10, 30, 70, 100, 250}


@pytest.fixture(scope="module")
def measured() -> Results:
    return read(KEPT / "pair.json")


def test_the_kept_policy_follows_from_the_kept_measurement(measured: Results) -> None:
    policy = make_policy(measured)
    assert policy.config == (KEPT / "adaptive.json").read_text()
    assert [row.steps for row in policy.rows] == [7, 2]
    assert {run.level for run in measured.runs} == LEVELS
    assert not [run for run in measured.runs if run.rejected]
    assert (measured.settings.requests, measured.settings.rounds) == (3, 6)


def test_the_server_took_the_policy_and_switched_with_the_batch() -> None:
    log = (KEPT / "adaptive-server.log").read_text()
    assert "Built adaptive runtime state steps=2" in log
    assert "Switch adaptive runtime state: steps 7 -> 2" in log
    assert "speculative_adaptive disabled" not in log
    receipts: dict[str, dict[str, Any]] = json.loads((KEPT / "receipts.json").read_text())
    rows = receipts["adaptive"]["facts"]["activity"]
    assert {row["state"] for row in rows} == {"active"}
    assert "adaptive-speculation" in {row["feature"] for row in rows}


def test_a_policy_that_switches_off_was_taken_and_switches_off(measured: Results) -> None:
    assert [row.steps for row in make_policy(leave_out(measured, ["chain2"])).rows] == [7, 0]
    log = (KEPT / "seven-or-off-server.log").read_text()
    assert "Switch adaptive runtime state: steps 7 -> 0" in log
    assert "speculative_adaptive disabled" not in log
    off = int(list(json.loads((KEPT / "seven-or-off.json").read_text()))[1])
    for run in measured.runs:
        if run.arm == "seven-or-off" and run.running and run.accept_length:
            assert run.accept_length > 2.5 if run.level < off else run.accept_length < 1.1


def test_the_policy_is_nowhere_below_the_better_arm_by_more_than_the_interval() -> None:
    results = read(KEPT / "verify.json")
    assert {run.level for run in results.runs} >= LEVELS
    assert (results.settings.requests, results.settings.rounds) == (3, 6)
    assert not [run for run in results.runs if run.rejected]
    assert next(arm for arm in results.arms if arm.name == "adaptive").facts.adaptive
    table, problems = judge_policy(results, "adaptive")
    assert problems == []
    shown = (KEPT / "README.md").read_text()
    for level, better, value, interval, _ in table.rows:
        if level in ("1", "10", "30", "70", "100", "250", "all"):
            assert f"| {level} | {better} | {value} | {interval} |" in shown


def test_the_policy_runs_as_fast_as_the_arm_that_it_follows() -> None:
    """By the geometric mean over the levels at which it does what chain2 does, and over those where it is chain7."""
    results = read(KEPT / "verify.json")
    for arm, levels in (("chain7", (1, 2, 5, 9, 10)), ("chain2", (14, 30, 70, 100, 250))):
        logs = [log for level in levels for log in log_ratios(results, "adaptive", level, against=arm)]
        assert len(logs) == 30
        assert exp(fmean(logs)) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("name", "page"), [("pair.json", "measured.html"), ("verify.json", "verified.html")])
def test_the_kept_page_shows_the_ratios_of_the_data(name: str, page: str) -> None:
    text = (KEPT / page).read_text()
    for comparison in comparisons(read(KEPT / name)):
        for seen in comparison.ratios.values():
            assert f"{seen.value:.3f}" in text
