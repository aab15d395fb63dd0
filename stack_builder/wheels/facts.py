"""What a wheel says of itself: its METADATA and the files that it installs. Read, never judged, never run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name

from stack_builder.errors import IntegrityError
from stack_builder.wheels.archive import Entry, WheelArchive
from stack_builder.wheels.entry_points import read_scripts
from stack_builder.wheels.layout import Layout, read_layout
from stack_builder.wheels.memo import Memo
from stack_builder.wheels.names import parse as parse_name
from stack_builder.wheels.record import read_record, unlisted

FACTS_VERSION = 1  # raise it when the fields or what is read into them change

MAX_METADATA = 8 << 20  # bytes; the largest of a real stack is below 200 kB


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """One file that the wheel installs.

    Attributes:
        scheme: ``lib`` (site-packages), ``scripts``, ``headers`` or ``data`` (the prefix itself).
        path: below that scheme's directory.
        sha256: of the content, as RECORD promises it (RECORD is compared with the bytes when an image is built).
        size: in bytes.
        source: path inside the wheel.
    """

    scheme: str
    path: str
    sha256: str
    size: int
    source: str


@dataclass(frozen=True, slots=True)
class WheelFacts:
    """What one wheel says of itself.

    Attributes:
        filename: the wheel's file name.
        name: normalised name in METADATA.
        version: version in the file name.
        tags: expanded compatibility tags of the file name.
        metadata_sha256: of the METADATA file.
        metadata_version: version that METADATA gives, as written.
        requires_python: as in METADATA.
        requires_dist: as in METADATA, in its order.
        scripts: names of its console and GUI entry points, sorted; an installer writes each into ``bin/``.
        files: what it installs, sorted; without RECORD, which every installer writes anew.
    """

    filename: str
    name: str
    version: str
    tags: tuple[str, ...]
    metadata_sha256: str
    metadata_version: str
    requires_python: str | None
    requires_dist: tuple[str, ...]
    scripts: tuple[str, ...]
    files: tuple[InstalledFile, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """The fields of a METADATA file that a lock depends on."""

    sha256: str
    name: str
    version: str
    requires_python: str | None
    requires_dist: tuple[str, ...]


def read_facts(archive: WheelArchive) -> WheelFacts:
    """Read the facts of an open wheel, local or remote.

    Of a remote wheel this reads the central directory, METADATA, RECORD and entry_points.txt.

    Raises:
        IntegrityError: the wheel lacks METADATA or RECORD, or they are malformed; RECORD is incomplete.
    """
    wheel = parse_name(archive.filename)
    layout = read_layout(archive)
    data = archive.read(_need(archive, f"{layout.dist_info}/METADATA"), MAX_METADATA)
    metadata = parse_metadata(data, archive.filename)
    return WheelFacts(
        filename=archive.filename,
        name=metadata.name,
        version=wheel.version,
        tags=wheel.tags,
        metadata_sha256=metadata.sha256,
        metadata_version=metadata.version,
        requires_python=metadata.requires_python,
        requires_dist=metadata.requires_dist,
        scripts=tuple(sorted(script.name for script in read_scripts(archive, layout))),
        files=_files(archive, layout),
    )


def cached_facts(sha256: str, filename: str, read: Callable[[], WheelFacts]) -> WheelFacts:
    """Give the facts of a wheel by its hash, calling ``read`` only where they are not in the cache."""
    memo = Memo("wheel", FACTS_VERSION, WheelFacts)
    known = memo.get(sha256)
    if known is not None and known.filename == filename:
        return known
    facts = read()
    memo.put(sha256, facts)
    return facts


def parse_metadata(data: bytes, where: str) -> Metadata:
    """Parse a METADATA file, from a wheel or from an index.

    Raises:
        IntegrityError: larger than ``MAX_METADATA``, or no name or version.
    """
    if len(data) > MAX_METADATA:
        raise IntegrityError(f"METADATA has {len(data)} bytes, more than {MAX_METADATA}", where=where)
    raw, _ = parse_email(data)
    if "name" not in raw or "version" not in raw:
        raise IntegrityError("METADATA gives no name or no version", where=where)
    return Metadata(
        sha256=hashlib.sha256(data).hexdigest(),
        name=canonicalize_name(raw["name"]),
        version=raw["version"],
        requires_python=raw.get("requires_python"),
        requires_dist=tuple(raw.get("requires_dist", ())),
    )


def _need(archive: WheelArchive, name: str) -> Entry:
    entry = archive.find(name)
    if entry is None:
        raise IntegrityError(f"has no {name}", where=archive.filename)
    return entry


def _files(archive: WheelArchive, layout: Layout) -> tuple[InstalledFile, ...]:
    promises, left_out = read_record(archive, layout), unlisted(layout)
    files = []
    for entry in archive.files():
        if entry.name in left_out:
            continue
        scheme, path = layout.place(entry.name)
        promise = promises[entry.name]
        sha256 = promise.digest if promise.algorithm == "sha256" else _hash(archive, entry)
        files.append(InstalledFile(scheme, path, sha256, entry.size, entry.name))
    return tuple(sorted(files, key=lambda file: (file.scheme, file.path)))


def _hash(archive: WheelArchive, entry: Entry) -> str:
    digest = hashlib.sha256()
    for data in archive.open(entry):
        digest.update(data)
    return digest.hexdigest()
