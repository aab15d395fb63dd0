"""The facts that the LOCK rules judge, and what several of them derive from these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, TypeAdapter

from stack_builder import resources
from stack_builder.diagnose.catalogue import read_toml
from stack_builder.resolve import graph
from stack_builder.resolve.reading import Reading
from stack_builder.resolve.requirements import Line
from stack_builder.resolve.served import Answers
from stack_builder.resolve.target import Target
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.stack.spec import StackSpec


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Toolkit(_Table):
    packages: tuple[str, ...]


class _ErrorBodies(_Table):
    bodies: tuple[str, ...]


class Knowledge(_Table):
    """``checks/lock.toml``."""

    companions: dict[str, tuple[str, ...]]
    toolkit: _Toolkit
    error_bodies: _ErrorBodies


def knowledge() -> Knowledge:
    """Read what the rules know about packages and servers."""
    return read_toml(resources.checks() / "lock.toml", TypeAdapter(Knowledge))


@dataclass(frozen=True)
class LockFacts:
    """All that the rules look at.

    Attributes:
        spec: the stack file.
        lock: ``artifacts.json``.
        requirements: ``requirements.txt`` by normalised name.
        together: ``requirements.txt`` is byte for byte the one that ``artifacts.json`` was written with.
        today: decides whether an override has expired.
        served: what the indexes serve today; None where they were not asked.
        not_asked: why they were not; None where that is no gap, as the lock was resolved from them just now.
        read: what the wheels' bytes say, by name, as far as it is known without the network.
        unread: why a wheel could not be read just now, by name.
    """

    spec: StackSpec
    lock: Lock
    requirements: Mapping[str, Line]
    today: date
    together: bool = True
    served: Answers | None = None
    not_asked: str | None = "the indexes were not asked"
    read: Mapping[str, Reading] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def knowledge(self) -> Knowledge:
        """What is known about packages and servers."""
        return knowledge()

    @cached_property
    def target(self) -> Target:
        """What the stack file locks for."""
        return Target.of(self.spec)

    @cached_property
    def by_name(self) -> dict[str, Artifact]:
        """The lock by normalised name."""
        return {artifact.name: artifact for artifact in self.lock.artifacts}

    @cached_property
    def graph(self) -> graph.Graph:
        """Who requires whom, as far as METADATA is known."""
        return graph.of_lock(self.spec, self.lock.artifacts)

    @cached_property
    def without_metadata(self) -> tuple[str, ...]:
        """Packages whose requirements are not known: their METADATA was not read and not recorded either."""
        return tuple(a.name for a in self.lock.artifacts if a.unread and a.metadata_sha256 is None)

    @cached_property
    def overrides(self) -> dict[str, SpecifierSet]:
        """The versions that the stack file forces, by package."""
        return {override.package: SpecifierSet(override.version) for override in self.spec.override}

    def departures(self) -> Iterator[tuple[Artifact, str, str]]:
        """Yield requirements that the lock does not meet: the wheel, who requires it, and what."""
        for name, requirers in sorted(self.graph.requirers.items()):
            artifact = self.by_name.get(name)
            if artifact is None:
                continue
            version = Version(artifact.version)
            for requirer, requirements in sorted(requirers.items()):
                for requirement in requirements:
                    if not requirement.specifier.contains(version, prereleases=True):
                        yield artifact, requirer, str(requirement.specifier)

    def distribution(self, name: str) -> str:
        """``name version`` of a locked package, for findings."""
        return f"{name} {self.by_name[name].version}"
