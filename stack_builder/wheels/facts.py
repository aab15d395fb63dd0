"""What a wheel says of itself: its METADATA and the files that it installs. Read, never judged, never run."""

from __future__ import annotations

import configparser
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name

from stack_builder.errors import IntegrityError
from stack_builder.wheels.archive import Entry, WheelArchive
from stack_builder.wheels.memo import Memo
from stack_builder.wheels.names import WheelName
from stack_builder.wheels.names import parse as parse_name
from stack_builder.wheels.record import Record, dist_info, read_record

FACTS_VERSION = 1  # raise it when the fields or what is read into them change

MAX_METADATA = 8 << 20  # bytes; the largest of a real stack is below 200 kB
MAX_ENTRY_POINTS = 1 << 20

_SCHEMES = {"purelib": "lib", "platlib": "lib", "scripts": "scripts", "headers": "headers", "data": "data"}


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
        IntegrityError: the wheel lacks METADATA or RECORD, or they are malformed.
    """
    wheel = parse_name(archive.filename)
    folder = dist_info(archive)
    metadata = parse_metadata(archive.read(_need(archive, f"{folder}/METADATA"), MAX_METADATA), archive.filename)
    record = read_record(archive)
    return WheelFacts(
        filename=archive.filename,
        name=metadata.name,
        version=wheel.version,
        tags=wheel.tags,
        metadata_sha256=metadata.sha256,
        metadata_version=metadata.version,
        requires_python=metadata.requires_python,
        requires_dist=metadata.requires_dist,
        scripts=_scripts(archive, folder),
        files=_files(archive, record, wheel),
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


def venv_path(file: InstalledFile, distribution: str, python: str) -> str:
    """Give where a file lands below the prefix of a virtual environment.

    Args:
        file: of a wheel.
        distribution: normalised name of that wheel's distribution.
        python: such as ``3.11``.
    """
    match file.scheme:
        case "lib":
            return f"lib/python{python}/site-packages/{file.path}"
        case "scripts":
            return f"bin/{file.path}"
        case "headers":
            return f"include/site/python{python}/{distribution}/{file.path}"
        case _:
            return file.path


def _need(archive: WheelArchive, name: str) -> Entry:
    entry = archive.find(name)
    if entry is None:
        raise IntegrityError(f"has no {name}", where=archive.filename)
    return entry


def _scripts(archive: WheelArchive, folder: str) -> tuple[str, ...]:
    entry = archive.find(f"{folder}/entry_points.txt")
    if entry is None:
        return ()
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[method-assign, assignment]  # names are case-sensitive
    try:
        parser.read_string(archive.read(entry, MAX_ENTRY_POINTS).decode())
    except (configparser.Error, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise IntegrityError(f"malformed entry_points.txt: {reason}", where=archive.filename) from error
    groups = ("console_scripts", "gui_scripts")
    return tuple(sorted(name for group in groups if parser.has_section(group) for name in parser.options(group)))


def _files(archive: WheelArchive, record: Record, wheel: WheelName) -> tuple[InstalledFile, ...]:
    data_folder = record.dist_info.removesuffix(".dist-info") + ".data"
    files = []
    for entry in archive.files():
        if record.exempt(entry.name):
            continue
        scheme, path = "lib", entry.name
        if entry.name.startswith(f"{data_folder}/"):
            key, _, path = entry.name.removeprefix(f"{data_folder}/").partition("/")
            if key not in _SCHEMES or not path:
                raise IntegrityError(f"'{key}' is no installation scheme", where=f"{wheel.filename}: {entry.name}")
            scheme = _SCHEMES[key]
        line = record.lines.get(entry.name)
        if line is None or line.digest is None:
            raise IntegrityError("is not hashed in RECORD", where=f"{wheel.filename}: {entry.name}")
        sha256 = line.digest if line.algorithm == "sha256" else _hash(archive, entry)
        files.append(InstalledFile(scheme, path, sha256, entry.size, entry.name))
    return tuple(sorted(files, key=lambda file: (file.scheme, file.path)))


def _hash(archive: WheelArchive, entry: Entry) -> str:
    digest = hashlib.sha256()
    for data in archive.open(entry):
        digest.update(data)
    return digest.hexdigest()
