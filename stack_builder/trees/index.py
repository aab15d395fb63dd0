"""An index of files by path, for trees whose files lie in archives."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

from stack_builder.trees import Entry
from stack_builder.trees.paths import DIRECTORY, FILE, Resolver, link_target

T = TypeVar("T")


class Index(Generic[T]):
    """Entries with a value each (where their bytes are), looked up by path; directories are implied by them.

    Attributes:
        names: characters of all paths that were ever added, a measure of the memory that hostile ones could take.
    """

    def __init__(self) -> None:
        self.names = 0
        self._found: dict[str, tuple[Entry, T]] = {}
        self._directories: dict[str, set[str]] = {"/": set()}  # with the names in each
        self._sorted: list[str] | None = None
        self._resolver: Resolver | None = None

    def __len__(self) -> int:
        return len(self._found) + len(self._directories)

    def add(self, entry: Entry, value: T) -> bool:
        """Add an entry unless one of that path is there; say whether it was added."""
        if entry.path in self._found:
            return False
        self.put(entry, value)
        return True

    def put(self, entry: Entry, value: T) -> None:
        """Add an entry in place of whatever was at its path."""
        if entry.path in self._directories:
            self.remove(entry.path)
        parent, name = _split(entry.path)
        self.add_directory(parent)
        self._directories[parent].add(name)
        self._found[entry.path] = (entry, value)
        self.names += len(entry.path)
        self._changed()

    def add_directory(self, path: str) -> None:
        """Make a directory, and those that it lies in, be there, in place of files and links of those names."""
        path, inside = path or "/", ""
        while path not in self._directories:
            self._found.pop(path, None)
            self._directories[path] = {inside} if inside else set()
            self.names += len(path)
            path, inside = _split(path)
        if inside:
            self._directories[path].add(inside)
        self._changed()

    def remove(self, path: str) -> None:
        """Remove what is at a path and below it, if anything; the root stays."""
        if path not in self._found and path not in self._directories:
            return
        self.empty(path)
        parent, name = _split(path)
        self._directories[parent].discard(name)
        self._found.pop(path, None)
        if path != "/":
            self._directories.pop(path, None)
        self._changed()

    def empty(self, directory: str) -> None:
        """Remove all that lies below a directory, at a cost that follows what lies there."""
        todo = [directory]
        while todo:
            here = todo.pop()
            for name in self._directories.get(here, ()):
                path = f"{here.rstrip('/')}/{name}"
                if self._found.pop(path, None) is None:
                    todo.append(path)
            if here != directory:
                del self._directories[here]
        if directory in self._directories:
            self._directories[directory].clear()
        self._changed()

    def at(self, path: str) -> T | None:
        """The value at this very path, None where no file is."""
        found = self._found.get(path)
        return None if found is None else found[1]

    def entry(self, path: str) -> Entry:
        """The entry that stands at this very path."""
        return self._found[path][0]

    def entries(self, under: str = "/") -> Iterator[Entry]:
        """See :class:`~stack_builder.trees.FileTree`."""
        real = self.resolve(under)
        if real is None:
            return
        if real in self._found:
            yield self._found[real][0]
            return
        if self._sorted is None:
            self._sorted = sorted(self._found)
        below = real.rstrip("/") + "/"
        for position in range(bisect_left(self._sorted, below), len(self._sorted)):
            path = self._sorted[position]
            if not path.startswith(below):
                return
            yield self._found[path][0]

    def resolve(self, path: str) -> str | None:
        """See :class:`~stack_builder.trees.FileTree`."""
        if self._resolver is None:
            self._resolver = Resolver(self._look)
        return self._resolver.resolve(path)

    def value(self, path: str) -> T:
        """The value of the file behind a path.

        Raises:
            FileNotFoundError: no file is there.
        """
        real = self.resolve(path)
        if real is None or real not in self._found:
            raise FileNotFoundError(path)
        return self._found[real][1]

    def _look(self, path: str) -> str | None:
        found = self._found.get(path)
        if found is not None:
            return FILE if found[0].link is None else link_target(found[0].link)
        return DIRECTORY if path in self._directories else None

    def _changed(self) -> None:
        self._sorted = None
        self._resolver = None


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or "/", name
