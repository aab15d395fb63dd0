"""Rules about the lock's own files: complete, consistent, and hashes of what they claim."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields

from packaging.version import InvalidVersion, Version

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.lock.facts import LockFacts
from stack_builder.report import Finding, Skipped
from stack_builder.resolve.reading import Reading
from stack_builder.resolve.requirements import Line
from stack_builder.stack.lock import Artifact

_READ = tuple(field.name for field in fields(Reading))


def disagreement(facts: LockFacts) -> Iterator[Finding]:
    """LOCK001: ``requirements.txt`` and ``artifacts.json`` say different things."""
    names = sorted(facts.requirements.keys() | facts.by_name.keys())
    differing = {
        name: text for name in names if (text := _differ(facts.requirements.get(name), facts.by_name.get(name)))
    }
    if differing:
        yield catalogue.finding("LOCK001", detail=f"They differ in {', '.join(differing)}.", evidence=differing)
    elif not facts.together:
        yield catalogue.finding(
            "LOCK001", detail="They pin the same files, but requirements.txt is not as it was written."
        )


def missing_hash(facts: LockFacts) -> Iterator[Finding]:
    """LOCK002: a wheel without a hash, in either file."""
    for artifact in facts.lock.artifacts:
        line = facts.requirements.get(artifact.name)
        if artifact.sha256 is None or (line is not None and not line.hashes):
            yield catalogue.finding(
                "LOCK002",
                object=artifact.filename,
                distribution=facts.distribution(artifact.name),
                detail=f"No source gives the sha256 of this file on index '{artifact.index}'.",
            )


def hash_of_an_error(facts: LockFacts) -> Iterator[Finding]:
    """LOCK004: the hash is that of an empty or of an error body."""
    bodies = {hashlib.sha256(body.encode()).hexdigest(): body for body in facts.knowledge.error_bodies.bodies}
    for artifact in facts.lock.artifacts:
        line = facts.requirements.get(artifact.name)
        hashes = {artifact.sha256 or "", *(line.hashes if line else ())}
        for digest in sorted(hashes & bodies.keys()):
            what = repr(bodies[digest]) if bodies[digest] else "nothing (an empty body)"
            yield catalogue.finding(
                "LOCK004",
                object=artifact.filename,
                distribution=facts.distribution(artifact.name),
                detail=f"sha256:{digest} is the hash of {what}, not of a wheel.",
            )


def renamed(facts: LockFacts) -> Iterator[Finding | Skipped]:
    """LOCK005: METADATA gives another version than the file name."""
    unknown = []
    for artifact in facts.lock.artifacts:
        inside = artifact.metadata_version
        if inside is None:
            unknown.append(artifact.name)
        elif not _same_version(artifact.version, inside):
            yield catalogue.finding(
                "LOCK005",
                object=artifact.filename,
                distribution=facts.distribution(artifact.name),
                detail=f"The file name says {artifact.version}, METADATA says {inside}.",
            )
    if unknown:
        yield catalogue.skipped("LOCK005", f"METADATA could not be read: {_with_reasons(unknown, facts)}")


def untrue(facts: LockFacts) -> Iterator[Finding]:
    """LOCK025: ``artifacts.json`` says something else of a wheel than its bytes do."""
    for artifact in facts.lock.artifacts:
        reading = facts.read.get(artifact.name)
        if reading is None:
            continue
        differing = [name for name in _READ if getattr(artifact, name) != getattr(reading, name)]
        if differing:
            yield catalogue.finding(
                "LOCK025",
                object=artifact.filename,
                distribution=facts.distribution(artifact.name),
                detail=f"They differ in {', '.join(differing)}.",
            )


def _with_reasons(names: list[str], facts: LockFacts) -> str:
    return "; ".join(f"{name} ({facts.unread[name]})" if name in facts.unread else name for name in names)


def _differ(line: Line | None, artifact: Artifact | None) -> str:
    if line is None:
        return "only in artifacts.json"
    if artifact is None:
        return "only in requirements.txt"
    if line.version != artifact.version:
        return f"version {line.version} in requirements.txt, {artifact.version} in artifacts.json"
    expected = (artifact.sha256,) if artifact.sha256 else ()
    if line.hashes != expected:
        return f"hashes {_short(line.hashes)} in requirements.txt, {_short(expected)} in artifacts.json"
    return ""


def _short(hashes: tuple[str, ...]) -> str:
    return ", ".join(f"{digest[:12]}…" for digest in hashes) or "none"


def _same_version(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other
