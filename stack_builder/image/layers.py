"""Layers written straight from wheels: the hot path.

A worker process writes one layer: it streams each file of each wheel once, and in that pass checks the hash that RECORD
gives, size and CRC, and hashes the layer's compressed and decompressed form. Nothing is unpacked to disk.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stack_builder.errors import IntegrityError
from stack_builder.image import tarball
from stack_builder.image.contents import Contents, InstalledFile
from stack_builder.image.stream import CORRUPT, LayerStream, Promise, Written
from stack_builder.image.tarball import FILE
from stack_builder.wheels.archive import DEFLATED, Entry, WheelArchive
from stack_builder.wheels.record import hash_digest

COPY_FROM = 512  # bytes; a smaller file costs less as plain bytes than as a gzip member of its own
_CHUNK = 1 << 20
_EMPTY_ZIP = b"PK\x05\x06" + bytes(18)


@dataclass(frozen=True, slots=True)
class WheelSource:
    """One wheel of a layer, as files on disk.

    Attributes:
        path: the verified wheel.
        filename: its name as a wheel.
        contents: what it installs.
        dropped: paths that another wheel writes.
        pack: zip with its bytecode, or None.
    """

    path: Path
    filename: str
    contents: Contents
    dropped: frozenset[str]
    pack: Path | None


def write_layer(sink: BinaryIO, sources: tuple[WheelSource, ...]) -> Written:
    """Write one layer.

    Args:
        sink: takes the blob.
        sources: the wheels, in the order in which their files shall stand.

    Raises:
        IntegrityError: a file of a wheel is not what its RECORD or directory promises; names wheel and file.
    """
    layer = LayerWriter(sink)
    for source in sources:
        with source.path.open("rb") as file:
            _add_wheel(layer, source, WheelArchive(file, source.filename))
    return layer.finish()


class LayerWriter:
    """Adds files to a layer: headers, parents, content, padding."""

    def __init__(self, sink: BinaryIO) -> None:
        self._stream = LayerStream(sink)
        self._parents = tarball.Parents()

    def bytes(self, path: str, data: bytes, mode: int = FILE) -> None:
        """Add a file whose content is at hand."""
        self._header(path, len(data), mode)
        self._stream.plain(data)
        self._stream.plain(tarball.padding(len(data)))

    def symlink(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._stream.plain(self._parents.above(path) + tarball.symlink(path, target))

    def entry(self, path: str, mode: int, archive: WheelArchive, entry: Entry, promised: str | None) -> None:
        """Add an entry of a zip, by copying its deflate stream where it has one.

        Args:
            path: where it shall stand.
            mode: permission bits.
            archive: the zip.
            entry: which of its entries.
            promised: the hash that RECORD gives, or None where the zip is our own.

        Raises:
            IntegrityError: the content is not what was promised.
        """
        where = f"{archive.filename}: {entry.name}"
        algorithm, digest = hash_digest(promised) if promised else ("sha256", None)
        content = hashlib.new(algorithm)
        self._header(path, entry.size, mode)
        if entry.method == DEFLATED and entry.size >= COPY_FROM:
            self._stream.deflated(archive.raw(entry, _CHUNK), Promise(entry.size, entry.crc, where), content)
        else:
            for data in archive.open(entry, _CHUNK):
                content.update(data)
                self._stream.plain(data)
        if digest is not None and content.hexdigest() != digest:
            raise IntegrityError(f"{algorithm} is not the one that RECORD gives", where=where, fix=CORRUPT)
        self._stream.plain(tarball.padding(entry.size))

    def finish(self) -> Written:
        """End the archive."""
        self._stream.plain(tarball.END)
        return self._stream.finish()

    def _header(self, path: str, size: int, mode: int) -> None:
        self._stream.plain(self._parents.above(path) + tarball.file_header(path, size, mode))


def _add_wheel(layer: LayerWriter, source: WheelSource, archive: WheelArchive) -> None:
    for file in _kept(source):
        if file.entry is None:
            layer.bytes(file.path, (file.text or "").encode("latin-1"), file.mode)
            continue
        entry = archive.find(file.entry)
        if entry is None:
            raise IntegrityError("is gone from the wheel since it was read", where=f"{source.filename}: {file.entry}")
        layer.entry(file.path, file.mode, archive, entry, file.hash)
    with _bytecode(source) as (pack, entries):
        for entry in entries:
            layer.entry(entry.name, FILE, pack, entry, None)
    layer.bytes(source.contents.record, record_of(source, [entry.name for entry in entries]))


def _kept(source: WheelSource) -> list[InstalledFile]:
    return [file for file in source.contents.files if file.path not in source.dropped]


@contextmanager
def _bytecode(source: WheelSource) -> Iterator[tuple[WheelArchive, list[Entry]]]:
    """The pack of a wheel, and its entries for the modules that the layer holds."""
    if source.pack is None:
        yield WheelArchive(io.BytesIO(_EMPTY_ZIP), "no bytecode"), []
        return
    kept = {file.path for file in _kept(source)}
    with source.pack.open("rb") as file:
        pack = WheelArchive(file, source.pack.name)
        entries = []
        for entry in pack.files():
            folder, _, name = entry.name.rpartition("/__pycache__/")
            if f"{folder}/{name.rsplit('.', 2)[0]}.py" in kept:
                entries.append(entry)
        yield pack, entries


def bytecode_paths(source: WheelSource) -> list[str]:
    """Paths of the bytecode that the layer of a wheel holds."""
    with _bytecode(source) as (_, entries):
        return [entry.name for entry in entries]


def record_of(source: WheelSource, bytecode: list[str]) -> bytes:
    """RECORD as an installer writes it: paths relative to site-packages, bytecode without hash."""
    record = source.contents.record
    site = record.rsplit("/", 2)[0]
    rows = [(_relative(file.path, site), file.hash, str(file.size)) for file in _kept(source)]
    rows += [(_relative(path, site), "", "") for path in (*bytecode, record)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    return text.getvalue().encode()


def _relative(path: str, site: str) -> str:
    if path.startswith(f"{site}/"):
        return path[len(site) + 1 :]
    up = 0
    while not path.startswith(f"{site}/"):
        site = site.rpartition("/")[0]
        up += 1
    return "../" * up + path[len(site) + 1 :]
