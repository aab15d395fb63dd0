"""What a lock records of each wheel, read from its bytes: METADATA, needed CUDA libraries, needed glibc.

Of a wheel on an index only parts are fetched, by range requests: directory, METADATA, RECORD and the beginning of
each ELF file. Everything is kept in the cache by the wheel's hash, so that a second lock reads nothing again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from stack_builder.elf.layout import ElfError
from stack_builder.elf.needed import cuda_majors, highest_glibc, needed_from_prefix
from stack_builder.errors import StackbError
from stack_builder.progress import Progress
from stack_builder.resolve.collisions import collisions
from stack_builder.resolve.indexes import Indexes
from stack_builder.resolve.model import Pin
from stack_builder.stack.lock import Artifact, Collision, CudaNeed
from stack_builder.wheels.archive import Entry, SeekableFile, WheelArchive, iter_elf_entries
from stack_builder.wheels.facts import WheelFacts, cached_facts, read_facts
from stack_builder.wheels.memo import Memo
from stack_builder.wheels.store import Store

_VERSION = 1  # raise it when Reading or how it is computed changes
_THREADS = 16  # they wait for the network, not for the processor
_PREFIXES = (256 << 10, 4 << 20, 32 << 20)  # bytes of an ELF file, tried in turn until its libraries are seen

Opener = Callable[[Pin], AbstractContextManager[SeekableFile]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one wheel says, as far as a lock records it. Fields as in :class:`~stack_builder.stack.lock.Artifact`."""

    tags: tuple[str, ...]
    metadata_sha256: str
    metadata_version: str
    requires_python: str | None
    requires_dist: tuple[str, ...]
    needs_cuda: tuple[CudaNeed, ...]
    glibc: str | None


@dataclass(frozen=True)
class _Collisions:
    found: tuple[Collision, ...]


@dataclass(frozen=True)
class Readings:
    """What all wheels of a lock say.

    Attributes:
        by_name: by normalised distribution name.
        failed: why a wheel could not be read, by name.
        collisions: None where a wheel could not be read.
    """

    by_name: Mapping[str, Reading]
    failed: Mapping[str, str]
    collisions: tuple[Collision, ...] | None


def store_or_index(store: Store, indexes: Indexes) -> Opener:
    """Open wheels from the store where they are in it, otherwise in place on their index.

    Args:
        store: of fetched wheels.
        indexes: gives the indexes by name; called only when the first wheel is not in the store.
    """

    @contextmanager
    def opener(pin: Pin) -> Iterator[SeekableFile]:
        stored = None if pin.sha256 is None or pin.size is None else store.find(pin.sha256, pin.filename, pin.size)
        if stored is not None:
            with stored.open("rb") as file:
                yield file
        else:
            from stack_builder.wheels.simple import IndexFile  # loads an HTTP client

            listed = IndexFile(pin.filename, pin.url, pin.sha256, pin.size)
            with indexes()[pin.index].open(listed) as remote:
                yield remote

    return opener


def recall(artifacts: Iterable[Artifact]) -> dict[str, Reading]:
    """Give what the cache knows of the wheels of a lock, by name, without opening any."""
    memo = Memo("lock", _VERSION, Reading)
    known = {artifact.name: memo.get(artifact.sha256) for artifact in artifacts if artifact.sha256 is not None}
    return {name: reading for name, reading in known.items() if reading is not None}


