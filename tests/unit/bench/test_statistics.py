"""Intervals and crossovers against tables, stated laws, and the figures of the founding report."""

from __future__ import annotations

import math
import random
from statistics import correlation

import pytest

from stack_builder.bench.statistics import Says, crossover, monotone, ratio, t_quantile

LEVELS = (1, 2, 5, 10, 30, 70, 100, 250)

# two-sided 95 % points of Student's t, from the usual printed table
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 7: 2.365, 9: 2.262, 30: 2.042}


@pytest.mark.parametrize(("freedom", "value"), TABLE.items())
def test_t_quantile_is_the_printed_one(freedom: int, value: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=0.0006)


@pytest.mark.parametrize("rounds", [2, 3, 4, 6])
def test_the_interval_of_a_ratio_covers_the_truth_as_often_as_it_says(rounds: int) -> None:
    covered = 0
    for seed in range(100):
        chance = random.Random(seed)
        seen = ratio([chance.gauss(0.1, 0.05) for _ in range(rounds)], seed=seed)
        assert seen.low is not None
        assert seen.high is not None
        covered += seen.low <= math.exp(0.1) <= seen.high
    assert covered >= 89  # 95 % of 100; two and a half standard deviations below


def test_one_round_has_no_interval() -> None:
    seen = ratio([0.3])
    assert (seen.low, seen.high, seen.says) == (None, None, Says.OPEN)


def test_monotone_pools_what_rises() -> None:
    assert monotone([3, 1, 2, 0], [1, 1, 1, 1]) == [3, 1.5, 1.5, 0]
    assert monotone([1, 4], [3, 1]) == [1.75, 1.75]


def _levels(chance: random.Random, truth: float, noise: float, rounds: int) -> dict[int, list[float]]:
    """Log ratios of two saturating curves that meet at ``truth`` clients."""
    knee, gain = 60.0, 1.8
    other = truth / (gain * (1 + truth / knee) - 1)
    mean = {n: math.log(gain * (1 + n / knee) / (1 + n / other)) for n in LEVELS}
    return {n: [mean[n] + chance.gauss(0, noise) - chance.gauss(0, noise) for _ in range(rounds)] for n in LEVELS}


def test_a_planted_crossover_is_covered_in_36_of_40_trials() -> None:
    covered, widths = 0, []
    for seed in range(40):
        chance = random.Random(seed)
        truth = math.exp(chance.uniform(math.log(8), math.log(120)))
        found = crossover(_levels(chance, truth, noise=0.02, rounds=6), seed=seed)
        if found.low is not None and found.high is not None:
            covered += found.low <= truth <= found.high
            widths.append(found.high / found.low)
    assert covered >= 36
    assert sorted(widths)[len(widths) // 2] < 1.5  # and not by being too wide to be of use


def test_curves_that_touch_give_no_number() -> None:
    numbers = 0
    for seed in range(40):
        chance = random.Random(1000 + seed)
        mean = {n: max(0.0, 0.5 * (1 - math.log(n) / math.log(30))) for n in LEVELS}
        found = crossover({n: [mean[n] + chance.gauss(0, 0.03) for _ in range(6)] for n in LEVELS}, seed=seed)
        numbers += found.value is not None
        assert (found.value is None) == (found.reason is not None)
    assert numbers <= 2  # 5 % of 40


# ten runs with the mean (96.1), the range (87.5 to 103.5) and, for normal noise, the spread that belongs to it (range /
# 3.08) of the founding report; its baseline has a mean of 92.6
EAGLE = (87.5, 89.8, 92.6, 94.6, 95.7, 96.9, 98.1, 99.9, 102.4, 103.5)


def test_the_founding_reports_difference_is_inconclusive() -> None:
    assert sum(EAGLE) / 10 == pytest.approx(96.1)
    tried = 0
    for seed in range(300):
        baseline = [value * 92.6 / 96.1 for value in random.Random(seed).sample(EAGLE, 10)]
        if abs(correlation(EAGLE, baseline)) > 0.1:  # which runs were neighbours is not told: they are independent
            continue
        seen = ratio([math.log(a / b) for a, b in zip(EAGLE, baseline, strict=True)], seed=seed)
        assert seen.value == pytest.approx(1.038, abs=0.002)
        assert seen.says is Says.OPEN
        tried += 1
    assert tried > 20


def test_single_runs_a_level_give_no_crossover() -> None:
    """The founding report's concurrency table has one run at each level."""
    found = crossover({n: [0.1 if n < 20 else -0.1] for n in LEVELS})
    assert found.value is None
    assert found.reason is not None
    assert "single round" in found.reason


def test_noise_of_the_founding_report_in_three_rounds_is_inconclusive() -> None:
    numbers = 0
    for seed in range(20):
        chance = random.Random(seed)
        mean = {n: math.log(1.038) - 0.02 * number for number, n in enumerate(LEVELS)}
        found = crossover({n: [mean[n] + chance.gauss(0, 0.07) for _ in range(3)] for n in LEVELS}, seed=seed)
        numbers += found.value is not None
    assert numbers <= 1


def test_two_crossings_are_not_one() -> None:
    found = crossover(
        {1: [0.3, 0.31, 0.29], 10: [-0.3, -0.31, -0.29], 100: [0.3, 0.31, 0.29], 200: [-0.3, -0.31, -0.29]}
    )
    assert found.value is None
    assert "more than one crossing" in str(found.reason)
