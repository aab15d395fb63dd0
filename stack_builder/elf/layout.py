"""Where things are in an ELF file: header, segments and the dynamic section.

Only what the dynamic loader itself reads: program headers and ``PT_DYNAMIC``. Section headers may be absent (strip
can remove them) and never decide anything here. Layouts follow the System V ABI, chapters 4 and 5.

Objects come from strangers: every offset and count is held against the bytes that are there, and what does not fit
is one :class:`ElfError` for that object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stack_builder.errors import IntegrityError

Buffer = bytes | memoryview

MAGIC: Final = b"\x7fELF"
MACHINES: Final = {62: "x86_64", 183: "aarch64"}
"""``e_machine`` values that are read (EM_X86_64, EM_AARCH64), by the name that platform tags use."""

_OTHER_MACHINES: Final = {3: "i386", 21: "ppc64", 22: "s390x", 40: "arm", 243: "riscv64", 258: "loongarch64"}
"""``e_machine`` values that are only named in messages."""

MAX_PROGRAM_HEADERS = 4096
MAX_DYNAMIC_ENTRIES = 1 << 16
MAX_STRING = 1 << 16  # bytes; the longest mangled name met in a CUDA stack has about 2,000
MAX_NAME_BYTES = 1 << 28
"""Names of one object together. Many entries can point at one long string, so the file's size is no bound."""

_COPIED = 1 << 20  # bytes of a string table that are copied rather than looked at through the map

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_PF_X = 1
_PN_XNUM = 0xFFFF
_DT_NULL, _DT_NEEDED = 0, 1


class ElfError(IntegrityError):
    """An object that is not well-formed ELF, or not of a kind that is read here. It concerns that object alone."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the loader looks at before anything else, and skips a candidate for.

    Attributes:
        bits: 32 or 64 (EI_CLASS).
        little_endian: EI_DATA.
        machine: ``x86_64``, ``aarch64``, or ``machine N`` for any other.
        type: ``e_type``: 2 executable, 3 shared object or position-independent executable.
    """

    bits: int
    little_endian: bool
    machine: str
    type: int

    @property
    def readable(self) -> bool:
        """Whether :mod:`stack_builder.elf.object` reads such objects."""
        return self.bits == 64 and self.little_endian and self.machine in MACHINES.values()

    def __str__(self) -> str:
        return f"ELF{self.bits} {'little' if self.little_endian else 'big'}-endian {self.machine}"


def identify(data: Buffer) -> Identity | None:
    """Read the first 20 bytes; None where they are not those of an ELF file."""
    if len(data) < 20 or bytes(data[:4]) != MAGIC or data[4] not in (1, 2) or data[5] not in (1, 2):
        return None
    kind, machine = struct.unpack_from("<HH" if data[5] == 1 else ">HH", data, 16)
    name = MACHINES.get(machine) or _OTHER_MACHINES.get(machine, f"machine {machine}")
    return Identity(data[4] * 32, data[5] == 1, name, kind)


