"""Files to inspect, wherever they lie: a directory, wheels, an OCI image.

Collectors read through :class:`FileTree` and never open a path themselves, so that one linker and one set of rules
serve a virtual environment, a lock whose wheels are not installed, and an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a tree.

    Attributes:
        path: absolute POSIX path inside the tree (``/opt/venv/lib/…``), normalised, without ``..``.
        size: in bytes.
        link: target of a symbolic link, else None.
        owner: ``name version`` of the wheel or package it belongs to, where known.
    """

    path: str
    size: int
    link: str | None = None
    owner: str | None = None


class FileTree(Protocol):
    """A read-only file system as the target's processes would see it."""

    def entries(self, under: str = "/") -> Iterator[Entry]:
        """All files below ``under``, sorted by path; does not follow links."""

    def resolve(self, path: str) -> str | None:
        """The real path behind ``path``, links followed inside the tree; None where nothing is."""

    def open(self, path: str) -> AbstractContextManager[memoryview]:
        """The bytes of a file, mapped where possible, for the time of the context.

        Raises:
            FileNotFoundError: nothing is there.
            IntegrityError: the container that holds it is damaged.
        """

    def outline(self, path: str) -> AbstractContextManager[memoryview]:
        """An object as far as static reading looks: headers, dynamic tables, headers of device code.

        Everything else may read as zeros (:mod:`stack_builder.elf.outline`), so that a library of a gigabyte need not
        be unpacked. A file that is no object is given as it is.

        Raises:
            as :meth:`open`.
        """

    def prefix(self, path: str, size: int) -> bytes:
        """The first ``size`` bytes, as cheaply as the container allows."""
