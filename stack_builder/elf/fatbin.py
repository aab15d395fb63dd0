"""Which GPUs an object has code for: the headers of its fat binaries, without decompressing any of it.

nvcc puts device code into ``.nv_fatbin`` and ``__nv_relfatbin`` (relocatable device code): fat binaries one behind
the other. NVIDIA does not document the layout. Taken from what nvcc 13.5 writes for known targets, and held against
``cuobjdump`` for all objects of the default stack (``tests/real/test_elf_fatbin.py``), little-endian:

* fat binary: magic ``0xBA55ED50`` (u32), version (u16), size of this header (u16), size of what follows (u64);
* entry: kind (u16; 1 PTX, 2 machine code as an ELF file), version (u16), size of this header (u32), size of the
  payload (u64), …, compute capability (u32 at 28), …, flags (u64 at 40).

Flags: bit 20 marks architecture-specific code (``sm_90a``), bit 21 family-specific code (``sm_100f``), bits 13 and 15
a compressed payload (LZ4, zstd). The flags hold for PTX and machine code alike, so nothing else need be read.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from stack_builder.elf.layout import Buffer, ElfError, sections

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
MAX_ENTRIES = 1 << 20
"""Entries of one object; the largest of the default stack has 8,000."""

_MAGIC = 0xBA55ED50
_FAT_BINARY = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ12xI8xQ")
_PTX, _MACHINE_CODE = 1, 2
_SPECIFIC, _FAMILY = 1 << 20, 1 << 21
_ALIGNMENT = 8
MAGIC = _MAGIC.to_bytes(4, "little")
HEADER_SIZE, ENTRY_SIZE = _FAT_BINARY.size, _ENTRY.size


Header = tuple[int, int, tuple[int, int, int] | None]
"""A header of a fat binary, or of an entry in one: its offset in the file and its size in bytes; then kind, compute
capability and flags of an entry, or None for a fat binary's own header. A plain tuple: an environment has 35,000."""


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """Code for GPUs in one object.

    Attributes:
        sass: number of machine code images by target: ``sm_80``, ``sm_90a``, ``sm_100f``; in ascending order.
        ptx: number of PTX texts by target: ``compute_90``.
    """

    sass: Mapping[str, int]
    ptx: Mapping[str, int]

    def __bool__(self) -> bool:
        return bool(self.sass or self.ptx)


def device_code(data: Buffer, where: str) -> DeviceCode:
    """Walk the fat binaries of an ELF file; both mappings are empty where it has none.

    Without section headers there is no telling where fat binaries are: the result is empty, too.

    Raises:
        ElfError: a header contradicts the size of what holds it.
    """
    return count(headers(data, where))


def count(found_headers: Iterable[Header]) -> DeviceCode:
    """Count the entries among an object's :func:`headers`.

    Raises:
        ElfError: as they are read.
    """
    counted = Counter(target for _start, _size, target in found_headers if target is not None)
    found: Counter[tuple[int, int, str]] = Counter()
    for (kind, number, flags), times in counted.items():
        found[kind, number, "a" if flags & _SPECIFIC else "f" if flags & _FAMILY else ""] += times
    rows = sorted(found.items())
    return DeviceCode(
        {f"sm_{number}{suffix}": times for (kind, number, suffix), times in rows if kind == _MACHINE_CODE},
        {f"compute_{number}{suffix}": times for (kind, number, suffix), times in rows if kind == _PTX},
    )


def headers(data: Buffer, where: str) -> Iterator[Header]:
    """Yield every header of an ELF file's fat binaries, in order; nothing else of them is read.

    Raises:
        ElfError: as :func:`device_code`.
    """
    view = memoryview(data)
    count = 0
    for section in sections(view, where):
        if section.name in SECTIONS:
            if section.offset + section.size > len(view):
                raise ElfError(f"section {section.name} ends beyond the file", where=where)
            for header in _headers(view, section.offset, section.offset + section.size, where):
                count += 1
                if count > MAX_ENTRIES:
                    raise ElfError(f"more than {MAX_ENTRIES} images of device code", where=where)
                yield header


def fat_binary(data: Buffer, at: int) -> tuple[int, int] | None:
    """Where the entries begin and end of the fat binary whose header is at ``at``; None if none is there."""
    magic, _version, header, size = _FAT_BINARY.unpack_from(data, at)
    return None if magic != _MAGIC or header < _FAT_BINARY.size else (at + header, at + header + size)


def entry_payload(data: Buffer, at: int) -> tuple[int, int] | None:
    """Where the payload of the entry lies whose header is at ``at``; None if it cannot be one."""
    _kind, _version, header, size, _number, _flags = _ENTRY.unpack_from(data, at)
    return None if header < _ENTRY.size else (at + header, at + header + size)


def _headers(view: memoryview, at: int, stop: int, where: str) -> Iterator[Header]:
    start = at
    while at + _FAT_BINARY.size <= stop:
        if not any(view[at : at + 4]):
            at += _ALIGNMENT  # padding between fat binaries
            continue
        entries = fat_binary(view, at)
        if entries is None or entries[1] > stop:
            raise ElfError(f"no fat binary at byte {at - start} of its section, or a cut one", where=where)
        yield at, entries[0] - at, None
        at, end = entries
        while at < end:
            if at + _ENTRY.size > end:
                raise ElfError("a fat binary ends inside the header of an entry", where=where)
            kind, _version, header, size, number, flags = _ENTRY.unpack_from(view, at)
            if header < _ENTRY.size or at + header + size > end:
                raise ElfError("an entry of a fat binary is larger than what holds it", where=where)
            yield at, header, (kind, number, flags)
            at += header + size
