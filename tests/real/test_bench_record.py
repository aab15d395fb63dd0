"""A bench on an H200 (docs/bench/h200/), held to account: the policy, the server's log, the promise."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from stack_builder.bench.compare import comparisons
from stack_builder.bench.policy import make_policy
from stack_builder.bench.results import Results, read
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
    assert any("chain7 was not shown to be better than chain2" in note for note in policy.notes)
    assert {run.level for run in measured.runs} == LEVELS


def test_the_server_took_the_policy_and_switched_with_the_batch() -> None:
    log = (KEPT / "adaptive-server.log").read_text()
    assert "Built adaptive runtime state steps=2" in log
    assert "Switch adaptive runtime state: steps 7 -> 2" in log
    assert "speculative_adaptive disabled" not in log
    receipts: dict[str, dict[str, Any]] = json.loads((KEPT / "receipts.json").read_text())
    for run in ("verify", "verify-two-requests"):
        assert [row["state"] for row in receipts[run]["adaptive"]["facts"]["activity"]] == ["active"]


@pytest.mark.parametrize("name", ["verify.json", "verify-two-requests.json"])
def test_the_policy_is_nowhere_below_the_better_arm_by_more_than_the_interval(name: str) -> None:
    results = read(KEPT / name)
    assert {run.level for run in results.runs} >= LEVELS
    assert not [run for run in results.runs if run.rejected]
    assert next(arm for arm in results.arms if arm.name == "adaptive").facts.adaptive
    assert judge_policy(results, "adaptive")[1] == []


def test_medians_at_high_load_equal_those_of_the_arm_that_it_runs() -> None:
    """The means there are spoilt by single rounds; the documentation says so, and what the medians say."""
    runs = read(KEPT / "verify.json").runs
    for level in (70, 100, 250):
        rates = {
            arm: median(run.figures.throughput for run in runs if (run.arm, run.level) == (arm, level))
            for arm in ("adaptive", "chain2")
        }
        assert rates["adaptive"] == pytest.approx(rates["chain2"], rel=0.1)


@pytest.mark.parametrize(("name", "page"), [("pair.json", "measured.html"), ("verify.json", "verified.html")])
def test_the_kept_page_shows_the_ratios_of_the_data(name: str, page: str) -> None:
    text = (KEPT / page).read_text()
    for comparison in comparisons(read(KEPT / name)):
        for seen in comparison.ratios.values():
            assert f"{seen.value:.3f}" in text
