"""The outline of an object: the bytes that static reading looks at, 2 % of a CUDA library.

They are the headers, the dynamic section with its tables, the relocations that name symbols, and the headers of the
device code. In an outline they stand where they stand in the object; everything else reads as zeros. Kept as a sparse
file it is mapped and read like the object itself.

Where the tables are is known only at the end of an object, and libraries of a gigabyte come as a stream. So what is
certainly of no use (device code, machine code) is left out while it passes (:class:`Passing`), and the tables are cut
out of the rest (:func:`needed`). Should one of them lie in what was left out, there is no outline and the object is
read as a whole: nothing rests on a guess.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

from stack_builder.elf import fatbin, relocations, versions
from stack_builder.elf.layout import Buffer, ElfError, Layout, machine_code, section_tables
from stack_builder.elf.object import parse, string_extents

Range = tuple[int, int]
"""Start and end, as offsets in the file."""

_PROGRAM_HEADERS = 4096  # bytes at the start that hold them in every object met; if not, no machine code is left out
_FILE_HEADER = 64
_WORTH = 4096  # bytes of device code that are worth leaving out: a page
_MAX_HEADER = 64  # bytes; what claims more only happens to hold the magic
_MAX_LEFT_OUT = fatbin.MAX_ENTRIES


class Passing:
    """Tells, while the bytes of an object pass, which of them may be of use.

    Attributes:
        left_out: ranges that were not given on, in ascending order.
    """

    def __init__(self) -> None:
        self.left_out: list[Range] = []
        self._code: list[Range] = []
        self._rest = b""
        self._at = 0  # offset of the first byte of the rest
        self._next = 0  # offset of what is looked at next: a fat binary's magic, or the header of an entry
        self._end = 0  # where the entries of the present fat binary end; at or before _next outside of one

    def feed(self, data: Buffer) -> Iterator[tuple[int, memoryview]]:
        """Take the next bytes of the object; yield (offset, bytes) of what is to be kept."""
        buffer = self._rest + data
        if self._at == 0:
            if len(buffer) < _PROGRAM_HEADERS:
                self._rest = buffer
                return
            self._code = machine_code(buffer[:_PROGRAM_HEADERS])
        limit = self._walk(buffer)
        yield from self._kept(memoryview(buffer)[: limit - self._at])
        self._rest, self._at = buffer[limit - self._at :], limit

    def finish(self) -> Iterator[tuple[int, memoryview]]:
        """Yield what was held back."""
        yield from self._kept(memoryview(self._rest))
        self._rest = b""

    def _walk(self, buffer: bytes) -> int:
        """Find device code; give the offset up to which the buffer is settled."""
        stop = self._at + len(buffer)
        while self._next < stop:
            inside = self._next - self._at
            if self._next < self._end:
                if inside + fatbin.ENTRY_SIZE > len(buffer):
                    return self._next
                self._entry(buffer, inside)
                continue
            found = buffer.find(fatbin.MAGIC, inside)
            if found < 0:
                self._next = max(self._next, stop - len(fatbin.MAGIC) + 1)
                return self._next
            if found + fatbin.HEADER_SIZE > len(buffer):
                self._next = self._at + found
                return self._next
            entries = fatbin.fat_binary(buffer, found)
            self._next = self._at + found + len(fatbin.MAGIC)
            if entries is not None and entries[0] - found <= _MAX_HEADER and (self._at + found) % 8 == 0:
                self._next, self._end = self._at + entries[0], self._at + entries[1]
        return stop

    def _entry(self, buffer: bytes, inside: int) -> None:
        payload = fatbin.entry_payload(buffer, inside)
        if payload is None or self._at + payload[1] > self._end or len(self.left_out) > _MAX_LEFT_OUT:
            self._end = self._next  # no fat binary after all: go on looking from here
            return
        self._next = self._at + payload[1]
        if payload[1] - payload[0] >= _WORTH:
            self._leave_out(self._at + payload[0], self._at + payload[1])

    def _leave_out(self, start: int, end: int) -> None:
        self._code.append((start, end))
        self._code.sort()

    def _kept(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield a settled part without what is left out, and note the latter."""
        at, stop = self._at, self._at + len(data)
        while self._code and self._code[0][0] < stop:
            start, end = self._code[0]
            if at < start:
                yield at, data[at - self._at : start - self._at]
            through = min(end, stop)
            if through > max(start, at):
                self.left_out.append((max(start, at), through))
                at = through
            if end > stop:
                break
            del self._code[0]
        if at < stop:
            yield at, data[at - self._at :]


def needed(data: Buffer, where: str, left_out: Iterable[Range] = ()) -> list[Range]:
    """The ranges that make an object's outline, in ascending order.

    Args:
        data: the object, zeros where something was left out.
        where: how messages name it.
        left_out: ranges that are not there, in ascending order.

    Raises:
        ElfError: the object is damaged, or needs what was left out; it has no outline.
    """
    view = memoryview(data)
    elf = parse(view, where)
    layout = elf.layout
    found = [(0, _FILE_HEADER), *layout.headers, *section_tables(view, where)]
    tables = (string_extents(layout), elf.symbols.extents(), versions.extents(layout), relocations.extents(layout))
    found += [_in_file(layout, address, size) for address, size in chain(*tables) if size]
    found += [(start, start + size) for start, size, _target in fatbin.headers(view, where)]
    ranges = list(_joined(found))
    holes = list(left_out)
    for start, end in ranges:
        behind = bisect_right(holes, (end - 1, len(view)))
        if behind and holes[behind - 1][1] > start:
            raise ElfError("a table lies among machine code or device code", where=where)
    return ranges


def _in_file(layout: Layout, address: int, size: int) -> Range:
    layout.at_address(address, size, "a table")
    offset = layout.offset_of(address)
    return offset, offset + size


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Sorted, what touches or overlaps made one."""
    last: Range | None = None
    for start, end in sorted(ranges):
        if last is not None and start <= last[1]:
            last = last[0], max(last[1], end)
            continue
        if last is not None:
            yield last
        last = start, end
    if last is not None:
        yield last
