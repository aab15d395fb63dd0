"""Which symbols the relocations of an object mention: only those does the loader look up.

x86_64 and aarch64 use ``DT_RELA`` alone: 24 bytes each, the symbol's index in the upper half of ``r_info``.
``DT_RELR`` and the relative relocations counted by ``DT_RELACOUNT`` mention none.
"""

from __future__ import annotations

from collections.abc import Iterator

from stack_builder.elf.layout import Layout

_DT_PLTRELSZ, _DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_RELACOUNT = 2, 7, 8, 23, 0x6FFFFFF9
_SIZE = 24
_CHUNK = 1 << 16  # relocations at a time, so that a table of gigabytes costs no memory


def mentioned(layout: Layout, symbols: set[int]) -> set[int]:
    """Those of ``symbols`` (indices) that a relocation names.

    Raises:
        ElfError: a table lies outside the file.
    """
    found: set[int] = set()
    for address, size in extents(layout):
        table = layout.at_address(address, size, "a relocation table")
        for first in range(0, size, _CHUNK * _SIZE):
            chunk = table[first : first + _CHUNK * _SIZE]
            found |= symbols.intersection(info >> 32 for info in chunk.cast("Q")[1::3].tolist())
            if found == symbols:
                return found
    return found


def extents(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield (address, size) of the relocations that can mention a symbol."""
    tags = layout.tags
    for address_tag, size_tag, skip in (
        (_DT_JMPREL, _DT_PLTRELSZ, 0),
        (_DT_RELA, _DT_RELASZ, tags.get(_DT_RELACOUNT, 0)),
    ):
        if address_tag in tags:
            count = tags.get(size_tag, 0) // _SIZE
            skipped = min(skip, count)
            yield tags[address_tag] + skipped * _SIZE, (count - skipped) * _SIZE
