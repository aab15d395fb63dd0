"""What a resolver is asked and what it answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stack_builder.errors import UsageError
from stack_builder.resolve.target import Target
from stack_builder.stack.lock import Lock
from stack_builder.stack.spec import StackSpec

DEFAULT_INDEX = "default"
ALL = ":all:"  # to upgrade everything, as pip's --only-binary spells it


@dataclass(frozen=True, slots=True)
class Request:
    """One resolution.

    Attributes:
        spec: the stack file.
        target: what it is resolved for.
        prefer: versions to keep where the constraints allow it, by normalised name: the lock as it stands, without
            the packages that shall move.
    """

    spec: StackSpec
    target: Target
    prefer: Mapping[str, str] = field(default_factory=dict)

    def index_of(self, name: str) -> str:
        """Name of the index that serves a package."""
        return next((index.name for index in self.spec.index if name in index.packages), DEFAULT_INDEX)


def request_for(spec: StackSpec, previous: Lock | None, upgrade: Collection[str]) -> Request:
    """Ask for a resolution that keeps the previous lock's versions, except those of ``upgrade`` (``:all:`` for all).

    Raises:
        UsageError: a package to upgrade is not in the lock.
    """
    unknown = sorted(name for name in upgrade if name != ALL and previous is not None and not previous.artifact(name))
    if unknown:
        raise UsageError(f"cannot upgrade what is not in the lock: {', '.join(unknown)}", fix="check the spelling")
    keep = () if previous is None or ALL in upgrade else previous.artifacts
    prefer = {artifact.name: artifact.version for artifact in keep if artifact.name not in upgrade}
    return Request(spec, Target.of(spec), prefer)


@dataclass(frozen=True, slots=True)
class Pin:
    """The one wheel that a resolver chose for a package.

    Attributes:
        name: normalised distribution name.
        version: version in the file name, local part included.
        filename: the wheel's file name.
        sha256: as the index gives it, else None.
        size: in bytes, as the index gives it, else None.
        index: name of the ``[[index]]``, or ``default``.
        uploaded: ISO time that the index gives, else None.
        url: where its bytes are now; never written to a lock.
    """

    name: str
    version: str
    filename: str
    sha256: str | None
    size: int | None
    index: str
    uploaded: str | None
    url: str


class Resolver(Protocol):
    """A tool that turns a stack file into one wheel per package."""

    @property
    def identity(self) -> str:
        """Name and version of the tool, such as ``uv 0.13.9``."""

    def resolve(self, request: Request) -> tuple[Pin, ...]:
        """Resolve, wheels only.

        Returns:
            the pins, sorted by name.

        Raises:
            UsageError: the stack file cannot be satisfied; one line, with the tool's own explanation on stderr.
            MachineError: the tool is missing, or an index does not answer.
        """
