"""How sure a ratio is, and a crossover: bootstrap over runs, never over requests.

Requests of one run share its batches, its clocks and its moment; treating them as independent gives intervals far too
narrow. The unit is the round: one run of each arm, side by side, whose log ratio is one observation. With the few
rounds there are, a plain percentile bootstrap is too narrow as well, so its spread is widened by the factor that makes
it a t interval where the noise is normal (T. Hesterberg, "What Teachers Should Know About the Bootstrap", 2015,
section 4: narrowness bias and the expanded percentile interval).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from statistics import NormalDist, fmean

CONFIDENCE = 0.95
REPLICATES = 2000
_MIN_ROUNDS = 2
_KEPT = 4096  # intervals that are not computed anew: a page or a report shows each in several places


class Says(StrEnum):
    """The verdict on one level."""

    PAYS = "pays"
    NOT = "doesn't pay"
    OPEN = "inconclusive"


@dataclass(frozen=True, slots=True)
class Ratio:
    """An arm's throughput over the baseline's, at one level.

    Attributes:
        value: geometric mean over rounds.
        low, high: 95 % interval; None with a single round, which has none.
        rounds: how many.
    """

    value: float
    low: float | None
    high: float | None
    rounds: int

    @property
    def says(self) -> Says:
        """``pays`` or ``doesn't pay`` only where the interval leaves 1 out."""
        if self.low is None or self.high is None:
            return Says.OPEN
        return Says.PAYS if self.low > 1 else Says.NOT if self.high < 1 else Says.OPEN


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where speculation stops to pay.

    Attributes:
        value: clients at which the ratio is 1 (median of the bootstrap); None if it cannot be told.
        low, high: 95 % interval.
        reason: why it cannot be told.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


def ratio(logs: Sequence[float], *, seed: int = 0, confidence: float = CONFIDENCE) -> Ratio:
    """Sum up the log ratios of the rounds of one level; the interval holds with probability ``confidence``."""
    return _ratio(tuple(logs), seed, confidence)


@lru_cache(_KEPT)
def _ratio(logs: tuple[float, ...], seed: int, confidence: float) -> Ratio:
    value = math.exp(fmean(logs))
    if len(logs) < _MIN_ROUNDS:
        return Ratio(value, None, None, len(logs))
    means = sorted(_replicates(logs, random.Random(seed), confidence))  # noqa: S311 - resampling
    tail = (1 - confidence) / 2
    return Ratio(value, math.exp(quantile(means, tail)), math.exp(quantile(means, 1 - tail)), len(logs))


def crossover(levels: Mapping[int, Sequence[float]], *, seed: int = 0, proven: bool = True) -> Crossover:
    """Find the level at which the ratio falls through 1.

    In every replicate the mean log ratios are made monotone (pool adjacent violators: with more load, speculation does
    not pay more) and the curve between two levels is drawn once straight in clients and once in log clients, at random:
    what lies between is not known. A number is given only where a level below pays and a level above does not, each
    beyond doubt although several were looked at (Bonferroni), and the interval lies inside the measured levels.

    Args:
        levels: clients -> log ratios of its rounds.
        seed: of the bootstrap.
        proven: whether some level must pay beyond doubt. Without, a number says where an arm is overtaken that was
            not shown to be better before: its interval may begin at the lowest level.
    """
    return _crossover(tuple((level, tuple(logs)) for level, logs in sorted(levels.items())), seed, proven)


@lru_cache(_KEPT)
def _crossover(found: tuple[tuple[int, tuple[float, ...]], ...], seed: int, proven: bool) -> Crossover:
    levels = dict(found)
    ordered = list(levels)
    reason = _unsupported(levels, ordered, proven=proven)
    if reason is not None:
        return Crossover(reason=reason)
    chance = random.Random(seed)  # noqa: S311 - resampling
    columns = [_replicates(levels[level], chance, CONFIDENCE) for level in ordered]
    weights = [len(levels[level]) / max(_variance(levels[level]), 1e-12) for level in ordered]
    crossings = sorted(
        _crossing(ordered, monotone([column[number] for column in columns], weights), straight=chance.random() < 0.5)
        for number in range(REPLICATES)
    )
    tail = (1 - CONFIDENCE) / 2
    low, middle, high = (crossings[round(share * (REPLICATES - 1))] for share in (tail, 0.5, 1 - tail))
    if (proven and not ordered[0] < low) or not high < ordered[-1]:
        return Crossover(reason="the noise is too large: the interval reaches beyond the measured levels")
    floor = float(ordered[0])
    return Crossover(max(middle, floor), max(low, floor), max(high, floor))