@dataclass(frozen=True, slots=True)
class Segment:
    """One ``PT_LOAD``: ``size`` bytes at file offset ``offset`` appear at address ``address``."""

    address: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Section:
    """One section header; for tables that the loader does not need (fat binaries)."""

    name: str
    type: int
    flags: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Header, segments and dynamic section of one object.

    Attributes:
        data: the whole file, or its first bytes where ``complete`` is false.
        where: how messages name the object.
        segments: the ``PT_LOAD`` entries.
        tags: last value of each dynamic tag, as ld.so keeps them; ``DT_NEEDED`` is in ``needed``.
        needed: ``DT_NEEDED`` string offsets, in order.
        dynamic: whether the dynamic section could be read (a prefix may end before it).
        interpreter: ``PT_INTERP``, for programs.
        headers: (start, end) in the file of what was read: the program headers, the dynamic section, ``PT_INTERP``.
    """

    data: memoryview
    where: str
    identity: Identity
    segments: tuple[Segment, ...]
    tags: dict[int, int]
    needed: tuple[int, ...]
    dynamic: bool
    interpreter: str | None
    headers: tuple[tuple[int, int], ...]

    def from_address(self, address: int, what: str) -> memoryview:
        """Bytes from a virtual address to the end of its segment.

        Raises:
            ElfError: no segment holds the address.
        """
        segment = self._segment(address, what)
        return self.data[segment.offset + address - segment.address : segment.offset + segment.size]

    def offset_of(self, address: int) -> int:
        """The offset in the file of what appears at a virtual address.

        Raises:
            ElfError: no segment holds the address.
        """
        segment = self._segment(address, "an address")
        return segment.offset + address - segment.address

    def _segment(self, address: int, what: str) -> Segment:
        for segment in self.segments:
            if 0 <= address - segment.address < segment.size:
                return segment
        raise ElfError(f"{what} lies outside every segment ({address:#x})", where=self.where)

    def at_address(self, address: int, size: int, what: str) -> memoryview:
        """``size`` bytes at a virtual address.

        Raises:
            ElfError: the segment ends before them.
        """
        found = self.from_address(address, what)
        if len(found) < size:
            raise ElfError(f"{what} ends past its segment ({size} bytes at {address:#x})", where=self.where)
        return found[:size]


def read_layout(data: Buffer, where: str, *, complete: bool = True) -> Layout:
    """Read header, program headers and dynamic section.

    Args:
        data: the file; with ``complete=False`` only its first bytes, and segments are cut where they end.
        where: how messages name the object.
        complete: whether ``data`` is the whole file.

    Raises:
        ElfError: not ELF, of another class or machine, or damaged.
    """
    view = memoryview(data)
    identity = identify(view)
    if identity is None:
        raise ElfError("not an ELF file", where=where)
    if not identity.readable:
        raise ElfError(f"{identity} is not read here, only 64-bit x86_64 and aarch64", where=where)
    if len(view) < _HEADER.size:
        raise ElfError("the ELF header is cut off", where=where)
    segments: list[Segment] = []
    dynamic: Segment | None = None
    interpreter: str | None = None
    headers = [_program_header_table(view)]
    for kind, offset, address, size in _program_headers(view, where):
        inside = max(0, min(size, len(view) - offset))
        if complete and inside < size and kind in (_PT_LOAD, _PT_DYNAMIC):
            raise ElfError(f"a segment ends at byte {offset + size} of a file of {len(view)}", where=where)
        if kind == _PT_LOAD and inside:
            segments.append(Segment(address, offset, inside))
        elif kind == _PT_DYNAMIC and inside == size:
            dynamic = Segment(address, offset, size)
            headers.append((offset, offset + size))
        elif kind == _PT_INTERP and 0 < inside < MAX_STRING:
            headers.append((offset, offset + inside))
            interpreter = text(bytes(view[offset : offset + inside]).split(b"\0", 1)[0])
    tags: dict[int, int] = {}
    needed: list[int] = []
    if dynamic is not None:
        for tag, value in _dynamic_entries(view, dynamic, where):
            if tag == _DT_NEEDED:
                needed.append(value)
            else:
                tags[tag] = value
    return Layout(
        data=view,
        where=where,
        identity=identity,
        segments=tuple(segments),
        tags=tags,
        needed=tuple(needed),
        dynamic=dynamic is not None,
        interpreter=interpreter,
        headers=tuple(headers),
    )


def _program_header_table(view: memoryview) -> tuple[int, int]:
    """Where it lies; not held against the file's size yet."""
    fields = _HEADER.unpack_from(view)
    return fields[5], fields[5] + fields[9] * fields[10]


def machine_code(data: Buffer) -> list[tuple[int, int]]:
    """Where the executable segments lie, but for one that holds the ELF header: (start, end) in the file.

    Args:
        data: the first bytes of a file.

    Returns:
        nothing for what is not ELF, is not read here, or has its program headers elsewhere.
    """
    view = memoryview(data)
    identity = identify(view)
    if identity is None or not identity.readable or len(view) < _HEADER.size:
        return []
    table, end = _program_header_table(view)
    if (end - table) % _PROGRAM_HEADER.size or end > len(view):
        return []
    rows = _PROGRAM_HEADER.iter_unpack(view[table:end])
    return sorted((row[2], row[2] + row[5]) for row in rows if row[0] == _PT_LOAD and row[1] & _PF_X and row[2])


