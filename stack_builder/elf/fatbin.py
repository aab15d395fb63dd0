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
from collections.abc import Iterator, Mapping
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
    view = memoryview(data)
    found: Counter[tuple[int, int, str]] = Counter()
    for section in sections(view, where):
        if section.name in SECTIONS:
            found.update(_entries(view[section.offset : section.offset + section.size], where))
            if found.total() > MAX_ENTRIES:
                raise ElfError(f"more than {MAX_ENTRIES} images of device code", where=where)
    rows = sorted(found.items())
    return DeviceCode(
        {f"sm_{number}{suffix}": count for (kind, number, suffix), count in rows if kind == _MACHINE_CODE},
        {f"compute_{number}{suffix}": count for (kind, number, suffix), count in rows if kind == _PTX},
    )


def _entries(section: memoryview, where: str) -> Iterator[tuple[int, int, str]]:
    """Yield (kind, compute capability, suffix) of each entry of a section."""
    at = count = 0
    while at + _FAT_BINARY.size <= len(section):
        magic, _version, header, size = _FAT_BINARY.unpack_from(section, at)
        if magic == 0:
            at += _ALIGNMENT  # padding between fat binaries
            continue
        end = at + header + size
        if magic != _MAGIC or header < _FAT_BINARY.size or end > len(section):
            raise ElfError(f"no fat binary at byte {at} of its section, or a cut one", where=where)
        at += header
        while at < end:
            if at + _ENTRY.size > end:
                raise ElfError("a fat binary ends inside the header of an entry", where=where)
            kind, _version, header, size, number, flags = _ENTRY.unpack_from(section, at)
            at += header + size
            count += 1
            if header < _ENTRY.size or at > end or count > MAX_ENTRIES:
                raise ElfError("an entry of a fat binary is larger than what holds it", where=where)
            yield kind, number, "a" if flags & _SPECIFIC else "f" if flags & _FAMILY else ""
