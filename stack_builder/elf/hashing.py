"""Symbol lookup by hash table, as ld.so does it: cost follows the question, not the 100,000 exports of torch.

``DT_GNU_HASH``: header (buckets, first hashed symbol, bloom words, shift), bloom filter of 64-bit words, buckets,
then one hash word per symbol whose lowest bit ends a chain. ``DT_HASH`` (System V ABI, chapter 5): buckets and
``next`` indices, which damage can bend into a circle.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from stack_builder.elf.layout import ElfError, Layout

MAX_CHAIN = 1024
"""Symbols in one chain. Linkers aim at 2 to 8; a longer one means damage, or an attempt to make us slow."""

DT_HASH, DT_GNU_HASH = 4, 0x6FFFFEF5


def gnu_hash(name: bytes) -> int:
    """The hash of ``DT_GNU_HASH`` (Bernstein's, times 33)."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def sysv_hash(name: bytes) -> int:
    """The hash of ``DT_HASH``."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return value


BloomFilter = tuple[memoryview, int, int]
"""Words of 64 bits, mask over their indices, shift. A name may be there only if two bits of the word at ``hash // 64``
are set: those at ``hash`` and ``hash >> shift``, modulo 64 each."""

NO_FILTER: BloomFilter = (memoryview(b"\xff" * 8).cast("Q"), 0, 0)
"""Turns no name away."""


class HashTable(Protocol):
    """What a lookup needs of either table."""

    first: int
    """The lowest symbol index that the table can lead to."""

    def candidates(self, name: bytes, hashed: int) -> Sequence[int]:
        """Indices of symbols that may carry the name; ``hashed`` is its :func:`gnu_hash`.

        Raises:
            ElfError: the table is damaged.
        """

    def bloom_filter(self) -> BloomFilter:
        """What says of a :func:`gnu_hash` that no name of it is there."""

    def empty(self) -> bool:
        """Whether it leads to no symbol at all."""

    def symbol_count(self) -> int:
        """One more than the highest symbol index it leads to; 0 if it is empty.

        Raises:
            ElfError: the table is damaged.
        """

    def size(self) -> int:
        """Bytes that the table takes in the file.

        Raises:
            ElfError: the table is damaged.
        """


class GnuHashTable:
    """``DT_GNU_HASH``."""

    __slots__ = ("_bloom", "_bloom_mask", "_buckets", "_chain", "_shift", "_where", "first")

    def __init__(self, table: memoryview, where: str) -> None:
        if len(table) < 16:
            raise ElfError("DT_GNU_HASH is cut off", where=where)
        buckets, first, words, shift = struct.unpack_from("<IIII", table)
        chains = 16 + words * 8 + buckets * 4
        if buckets == 0 or words == 0 or words & (words - 1) or chains > len(table):
            raise ElfError(
                f"DT_GNU_HASH claims {buckets} buckets and {words} bloom words, which cannot be", where=where
            )
        self.first: int = first
        self._shift = shift & 63
        self._bloom_mask = words - 1
        self._bloom = table[16 : 16 + words * 8].cast("Q")
        self._buckets = table[16 + words * 8 : chains].cast("I")
        self._chain = table[chains : chains + (len(table) - chains) // 4 * 4].cast("I")
        self._where = where

    def candidates(self, name: bytes, hashed: int) -> Sequence[int]:
        """See :class:`HashTable`."""
        index = self._buckets[hashed % len(self._buckets)]
        if index < self.first:
            return ()
        chain, base = self._chain, self.first
        found = []
        for at in range(index - base, index - base + MAX_CHAIN):
            if at >= len(chain):
                raise ElfError("a chain of DT_GNU_HASH runs past the end of its segment", where=self._where)
            word = chain[at]
            if (word ^ hashed) < 2:  # equal but for the bit that ends the chain
                found.append(at + base)
            if word & 1:
                return found
        raise ElfError(f"a chain of DT_GNU_HASH has more than {MAX_CHAIN} symbols", where=self._where)

    def bloom_filter(self) -> BloomFilter:
        """See :class:`HashTable`."""
        return self._bloom, self._bloom_mask, self._shift

    def empty(self) -> bool:
        """See :class:`HashTable`."""
        return not any(self._buckets)

    def symbol_count(self) -> int:
        """See :class:`HashTable`: the end of the chain that starts last."""
        last = max(self._buckets)
        if last < self.first or last == 0:
            return 0
        for at in range(last - self.first, min(last - self.first + MAX_CHAIN, len(self._chain))):
            if self._chain[at] & 1:
                return at + self.first + 1
        raise ElfError("the last chain of DT_GNU_HASH has no end", where=self._where)

    def size(self) -> int:
        """See :class:`HashTable`."""
        chained = max(0, self.symbol_count() - self.first)
        return 16 + len(self._bloom) * 8 + len(self._buckets) * 4 + chained * 4


class SysvHashTable:
    """``DT_HASH``."""

    __slots__ = ("_buckets", "_next", "_where", "first")

    def __init__(self, table: memoryview, where: str) -> None:
        if len(table) < 8:
            raise ElfError("DT_HASH is cut off", where=where)
        buckets, symbols = struct.unpack_from("<II", table)
        if buckets == 0 or 8 + (buckets + symbols) * 4 > len(table):
            raise ElfError(f"DT_HASH claims {buckets} buckets and {symbols} symbols, which cannot be", where=where)
        self.first: int = 1
        words = table[8 : 8 + (buckets + symbols) * 4].cast("I")
        self._buckets = words[:buckets]
        self._next = words[buckets:]
        self._where = where

    def candidates(self, name: bytes, hashed: int) -> Sequence[int]:
        """See :class:`HashTable`."""
        index = self._buckets[sysv_hash(name) % len(self._buckets)]
        found: list[int] = []
        for _ in range(MAX_CHAIN):
            if index == 0:
                return found
            if index >= len(self._next):
                raise ElfError("DT_HASH leads past the symbol table", where=self._where)
            found.append(index)
            index = self._next[index]
        raise ElfError(f"a chain of DT_HASH has more than {MAX_CHAIN} symbols, or is a circle", where=self._where)

    def bloom_filter(self) -> BloomFilter:
        """See :class:`HashTable`: this table has none."""
        return NO_FILTER

    def empty(self) -> bool:
        """See :class:`HashTable`."""
        return not any(self._buckets)

    def symbol_count(self) -> int:
        """See :class:`HashTable`: its second word."""
        return len(self._next)

    def size(self) -> int:
        """See :class:`HashTable`."""
        return 8 + (len(self._buckets) + len(self._next)) * 4


def hash_table(layout: Layout) -> HashTable | None:
    """The table that ld.so would use, or None where the object has neither.

    Raises:
        ElfError: it is damaged.
    """
    address = layout.tags.get(DT_GNU_HASH)
    if address is not None:
        return GnuHashTable(layout.from_address(address, "DT_GNU_HASH"), layout.where)
    address = layout.tags.get(DT_HASH)
    if address is not None:
        return SysvHashTable(layout.from_address(address, "DT_HASH"), layout.where)
    return None
