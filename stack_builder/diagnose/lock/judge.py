"""Running the LOCK rules over one lock."""

from __future__ import annotations

from collections.abc import Iterable

from stack_builder.diagnose.lock import closure, cuda, files, indexes, overrides, platform, torch
from stack_builder.diagnose.lock.facts import LockFacts
from stack_builder.report import Finding, Report, Skipped, Target

RULES = (
    files.disagreement,
    files.missing_hash,
    files.hash_of_an_error,
    files.renamed,
    files.untrue,
    indexes.several_uploads,
    indexes.twins,
    indexes.served_today,
    torch.moved,
    torch.without_cuda,
    cuda.majors,
    cuda.toolkit_drift,
    platform.glibc,
    platform.unfit,
    closure.answers_to_stack,
    closure.unmet,
    closure.companions,
    closure.collisions,
    closure.unused_winners,
    overrides.in_force,
    overrides.expired,
    overrides.unused,
)


def judge(facts: LockFacts, found_before: Iterable[Finding] = ()) -> Report:
    """Apply every rule; findings, those made while resolving among them, are in the order of the rules' ids."""
    findings = list(found_before)
    skipped: list[Skipped] = []
    for rule in RULES:
        for said in rule(facts):
            if isinstance(said, Finding):
                findings.append(said)
            else:
                skipped.append(said)
    return Report(
        target=Target("stack", facts.spec.stack.name),
        findings=tuple(sorted(findings, key=lambda finding: (finding.rule, finding.distribution or ""))),
        skipped=tuple(sorted(skipped, key=lambda said: said.rule)),
        facts={
            "lock": facts.lock.sha256,
            "wheels": len(facts.lock.artifacts),
            "bytes": sum(artifact.size or 0 for artifact in facts.lock.artifacts),
            "resolver": facts.lock.resolver,
            "exclude_newer": facts.lock.exclude_newer,
        },
    )
