"""Rules about the platform: every wheel must be one that the base can load."""

from __future__ import annotations

from collections.abc import Iterator

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.lock.facts import LockFacts
from stack_builder.report import Finding
from stack_builder.stack.lock import Artifact
from stack_builder.wheels.names import parse as parse_name


def glibc(facts: LockFacts) -> Iterator[Finding]:
    """LOCK009: a wheel's tag or its objects ask for a newer glibc than the base has."""
    base = _numbers(facts.target.glibc)
    for artifact in facts.lock.artifacts:
        asked = {"its tag": _tagged(artifact), "its objects": _numbers(artifact.glibc) if artifact.glibc else None}
        newer = {who: needed for who, needed in asked.items() if needed is not None and needed > base}
        if newer:
            said = " and ".join(
                f"{who} {'ask' if who.endswith('s') else 'asks'} for glibc {_text(n)}" for who, n in newer.items()
            )
            yield catalogue.finding(
                "LOCK009",
                object=artifact.filename,
                distribution=facts.distribution(artifact.name),
                detail=f"The base has glibc {facts.target.glibc}; {said}.",
            )


def unfit(facts: LockFacts) -> Iterator[Finding]:
    """LOCK023: a wheel for another interpreter or machine."""
    base = _numbers(facts.target.glibc)
    for artifact in facts.lock.artifacts:
        too_new = (_tagged(artifact) or base) > base
        if not too_new and facts.target.best([artifact.filename]) is None:
            yield catalogue.finding(
                "LOCK023",
                object=artifact.filename,
                distribution=facts.distribution(artifact.name),
                detail=f"The stack is for CPython {facts.target.python} on {facts.target.machine}.",
            )


def _tagged(artifact: Artifact) -> tuple[int, ...] | None:
    return parse_name(artifact.filename).glibc


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _text(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
