"""From matched lines to ranked causes.

A pattern's specificity is what its text says by itself. Where it stands changes that: the text of the exception that
ended a process weighs more, a warning or a fallback less, something long before the end less. Equal weight: first come.

Some texts only say that something failed, and another line says what: NCCL's exception speaks of an "unhandled cuda
error", its log names the error. There the other line is the cause, and weighs as much as the one that stands for it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stack_builder.diagnose.explain import story
from stack_builder.diagnose.explain.patterns import Confidence, Context, Kind, Knowledge, Pattern
from stack_builder.diagnose.explain.sieve import Line

FATAL, IN_EXCEPTION, IGNORED, WARNED, LONG_BEFORE = 25, 12, -40, -8, -20
LONG = 2000  # lines before the death, or between a line and the one that tells its cause
_NEAR = 40  # points below the best match of a cause within which another still counts as evidence
_MORE = 2  # for each further pattern of the same cause, up to three


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """One pattern in one line (an index into the kept lines)."""

    pattern: Pattern
    index: int
    groups: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ranked:
    """One cause with what speaks for it, best first; without a name where the best that can be said is a symptom.

    Last come the lines that only said that something failed, and whose cause the others tell.
    """

    cause: str | None
    score: int
    matches: tuple[Match, ...]

    @property
    def best(self) -> Match:
        """The match that carries the cause."""
        return self.matches[0]

    @property
    def confidence(self) -> Confidence:
        """That of its best match."""
        return self.best.pattern.confidence


def find_matches(lines: tuple[Line, ...], knowledge: Knowledge) -> tuple[list[Match], frozenset[str]]:
    """Match every line against every pattern that it holds a string of.

    Returns:
        the matches whose contexts the text shows, in order; and the names of all contexts that it shows.
    """
    found: list[Match] = []
    shown: set[str] = set()
    place = {one: place for place, one in enumerate(knowledge.patterns)}
    for index, line in enumerate(lines):
        possible = set(knowledge.literals.held(line.text))
        patterns = sorted((one for one in possible if isinstance(one, Pattern)), key=place.__getitem__)
        if patterns and not story.echoed(line.text):
            hits = ((pattern, pattern.search(line.text)) for pattern in patterns)
            found += [Match(pattern, index, _groups(hit)) for pattern, hit in hits if hit is not None]
        shown.update(one.name for one in possible if isinstance(one, Context) and one.shown_by(line.text))
    fitting = [m for m in found if m.pattern.context <= shown and not m.pattern.no_context & shown]
    return fitting, frozenset(shown)


def rank(matches: Iterable[Match], told: story.Story) -> list[Ranked]:
    """Order the causes, the most convincing first."""
    counted = [match for match in matches if match.pattern.kind in (Kind.CAUSE, Kind.SYMPTOM)]
    place = _Places(told)
    weights = {index: place.weight(index) for index in {match.index for match in counted}}
    stand_for = _told(counted, told.lines, weights)
    left_out = {match for told_here in stand_for.values() for match in told_here}
    by_cause: dict[str | None, list[tuple[int, Match]]] = {}
    for match in counted:
        if match in left_out:
            continue
        score = match.pattern.specificity + weights[match.index]
        by_cause.setdefault(match.pattern.cause, []).append((score, match))
    ranked = []
    for cause, scored in by_cause.items():
        scored.sort(key=lambda item: (-item[0], item[1].index))
        others = {match.pattern.id for _, match in scored} - {scored[0][1].pattern.id}
        total = scored[0][0] + _MORE * min(len(others), 3)
        near = [match for score, match in scored if scored[0][0] - score <= _NEAR]
        stood_for = dict.fromkeys(match for told_by in near for match in stand_for.get(told_by.index, ()))
        ranked.append(Ranked(cause, total, (*near, *stood_for)))
    return sorted(ranked, key=lambda one: (-one.score, one.best.index))


def _told(matches: list[Match], lines: Sequence[Line], weights: dict[int, int]) -> dict[int, list[Match]]:
    """Find what another line tells better, by that line, and give that line the weight of what it stands for."""
    told: dict[int, list[Match]] = {}
    for pattern in {match.pattern for match in matches if match.pattern.told_by}:
        tellers = _tellers(pattern, matches, lines)
        for match in matches:
            if match.pattern is not pattern:
                continue
            place = bisect_left(tellers, match.index)
            for teller in tellers[max(place - 1, 0) : place + 1]:  # the last before it, the first from it on
                if abs(lines[teller].number - lines[match.index].number) <= LONG:
                    told.setdefault(teller, []).append(match)
                    weights[teller] = max(weights[teller], weights[match.index])
    return told


def _tellers(pattern: Pattern, matches: list[Match], lines: Sequence[Line]) -> list[int]:
    """The lines that tell a cause where ``pattern`` only says that there is one, in order."""
    causes = {match.index for match in matches if match.pattern.cause is not None and not match.pattern.told_by}
    return sorted(at for at in causes if any(regex.search(lines[at].text) for regex in pattern.told_by))


class _Places:
    """How much a line weighs for where it stands."""

    def __init__(self, told: story.Story) -> None:
        self._told = told
        self._starts = [one.start for one in told.raised]
        at = min(told.death, len(told.lines) - 1)
        self._death_line = told.lines[at].number if told.lines else 0

    def weight(self, index: int) -> int:
        number = self._exception_at(index)
        if number is not None and number in self._told.fatal:
            return FATAL
        line = self._told.lines[index]
        weight = LONG_BEFORE if self._death_line - line.number > LONG else 0
        if number is not None:
            return weight + IN_EXCEPTION
        if story.ignored(line.text):
            return weight + IGNORED
        return weight + WARNED if story.warned(line.text) else weight

    def _exception_at(self, index: int) -> int | None:
        number = bisect_right(self._starts, index) - 1
        if number < 0:
            return None
        one = self._told.raised[number]
        return number if index < one.end else None


def _groups(match: re.Match[str]) -> Mapping[str, str]:
    return {name: value for name, value in match.groupdict().items() if value is not None}
