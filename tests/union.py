"""One tree laid over another, as a test wants it: wheels over a base system, changed files over an image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from heapq import merge

from stack_builder.trees import Entry, FileTree


class UnionTree:
    """Files of the upper tree hide those of the lower one at the same path.

    Links are followed within the tree that holds them; where one tree has a directory and the other a link or a file
    of that name, both are looked into, the upper one first.

    Args:
        upper: such as wheels.
        lower: such as the root of a base image.
    """

    def __init__(self, upper: FileTree, lower: FileTree) -> None:
        self._trees = (upper, lower)

    def entries(self, under: str = "/") -> Iterator[Entry]:
        """See :class:`~stack_builder.trees.FileTree`."""
        last = None
        for entry in merge(*(tree.entries(under) for tree in self._trees), key=lambda entry: entry.path):
            if entry.path != last:
                yield entry
            last = entry.path

    def resolve(self, path: str) -> str | None:
        """See :class:`~stack_builder.trees.FileTree`."""
        return next((real for tree in self._trees if (real := tree.resolve(path)) is not None), None)

    def open(self, path: str) -> AbstractContextManager[memoryview]:
        """See :class:`~stack_builder.trees.FileTree`."""
        return self._holder(path).open(path)

    def outline(self, path: str) -> AbstractContextManager[memoryview]:
        """See :class:`~stack_builder.trees.FileTree`."""
        return self._holder(path).outline(path)

    def prefix(self, path: str, size: int) -> bytes:
        """See :class:`~stack_builder.trees.FileTree`."""
        return self._holder(path).prefix(path, size)

    def _holder(self, path: str) -> FileTree:
        upper, lower = self._trees
        return upper if upper.resolve(path) is not None else lower
