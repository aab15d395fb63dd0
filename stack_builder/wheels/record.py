"""RECORD: the list of a wheel's files with their hashes (binary distribution format, "The .dist-info directory").

Unlike most installers this reader refuses a wheel whose RECORD is incomplete: all of some 400 wheels of two real stacks
are complete, so an incomplete one deserves a look.
"""

from __future__ import annotations

import csv
import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from stack_builder.errors import IntegrityError
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.layout import FIX, Layout
from stack_builder.wheels.paths import unsafe

MAX_RECORD = 64 << 20  # bytes; torch's is 1.6 MB
_DIGEST_SIZES = {"sha256": 32, "sha384": 48, "sha512": 64}  # "sha256 or better"; all of a real stack use sha256
_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")  # need no hash of their own


@dataclass(frozen=True, slots=True)
class RecordHash:
    """What RECORD says of the content of one file.

    Attributes:
        text: as it stands there: algorithm, ``=``, base64 of the digest for URLs.
        algorithm: ``sha256`` or better.
        digest: hexadecimal.
    """

    text: str
    algorithm: str
    digest: str


def read_record(archive: WheelArchive, layout: Layout) -> Mapping[str, RecordHash]:
    """Read a wheel's RECORD: by path, what it promises of every file but RECORD itself and signatures of it.

    The content of the files is not read here.

    Raises:
        IntegrityError: there is none, it is malformed, or it does not list the wheel's files, all of them and no
            others, each with a hash.
    """
    where = f"{archive.filename}: {layout.dist_info}/RECORD"
    entry = archive.find(f"{layout.dist_info}/RECORD")
    if entry is None:
        _refuse("is missing", where)
    promises = parse(archive.read(entry, MAX_RECORD), layout)
    names = {entry.name for entry in archive.files()} - unlisted(layout)
    if missing := sorted(names - promises.keys()):
        _refuse(f"does not list {missing[0]} ({len(missing)} in all)", where)
    if gone := sorted(promises.keys() - names):
        _refuse(f"lists {gone[0]}, which is not in the wheel ({len(gone)} in all)", where)
    return promises


def unlisted(layout: Layout) -> set[str]:
    """Give the paths that need no hash: RECORD and its signatures, which every installer leaves out or writes anew."""
    return {f"{layout.dist_info}/{name}" for name in _UNLISTED}


def parse(data: bytes, layout: Layout) -> dict[str, RecordHash]:
    """Parse the bytes of a RECORD.

    Raises:
        IntegrityError: not UTF-8, not three columns, an unsafe path, a path listed twice, no hash or a weak one.
    """
    where = f"{layout.filename}: {layout.dist_info}/RECORD"
    exempt = unlisted(layout)
    promises: dict[str, RecordHash] = {}
    try:
        for row in csv.reader(data.decode().splitlines(), strict=True):
            if not row or row[0] in exempt:
                continue
            path, promised = _row(row)
            if path in promises:
                raise ValueError(f"{path}: listed twice")
            if promised is None:
                _refuse(f"gives no hash, or a weak one, for {path}", where)
            promises[path] = promised
    except UnicodeDecodeError as error:
        _refuse(f"is not UTF-8 ({error})", where)
    except (ValueError, csv.Error) as error:
        _refuse(f"malformed row ({error})", where)
    return promises


def hash_text(data: bytes, algorithm: str = "sha256") -> str:
    """A hash in the form of RECORD: algorithm, ``=``, base64 of the digest for URLs without padding."""
    return f"{algorithm}={urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b'=').decode()}"


def hash_digest(text: str) -> tuple[str, str]:
    """Split a RECORD hash into algorithm and hexadecimal digest.

    Raises:
        ValueError: no base64.
    """
    algorithm, _, value = text.partition("=")
    return algorithm, urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()


def _row(row: list[str]) -> tuple[str, RecordHash | None]:
    """A path, and what is promised of it; nothing where that is no hash, or a weak one."""
    if len(row) != 3:
        raise ValueError(f"{row[0][:80]}: {len(row)} columns, not 3")
    path, text, size = row
    if reason := unsafe(path):
        raise ValueError(f"{path[:80]}: {reason}")
    if size and not (size.isascii() and size.isdecimal() and len(size) < 20):
        raise ValueError(f"{path[:80]}: size '{size[:20]}' is no number")
    try:
        algorithm, digest = hash_digest(text)
    except ValueError as error:
        raise ValueError(f"{path[:80]}: hash is not base64") from error
    if _DIGEST_SIZES.get(algorithm) != len(digest) // 2:
        return path, None
    return path, RecordHash(text, algorithm, digest)


def _refuse(what: str, where: str) -> NoReturn:
    raise IntegrityError(what, where=where, fix=FIX)