def _program_headers(view: memoryview, where: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield (type, offset, address, size in file)."""
    fields = _HEADER.unpack_from(view)
    table, entry_size, count = fields[5], fields[9], fields[10]
    if count == 0:
        return
    if count == _PN_XNUM or count > MAX_PROGRAM_HEADERS:
        raise ElfError(f"{count} program headers, more than {MAX_PROGRAM_HEADERS}", where=where)
    if entry_size != _PROGRAM_HEADER.size:
        raise ElfError(f"program headers of {entry_size} bytes instead of {_PROGRAM_HEADER.size}", where=where)
    if table + count * entry_size > len(view):
        raise ElfError("the program headers lie past the end of the file", where=where)
    for kind, _flags, offset, address, _physical, size, _memory, _align in _PROGRAM_HEADER.iter_unpack(
        view[table : table + count * entry_size]
    ):
        yield kind, offset, address, size


def _dynamic_entries(view: memoryview, dynamic: Segment, where: str) -> Iterator[tuple[int, int]]:
    count = dynamic.size // 16
    for index, entry in enumerate(struct.iter_unpack("<QQ", view[dynamic.offset : dynamic.offset + count * 16])):
        if entry[0] == _DT_NULL:
            return
        if index >= MAX_DYNAMIC_ENTRIES:
            raise ElfError(f"a dynamic section of more than {MAX_DYNAMIC_ENTRIES} entries", where=where)
        yield entry


def section_tables(data: Buffer, where: str) -> list[tuple[int, int]]:
    """Where the section headers and their names lie: (start, end) in the file; empty where the file has none.

    Raises:
        ElfError: they lie outside the file.
    """
    view = memoryview(data)
    if not sections(view, where):
        return []
    fields = _HEADER.unpack_from(view)
    table, entry_size, count, names_index = fields[6], fields[11], fields[12], fields[13]
    row = _SECTION_HEADER.unpack_from(view, table + names_index * entry_size)
    return [(table, table + entry_size * count), (row[4], row[4] + row[5])]


def sections(data: Buffer, where: str) -> tuple[Section, ...]:
    """The section headers, empty where the file has none.

    Raises:
        ElfError: the table or a name lies outside the file.
    """
    view = memoryview(data)
    if len(view) < _HEADER.size:
        raise ElfError("the ELF header is cut off", where=where)
    fields = _HEADER.unpack_from(view)
    table, entry_size, count, names_index = fields[6], fields[11], fields[12], fields[13]
    if table == 0 or count == 0:
        return ()
    if entry_size != _SECTION_HEADER.size or table + count * entry_size > len(view) or names_index >= count:
        raise ElfError("the section headers lie past the end of the file", where=where)
    rows = list(_SECTION_HEADER.iter_unpack(view[table : table + count * entry_size]))
    names = StringTable(view[rows[names_index][4] :][: rows[names_index][5]], where)
    no_bits = 8
    found = []
    for name, kind, flags, _address, offset, size, *_ in rows:
        if kind != no_bits and offset + size > len(view):
            raise ElfError(f"a section ends at byte {offset + size} of a file of {len(view)}", where=where)
        found.append(Section(text(names.at(name)), kind, flags, offset, size))
    return tuple(found)


class StringTable:
    """A table of NUL-terminated strings, such as ``.dynstr``."""

    __slots__ = ("_view", "_where")

    def __init__(self, view: memoryview, where: str) -> None:
        self._view = view
        self._where = where

    def __len__(self) -> int:
        return len(self._view)

    def at(self, offset: int) -> bytes:
        """The string at ``offset``, without its NUL.

        Raises:
            ElfError: it starts or ends outside the table, or is longer than ``MAX_STRING``.
        """
        step = 96  # most mangled names end within it: one copy for them
        while True:
            chunk = self._view[offset : offset + step].tobytes()
            end = chunk.find(0)
            if end >= 0:
                return chunk[:end]
            if step > MAX_STRING or offset + step > len(self._view):
                raise ElfError(f"a name at {offset:#x} of the string table has no end", where=self._where)
            step *= 8

    def many(self, offsets: list[int]) -> list[bytes]:
        """The strings at many offsets; a small table is copied once for all of them.

        Raises:
            ElfError: as :meth:`at`.
        """
        if len(self._view) > _COPIED or len(offsets) < 2:
            return self._one_by_one(offsets)
        table = self._view.tobytes()
        find = table.find
        ends = [find(0, offset) for offset in offsets]
        if min(ends) < 0 or max(offsets) >= len(table):
            raise ElfError("a name of the string table has no end", where=self._where)
        if sum(ends) - sum(offsets) > MAX_NAME_BYTES:
            raise ElfError(f"names of more than {MAX_NAME_BYTES >> 20} MiB together", where=self._where)
        return [table[start:end] for start, end in zip(offsets, ends, strict=True)]

    def _one_by_one(self, offsets: list[int]) -> list[bytes]:
        found = []
        size = 0
        for offset in offsets:
            name = self.at(offset)
            size += len(name)
            if size > MAX_NAME_BYTES:
                raise ElfError(f"names of more than {MAX_NAME_BYTES >> 20} MiB together", where=self._where)
            found.append(name)
        return found

    def matches(self, offset: int, name_and_nul: bytes) -> bool:
        """Whether the string at ``offset`` is this one; the argument carries its NUL."""
        return self._view[offset : offset + len(name_and_nul)] == name_and_nul

    def tobytes(self) -> bytes:
        """A copy of the whole table."""
        return self._view.tobytes()


def text(name: bytes) -> str:
    """A name for people and for data structures; bytes that are not UTF-8 are written as hexadecimal escapes."""
    return name.decode("utf-8", "backslashreplace")