def _unsupported(levels: Mapping[int, Sequence[float]], ordered: Sequence[int], *, proven: bool) -> str | None:
    """Why no crossover can be claimed, whatever the bootstrap says."""
    if any(len(levels[level]) < _MIN_ROUNDS for level in ordered):
        return "a level has a single round, so its noise is unknown"
    confidence = 1 - (1 - CONFIDENCE) / max(len(ordered), 1)
    sure = [_certain(levels[level], confidence) for level in ordered]
    pays = [level for level, says in zip(ordered, sure, strict=True) if says is Says.PAYS]
    not_ = [level for level, says in zip(ordered, sure, strict=True) if says is Says.NOT]
    if not pays and not not_:
        return "no level tells the arms apart"
    if not not_:
        return "no level was found where it doesn't pay"
    if not pays and proven:
        return "no level was found where it pays"
    if pays and min(not_) < max(pays):
        return "it pays again above a level where it doesn't: there is more than one crossing"
    return None


def _certain(logs: Sequence[float], confidence: float) -> Says:
    """A t test of the mean log ratio against 0."""
    margin = t_quantile(1 - (1 - confidence) / 2, len(logs) - 1) * math.sqrt(_variance(logs) / len(logs))
    mean = fmean(logs)
    return Says.PAYS if mean > margin else Says.NOT if mean < -margin else Says.OPEN


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Fit the closest non-increasing sequence (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (left, left_weight, left_length), (right, right_weight, right_length) = blocks[-2:]
            total = left_weight + right_weight
            blocks[-2:] = [((left * left_weight + right * right_weight) / total, total, left_length + right_length)]
    return [mean for mean, _, length in blocks for _ in range(length)]


def _crossing(levels: Sequence[int], logs: Sequence[float], *, straight: bool) -> float:
    """Clients at which a non-increasing curve reaches 0; infinite or 0 where it does not."""
    if logs[0] <= 0:
        return 0.0
    for number in range(1, len(levels)):
        if logs[number] <= 0:
            share = logs[number - 1] / (logs[number - 1] - logs[number])
            low, high = levels[number - 1], levels[number]
            return low + share * (high - low) if straight else float(low * (high / low) ** share)
    return math.inf


def _replicates(logs: Sequence[float], chance: random.Random, confidence: float) -> list[float]:
    """Bootstrap means, spread so that their quantiles give a t interval under normal noise."""
    count, mean = len(logs), fmean(logs)
    normal = NormalDist().inv_cdf(1 - (1 - confidence) / 2)
    wider = math.sqrt(count / (count - 1)) * t_quantile(1 - (1 - confidence) / 2, count - 1) / normal
    wider *= _discreteness(count)
    means = (sum(chance.choices(logs, k=count)) / count for _ in range(REPLICATES))
    return [mean + wider * (value - mean) for value in means]


def _discreteness(count: int) -> float:
    """Compensate that the mean of very few values takes few values itself.

    With two rounds the outermost replicate lies sqrt(2) standard errors out, where the normal quantile is 1.96: the
    factor is exact there, and fades with the square of the count.
    """
    return 1 + (NormalDist().inv_cdf(0.975) / math.sqrt(2) - 1) * (2 / count) ** 2


def _variance(logs: Sequence[float]) -> float:
    mean = fmean(logs)
    return sum((value - mean) ** 2 for value in logs) / (len(logs) - 1)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate linearly between the two nearest of *sorted* values (type 7, as numpy does)."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@cache
def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t for whole degrees of freedom, by bisection of its distribution function."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        if _t_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _t_cdf(value: float, freedom: int) -> float:
    """Abramowitz and Stegun 26.7.3 and 26.7.4: a finite sum for whole degrees of freedom."""
    angle = math.atan(value / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom == 1:
        return 0.5 + angle / math.pi
    term, total = (cosine, cosine) if freedom % 2 else (1.0, 1.0)
    for number in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine * cosine * (number - 1) / number
        total += term
    area = 2 / math.pi * (angle + sine * total) if freedom % 2 else sine * total
    return 0.5 + area / 2
