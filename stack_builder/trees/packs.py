"""Packs: what static checks read of one wheel or layer, together in one sparse file of the cache.

Members stand one behind the other: small ones as they are, shared objects as outlines
(:mod:`stack_builder.elf.outline`), so that a library of a gigabyte takes a few megabytes of disk. Behind them stands an
index as JSON, then its length. A member of which no outline can be made is left out; whoever wants its bytes reads the
archive again.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from stack_builder.elf.layout import MAGIC, ElfError
from stack_builder.elf.outline import Passing, needed
from stack_builder.errors import IntegrityError
from stack_builder.trees import Buffer
from stack_builder.trees.mapping import mapped_file

WHOLE = 1 << 20
"""Bytes up to which a member is kept as it is. Everything that is not an object and is read has fewer."""

SMALL_OBJECT = 64 << 10
"""Bytes up to which an object is kept as it is; an outline would save little."""

_PAGE = 4096
_WORD = 16
_FOOTER = struct.Struct("<Q8s")
_MAGIC = b"stackb\0\1"


class PackWriter:
    """Writes one pack.

    Args:
        file: new and empty; where the file system knows holes, it gets some.
        scratch: a folder with room for one object.
    """

    def __init__(self, file: IO[bytes], scratch: Path) -> None:
        self._file = file
        self._scratch = scratch
        self._end = 0

    def whole(self, chunks: Iterable[Buffer]) -> int:
        """Add a member as it is; give its offset."""
        start = self._file.seek(self._end)
        for data in chunks:
            self._file.write(data)
        self._reserve(self._file.tell() - start, _WORD)
        return start

    def outline(self, size: int, chunks: Iterable[Buffer], where: str) -> int | None:
        """Add the outline of an object of ``size`` bytes; give its offset, or None where it has none.

        The object is read to its end in any case. What may be of use lies in a scratch file meanwhile.
        """
        self._reserve(0, _PAGE)  # so that its holes are as large as they can be
        passing = Passing()
        with tempfile.TemporaryFile(dir=self._scratch) as scratch:
            for data in chunks:
                _write_at(scratch, passing.feed(data))
            _write_at(scratch, passing.finish())
            scratch.truncate(size)
            scratch.flush()
            with mapped_file(scratch) as view:
                try:
                    ranges = needed(view, where, passing.left_out)
                except ElfError:
                    return None
                for first, last in ranges:
                    self._file.seek(self._end + first)
                    self._file.write(view[first:last])
        start = self._end
        self._reserve(size, _WORD)
        return start

    def finish(self, index: object) -> None:
        """Write the index; nothing can be added any more."""
        data = json.dumps(index, separators=(",", ":")).encode()
        self._file.seek(self._end)
        self._file.write(data)
        self._file.write(_FOOTER.pack(len(data), _MAGIC))

    def _reserve(self, size: int, alignment: int) -> None:
        self._end = -(-(self._end + size) // alignment) * alignment


def read_index(pack: memoryview, where: str) -> object:
    """The index of a pack.

    Raises:
        IntegrityError: it is none.
    """
    fix = "remove this file"
    if len(pack) < _FOOTER.size:
        raise IntegrityError("not a pack", where=where, fix=fix)
    length, magic = _FOOTER.unpack(pack[-_FOOTER.size :])
    if magic != _MAGIC or length > len(pack) - _FOOTER.size:
        raise IntegrityError("not a pack", where=where, fix=fix)
    index: object = json.loads(bytes(pack[-_FOOTER.size - length : -_FOOTER.size]))
    return index


def is_object(first: bytes) -> bool:
    """Whether bytes begin as an ELF file does."""
    return first.startswith(MAGIC)


def _write_at(file: IO[bytes], pieces: Iterable[tuple[int, memoryview]]) -> None:
    for offset, data in pieces:
        file.seek(offset)
        file.write(data)
