"""Rules about CUDA: one major in the whole closure, one toolkit release among the parts that make code."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.lock.facts import LockFacts
from stack_builder.report import Finding, Severity, Skipped


def majors(facts: LockFacts) -> Iterator[Finding | Skipped]:
    """LOCK008: wheels whose objects need libraries of another CUDA major than the stack's.

    A wheel that ships variants for several majors, the stack's among them, chooses when it is imported: a note.
    """
    wanted = int(facts.spec.stack.cuda.partition(".")[0])
    for artifact in facts.lock.artifacts:
        foreign = [need for need in artifact.needs_cuda if need.major != wanted]
        if not foreign:
            continue
        variants = wanted in artifact.cuda_majors
        listed = ", ".join(f"{need.library} ({need.object})" for need in foreign)
        also = f" Its other objects need CUDA {wanted}: it chooses when it is imported." if variants else ""
        yield catalogue.finding(
            "LOCK008",
            severity=Severity.NOTE if variants else None,
            title="A wheel ships variants for several CUDA majors" if variants else None,
            object=foreign[0].object,
            distribution=facts.distribution(artifact.name),
            detail=f"In a CUDA {wanted} set, {artifact.name} needs {listed}.{also}",
            evidence={"needs": {need.library: need.object for need in foreign}, "required_by": list(artifact.via)},
            fix=() if variants else None,
        )
    unread = [artifact.name for artifact in facts.lock.artifacts if artifact.unread]
    if unread:
        yield catalogue.skipped("LOCK008", f"objects could not be read: {', '.join(unread)}")


def toolkit_drift(facts: LockFacts) -> Iterator[Finding]:
    """LOCK016: compiler, headers, runtime or bindings of another toolkit release than the stack's."""
    parts = {name: facts.by_name[name].version for name in facts.knowledge.toolkit.packages if name in facts.by_name}
    drifted = {name: text for name, text in parts.items() if _release(text) != facts.spec.stack.cuda}
    if drifted:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(drifted.items()))
        kept = ", ".join(f"{name} {version}" for name, version in sorted(parts.items()) if name not in drifted)
        beside = f" Beside them: {kept}." if kept else ""
        yield catalogue.finding(
            "LOCK016",
            detail=f"The stack is for CUDA {facts.spec.stack.cuda}; of other releases are {listed}.{beside}",
            evidence={"drifted": drifted},
        )


def _release(version: str) -> str:
    parsed = Version(version)
    return f"{parsed.major}.{parsed.minor}"
