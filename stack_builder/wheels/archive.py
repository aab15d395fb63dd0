"""A wheel's zip, read by our own hands from any seekable file: safely, and down to the raw deflate streams.

The standard library's reader hides what this tool needs (where an entry's compressed bytes stand, so that an image
layer can reuse them) and forgives what it must not forgive (a local header that contradicts the central directory,
so that two installers see two wheels).

Nothing is extracted, imported or executed here. A :class:`WheelArchive` moves its file's position: one per thread.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol, cast

from isal import isal_zlib

from stack_builder.errors import IntegrityError
from stack_builder.wheels import zipformat
from stack_builder.wheels.zipformat import DEFLATED, STORED, Entry

__all__ = ["DEFLATED", "STORED", "Entry", "SeekableFile", "WheelArchive", "iter_elf_entries"]

_IsalError = cast("type[Exception]", isal_zlib.error)  # the stubs call it an instance
CHUNK = 1 << 20
_FIRST_CHUNK = 1 << 16

_ELF_MAGIC = b"\x7fELF"
_ELF_HEADER = 64  # bytes of the ELF-64 file header
_SHARED_OBJECT = re.compile(r"\.so(\.[0-9]+)*$")

_NO_DESCRIPTOR: tuple[int, ...] = ()
_DESCRIPTOR_SIZES = (12, 16, 20, 24)  # with or without signature, 32 or 64 bits (APPNOTE 4.3.9)


class SeekableFile(Protocol):
    """What an archive is read from: an open local file or :class:`~stack_builder.wheels.remote.RemoteFile`."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to ``offset`` and return the position."""

    def read(self, size: int = -1, /) -> bytes:
        """Read up to ``size`` bytes."""


