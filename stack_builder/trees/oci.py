"""An image as the file system that its containers see: layers in their order, whiteouts applied.

OCI image layer filesystem changeset, specification 1.1: ``.wh.NAME`` removes NAME of the layers below,
``.wh..wh..opq`` all that they have in its directory; neither touches what its own layer brings.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from stack_builder.errors import IntegrityError
from stack_builder.trees import Entry
from stack_builder.trees.blobs import Image, environment, find_image, open_blobs
from stack_builder.trees.index import Index
from stack_builder.trees.layers import DIRECTORY, HARD_LINK, LINK, OTHER, Layer, Row, open_layer, prepare_layer
from stack_builder.trees.members import MemberCache
from stack_builder.trees.saved import Layers, SavedImage
from stack_builder.trees.tars import MAX_FILES, MAX_NAMES

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True, slots=True)
class _Place:
    layer: Layer
    row: Row


class OciTree:
    """The root file system of an image.

    A context: the layers stay mapped until it is left. What is read of compressed layers is kept in the cache.

    Args:
        source: an OCI layout (directory or tar), a tar from ``docker save``, or what was read of one as it came.
        machine: of a layout, the image of which architecture: ``x86_64`` or ``aarch64``.
        cache: where that is kept; the user's cache by default.

    Attributes:
        image: configuration and layers.

    Raises:
        UsageError: no such image in it.
        IntegrityError: damaged, or digests that do not fit.
        MachineError: a layer is compressed in a way that cannot be read here.
    """

    def __init__(self, source: Path | SavedImage, *, machine: str = "x86_64", cache: MemberCache | None = None) -> None:
        self._open = ExitStack()
        self._index: Index[_Place | None] = Index()
        cache = cache or MemberCache()
        self.image: Image
        if isinstance(source, SavedImage):
            self.image, layers = source.image, source.layers(cache)
        else:
            self.image, layers = _layers(source, machine, cache)
        try:
            for name, opening in layers:
                self._apply(self._open.enter_context(opening), name)
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
        return environment(self.image.config)

    def entries(self, under: str = "/") -> Iterator[Entry]:
        """See :class:`~stack_builder.trees.FileTree`."""
        return self._index.entries(under)

    def resolve(self, path: str) -> str | None:
        """See :class:`~stack_builder.trees.FileTree`."""
        return self._index.resolve(path)

    def open(self, path: str) -> AbstractContextManager[memoryview]:
        """See :class:`~stack_builder.trees.FileTree`."""
        place = self._regular(path)
        return place.layer.open(place.row)

    def outline(self, path: str) -> AbstractContextManager[memoryview]:
        """See :class:`~stack_builder.trees.FileTree`."""
        place = self._regular(path)
        return place.layer.outline(place.row)

    def prefix(self, path: str, size: int) -> bytes:
        """See :class:`~stack_builder.trees.FileTree`."""
        with self.open(path) as view:
            return bytes(view[:size])

    def _regular(self, path: str) -> _Place:
        place = self._index.value(path)
        if place is None:
            raise IntegrityError("not a regular file", where=path)
        return place

    def _apply(self, layer: Layer, where: str) -> None:
        """Lay one layer over those before it: first what it removes, then what it brings."""
        brought = []
        for row in layer.rows:
            path = _path(row.name, where)
            parent, _, name = path.rpartition("/")
            if name == _OPAQUE:
                self._index.empty(parent or "/")
            elif name.startswith(_WHITEOUT):
                self._index.remove(f"{parent}/{name.removeprefix(_WHITEOUT)}")
            else:
                brought.append((path, row))
        for path, row in brought:
            self._add(path, row, layer, where)
            if len(self._index) > MAX_FILES or self._index.names > MAX_NAMES:
                raise IntegrityError(f"more than {MAX_FILES} files in all, or endless names", where=where)

    def _add(self, path: str, row: Row, layer: Layer, where: str) -> None:
        if row.kind == DIRECTORY:
            self._index.add_directory(path)
            return
        if path == "/":
            raise IntegrityError("a layer holds a file in place of the root", where=where)
        place: _Place | None = None
        size, link = 0, None
        if row.kind == LINK:
            link = row.link or "."
        elif row.kind == HARD_LINK:
            place = self._index.at(_path(row.link, where))
            size = place.row.size if place else 0
        elif row.kind != OTHER:
            place, size = _Place(layer, row), row.size
        self._index.put(Entry(path, size, link), place)


def _layers(path: Path, machine: str, cache: MemberCache) -> tuple[Image, Layers]:
    """The image in a layout, and its layers, which are read where they have not been yet."""
    blobs = open_blobs(path)
    image = find_image(blobs, machine)
    layers = list(zip(image.layers, image.digests, strict=True))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decompressing and hashing release the lock
        ready = list(pool.map(lambda layer: prepare_layer(blobs, layer[0], layer[1], cache), layers))
    return image, ((f"{path}: {layer.name}", open_layer(blobs, layer, cache)) for layer in ready)


def _path(name: str, where: str) -> str:
    """Absolute path of a member.

    Raises:
        IntegrityError: it would leave the root.
    """
    parts = name.split("/")
    if ".." in parts or "\0" in name or len(name) > 4096:
        raise IntegrityError(f"a layer holds the path {name[:200]!r}", where=where)
    return posixpath.normpath("/" + name.lstrip("/"))
