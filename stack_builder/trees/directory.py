"""A tree that lies on this machine's disk: the machine itself, or the unpacked root of an image."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from operator import itemgetter
from pathlib import Path

from stack_builder.trees import Entry
from stack_builder.trees.mapping import mapped
from stack_builder.trees.paths import DIRECTORY, FILE, Resolver, link_target


class DirectoryTree:
    """Files below a directory, which stands for ``/``.

    Args:
        root: the directory; ``/`` is the machine itself. Links that point out of it are followed inside it.
        owner: tells which wheel or package a path of the tree belongs to.
    """

    def __init__(self, root: Path = Path("/"), owner: Callable[[str], str | None] | None = None) -> None:
        self._root = "" if str(root) == "/" else str(root.resolve())
        self._owner = owner or (lambda _path: None)
        self._resolver = Resolver(self._look)

    def entries(self, under: str = "/") -> Iterator[Entry]:
        """See :class:`~stack_builder.trees.FileTree`. Directories are not followed onto other links' targets."""
        real = self.resolve(under)
        if real is None:
            return
        if self._look(real) == FILE:
            yield Entry(real, os.lstat(self._root + real).st_size, owner=self._owner(real))
            return
        yield from self._below(real)

    def resolve(self, path: str) -> str | None:
        """See :class:`~stack_builder.trees.FileTree`."""
        return self._resolver.resolve(path)

    def open(self, path: str) -> AbstractContextManager[memoryview]:
        """See :class:`~stack_builder.trees.FileTree`."""
        return mapped(self._on_disk(path))

    def outline(self, path: str) -> AbstractContextManager[memoryview]:
        """See :class:`~stack_builder.trees.FileTree`: a mapped file costs what is looked at."""
        return self.open(path)

    def prefix(self, path: str, size: int) -> bytes:
        """See :class:`~stack_builder.trees.FileTree`."""
        with self.open(path) as view:
            return bytes(view[:size])

    def _on_disk(self, path: str) -> Path:
        real = self.resolve(path)
        if real is None:
            raise FileNotFoundError(path)
        return Path(f"{self._root}{real}")

    def _look(self, path: str) -> str | None:
        try:
            mode = os.lstat(self._root + path).st_mode
            if stat.S_ISLNK(mode):
                return link_target(os.readlink(self._root + path))  # noqa: PTH115 - as it is written
        except (OSError, ValueError):  # nothing there, not for us to see, or no name that can exist
            return None
        return DIRECTORY if stat.S_ISDIR(mode) else FILE

    def _below(self, directory: str) -> Iterator[Entry]:
        """Sorted by path: a directory's name counts with its slash."""
        waiting = [self._scan(directory)]  # a stack, since each level of nested generators would handle each file
        while waiting:
            for path, item in waiting[-1]:
                if item is None:
                    waiting.append(self._scan(path))
                    break
                link = os.readlink(item.path) if item.is_symlink() else None  # noqa: PTH115 - as it is written
                yield Entry(path, item.stat(follow_symlinks=False).st_size, link, self._owner(path))
            else:
                waiting.pop()

    def _scan(self, directory: str) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
        """Path and entry of what lies directly in a directory; None for the entry of a directory."""
        above = directory.rstrip("/")
        with os.scandir(f"{self._root}{directory}") as scan:
            found = [
                (f"{item.name}/", None) if item.is_dir(follow_symlinks=False) else (item.name, item) for item in scan
            ]
        found.sort(key=itemgetter(0))
        return iter([(f"{above}/{name.rstrip('/')}", item) for name, item in found])
