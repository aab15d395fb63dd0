"""Who requires whom in a set of wheels, by their METADATA: the ``# via`` of a lock."""

from __future__ import annotations

from collections import defaultdict
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
        requirers: for each reached package, the packages that require it and how; roots have an empty set unless
            something else requires them too.
        malformed: requirement lines that nobody can read, by package.
    """

    requirers: dict[str, dict[str, Requirement]] = field(default_factory=dict)
    malformed: dict[str, list[str]] = field(default_factory=dict)

    def via(self, name: str) -> tuple[str, ...]:
        """Names of the packages that require ``name``, sorted."""
        return tuple(sorted(self.requirers.get(name, ())))


def build_for(spec: StackSpec, artifacts: Iterable[Artifact]) -> Graph:
    """Walk a lock from the roots of its stack file."""
    lines = {artifact.name: artifact.requires_dist for artifact in artifacts}
    return build(spec.requires, lines, Target.of(spec).environment)


def build(roots: Iterable[str], requires_dist: Mapping[str, Iterable[str]], environment: Mapping[str, str]) -> Graph:
    """Walk from the roots along the requirements that apply.

    Args:
        roots: normalised names.
        requires_dist: ``Requires-Dist`` of every package of the set, by normalised name.
        environment: marker values of the target.
    """
    graph = Graph({root: {} for root in roots})
    extras: dict[str, set[str]] = defaultdict(set)
    work = [(root, "") for root in graph.requirers]
    seen = set(work)
    parsed: dict[str, list[Requirement]] = {}
    while work:
        name, extra = work.pop()
        if name not in parsed:
            parsed[name] = _parse(name, requires_dist.get(name, ()), graph)
        for requirement in parsed[name]:
            if not _applies(requirement, extra, environment):
                continue
            child = canonicalize_name(requirement.name)
            graph.requirers.setdefault(child, {})[name] = requirement
            for wanted in ("", *map(canonicalize_name, requirement.extras)):
                if (child, wanted) not in seen:
                    seen.add((child, wanted))
                    extras[child].add(wanted)
                    work.append((child, wanted))
    for name, requirers in graph.requirers.items():
        requirers.pop(name, None)  # "package[extra]" in the package's own extras
    return graph


def _parse(name: str, lines: Iterable[str], graph: Graph) -> list[Requirement]:
    parsed = []
    for line in lines:
        try:
            parsed.append(_requirement(line))
        except InvalidRequirement:
            graph.malformed.setdefault(name, []).append(line)
    return parsed


@cache
def _requirement(line: str) -> Requirement:
    return Requirement(line)


def _applies(requirement: Requirement, extra: str, environment: Mapping[str, str]) -> bool:
    """Whether a requirement holds for one extra; without an extra, those without a marker for one hold."""
    if requirement.marker is None:
        return not extra
    if not requirement.marker.evaluate({**environment, "extra": extra}):
        return False
    return not extra or not requirement.marker.evaluate({**environment, "extra": ""})
