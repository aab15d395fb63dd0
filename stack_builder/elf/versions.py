"""GNU symbol versions: what an object needs (``DT_VERNEED``) and what it offers (``DT_VERDEF``).

Layouts: LSB Core, "Symbol Versioning". ``next`` fields are unsigned distances, so a chain can only move forward; the
number of records is bounded all the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from stack_builder.elf.layout import ElfError, Layout, StringTable, text

MAX_VERSIONS = 1 << 15  # an index has 15 bits

_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_VERDEF = struct.Struct("<HHHHIII")
_VERDAUX = struct.Struct("<II")
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_FLAG_WEAK = 2
_HIDDEN = 0x8000
INDEX_MASK = 0x7FFF


@dataclass(frozen=True, slots=True)
class NeededVersion:
    """One version that an object needs of one library.

    Attributes:
        library: the soname it was linked against.
        version: such as ``GLIBC_2.34``.
        index: the number by which ``.gnu.version`` refers to it.
        weak: the loader accepts its absence.
        hidden: only a definition of exactly this version will do.
    """

    library: str
    version: str
    index: int
    weak: bool
    hidden: bool


def needed_versions(layout: Layout, strings: StringTable) -> tuple[NeededVersion, ...]:
    """Read ``DT_VERNEED``.

    Raises:
        ElfError: a record lies outside the file, or there are too many.
    """
    address = layout.tags.get(_DT_VERNEED)
    if address is None:
        return ()
    table = layout.from_address(address, "DT_VERNEED")
    found: list[NeededVersion] = []
    at = 0
    for _ in range(min(layout.tags.get(_DT_VERNEEDNUM, 0), MAX_VERSIONS)):
        _version, count, file, aux, following = _unpack(_VERNEED, table, at, layout)
        library = text(strings.at(file))
        aux_at = at + aux
        for _ in range(count):
            if len(found) >= MAX_VERSIONS:
                raise ElfError(f"more than {MAX_VERSIONS} needed versions", where=layout.where)
            _hash, flags, other, name, aux_following = _unpack(_VERNAUX, table, aux_at, layout)
            version = text(strings.at(name))
            found.append(
                NeededVersion(library, version, other & INDEX_MASK, bool(flags & _FLAG_WEAK), bool(other & _HIDDEN))
            )
            if aux_following == 0:
                break
            aux_at += aux_following
        if following == 0:
            break
        at += following
    return tuple(found)


def defined_versions(layout: Layout, strings: StringTable) -> dict[int, str]:
    """Read ``DT_VERDEF``: version names by their index, the base version (the soname) included.

    Raises:
        ElfError: a record lies outside the file.
    """
    address = layout.tags.get(_DT_VERDEF)
    if address is None:
        return {}
    table = layout.from_address(address, "DT_VERDEF")
    found: dict[int, str] = {}
    at = 0
    for _ in range(min(layout.tags.get(_DT_VERDEFNUM, 0), MAX_VERSIONS)):
        _version, _flags, index, count, _hash, aux, following = _unpack(_VERDEF, table, at, layout)
        if count:
            name, _next = _unpack(_VERDAUX, table, at + aux, layout)
            found[index & INDEX_MASK] = text(strings.at(name))
        if following == 0:
            break
        at += following
    return found


def extents(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield (address, size) of both tables, as far as the two functions above read them.

    Raises:
        ElfError: a record lies outside the file.
    """
    for tag, number, record, aux_record, aux_field in (
        (_DT_VERNEED, _DT_VERNEEDNUM, _VERNEED, _VERNAUX, 3),
        (_DT_VERDEF, _DT_VERDEFNUM, _VERDEF, _VERDAUX, 5),
    ):
        address = layout.tags.get(tag)
        if address is None:
            continue
        table = layout.from_address(address, "a version table")
        at = end = 0
        for _ in range(min(layout.tags.get(number, 0), MAX_VERSIONS)):
            row = _unpack(record, table, at, layout)
            aux = at + row[aux_field]
            for _ in range(min(row[1], MAX_VERSIONS) if record is _VERNEED else bool(row[3])):
                following = _unpack(aux_record, table, aux, layout)[-1]
                end = max(end, aux + aux_record.size)
                if following == 0:
                    break
                aux += following
            end = max(end, at + record.size)
            if row[-1] == 0:
                break
            at += row[-1]
        yield address, end


def _unpack(record: struct.Struct, table: memoryview, at: int, layout: Layout) -> tuple[int, ...]:
    if at + record.size > len(table):
        raise ElfError("a version record lies past the end of its segment", where=layout.where)
    return record.unpack_from(table, at)
