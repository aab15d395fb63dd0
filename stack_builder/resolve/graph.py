"""Who requires whom in a set of wheels, by their METADATA: the ``# via`` of a lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stack_builder.resolve.target import Target
from stack_builder.stack.lock import Artifact
from stack_builder.stack.spec import StackSpec


@dataclass
class Graph:
    """Requirements that hold on the target.

    Attributes:
        requirers: for each reached package, the packages that require it with all that they require of it; empty for
            a root that nothing else requires.
        malformed: requirement lines that nobody can read, by package.
        idle_extras: a root and an extra of it under which its METADATA requires nothing on the target.
    """

    requirers: dict[str, dict[str, list[Requirement]]] = field(default_factory=dict)
    malformed: dict[str, list[str]] = field(default_factory=dict)
    idle_extras: list[tuple[str, str]] = field(default_factory=list)

    def via(self, name: str) -> tuple[str, ...]:
        """Names of the packages that require ``name``, sorted."""
        return tuple(sorted(self.requirers.get(name, ())))


def of_lock(spec: StackSpec, artifacts: Iterable[Artifact]) -> Graph:
    """Walk a lock from the roots of its stack file."""
    lines = {artifact.name: artifact.requires_dist for artifact in artifacts}
    return build(spec.requires, lines, Target.of(spec), spec.extras)


def build(
    roots: Iterable[str],
    requires_dist: Mapping[str, Iterable[str]],
    target: Target,
    extras: Mapping[str, Iterable[str]] | None = None,
) -> Graph:
    """Walk from the roots along the requirements that apply on the target.

    Args:
        roots: normalised names.
        requires_dist: ``Requires-Dist`` of every package of the set, by normalised name.
        target: decides which markers hold.
        extras: asked of the roots, by root.
    """
    graph = Graph({root: {} for root in roots})
    asked_for = [(root, extra) for root, asked in (extras or {}).items() for extra in asked]
    work = [*((root, "") for root in graph.requirers), *asked_for]
    seen = set(work)
    graph.idle_extras = [step for step in asked_for if step[0] in requires_dist]
    while work:
        name, extra = work.pop()
        for line in requires_dist.get(name, ()):
            try:
                requirement = _requirement(line, extra, target)
            except InvalidRequirement:
                if not extra:
                    graph.malformed.setdefault(name, []).append(line)
                continue
            if requirement is None:
                continue
            if (name, extra) in graph.idle_extras:
                graph.idle_extras.remove((name, extra))
            child = canonicalize_name(requirement.name)
            if child != name:  # else "package[extra]" in the package's own extras
                graph.requirers.setdefault(child, {}).setdefault(name, []).append(requirement)
            wanted = [(child, ""), *((child, canonicalize_name(asked)) for asked in requirement.extras)]
            work += [step for step in wanted if step not in seen]
            seen.update(wanted)
    return graph


@cache
def _requirement(line: str, extra: str, target: Target) -> Requirement | None:
    """Parse a line; None where it does not hold for one extra, or for none of them.

    A line that holds without an extra is not counted again for each. One lock is walked several times, hence the cache.
    """
    requirement = _parsed(line)
    if requirement.marker is None:
        return None if extra else requirement
    if not requirement.marker.evaluate({**target.environment, "extra": extra}):
        return None
    if extra and requirement.marker.evaluate({**target.environment, "extra": ""}):
        return None
    return requirement


@cache
def _parsed(line: str) -> Requirement:
    return Requirement(line)
