"""An image as the file system that its containers see: layers in their order, whiteouts applied.

OCI image layer filesystem changeset, specification 1.1: ``.wh.NAME`` removes NAME of the layers below,
``.wh..wh..opq`` all that they have in its directory; neither touches what its own layer brings.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Self

from stack_builder.errors import IntegrityError
from stack_builder.trees import Entry
from stack_builder.trees.blobs import Image, find_image, open_blobs
from stack_builder.trees.index import Index
from stack_builder.trees.layers import MAX_FILES, open_layer
from stack_builder.trees.members import MemberCache

MAX_NAMES = 256 << 20
"""Characters of all paths of an image."""

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True, slots=True)
class _Place:
    layer: memoryview
    offset: int
    size: int


class OciTree:
    """The root file system of an image.

    A context: the layers stay mapped until it is left. Compressed layers are decompressed into the cache, once.

    Args:
        path: an OCI layout (directory or tar), or a tar from ``docker save``.
        machine: the image of which architecture: ``x86_64`` or ``aarch64``.
        cache: where layers are decompressed; the user's cache by default.

    Attributes:
        image: configuration and layers.

    Raises:
        UsageError: no such image in it.
        IntegrityError: damaged, or digests that do not fit.
        MachineError: a layer is compressed in a way that cannot be read here.
    """

    def __init__(self, path: Path, *, machine: str = "x86_64", cache: MemberCache | None = None) -> None:
        blobs = open_blobs(path)
        self.image: Image = find_image(blobs, machine)
        self._open = ExitStack()
        self._index: Index[_Place | None] = Index()
        cache = cache or MemberCache()
        try:
            for name, digest in zip(self.image.layers, self.image.digests, strict=True):
                layer = self._open.enter_context(open_layer(blobs, name, digest, cache))
                self._apply(layer, f"{path}: {name}")
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._open.close()

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment that the image's configuration gives its processes."""
        config = self.image.config.get("config")
        rows = config.get("Env") if isinstance(config, dict) else None
        pairs = (str(row).partition("=") for row in rows) if isinstance(rows, list) else ()
        return {name: value for name, _, value in pairs}

    def entries(self, under: str = "/") -> Iterator[Entry]:
        """See :class:`~stack_builder.trees.FileTree`."""
        return self._index.entries(under)

    def resolve(self, path: str) -> str | None:
        """See :class:`~stack_builder.trees.FileTree`."""
        return self._index.resolve(path)

    @contextmanager
    def open(self, path: str) -> Iterator[memoryview]:
        """See :class:`~stack_builder.trees.FileTree`."""
        place = self._index.value(path)
        if place is None:
            raise IntegrityError("not a regular file", where=path)
        yield place.layer[place.offset : place.offset + place.size]

    def prefix(self, path: str, size: int) -> bytes:
        """See :class:`~stack_builder.trees.FileTree`."""
        with self.open(path) as view:
            return bytes(view[:size])

    def _apply(self, layer: memoryview, where: str) -> None:
        """Lay one layer over those before it: first what it removes, then what it brings."""
        try:
            with tarfile.open(fileobj=_File(layer), mode="r:") as archive:
                members = []
                names = 0
                for member in archive:
                    archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all a second time
                    members.append((_path(member.name, where), member))
                    names += len(member.name) + len(member.linkname)
                    if len(members) > MAX_FILES or names > MAX_NAMES:
                        raise IntegrityError(f"more than {MAX_FILES} files in one layer, or endless names", where=where)
        except (tarfile.TarError, ValueError) as error:
            raise IntegrityError(f"the layer is no readable tar ({error})", where=where) from error
        brought = []
        for path, member in members:
            parent, _, name = path.rpartition("/")
            if name == _OPAQUE:
                self._index.empty(parent or "/")
            elif name.startswith(_WHITEOUT):
                self._index.remove(f"{parent}/{name.removeprefix(_WHITEOUT)}")
            else:
                brought.append((path, member))
        for path, member in brought:
            self._add(path, member, layer, where)
            if len(self._index) > MAX_FILES or self._index.names > MAX_NAMES:
                raise IntegrityError(f"more than {MAX_FILES} files in all, or endless names", where=where)

    def _add(self, path: str, member: tarfile.TarInfo, layer: memoryview, where: str) -> None:
        if member.isdir():
            self._index.add_directory(path)
            return
        if path == "/":
            raise IntegrityError("a layer holds a file in place of the root", where=where)
        place: _Place | None = None
        size, link = 0, None
        if member.issym():
            link = member.linkname or "."
        elif member.islnk():
            target = _path(member.linkname, where)
            place = self._index.at(target)
            size = place.size if place else 0
        elif member.isreg():
            if member.offset_data + member.size > len(layer):
                raise IntegrityError(f"{path} is cut off", where=where)
            place, size = _Place(layer, member.offset_data, member.size), member.size
        self._index.put(Entry(path, size, link), place)


def _path(name: str, where: str) -> str:
    """Absolute path of a member.

    Raises:
        IntegrityError: it would leave the root.
    """
    parts = name.split("/")
    if ".." in parts or "\0" in name or len(name) > 4096:
        raise IntegrityError(f"a layer holds the path {name[:200]!r}", where=where)
    return posixpath.normpath("/" + name.lstrip("/"))


class _File(RawIOBase):
    """A file over mapped memory, for tarfile; it seeks over contents and reads headers."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def read(self, size: int = -1, /) -> bytes:
        end = len(self._view) if size < 0 else self._at + size
        data = bytes(self._view[self._at : end])
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = offset + (0, self._at, len(self._view))[whence]
        return self._at

    def tell(self) -> int:
        return self._at