class WheelArchive:
    """The entries of one wheel and their bytes.

    The constructor reads the central directory and refuses what no honest wheel holds: paths that leave the wheel or
    mean two things, links and devices, encryption, doubles, case collisions, overlapping data, bombs. A local header
    is read, and compared with the central one, when its entry is first used; :meth:`check_layout` does that for all.

    Args:
        file: the wheel, seekable and open for reading; stays the caller's to close.
        filename: the wheel's name, for messages.

    Attributes:
        entries: in the order of the central directory.
        size: of the wheel in bytes.

    Raises:
        IntegrityError: not a zip, truncated, contradictory, or hostile; names wheel and entry.
    """

    def __init__(self, file: SeekableFile, filename: str) -> None:
        self._file = file
        self.filename = filename
        self.size = file.seek(0, 2)
        self.entries, self._directory_start = zipformat.read_directory(self._read_at, self.size, self._bad)
        self._by_name = {entry.name: entry for entry in self.entries if not entry.is_dir}
        self._starts = sorted(entry.header_offset for entry in self.entries)

    def find(self, name: str) -> Entry | None:
        """Give the file entry at a path, or None."""
        return self._by_name.get(name)

    def files(self) -> Iterator[Entry]:
        """Yield the entries that are not directories, in the order of the central directory."""
        return iter(self._by_name.values())

    def data_offset(self, entry: Entry) -> int:
        """Where the entry's raw bytes begin, after its local header was compared with the central one.

        Raises:
            IntegrityError: the two headers contradict each other.
        """
        header = self._read_at(entry.header_offset, zipformat.LOCAL.size)
        magic, _, flags, method, _, _, crc, packed, size, name_length, extra_length = zipformat.LOCAL.unpack(header)
        if magic != zipformat.LOCAL_MAGIC:
            raise self._bad("no local header where the central directory says", entry.name)
        rest = self._read_at(entry.header_offset + zipformat.LOCAL.size, name_length + extra_length)
        wide = zipformat.widen(rest[name_length:], size, packed, 0)
        if wide is None:
            raise self._bad("zip64 sizes are missing in its local header", entry.name)
        told, known = (crc, wide[1], wide[0]), (entry.crc, entry.compressed_size, entry.size)
        later = flags & zipformat.FLAG_DESCRIPTOR and not any(told)
        for field, same in (
            ("name", rest[:name_length] == entry.raw_name),
            ("method", method == entry.method),
            ("flags", not (flags ^ entry.flags) & zipformat.FLAGS_OF_BOTH_HEADERS),
            ("size or CRC", told == known or later),
        ):
            if not same:
                raise self._bad(f"local header and central directory give it another {field}", entry.name)
        offset = entry.header_offset + zipformat.LOCAL.size + len(rest)
        if offset + entry.compressed_size > self._next_start(entry):
            raise self._bad("data overlap the next entry", entry.name)
        return offset

    def raw(self, entry: Entry, chunk: int = CHUNK) -> Iterator[bytes]:
        """Yield the entry's bytes as they stand in the wheel (a raw deflate stream, or the stored bytes).

        CRC and size are not checked here: whoever copies the stream has to decompress it too.
        """
        offset = self.data_offset(entry)
        end = offset + entry.compressed_size
        while offset < end:
            data = self._read_at(offset, min(chunk, end - offset))
            offset += len(data)
            yield data

    def open(self, entry: Entry, chunk: int = CHUNK) -> Iterator[bytes]:
        """Yield the entry's content; size and CRC are checked, and nothing beyond the promised size is produced.

        Raises:
            IntegrityError: corrupt stream, wrong size or CRC. Raised at the end: a reader that stops early has
                seen unchecked bytes.
        """
        crc = size = 0
        for data in self._inflate(entry, chunk, CHUNK):
            size += len(data)
            if size > entry.size:
                raise self._bad("holds more bytes than the central directory says", entry.name)
            crc = isal_zlib.crc32(data, crc)
            yield data
        if size != entry.size:
            raise self._bad(f"holds {size} bytes, not {entry.size} as the central directory says", entry.name)
        if crc != entry.crc:
            raise self._bad(f"CRC is {crc:08x}, not {entry.crc:08x} as the central directory says", entry.name)

    def read(self, entry: Entry, limit: int) -> bytes:
        """Give the whole content of an entry of at most ``limit`` bytes.

        Raises:
            IntegrityError: larger than ``limit``, or as :meth:`open`.
        """
        if entry.size > limit:
            raise self._bad(f"{entry.size} bytes, more than the {limit} that such a file may have", entry.name)
        return b"".join(self.open(entry))

    def prefix(self, entry: Entry, n: int) -> bytes:
        """Give the first ``n`` bytes of the content (or all, if fewer), reading as little of the wheel as possible.

        The CRC covers the whole entry and is checked only when all of it is asked for.
        """
        if n >= entry.size:
            return b"".join(self.open(entry))
        parts, missing = [], n
        for data in self._inflate(entry, min(_FIRST_CHUNK, max(4096, n)), min(n, CHUNK)):
            parts.append(data[:missing])
            missing -= len(parts[-1])
            if missing == 0:
                return b"".join(parts)
        raise self._bad(f"holds fewer bytes than the {entry.size} that the central directory says", entry.name)

    def check_layout(self) -> None:
        """Compare every local header with the central directory, and refuse bytes that belong to no entry.

        Hidden local entries are how one wheel can be two: a reader that streams sees them, one that seeks does not.

        Raises:
            IntegrityError: names the entry.
        """
        position, allowed = 0, _NO_DESCRIPTOR
        for entry in sorted(self.entries, key=lambda e: e.header_offset):
            self._check_gap(position, entry.header_offset, allowed)
            position = self.data_offset(entry) + entry.compressed_size
            allowed = _DESCRIPTOR_SIZES if entry.flags & zipformat.FLAG_DESCRIPTOR else _NO_DESCRIPTOR
        self._check_gap(position, self._directory_start, allowed)

    def _check_gap(self, start: int, end: int, allowed: tuple[int, ...]) -> None:
        if end != start and end - start not in allowed:
            raise self._bad(f"{end - start} bytes at offset {start} belong to no entry", None)

    def _inflate(self, entry: Entry, chunk: int, most: int) -> Iterator[bytes]:
        """Yield content, at most ``most`` bytes at a time whatever the stream expands to."""
        if entry.method == STORED:
            yield from self.raw(entry, chunk)
            return
        inflater = isal_zlib.decompressobj(-isal_zlib.MAX_WBITS)
        try:
            for data in self.raw(entry, chunk):
                while data and not inflater.eof:
                    yield inflater.decompress(data, most)
                    data = inflater.unconsumed_tail
                if data or inflater.unused_data:
                    raise self._bad("bytes follow the end of its deflate stream", entry.name)
            while not inflater.eof and (rest := inflater.decompress(b"", most)):
                yield rest
        except _IsalError as error:
            raise self._bad(f"corrupt deflate stream ({error})", entry.name) from error
        if not inflater.eof:
            raise self._bad("its deflate stream does not end", entry.name)

    def _next_start(self, entry: Entry) -> int:
        after = bisect_right(self._starts, entry.header_offset)
        return self._starts[after] if after < len(self._starts) else self._directory_start

    def _read_at(self, offset: int, length: int) -> bytes:
        try:
            self._file.seek(offset)
            data = self._file.read(length)
        except OSError as error:
            error.filename = error.filename or self.filename  # a failed read does not know its file
            raise
        if len(data) != length:
            raise self._bad(f"ends at byte {offset + len(data)}; {offset + length} are needed", None)
        return data

    def _bad(self, what: str, name: str | None) -> IntegrityError:
        where = self.filename if name is None else f"{self.filename}: {name}"
        return IntegrityError(
            what, where=where, fix="fetch the wheel again; if it stays so, the index serves a bad file"
        )


def iter_elf_entries(archive: WheelArchive) -> Iterator[Entry]:
    """Yield the entries that are ELF files: shared objects by name and executables by mode, told by their magic.

    All 1,458 ELF files of 414 real wheels are one or the other; looking at names first keeps a remote wheel cheap.
    """
    for entry in archive.files():
        candidate = entry.mode & 0o111 or _SHARED_OBJECT.search(entry.name)
        if candidate and entry.size >= _ELF_HEADER and archive.prefix(entry, 4) == _ELF_MAGIC:
            yield entry
