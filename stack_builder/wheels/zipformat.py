"""The central directory of a zip: layout, bounds, and everything in it that an honest wheel does not hold.

Layout and field names: PKWARE APPNOTE 6.3.10, sections 4.3.7 (local file header), 4.3.12 (central directory),
4.3.14 to 4.3.16 (end records), 4.5.3 (zip64 extra field).
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stack_builder.wheels.paths import Bad, NameBook

# The bounds are many times what 414 wheels of two real CUDA 13 stacks hold (largest: 13,043 entries, an
# expansion of 8.7, 1.3 MB of central directory) and small enough that hostile figures cost nothing.
MAX_ENTRIES = 500_000
MAX_DIRECTORY = 128 << 20  # bytes of central directory
MAX_TOTAL = 64 << 30  # bytes, all entries decompressed
MAX_EXPANSION = 100  # decompressed bytes per byte of the wheel …
FREE_EXPANSION = 64 << 20  # … beyond this many, since a small wheel of repetitive text may compress that well
MAX_DEFLATE_RATIO = 1032  # deflate cannot do better: 258 bytes in two bits (RFC 1951, 3.2.5); more is a lie

STORED, DEFLATED = 0, 8

FLAGS_ENCRYPTED = 0x2041  # bits 0, 6 and 13: encryption, strong encryption, masked headers
FLAG_PATCH = 0x20
FLAG_DESCRIPTOR = 0x08  # sizes and CRC follow the data
FLAG_UTF8 = 0x800
FLAGS_OF_BOTH_HEADERS = FLAGS_ENCRYPTED | FLAG_PATCH | FLAG_DESCRIPTOR | FLAG_UTF8

LOCAL = struct.Struct("<4s5H3L2H")
LOCAL_MAGIC = b"PK\x03\x04"

_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_TAIL = _END.size + 0xFFFF + _END64_LOCATOR.size + _END64.size
_U16, _U32 = 0xFFFF, 0xFFFFFFFF

ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the central directory.

    Attributes:
        name: path inside the wheel, with ``/``; directories without their trailing slash.
        is_dir: whether it is a directory entry.
        method: ``STORED`` or ``DEFLATED``.
        crc: CRC-32 of the decompressed bytes.
        compressed_size: bytes in the wheel.
        size: bytes decompressed.
        mode: Unix permission bits; 0 where the writer recorded none.
        header_offset: where the local header stands.
        raw_name: the name's bytes, as the local header must repeat them.
        flags: general purpose bit flags.
    """

    name: str
    is_dir: bool
    method: int
    crc: int
    compressed_size: int
    size: int
    mode: int
    header_offset: int
    raw_name: bytes
    flags: int


class _End(NamedTuple):
    entries: int
    start: int
    length: int


def read_directory(read_at: ReadAt, size: int, bad: Bad) -> tuple[tuple[Entry, ...], int]:
    """Read the entries of an archive.

    Args:
        read_at: gives exactly so many bytes from an offset, or raises.
        size: of the archive, in bytes.
        bad: makes the error to raise from a reason and an entry's name.

    Returns:
        the entries in directory order, and the offset of the directory.
    """
    end = _find_end(read_at, size, bad)
    raw = read_at(end.start, end.length)
    book = NameBook(bad)
    entries, position, total = [], 0, 0
    for _ in range(end.entries):
        if position + _CENTRAL.size > end.length:
            raise bad("central directory ends inside an entry", None)
        entry, position = _central_entry(raw, position, book, bad)
        entries.append(entry)
        total += entry.size
    if position != end.length:
        raise bad("central directory holds more entries than the end record says", None)
    if total > MAX_TOTAL or total > FREE_EXPANSION + MAX_EXPANSION * size:
        raise bad(f"expands to {total} bytes from {size}: a zip bomb", None)
    book.close()
    _check_extents(entries, end.start, bad)
    return tuple(entries), end.start


def widen(extra: bytes, size: int, packed: int, offset: int) -> tuple[int, int, int] | None:
    """Replace the fields that are all ones by those of the zip64 extra field, in its fixed order.

    Returns:
        size, compressed size, offset; None where the extra field lacks one of them.
    """
    if _U32 not in (size, packed, offset):
        return size, packed, offset
    wide = next((data for kind, data in _extra_fields(extra) if kind == 0x0001), b"")
    values = []
    for narrow in (size, packed, offset):
        if narrow == _U32:
            if len(wide) < 8:
                return None
            narrow, wide = int.from_bytes(wide[:8], "little"), wide[8:]
        values.append(narrow)
    return values[0], values[1], values[2]


