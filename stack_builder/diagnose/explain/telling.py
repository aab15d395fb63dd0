"""Explains a text: sieve, match, rank, and tell it as a report with target kind ``log``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.explain import story
from stack_builder.diagnose.explain.fixes import fixes
from stack_builder.diagnose.explain.patterns import Confidence, Kind, Pattern, knowledge
from stack_builder.diagnose.explain.rank import Match, Ranked, find_matches, rank
from stack_builder.diagnose.explain.sieve import Line, Sifted, sift
from stack_builder.diagnose.explain.symbols import demangled
from stack_builder.errors import UsageError
from stack_builder.report import Finding, Report, Severity, Target
from stack_builder.report.model import Json

MAX_EVIDENCE = 8  # lines shown per cause
MAX_OTHERS = 4  # further causes shown
_CLOSE = 6  # a rival within so many points makes the first uncertain
_ABOVE = 40  # lines above an exception, its frames and a compiler's output, that still belong to it
_MAX_TEXT = 300  # characters of an evidence line


def explain(stream: BinaryIO, name: str) -> Report:
    """Explain the text that ``stream`` holds.

    Args:
        stream: bytes of any size; UTF-8, or UTF-16 with a byte order mark. Read once, to the end.
        name: what to call it in the report.

    Returns:
        a report whose first finding is the most convincing cause; verdict ``incomplete`` where the best that can be
        said is a symptom, or where no known error text was found and nothing shows that none had to be; ``pass`` where
        the text shows a server that ran and no failure.

    Raises:
        UsageError: the text is empty.
    """
    known = knowledge()
    sifted = sift(stream, known.wanted)
    if not sifted.last:
        raise UsageError("the text is empty", where=name, fix="give a file with the error text, or pipe it in")
    matches, shown = find_matches(sifted.lines, known)
    deaths = [match.index for match in matches if match.pattern.kind is Kind.DEATH]
    told = story.read(sifted.lines, deaths)
    ready = min((match.index for match in matches if match.pattern.id == "ready"), default=None)
    failed = told.raised or deaths or not any(match.pattern.kind is Kind.HARMLESS for match in matches)
    if not failed:  # a server that runs has outlived what it said does not matter
        matches = [match for match in matches if not story.ignored(told.lines[match.index].text)]
    ranked = rank(matches, told)
    facts = _facts(sifted, told, shown)
    target = Target("log", name)
    if ranked and _in_passing(ranked[0], told):
        reason = "the exception that ended the process is not known, and only warnings are"
        findings = (_unknown(told, sifted, ready), *_others(ranked, told, shown))
        return Report(target, findings, (catalogue.skipped("LOG001", reason),), facts)
    if ranked:
        why_not = () if ranked[0].cause else (catalogue.skipped("LOG001", "the text names a symptom alone"),)
        return Report(target, tuple(_findings(ranked, told, shown)), why_not, facts)
    if not failed:
        return Report(target, facts=facts)
    reason = f"none of {len(known.patterns)} known error texts occurs in {sifted.total} lines"
    return Report(target, (_unknown(told, sifted, ready),), (catalogue.skipped("LOG001", reason),), facts)


def _findings(ranked: list[Ranked], told: story.Story, shown: frozenset[str]) -> list[Finding]:
    first, *others = ranked
    close = [other.cause for other in others if other.cause and first.score - other.score <= _CLOSE]
    leading = _first(first, first.cause, close, told, shown) if first.cause else _symptom(first, close, told)
    return [leading, *_others(others, told, shown)]


def _others(ranked: list[Ranked], told: story.Story, shown: frozenset[str]) -> Iterator[Finding]:
    for other in ranked[:MAX_OTHERS]:
        if other.cause is not None:
            pattern = other.best.pattern
            yield catalogue.finding(
                "LOG002",
                title=f"Also fits the text, less well: {catalogue.causes()[other.cause]}",
                cause=other.cause,
                detail=_filled(pattern.meaning, other.best),
                evidence={"pattern": pattern.id, "lines": _lines(other.matches, told)},
                fix=fixes(other.best, shown)[:1],
            )


def _first(ranked: Ranked, cause: str, close: list[str], told: story.Story, shown: frozenset[str]) -> Finding:
    pattern = ranked.best.pattern
    confidence = ranked.confidence
    if close and confidence is not Confidence.POSSIBLE:
        confidence = Confidence.POSSIBLE if confidence is Confidence.LIKELY else Confidence.LIKELY
    unexplained = _unexplained(ranked, told)
    if unexplained is not None:
        confidence = Confidence.POSSIBLE
    evidence: dict[str, Json] = {
        "confidence": confidence.value,
        "pattern": pattern.id,
        "lines": _lines(ranked.matches, told),
    }
    if unexplained is not None:
        evidence["exception_not_known"] = unexplained
    symbol = ranked.best.groups.get("symbol")
    if symbol is not None and (readable := demangled(symbol)) != symbol:
        evidence["symbol"] = readable
    if confidence is not Confidence.CERTAIN:
        evidence |= _alternatives(pattern, close)
    if pattern.look_next:
        evidence["look_next"] = list(pattern.look_next)
    return catalogue.finding(
        "LOG001",
        title=_sentence(catalogue.causes()[cause]),
        severity=Severity.WARNING if confidence is Confidence.POSSIBLE else Severity.ERROR,
        cause=cause,
        detail=_filled(pattern.meaning, ranked.best),
        evidence=evidence,
        fix=fixes(ranked.best, shown),
    )


def _symptom(ranked: Ranked, close: list[str], told: story.Story) -> Finding:
    pattern = ranked.best.pattern
    evidence: dict[str, Json] = {"pattern": pattern.id, "lines": _lines(ranked.matches, told)}
    evidence |= _alternatives(pattern, close)
    return catalogue.finding(
        "LOG005",
        detail=_filled(pattern.meaning, ranked.best),
        evidence={**evidence, "look_next": list(pattern.look_next)},
        fix=pattern.fix or None,
    )


def _alternatives(pattern: Pattern, close: list[str]) -> dict[str, Json]:
    also: list[Json] = list(dict.fromkeys((*close, *pattern.also)))
    return {"could_also_be": also} if also else {}


def _unexplained(ranked: Ranked, told: story.Story) -> Json | None:
    """The exception that ended the process, where nothing in its text or just above speaks for this cause."""
    fatal = [told.raised[number] for number in sorted(told.fatal)]
    at = {match.index: told.lines[match.index].number for match in ranked.matches}
    for one in fatal:
        first = told.lines[one.start].number - _ABOVE
        if any(number >= first and index < one.end for index, number in at.items()):
            return None
    if not fatal:
        return None
    return _line(told.lines[fatal[-1].start])


def _in_passing(ranked: Ranked, told: story.Story) -> bool:
    """Whether a cause rests on warnings alone while something else, which nothing is known of, ended the process."""
    lines = [told.lines[match.index].text for match in ranked.matches]
    return _unexplained(ranked, told) is not None and all(story.warned(line) or story.ignored(line) for line in lines)


def _unknown(told: story.Story, sifted: Sifted, ready: int | None) -> Finding:
    evidence: dict[str, Json] = {"ends_with": [_line(line) for line in sifted.last]}
    detail = "Nothing is guessed."
    if told.raised:
        at = told.raised[max(told.fatal)] if told.fatal else told.raised[-1]
        evidence = {"last_exception": [_line(line) for line in told.lines[at.start : min(at.end, at.start + 6)]]}
        if ready is not None and ready < at.start and told.death == len(told.lines):
            detail = (
                f"{at.type} was raised while the server ran, as for a request; nothing shows that it ended. {detail}"
            )
        else:
            detail = f"The exception that ended the process is {at.type}, and it is not a known one. {detail}"
    return catalogue.finding("LOG003", detail=detail, evidence=evidence)


def _facts(sifted: Sifted, told: story.Story, shown: frozenset[str]) -> dict[str, Json]:
    facts: dict[str, Json] = {"lines": sifted.total, "bytes": sifted.size, "exceptions": len(told.raised)}
    if told.death < len(told.lines):
        facts["first_death_at_line"] = told.lines[told.death].number
    if shown:
        facts["shows"] = sorted(shown)
    if sifted.dropped:
        facts["lines_not_looked_at"] = sifted.dropped
    return facts


def _lines(matches: tuple[Match, ...], told: story.Story) -> list[Json]:
    """The lines that carry a cause, best first, each once."""
    indices = list(dict.fromkeys(match.index for match in matches))[:MAX_EVIDENCE]
    return [_line(told.lines[index]) for index in indices]


def _line(line: Line) -> Json:
    text = line.text.strip()
    return {"line": line.number, "text": text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."}


def _filled(meaning: str, match: Match) -> str:
    """Put what the pattern's groups matched into its sentence."""
    filled = meaning
    for name, value in match.groups.items():
        filled = filled.replace(f"{{{name}}}", value)
    return filled if meaning.startswith("{") else _sentence(filled)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
