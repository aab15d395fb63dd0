"""The dynamic symbol table: what an object asks others for, what it offers, and whether one answers the other."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stack_builder.elf.hashing import DT_GNU_HASH, DT_HASH, NO_FILTER, BloomFilter, gnu_hash, hash_table
from stack_builder.elf.layout import MAX_NAME_BYTES, ElfError, Layout, StringTable, sections, text
from stack_builder.elf.versions import INDEX_MASK, NeededVersion

MAX_SYMBOLS = 1 << 21
"""20 times what libtorch_cpu.so has; a table that claims more is refused rather than walked."""

_SYMBOL = struct.Struct("<IBBHQQ")
_DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_VERSYM = 5, 6, 10, 0x6FFFFFF0
_SHT_DYNSYM = 11
_ET_EXEC = 2
_SHN_ABS = 0xFFF1
_LOCAL, _WEAK = 0, 2
_BINDINGS = frozenset({1, 2, 10})  # global, weak, GNU unique
_TYPES = frozenset({0, 1, 2, 5, 6, 10})  # what ld.so's ALLOWED_STT admits; 6 is TLS, which may have value 0
_TLS = 6
_VISIBLE = frozenset({0, 3})  # default, protected; hidden and internal symbols are skipped by ld.so
_HIDDEN = 0x8000


Question = tuple[bytes, str | None, bool]
"""Name, version or None, whether only a definition of exactly that version will do."""


class Reference(NamedTuple):
    """An undefined symbol.

    Attributes:
        name: mangled.
        version: needed version, else None.
        hidden: only a definition of exactly that version will do.
        weak: may stay unresolved (it is then null).
        library: the soname that version was linked against, else None.
        symbol: its index in the table, by which relocations name it.

    The first three fields are a :data:`Question`: references that have them in common get the same answer.
    """

    name: bytes
    version: str | None
    hidden: bool
    weak: bool
    library: str | None
    symbol: int


_UNVERSIONED: tuple[str | None, bool, str | None] = (None, False, None)


class SymbolTable:
    """``DT_SYMTAB`` with its strings, versions and hash table.

    Raises:
        ElfError: from the constructor and from every method, when what they touch is damaged.
    """

    __slots__ = ("_asked", "_hash", "_layout", "_offers", "_strings", "_table", "_versions")

    def __init__(
        self, layout: Layout, strings: StringTable, needs: tuple[NeededVersion, ...], offers: dict[int, str]
    ) -> None:
        self._layout = layout
        self._strings = strings
        self._asked = {need.index: (need.version, need.hidden, need.library) for need in needs}
        # ld.so keeps one array for both directions: a copy-relocated symbol of a program "defines" a needed version.
        self._offers = {need.index: need.version for need in needs} | offers
        address = layout.tags.get(_DT_SYMTAB)
        self._table = layout.from_address(address, "DT_SYMTAB") if address is not None else memoryview(b"")
        versions = layout.tags.get(_DT_VERSYM)
        self._versions: memoryview | None = None
        if versions is not None:
            table = layout.from_address(versions, "DT_VERSYM")
            self._versions = table[: len(table) // 2 * 2].cast("H")
        self._hash = hash_table(layout)

    def count(self) -> int:
        """Number of entries, the null entry included.

        ld.so never needs it, so nothing says it: the hash table does where it leads to any symbol, then the section
        headers, then the habit of linkers to put the strings right after the symbols.
        """
        count = self._hash.symbol_count() if self._hash is not None else 0
        if count == 0:
            count = self._count_from_sections() or self._count_from_neighbour()
        return self._bounded(count)

    def extents(self) -> Iterator[tuple[int, int]]:
        """Yield (address, size) of the symbol table, its versions and its hash table."""
        tags = self._layout.tags
        count = max(self.count(), self._first_hashed() or 0)
        if self._hash is not None:
            yield tags.get(DT_GNU_HASH) or tags[DT_HASH], self._hash.size()
        if _DT_SYMTAB in tags:
            yield tags[_DT_SYMTAB], count * _SYMBOL.size
        if self._versions is not None:
            yield tags[_DT_VERSYM], count * 2

    def undefined(self) -> list[Reference]:
        """What other objects must define, in table order.

        A GNU hash table requires the undefined ones to come before the hashed ones, so the exports of an object are
        not even touched. Programs are the exception: older linkers hash undefined symbols of them, too.
        """
        first = self._first_hashed()
        program = self._layout.identity.type == _ET_EXEC or self._layout.interpreter is not None
        count = self.count() if first is None or program else self._bounded(first)
        words = self._words(count)
        rows = [at for at, word in enumerate(words) if not word >> 48 and word >> 36 & 15 != _LOCAL and at]
        names = self._strings.many([words[at] & 0xFFFFFFFF for at in rows])
        versions = self._versions_of(count)
        if versions is None:
            asked = [_UNVERSIONED] * len(rows)
        else:
            asked = [self._asked.get(versions[at] & INDEX_MASK, _UNVERSIONED) for at in rows]
        weak = [words[at] >> 36 & 15 == _WEAK for at in rows]
        return [
            Reference(name, version, hidden, soft, library, at)
            for name, (version, hidden, library), soft, at in zip(names, asked, weak, rows, strict=True)
        ]

    def defined(self) -> Iterator[tuple[str, str | None]]:
        """Yield (name, version) of every symbol that others can bind to; version None where it has none.

        A name with several versions comes several times.
        """
        count = self.count()
        first = self._first_hashed() or 1
        versions = self._versions_of(count)
        strings = self._strings.tobytes()
        size = 0
        for index, row in enumerate(_SYMBOL.iter_unpack(self._rows(first, count)), first):
            if not _can_bind(row):
                continue
            end = strings.find(0, row[0])
            if end < 0:
                raise ElfError("a symbol's name lies outside the string table", where=self._layout.where)
            size += end - row[0]
            if size > MAX_NAME_BYTES:
                raise ElfError(f"names of more than {MAX_NAME_BYTES >> 20} MiB", where=self._layout.where)
            number = versions[index] & INDEX_MASK if versions is not None else 0
            yield text(strings[row[0] : end]), self._offers.get(number) if number > 1 else None

    def bloom_filter(self) -> BloomFilter:
        """What turns most absent names away by their :func:`~stack_builder.elf.hashing.gnu_hash` alone.

        It is handed out as data because it is asked more often than a function could be called.
        """
        return NO_FILTER if self._hash is None else self._hash.bloom_filter()

    def define(self, question: Question, hashed: int) -> bool:
        """Whether this object defines what another one asks for, by ld.so's rules (glibc ``dl-lookup.c``).

        Args:
            question: name, version, and whether only that version will do.
            hashed: :func:`~stack_builder.elf.hashing.gnu_hash` of the name.
        """
        candidates = range(1, self.count()) if self._hash is None else self._hash.candidates(question[0], hashed)
        return bool(candidates) and self._any_matches(candidates, *question)

    def offered(self, name: bytes) -> list[str | None]:
        """Versions under which this object defines a name; None among them stands for an unversioned definition."""
        candidates = range(1, self.count()) if self._hash is None else self._hash.candidates(name, gnu_hash(name))
        found: list[str | None] = []
        for index in candidates:
            row = self._row(index)
            if _can_bind(row) and self._strings.matches(row[0], name + b"\0"):
                number = self._version_index(index) & INDEX_MASK
                found.append(self._offers.get(number) if number > 1 else None)
        return found

    def _any_matches(self, candidates: Sequence[int], name: bytes, version: str | None, exactly: bool) -> bool:
        terminated = name + b"\0"
        versioned = 0
        for index in candidates:
            row = self._row(index)
            if not _can_bind(row) or not self._strings.matches(row[0], terminated):
                continue
            if self._versions is None:
                return True
            number = self._version_index(index)
            plain, hidden = number & INDEX_MASK, number & _HIDDEN
            if version is None:
                if plain < 3:  # unversioned, base, or the oldest version
                    return True
                versioned += not hidden
            elif plain > 1:
                if self._offers.get(plain) == version:
                    return True
            elif not hidden and not exactly:
                return True
        return versioned == 1

    def _first_hashed(self) -> int | None:
        """Where the hash table sets in; None where it cannot tell undefined symbols from defined ones."""
        if self._hash is None or self._hash.first <= 1 or self._hash.empty():
            return None
        return self._hash.first

    def _row(self, index: int) -> tuple[int, int, int, int, int, int]:
        start = index * _SYMBOL.size
        if start + _SYMBOL.size > len(self._table):
            raise ElfError(f"symbol {index} lies past the end of its segment", where=self._layout.where)
        return _SYMBOL.unpack_from(self._table, start)

    def _rows(self, first: int, count: int) -> memoryview:
        return self._table[first * _SYMBOL.size : max(first, count) * _SYMBOL.size]

    def _words(self, count: int) -> list[int]:
        """First eight bytes of each entry: name, binding and type, visibility, section."""
        return self._rows(0, count).cast("Q")[::3].tolist() if count else []

    def _versions_of(self, count: int) -> list[int] | None:
        if self._versions is None:
            return None
        if count > len(self._versions):
            raise ElfError("DT_VERSYM is shorter than the symbol table", where=self._layout.where)
        return self._versions[:count].tolist()

    def _version_index(self, index: int) -> int:
        if self._versions is None:
            return 1
        if index >= len(self._versions):
            raise ElfError("DT_VERSYM is shorter than the symbol table", where=self._layout.where)
        return self._versions[index]

    def _bounded(self, count: int) -> int:
        if count > MAX_SYMBOLS or count * _SYMBOL.size > len(self._table):
            raise ElfError(f"claims {count} symbols, more than the file can hold", where=self._layout.where)
        return count

    def _count_from_sections(self) -> int:
        address = self._layout.tags.get(_DT_SYMTAB)
        if address is None:
            return 0
        try:
            found = sections(self._layout.data, self._layout.where)
        except ElfError:  # the loader does not look at sections, so their damage is not the object's
            return 0
        return next((section.size // _SYMBOL.size for section in found if section.type == _SHT_DYNSYM), 0)

    def _count_from_neighbour(self) -> int:
        tags = self._layout.tags
        return max(0, tags.get(_DT_STRTAB, 0) - tags.get(_DT_SYMTAB, 0)) // _SYMBOL.size


def _can_bind(row: tuple[int, int, int, int, int, int]) -> bool:
    _name, info, other, section, value, _size = row
    return (
        section != 0
        and info >> 4 in _BINDINGS
        and info & 15 in _TYPES
        and other & 3 in _VISIBLE
        and (value != 0 or section == _SHN_ABS or info & 15 == _TLS)
    )
