"""RECORD: the list of a wheel's files with their hashes (binary distribution format, "The .dist-info directory")."""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from stack_builder.errors import IntegrityError
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.names import parse as parse_name
from stack_builder.wheels.paths import unsafe

MAX_RECORD = 128 << 20  # bytes; torch's is 1.6 MB
_DIGEST_SIZES = {"sha256": 32, "sha384": 48, "sha512": 64}  # "sha256 or better"; all of a real stack use sha256
_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")  # need no hash of their own

_FIX = "report it to the project that made the wheel; its own file list is wrong"


@dataclass(frozen=True, slots=True)
class RecordLine:
    """One line: a path with its promised digest (algorithm, hexadecimal) and size; None where it gives none."""

    path: str
    algorithm: str | None
    digest: str | None
    size: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One disagreement between a wheel and its RECORD."""

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class Record:
    """The RECORD of one wheel, by path."""

    dist_info: str
    lines: dict[str, RecordLine]

    def exempt(self, path: str) -> bool:
        """Whether ``path`` is RECORD itself or a signature of it, which need no hash."""
        return path in {f"{self.dist_info}/{name}" for name in _UNLISTED}

    def names(self, archive: WheelArchive) -> Iterator[Difference]:
        """Yield files that the wheel holds and RECORD does not list, or the other way round, or lists unhashed."""
        for entry in archive.files():
            line = self.lines.get(entry.name)
            if self.exempt(entry.name):
                continue
            if line is None:
                yield Difference(entry.name, "is not listed in RECORD")
            elif line.digest is None:
                yield Difference(entry.name, "is listed in RECORD without a hash")
            elif line.size is not None and line.size != entry.size:
                yield Difference(entry.name, f"has {entry.size} bytes, {line.size} in RECORD")
        for path in self.lines:
            if archive.find(path) is None and not self.exempt(path):
                yield Difference(path, "is listed in RECORD but not in the wheel")


def dist_info(archive: WheelArchive) -> str:
    """Give the name of the wheel's one ``.dist-info`` directory.

    Raises:
        IntegrityError: none, several, or that of another distribution.
    """
    tops = {entry.name.partition("/")[0] for entry in archive.entries}
    found = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(found) != 1:
        raise IntegrityError(f"has {len(found)} .dist-info directories, not one", where=archive.filename, fix=_FIX)
    named = found[0].partition("-")[0]
    wanted = parse_name(archive.filename).distribution
    if canonicalize_name(named) != wanted:
        raise IntegrityError(f"holds {found[0]}, another distribution", where=archive.filename, fix=_FIX)
    return found[0]


def read_record(archive: WheelArchive) -> Record:
    """Read a wheel's RECORD.

    Raises:
        IntegrityError: there is none, or it is malformed.
    """
    folder = dist_info(archive)
    entry = archive.find(f"{folder}/RECORD")
    if entry is None:
        raise IntegrityError("has no RECORD", where=archive.filename, fix=_FIX)
    return parse(archive.read(entry, MAX_RECORD), folder, archive.filename)


def parse(data: bytes, folder: str, filename: str) -> Record:
    """Parse the bytes of a RECORD.

    Raises:
        IntegrityError: not UTF-8, not three columns, an unsafe path, a path listed twice, an unknown digest.
    """
    lines: dict[str, RecordLine] = {}
    try:
        for row in csv.reader(data.decode().splitlines(), strict=True):
            if not row:
                continue
            line = _line(row)
            if line.path in lines:
                raise ValueError(f"{line.path}: listed twice")
            lines[line.path] = line
    except (ValueError, csv.Error) as error:
        raise IntegrityError(f"malformed RECORD: {error}", where=filename, fix=_FIX) from error
    return Record(folder, lines)


def verify(archive: WheelArchive, record: Record) -> tuple[Difference, ...]:
    """Read every file of the wheel and compare names, sizes and hashes with its RECORD; sorted by path."""
    found = list(record.names(archive))
    for entry in archive.files():
        line = record.lines.get(entry.name)
        if line is None or line.algorithm is None:
            continue
        digest = hashlib.new(line.algorithm)
        for data in archive.open(entry):
            digest.update(data)
        if digest.hexdigest() != line.digest:
            found.append(Difference(entry.name, f"has {line.algorithm} {digest.hexdigest()}, {line.digest} in RECORD"))
    return tuple(sorted(found, key=lambda difference: (difference.path, difference.what)))


def _line(row: list[str]) -> RecordLine:
    if len(row) != 3:
        raise ValueError(f"{row[0][:80]}: {len(row)} columns, not 3")
    path, digest, size = row
    if reason := unsafe(path):
        raise ValueError(f"{path[:80]}: {reason}")
    if size and not (size.isascii() and size.isdecimal() and len(size) < 20):
        raise ValueError(f"{path[:80]}: size '{size[:20]}' is no number")
    length = int(size) if size else None
    if not digest:
        return RecordLine(path, None, None, length)
    algorithm, _, text = digest.partition("=")
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError(f"{path[:80]}: hash is not base64") from error
    if _DIGEST_SIZES.get(algorithm) != len(raw):
        raise ValueError(f"{path[:80]}: hash is not sha256 or better")
    return RecordLine(path, algorithm, raw.hex(), length)