def _find_end(read_at: ReadAt, size: int, bad: Bad) -> _End:
    start = max(0, size - _TAIL)
    tail = read_at(start, size - start)
    found = [at for at in _occurrences(tail, b"PK\x05\x06") if _ends_file(tail, at)]
    if not found:
        raise bad(f"not a zip archive, or truncated at {size} bytes", None)
    if len(found) > 1:
        raise bad("has several end records: which entries it holds would depend on the reader", None)
    at = found[0]
    _, disk, first_disk, here, count, length, offset, _ = _END.unpack_from(tail, at)
    if (disk, first_disk, here) not in ((0, 0, count), (_U16, _U16, count)):
        raise bad("is one part of a split archive", None)
    end, stop = _End(count, offset, length), start + at
    locator = at - _END64_LOCATOR.size
    if locator >= 0 and tail[locator:].startswith(b"PK\x06\x07"):
        where = _END64_LOCATOR.unpack_from(tail, locator)[2]
        if where + _END64.size != start + locator:
            raise bad("zip64 end record is not where its locator says", None)
        magic, *_, here64, count64, length64, offset64 = _END64.unpack(read_at(where, _END64.size))
        if magic != b"PK\x06\x06" or here64 != count64:
            raise bad("zip64 end record is malformed", None)
        if count not in (count64, _U16) or length not in (length64, _U32) or offset not in (offset64, _U32):
            raise bad("zip64 end record contradicts the end record", None)
        end, stop = _End(count64, offset64, length64), where
    if end.entries > MAX_ENTRIES or end.length > MAX_DIRECTORY or end.entries * _CENTRAL.size > end.length:
        raise bad(f"claims {end.entries} entries in a directory of {end.length} bytes", None)
    if end.start + end.length != stop:
        raise bad("central directory is not where the end record says", None)
    return end


def _ends_file(tail: bytes, at: int) -> bool:
    """Whether an end record at ``at``, with the comment it announces, reaches exactly to the end."""
    return at + _END.size <= len(tail) and at + _END.size + _END.unpack_from(tail, at)[-1] == len(tail)


def _central_entry(raw: bytes, at: int, book: NameBook, bad: Bad) -> tuple[Entry, int]:
    (magic, _, _, flags, method, _, _, crc, packed, size, name_length, extra_length, comment_length) = (
        fields := _CENTRAL.unpack_from(raw, at)
    )[:13]
    disk, _, attributes, offset = fields[13:]
    extra_start = at + _CENTRAL.size + name_length
    end = extra_start + extra_length + comment_length
    if magic != b"PK\x01\x02" or end > len(raw) or disk not in (0, _U16):
        raise bad("central directory is corrupt", None)
    raw_name = raw[at + _CENTRAL.size : extra_start]
    extra = raw[extra_start : extra_start + extra_length]
    name, is_dir = book.add(raw_name, utf8=bool(flags & FLAG_UTF8), extra=extra)
    wide = widen(extra, size, packed, offset)
    if wide is None:
        raise bad("its zip64 sizes are missing", name)
    size, packed, offset = wide
    mode = attributes >> 16
    if flags & (FLAGS_ENCRYPTED | FLAG_PATCH):
        raise bad("is encrypted or a patch", name)
    if method not in (STORED, DEFLATED):
        raise bad(f"compression method {method} is neither stored nor deflate", name)
    if stat.S_IFMT(mode) not in (0, stat.S_IFDIR if is_dir else stat.S_IFREG):
        raise bad("is a link, a device or otherwise no plain file", name)
    if is_dir and size:
        raise bad("is a directory with content", name)
    if size != packed if method == STORED else size > MAX_DEFLATE_RATIO * packed:
        raise bad(f"claims {size} bytes from {packed}", name)
    entry = Entry(name, is_dir, method, crc, packed, size, stat.S_IMODE(mode), offset, raw_name, flags)
    return entry, end


def _check_extents(entries: list[Entry], directory_start: int, bad: Bad) -> None:
    """Refuse entries that share bytes; a local header's own extra field is counted once it is read."""
    taken, owner = 0, ""
    for entry in sorted(entries, key=lambda e: e.header_offset):
        if entry.header_offset < taken:
            raise bad(f"overlaps '{owner}'", entry.name)
        taken, owner = entry.header_offset + LOCAL.size + len(entry.raw_name) + entry.compressed_size, entry.name
        if taken > directory_start:
            raise bad("lies outside the archive", entry.name)


def _occurrences(data: bytes, needle: bytes) -> Iterator[int]:
    at = data.find(needle)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)


def _extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        yield kind, extra[at + 4 : at + 4 + length]
        at += 4 + length
