"""``/etc/ld.so.cache``: the table from sonames to paths that ldconfig wrote and ld.so reads.

Format: glibc ``elf/cache.c`` and ``sysdeps/generic/dl-cache.h``. A file holds the new format
(``glibc-ld.so.cache1.1``), alone or behind the old one (``ld.so-1.7.0``); files with the old format alone ended with
glibc 2.2. An extension block names the ``glibc-hwcaps`` folders (glibc 2.33).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from stack_builder.elf.layout import Buffer, ElfError, text

MAX_ENTRIES = 1 << 18
"""Rows; Debian with a desktop has some 2,000."""

_OLD_MAGIC, _OLD_HEADER, _OLD_ENTRY = b"ld.so-1.7.0", 16, 12
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_EXTENSION_MAGIC, _TAG_HWCAPS = 0xEAA42174, 1
_HWCAP_EXTENSION = 1 << 62
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}  # FLAG_ELF_LIBC6 with the machine's 64-bit library class


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One row.

    Attributes:
        soname: what is looked up.
        path: where it is.
        level: the ``glibc-hwcaps`` folder it is for, such as ``x86-64-v3``; None for every processor.
    """

    soname: str
    path: str
    level: str | None


@dataclass(frozen=True, slots=True)
class LoaderCache:
    """The rows of one cache for one machine, in the order of the file."""

    entries: tuple[CacheEntry, ...]
    _by_soname: Mapping[str, tuple[CacheEntry, ...]] = field(repr=False)

    def lookup(self, soname: str, levels: tuple[str, ...] = ()) -> CacheEntry | None:
        """The row that ld.so takes on a processor with these ``glibc-hwcaps`` levels, best first."""
        rows = self._by_soname.get(soname, ())
        for level in (*levels, None):
            for row in rows:
                if row.level == level:
                    return row
        return None


def parse_cache(data: Buffer, machine: str, where: str = "/etc/ld.so.cache") -> LoaderCache:
    """Read a cache; rows for other machines and C libraries are left out.

    Raises:
        ElfError: not such a cache, or damaged.
    """
    view = memoryview(data)
    start = _start(view, where)
    if len(view) < start + _HEADER.size or bytes(view[start : start + len(_MAGIC)]) != _MAGIC:
        raise ElfError("not a cache of ld.so in the format of glibc 2.2 or later", where=where)
    cache = view[start:]
    _magic, count, _strings, _flags, extensions = _HEADER.unpack_from(cache)
    if count > MAX_ENTRIES or _HEADER.size + count * _ENTRY.size > len(cache):
        raise ElfError(f"claims {count} entries, more than the file holds", where=where)
    levels = _levels(view, cache, extensions, where) if extensions else ()  # counts from the file's start
    wanted = _FLAGS.get(machine)
    rows = []
    for flags, key, value, _os, hwcap in _ENTRY.iter_unpack(cache[_HEADER.size : _HEADER.size + count * _ENTRY.size]):
        if flags != wanted:
            continue
        level = None
        if hwcap & _HWCAP_EXTENSION:
            if hwcap & 0xFFFFFFFF >= len(levels):
                raise ElfError("an entry names a glibc-hwcaps folder that is not listed", where=where)
            level = levels[hwcap & 0xFFFFFFFF]
        elif hwcap:
            continue  # folders such as haswell/, which ld.so ignores since glibc 2.37
        rows.append(CacheEntry(_string(cache, key, where), _string(cache, value, where), level))
    by_soname: dict[str, tuple[CacheEntry, ...]] = {}
    for row in rows:
        by_soname[row.soname] = (*by_soname.get(row.soname, ()), row)
    return LoaderCache(tuple(rows), by_soname)


def _start(view: memoryview, where: str) -> int:
    """Offset of the new format."""
    if bytes(view[: len(_OLD_MAGIC)]) != _OLD_MAGIC:
        return 0
    if len(view) < _OLD_HEADER:
        raise ElfError("the cache is cut off", where=where)
    (count,) = struct.unpack_from("<I", view, 12)
    return (_OLD_HEADER + int(count) * _OLD_ENTRY + 7) // 8 * 8


def _levels(file: memoryview, cache: memoryview, at: int, where: str) -> tuple[str, ...]:
    magic, count = _words(file, at, 2, where)
    if magic != _EXTENSION_MAGIC or count > 64:
        return ()
    for section in range(count):
        tag, _flags, offset, size = _words(file, at + 8 + section * 16, 4, where)
        if tag == _TAG_HWCAPS:
            if size > 4096:
                raise ElfError(f"lists {size // 4} glibc-hwcaps folders", where=where)
            return tuple(_string(cache, name, where) for name in _words(file, offset, size // 4, where))
    return ()


def _words(cache: memoryview, at: int, count: int, where: str) -> tuple[int, ...]:
    if at + 4 * count > len(cache):
        raise ElfError("the cache's extension lies past its end", where=where)
    return struct.unpack_from(f"<{count}I", cache, at)


def _string(cache: memoryview, at: int, where: str) -> str:
    chunk = bytes(cache[at : at + 4096])
    end = chunk.find(0)
    if end < 0:
        raise ElfError("a name lies past the end of the cache", where=where)
    return text(chunk[:end])
