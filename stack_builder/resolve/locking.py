"""From a stack file to a lock: resolve, read what was chosen, put both together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from stack_builder.progress import Progress
from stack_builder.resolve import graph, requirements
from stack_builder.resolve.indexes import Indexes
from stack_builder.resolve.model import DEFAULT_INDEX, Pin, Request, Resolver
from stack_builder.resolve.reading import Opener, Readings, read_all
from stack_builder.resolve.served import Served, Wanted, look_up
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.stack.spec import StackSpec


@dataclass(frozen=True, slots=True)
class Draft:
    """A lock that is not written yet.

    Attributes:
        lock: what will be ``artifacts.json``.
        requirements: what will be ``requirements.txt``.
        unread: why a wheel could not be read, by name.
    """

    lock: Lock
    requirements: str
    unread: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the difference between two locks; ``before`` or ``after`` is None where it was added or removed.

    Each side is the version, or file name and hash where the version stayed.
    """

    name: str
    before: str | None
    after: str | None


def draft(
    request: Request,
    resolver: Resolver,
    pins: tuple[Pin, ...],
    indexes: Indexes,
    opener: Opener,
    progress: Progress,
) -> Draft:
    """Make a lock of what a resolver chose.

    Args:
        request: what the resolver was asked.
        resolver: who answered.
        pins: the answer.
        indexes: gives the indexes by name; called only where one has to be asked.
        opener: opens a wheel for reading.
        progress: shows the reading of wheels that are not in the cache.
    """
    spec, target = request.spec, request.target
    readings = read_all(pins, opener, target.python, progress)
    requires_dist = {name: reading.requires_dist for name, reading in readings.by_name.items()}
    required = graph.build(spec.requires, requires_dist, target, spec.extras)
    if not readings.failed:  # uv was given every package of an explicit index as a root; not all need be wanted
        pins = tuple(pin for pin in pins if pin.name in required.requirers)
    explicit = [Wanted(pin.name, pin.version, pin.filename, pin.index) for pin in pins if pin.index != DEFAULT_INDEX]
    served = look_up(explicit, indexes(), target, progress).by_name if explicit else {}
    lock = Lock(
        stack=spec.stack.name,
        python=target.python,
        platform=spec.stack.platform,
        resolver=resolver.identity,
        exclude_newer=spec.stack.exclude_newer.isoformat() if spec.stack.exclude_newer else None,
        artifacts=tuple(_artifact(pin, readings, served.get(pin.name), required.via(pin.name)) for pin in pins),
        collisions=readings.collisions,
    )
    return Draft(lock, requirements.write(lock, target), readings.failed)


def accepted(pins: Iterable[Pin], spec: StackSpec, indexes: Indexes) -> tuple[Pin, ...]:
    """Put the uploads that the stack file chose in the place of those that a resolver happened to take.

    A choice that the index no longer lists changes nothing; LOCK003 then says that it was not taken.
    """
    chosen = {accept.filename: accept.sha256 for accept in spec.accept}

    def exchanged(pin: Pin) -> Pin:
        if chosen.get(pin.filename, pin.sha256) == pin.sha256:
            return pin
        listed = indexes()[pin.index].find(pin.name, pin.filename)
        file = next((file for file in listed if file.sha256 == chosen[pin.filename]), None)
        return pin if file is None else replace(pin, sha256=file.sha256, size=file.size, url=file.url)

    return tuple(exchanged(pin) for pin in pins)


def differences(before: Lock | None, after: Lock) -> tuple[Change, ...]:
    """Compare two locks, sorted by name."""
    old = {artifact.name: artifact for artifact in before.artifacts} if before else {}
    new = {artifact.name: artifact for artifact in after.artifacts}
    return tuple(
        change for name in sorted(old.keys() | new.keys()) if (change := _change(name, old.get(name), new.get(name)))
    )


def disagreements(one: tuple[Pin, ...], other: tuple[Pin, ...]) -> tuple[Change, ...]:
    """Compare the answers of two resolvers to one request: versions, files, hashes."""
    first, second = ({pin.name: pin for pin in pins} for pins in (one, other))
    return tuple(
        change
        for name in sorted(first.keys() | second.keys())
        if (change := _change(name, first.get(name), second.get(name)))
    )


def _change(name: str, before: Artifact | Pin | None, after: Artifact | Pin | None) -> Change | None:
    sides = [None if side is None else side.version for side in (before, after)]
    if before is not None and after is not None and before.version == after.version:
        if (before.filename, before.sha256) == (after.filename, after.sha256):
            return None
        sides = [f"{side.filename} {(side.sha256 or 'no hash')[:12]}" for side in (before, after)]
    return Change(name, *sides)


def _artifact(pin: Pin, readings: Readings, served: Served | None, via: tuple[str, ...]) -> Artifact:
    reading = readings.by_name.get(pin.name)
    return Artifact(
        name=pin.name,
        version=pin.version,
        filename=pin.filename,
        sha256=pin.sha256,
        size=pin.size,
        index=pin.index,
        tags=reading.tags if reading else (),
        metadata_sha256=reading.metadata_sha256 if reading else None,
        metadata_version=reading.metadata_version if reading else None,
        requires_python=reading.requires_python if reading else None,
        requires_dist=reading.requires_dist if reading else (),
        needs_cuda=reading.needs_cuda if reading else (),
        glibc=reading.glibc if reading else None,
        uploaded=pin.uploaded,
        yanked=served.yanked if served else None,
        uploads=served.uploads if served else (),
        twins=served.twins if served else (),
        via=via,
        unread=reading is None,
    )
