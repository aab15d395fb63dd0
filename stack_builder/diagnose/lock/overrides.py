"""Rules about overrides: shown in every report, used, and not past their date."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.lock.facts import LockFacts
from stack_builder.report import Finding, Skipped
from stack_builder.stack.spec import Override


def in_force(facts: LockFacts) -> Iterator[Finding]:
    """LOCK011: every override, with what upstream asks for and the reason for departing from it."""
    departures = _departures(facts)
    for override in facts.spec.override:
        upstream = departures.get(override.package)
        against = f" against {', '.join(upstream)}" if upstream else ""
        forced = f"{override.package}{override.version}{against}, until {override.expires}."
        yield catalogue.finding(
            "LOCK011",
            object=override.package,
            distribution=_distribution(override, facts),
            detail=f"{forced} Reason: {override.reason}",
        )


def expired(facts: LockFacts) -> Iterator[Finding]:
    """LOCK012: an override is past the day it was meant to last."""
    for override in facts.spec.override:
        if override.expires < facts.today:
            yield catalogue.finding(
                "LOCK012",
                object=override.package,
                distribution=_distribution(override, facts),
                detail=f"It was to last until {override.expires}. Reason then: {override.reason}",
            )


def unused(facts: LockFacts) -> Iterator[Finding | Skipped]:
    """LOCK013: no wheel of the lock asks for anything else than what the override forces."""
    departures = _departures(facts)
    for override in facts.spec.override:
        if override.package not in facts.by_name:
            detail = f"{override.package} is not in the lock."
        elif override.package in departures:
            continue
        elif facts.without_metadata:
            unknown = ", ".join(facts.without_metadata)
            yield catalogue.skipped("LOCK013", f"{override.package}: requirements unknown of {unknown}")
            continue
        else:
            detail = f"Nothing in the lock requires another version than {override.package}{override.version}."
        yield catalogue.finding("LOCK013", object=override.package, detail=detail)


def _departures(facts: LockFacts) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for artifact, requirer, specifier in facts.departures():
        found[artifact.name].append(f"{specifier} of {facts.distribution(requirer)}")
    return found


def _distribution(override: Override, facts: LockFacts) -> str | None:
    return facts.distribution(override.package) if override.package in facts.by_name else None