def read_all(pins: Iterable[Pin], opener: Opener, python: str, progress: Progress) -> Readings:
    """Read every wheel, from the cache where its hash is known there.

    A wheel that cannot be read (no range requests, malformed, unreachable) is named in ``failed``; the others count.
    """
    pins = list(pins)
    memo = Memo("lock", _VERSION, Reading)
    known = {pin.name: memo.get(pin.sha256) for pin in pins if pin.sha256 is not None}
    by_name = {name: reading for name, reading in known.items() if reading is not None}
    missing = [pin for pin in pins if pin.name not in by_name]
    failed: dict[str, str] = {}

    def read(pin: Pin) -> None:
        try:
            by_name[pin.name] = _read(pin, opener, memo)
        except StackbError as error:
            failed[pin.name] = str(error)

    if missing:
        with (
            progress.task("reading wheels", total=len(missing), unit="wheels") as task,
            ThreadPoolExecutor(min(_THREADS, len(missing))) as pool,
        ):
            for _ in pool.map(read, missing):
                task.advance(1)
    found = None if failed else _all_collisions(pins, opener, python)
    return Readings(by_name, dict(sorted(failed.items())), found)


def _read(pin: Pin, opener: Opener, memo: Memo[Reading]) -> Reading:
    with opener(pin) as file:
        archive = WheelArchive(file, pin.filename)
        facts = _facts(pin, lambda: read_facts(archive))
        needs, glibc = _elf_needs(archive)
    reading = Reading(
        tags=facts.tags,
        metadata_sha256=facts.metadata_sha256,
        metadata_version=facts.metadata_version,
        requires_python=facts.requires_python,
        requires_dist=facts.requires_dist,
        needs_cuda=needs,
        glibc=glibc,
    )
    if pin.sha256 is not None:
        memo.put(pin.sha256, reading)
    return reading


def _facts(pin: Pin, read: Callable[[], WheelFacts]) -> WheelFacts:
    return read() if pin.sha256 is None else cached_facts(pin.sha256, pin.filename, read)


def _elf_needs(archive: WheelArchive) -> tuple[tuple[CudaNeed, ...], str | None]:
    needs: dict[tuple[int, str], str] = {}
    versions: list[str] = []
    for entry in iter_elf_entries(archive):
        libraries, glibc = _entry_needs(archive, entry)
        if glibc is not None:
            versions.append(f"GLIBC_{glibc}")
        for library in libraries:
            for major in cuda_majors([library]):
                first = needs.setdefault((major, library), entry.name)
                needs[major, library] = min(first, entry.name)
    cuda = tuple(CudaNeed(major, library, name) for (major, library), name in sorted(needs.items()))
    return cuda, highest_glibc(versions)


def _entry_needs(archive: WheelArchive, entry: Entry) -> tuple[tuple[str, ...], str | None]:
    """Read as much of an object as it takes to see what it needs; nothing where it hides that beyond the bounds."""
    for size in _PREFIXES:
        try:
            seen = needed_from_prefix(archive.prefix(entry, size), f"{archive.filename}: {entry.name}")
        except ElfError:
            return (), None
        if not seen.inferred or size >= entry.size:
            return seen.libraries, seen.glibc
        if seen.libraries and size > _PREFIXES[0]:
            return _without_own_name(seen.libraries, entry.name), seen.glibc
    return (), None


def _without_own_name(libraries: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Drop the object's own soname, which stands among the names that were taken by their shape."""
    own = path.rpartition("/")[2].partition(".so")[0]
    return tuple(library for library in libraries if library.partition(".so")[0] != own)


def _all_collisions(pins: list[Pin], opener: Opener, python: str) -> tuple[Collision, ...]:
    """Scan all wheels, or take the answer from the cache: it depends on the set of hashes alone."""
    lines = "".join(sorted(f"{pin.filename} {pin.sha256}\n" for pin in pins))
    memo = Memo("collisions", _VERSION, _Collisions)
    key = hashlib.sha256(f"{python}\n{lines}".encode()).hexdigest()
    known = memo.get(key)
    if known is None:
        known = _Collisions(collisions((_record(pin, opener) for pin in pins), python))
        memo.put(key, known)
    return known.found


def _record(pin: Pin, opener: Opener) -> WheelFacts:
    def read() -> WheelFacts:
        with opener(pin) as file:
            return read_facts(WheelArchive(file, pin.filename))

    return _facts(pin, read)
