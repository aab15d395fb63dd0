"""What of a mapped object will be looked at, said to the kernel in time.

Left to itself the kernel reads megabytes around each page that is touched (``read_ahead_kb``), of libraries of which
two pages in a hundred are wanted: a check of an environment of which nothing is in memory read 3.2 GB. Told that single
pages are wanted it reads 0.2 GB, and the tables that a lookup goes through it is asked for beforehand, in one piece.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import suppress

from stack_builder.elf import relocations
from stack_builder.elf.hashing import DT_GNU_HASH, DT_HASH
from stack_builder.elf.layout import ElfError, Layout
from stack_builder.elf.object import string_extents

MAX_TABLE = 64 << 20  # bytes; a longer one is no table, or is not looked at as a whole
_STEP = 1 << 20  # bytes; of one request the kernel heeds no more than it would read ahead
_DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_JMPREL, _DT_VERSYM, _DT_VERNEED = 5, 6, 7, 23, 0x6FFFFFF0, 0x6FFFFFFE
_STARTS = (DT_HASH, DT_GNU_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_JMPREL, _DT_VERSYM, _DT_VERNEED)


def scattered(data: memoryview) -> None:
    """Say that little of a mapped object will be looked at, here and there. Nothing happens where it is not mapped."""
    pages = _pages(data)
    if pages is not None:
        pages.madvise(mmap.MADV_RANDOM)


def expected(layout: Layout) -> None:
    """Have the tables of a mapped object read, without waiting for them; one that is damaged is found out later."""
    pages, size = _pages(layout.data), len(layout.data)
    if pages is None:
        return
    with suppress(ElfError):
        for start, end in tables(layout):
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            for at in range(first, min(end, size, first + MAX_TABLE), _STEP):
                pages.madvise(mmap.MADV_WILLNEED, at, min(_STEP, size - at))


def _pages(data: memoryview) -> mmap.mmap | None:
    """The map of an object that lies in a file of its own; in a pack, others are its neighbours."""
    return data.obj if isinstance(data.obj, mmap.mmap) and len(data.obj) == len(data) else None


def tables(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield (start, end) in the file of the tables that looking up and binding symbols goes through.

    Of a hash table and of symbols the size is not written down; they end where the next table begins.

    Raises:
        ElfError: a table lies outside the file.
    """
    tags = layout.tags
    starts = sorted(tags[tag] for tag in _STARTS if tag in tags)
    open_ended = [tags[tag] for tag in (DT_GNU_HASH, _DT_SYMTAB, _DT_VERSYM) if tag in tags]
    ends = {start: next((other for other in starts if other > start), start) for start in open_ended}
    sized = [(start, end - start) for start, end in ends.items() if end - start <= MAX_TABLE]
    for address, size in (*sized, *string_extents(layout), *relocations.extents(layout)):
        offset = layout.offset_of(address)
        yield offset, offset + size
