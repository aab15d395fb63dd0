"""Rules about the set as a whole: does it answer to the stack file, and do its wheels fit beside each other?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.lock.facts import LockFacts
from stack_builder.report import Finding, Skipped
from stack_builder.resolve.collisions import undecided
from stack_builder.stack.lock import Collision

_SHOWN = 5  # paths of a collision that are written out


def answers_to_stack(facts: LockFacts) -> Iterator[Finding]:
    """LOCK021: the stack file has changed since the lock was made. torch is left to LOCK006."""
    stack, lock = facts.spec.stack, facts.lock
    pairs = {
        "name": (stack.name, lock.stack),
        "python": (stack.python, lock.python),
        "platform": (stack.platform, lock.platform),
        "exclude_newer": (stack.exclude_newer.isoformat() if stack.exclude_newer else None, lock.exclude_newer),
    }
    differing = {key: f"stack.toml {wanted}, lock {got}" for key, (wanted, got) in pairs.items() if wanted != got}
    for name, specifier in facts.spec.requires.items():
        artifact = facts.by_name.get(name)
        if artifact is None:
            differing[name] = f"stack.toml {specifier}, not in the lock"
        elif name != "torch" and not SpecifierSet(specifier).contains(Version(artifact.version), prereleases=True):
            differing[name] = f"stack.toml {specifier}, lock {artifact.version}"
    for name, extra in facts.graph.idle_extras:
        differing[f"{name}[{extra}]"] = f"{facts.distribution(name)} requires nothing under that extra"
    for index in facts.spec.index:
        for name in index.packages:
            artifact = facts.by_name.get(name)
            if artifact is not None and artifact.index != index.name and name != "torch":
                differing[name] = f"stack.toml takes it from index '{index.name}', lock from '{artifact.index}'"
    if differing:
        detail = "; ".join(f"{key}: {text}" for key, text in differing.items())
        yield catalogue.finding("LOCK021", detail=f"{detail}.", evidence=differing)


def unmet(facts: LockFacts) -> Iterator[Finding | Skipped]:
    """LOCK022: a requirement of a locked wheel that the lock does not meet and no override covers."""
    for name, requirers in sorted(facts.graph.requirers.items()):
        if name not in facts.by_name and requirers:
            who = ", ".join(f"{facts.distribution(r)} ({requirers[r][0]})" for r in sorted(requirers))
            yield catalogue.finding("LOCK022", object=name, detail=f"{name} is not in the lock; required by {who}.")
    for artifact, requirer, specifier in facts.departures():
        if artifact.name not in facts.overrides:
            yield catalogue.finding(
                "LOCK022",
                object=artifact.filename,
                distribution=facts.distribution(artifact.name),
                detail=f"{facts.distribution(requirer)} requires {artifact.name}{specifier}.",
            )
    malformed = ", ".join(sorted(facts.graph.malformed))
    if facts.without_metadata or malformed:
        unknown = ", ".join(facts.without_metadata)
        parts = (f"requirements unknown: {unknown}" if unknown else "", f"unreadable: {malformed}" if malformed else "")
        yield catalogue.skipped("LOCK022", "; ".join(part for part in parts if part))


def companions(facts: LockFacts) -> Iterator[Finding]:
    """LOCK014: distributions that are released together stand at different versions."""
    for family, packages in sorted(facts.knowledge.companions.items()):
        versions = {name: Version(facts.by_name[name].version) for name in packages if name in facts.by_name}
        locals_ = {version.local for version in versions.values() if version.local}
        if len({version.public for version in versions.values()}) > 1 or len(locals_) > 1:
            listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
            yield catalogue.finding("LOCK014", object=family, detail=f"Locked together: {listed}.")


def collisions(facts: LockFacts) -> Iterator[Finding | Skipped]:
    """LOCK015: paths with different bytes in several wheels, and no winner named for a GPU of the stack."""
    if facts.lock.collisions is None:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(facts.unread.items()))
        yield catalogue.skipped("LOCK015", "not every wheel could be read" + (f" ({reasons})" if reasons else ""))
        return
    open_paths: dict[tuple[str, ...], dict[str, list[Collision]]] = defaultdict(lambda: defaultdict(list))
    for gpu in facts.spec.stack.gpu:
        for collision in undecided(facts.lock.collisions, facts.spec, gpu):
            open_paths[tuple(sorted(collision.owners))][gpu].append(collision)
    for owners, by_gpu in sorted(open_paths.items()):
        paths = sorted({collision.path for found in by_gpu.values() for collision in found})
        yield catalogue.finding(
            "LOCK015",
            object=paths[0],
            detail=f"{' and '.join(owners)} ship {len(paths)} path{'s' if len(paths) > 1 else ''} with different "
            f"bytes; stack.toml names no winner for {', '.join(by_gpu)}.",
            evidence={
                "wheels": [facts.distribution(name) for name in owners],
                "paths": paths[:_SHOWN],
                "count": len(paths),
            },
        )


def unused_winners(facts: LockFacts) -> Iterator[Finding]:
    """LOCK020: a winner is named for wheels that do not collide."""
    if facts.lock.collisions is None:
        return
    owners = [collision.owners for collision in facts.lock.collisions]
    for rule in facts.spec.winner:
        if not any(group <= set(rule.packages) for group in owners):
            yield catalogue.finding(
                "LOCK020",
                object="stack.toml",
                detail=f"No path is shipped with different bytes by {' and '.join(rule.packages)}.",
            )
