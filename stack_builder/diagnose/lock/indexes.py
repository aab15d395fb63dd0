"""Rules about what indexes list: several uploads under one name, other bytes elsewhere, files that are gone."""

from __future__ import annotations

from collections.abc import Iterator

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.lock.facts import LockFacts
from stack_builder.report import Finding, Severity, Skipped
from stack_builder.resolve.served import Served
from stack_builder.stack.lock import Artifact, Upload

_ONLINE = ("LOCK017", "LOCK018", "LOCK019")


def several_uploads(facts: LockFacts) -> Iterator[Finding]:
    """LOCK003: one file name was listed with several hashes; a note where the stack file accepts one of them."""
    for artifact in facts.lock.artifacts:
        served = facts.served.by_name.get(artifact.name) if facts.served else None
        uploads = served.uploads if served and served.uploads else artifact.uploads
        same_name = [upload for upload in uploads if upload.filename == artifact.filename]
        if len({upload.sha256 for upload in same_name}) < 2:
            continue
        accept = next((rule for rule in facts.spec.accept if rule.filename == artifact.filename), None)
        accepted = accept is not None and accept.sha256 == artifact.sha256
        if accept is None:
            verdict = "stack.toml accepts none of them."
        elif accepted:
            verdict = f"stack.toml accepts {_short(accept.sha256)}: {accept.reason}"
        else:
            verdict = f"stack.toml accepts {_short(accept.sha256)}, the lock holds {_short(artifact.sha256)}."
        yield catalogue.finding(
            "LOCK003",
            severity=Severity.NOTE if accepted else None,
            object=artifact.filename,
            distribution=facts.distribution(artifact.name),
            detail=f"Index '{artifact.index}' has listed {_count(uploads)}. {verdict}",
            evidence={"uploads": [_upload(upload) for upload in uploads]},
            fix=() if accepted else None,
        )


def twins(facts: LockFacts) -> Iterator[Finding]:
    """LOCK010: another index has a file of the same name with other bytes."""
    for artifact in facts.lock.artifacts:
        served = facts.served.by_name.get(artifact.name) if facts.served else None
        for twin in (served.twins if served else ()) or artifact.twins:
            yield catalogue.finding(
                "LOCK010",
                object=artifact.filename,
                distribution=facts.distribution(artifact.name),
                detail=f"sha256 {_short(artifact.sha256)} on index '{artifact.index}', {_short(twin.sha256)} on index "
                f"'{twin.index}'.",
            )


def served_today(facts: LockFacts) -> Iterator[Finding | Skipped]:
    """LOCK017 to LOCK019: the index has withdrawn the file, no longer lists it, or serves another one."""
    if facts.served is None:
        if facts.not_asked is not None:
            yield from (catalogue.skipped(rule, facts.not_asked) for rule in _ONLINE)
        return
    for index, reason in sorted(facts.served.unreachable.items()):
        missing = sum(a.index == index and a.name not in facts.served.by_name for a in facts.lock.artifacts)
        silent = f"index '{index}' gave no answer for {missing} wheel{'s' if missing > 1 else ''}"
        yield catalogue.skipped(_ONLINE[0], f"{silent}: {reason}")
        yield from (catalogue.skipped(rule, f"{silent} (see {_ONLINE[0]})") for rule in _ONLINE[1:])
    for artifact in facts.lock.artifacts:
        served = facts.served.by_name.get(artifact.name)
        if served is not None:
            yield from _compare(artifact, served)


def _compare(artifact: Artifact, served: Served) -> Iterator[Finding]:
    if served.yanked is not None:
        yield _finding("LOCK017", artifact, f"Reason given: {served.yanked}.")
    if not served.sha256:
        yield _finding("LOCK018", artifact, f"Index '{artifact.index}' lists no file of this name.")
    elif artifact.sha256 is not None and artifact.sha256 not in served.sha256:
        listed = ", ".join(_short(digest) for digest in served.sha256)
        detail = f"Locked is {_short(artifact.sha256)}, index '{artifact.index}' lists {listed}."
        yield _finding("LOCK019", artifact, detail)


def _finding(rule: str, artifact: Artifact, detail: str) -> Finding:
    distribution = f"{artifact.name} {artifact.version}"
    return catalogue.finding(rule, object=artifact.filename, distribution=distribution, detail=detail)


def _count(uploads: tuple[Upload, ...]) -> str:
    names = len({upload.filename for upload in uploads})
    hashes = len({upload.sha256 for upload in uploads})
    return f"{hashes} uploads of this version under {names} file name{'s' if names > 1 else ''}"


def _upload(upload: Upload) -> str:
    return f"{upload.uploaded or 'date unknown'} {_short(upload.sha256)} {upload.filename}"


def _short(sha256: str | None) -> str:
    return "without hash" if sha256 is None else f"{sha256[:12]}…"
