"""The two things that ``stackb lock`` does: make a lock and judge it, or judge the one that is there."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.lock.facts import LockFacts
from stack_builder.diagnose.lock.judge import judge
from stack_builder.errors import StackbError
from stack_builder.progress import Progress
from stack_builder.report import Finding, Report
from stack_builder.resolve import graph, locking, reading, requirements, served
from stack_builder.resolve.indexes import Indexes
from stack_builder.resolve.locking import Draft
from stack_builder.resolve.model import Pin, Request, Resolver
from stack_builder.resolve.target import Target
from stack_builder.stack import lock as lock_file
from stack_builder.stack.lock import Lock
from stack_builder.stack.spec import StackSpec
from stack_builder.wheels.store import Store

NOT_ASKED = "no index was asked (--offline)"
"""Why rules about what an index serves today are skipped where the caller wanted it so."""


@dataclass(frozen=True, slots=True)
class Made:
    """A lock that was made and judged, not yet written."""

    draft: Draft
    report: Report


def make_lock(
    request: Request,
    resolving: Sequence[tuple[Resolver, Future[tuple[Pin, ...]]]],
    before: Lock | None,
    indexes: Indexes,
    progress: Progress,
    today: date,
) -> Made:
    """Read the wheels that a resolver chose, and apply every rule that needs no look at what is served later.

    Args:
        request: what was asked.
        resolving: resolvers at work. The first one's answer becomes the lock, the others must agree (LOCK024).
        before: the lock as it stands.
        indexes: gives the indexes by name; called only where one has to be asked.
        progress: shows the reading of wheels that are not in the cache.
        today: decides whether an override has expired.

    Raises:
        UsageError: the stack file cannot be satisfied.
        MachineError: a resolver or an index cannot be used.
    """
    if before is not None:  # most requirements will be met again: parse them while the resolvers wait for the network
        graph.of_lock(request.spec, before.artifacts)
    answers = [(resolver, locking.accepted(answer.result(), request.spec, indexes)) for resolver, answer in resolving]
    first, pins = answers[0]
    disagreeing = [
        _disagreement(first, other, changes)
        for other, theirs in answers[1:]
        if (changes := locking.disagreements(pins, theirs))
    ]
    opener = reading.store_or_index(Store(), indexes)
    draft = locking.draft(request, first, pins, indexes, opener, progress)
    facts = LockFacts(
        spec=request.spec,
        lock=draft.lock,
        requirements=requirements.parse(draft.requirements, "requirements.txt"),
        today=today,
        not_asked=None,
        unread=draft.unread,
    )
    report = judge(facts, disagreeing)
    if others := [resolver.identity for resolver, _ in answers[1:]]:
        report = replace(report, facts={**report.facts, "cross_checked_with": others})
    return Made(draft, report)


def check_lock(folder: Path, spec: StackSpec, indexes: Indexes | None, progress: Progress, today: date) -> Report:
    """Judge the lock of a stack's folder as it is.

    Args:
        folder: of the stack.
        spec: its stack file.
        indexes: gives the indexes by name; None to ask none.
        progress: shows the questions to the indexes.
        today: decides whether an override has expired.

    Raises:
        UsageError: there is no lock, or it is malformed.
    """
    lock, text = lock_file.read(folder)
    answers, why_not = None, NOT_ASKED
    if indexes is not None:
        try:
            wanted = [served.Wanted(a.name, a.version, a.filename, a.index) for a in lock.artifacts]
            answers = served.look_up(wanted, indexes(), Target.of(spec), progress)
        except StackbError as error:
            why_not = str(error)
    facts = LockFacts(
        spec=spec,
        lock=lock,
        requirements=requirements.parse(text, folder / "requirements.txt"),
        today=today,
        together=lock.requirements_sha256 == lock_file.sha256_text(text),
        served=answers,
        not_asked=why_not,
        read=reading.recall(lock.artifacts),
    )
    return judge(facts)


def _disagreement(one: Resolver, other: Resolver, changes: tuple[locking.Change, ...]) -> Finding:
    return catalogue.finding(
        "LOCK024",
        detail=f"{one.identity} and {other.identity} differ in {', '.join(change.name for change in changes)}.",
        evidence={change.name: f"{change.before or 'absent'} / {change.after or 'absent'}" for change in changes},
    )
