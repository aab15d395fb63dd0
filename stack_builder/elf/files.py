"""The files that the linker looks at, and the objects read from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Protocol, Self

from stack_builder.elf import ahead
from stack_builder.elf.layout import ElfError, Identity, identify
from stack_builder.elf.object import ElfObject, parse
from stack_builder.errors import IntegrityError


class Named(Protocol):
    """A file in a listing."""

    @property
    def path(self) -> str:
        """Absolute path inside the tree."""


class Files(Protocol):
    """What the linker needs of a tree; :class:`stack_builder.trees.FileTree` has it."""

    def entries(self, under: str = "/") -> Iterator[Named]:
        """All files below a directory."""

    def resolve(self, path: str) -> str | None:
        """The real path behind a path, or None where nothing is."""

    def open(self, path: str) -> AbstractContextManager[memoryview]:
        """The bytes of a file."""

    def outline(self, path: str) -> AbstractContextManager[memoryview]:
        """An object as far as it is looked at here; what is not looked at may read as zeros."""


class ObjectCache:
    """Every object is opened and parsed once, and stays open until the end of the context.

    Args:
        files: where they are.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self._open = ExitStack()
        self._data: dict[str, memoryview] = {}
        self._identities: dict[str, Identity | None] = {}
        self._objects: dict[str, ElfObject | ElfError] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._objects.clear()
        self._data.clear()
        self._open.close()

    def identity(self, real: str) -> Identity | None:
        """Class and machine of the file at a real path; None where it is not ELF.

        Raises:
            ElfError: the container that holds it is damaged.
        """
        if real not in self._identities:
            self._identities[real] = identify(self._bytes(real))
        return self._identities[real]

    def is_blank(self, real: str) -> bool:
        """Whether a file is empty or begins with zeros, as a full disk or a lost write leaves it.

        Raises:
            ElfError: the container that holds it is damaged.
        """
        return not any(self._bytes(real)[:4])

    def object(self, real: str) -> ElfObject:
        """The object at a real path.

        Raises:
            ElfError: it is damaged; raised again whenever it is asked for.
        """
        known = self._objects.get(real)
        if known is None:
            try:
                known = parse(self._bytes(real), real)
                ahead.expected(known.layout)
            except ElfError as error:
                known = error
            self._objects[real] = known
        if isinstance(known, ElfError):
            raise known
        return known

    def _bytes(self, real: str) -> memoryview:
        if real not in self._data:
            try:
                self._data[real] = self._open.enter_context(self.files.outline(real))
                ahead.scattered(self._data[real])
            except ElfError:
                raise
            except IntegrityError as error:
                raise ElfError(error.what, where=error.where, fix=error.fix) from error
            except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
                raise ElfError(error.strerror or "cannot be read", where=real) from error
        return self._data[real]
