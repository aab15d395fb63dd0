"""What linking one object comes to, as plain facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stack_builder.elf.search import Found, NotFound


@dataclass(frozen=True, slots=True)
class Library:
    """One object of a closure.

    Attributes:
        name: under which it was asked for.
        found: its file, and the step that led there.
    """

    name: str
    found: Found


@dataclass(frozen=True, slots=True)
class MissingLibrary:
    """A library that ld.so would not find; it would load nothing at all.

    Attributes:
        soname: as ``DT_NEEDED`` has it.
        needed_by: path of the object that needs it.
        result: where it was looked for and what was passed over.
    """

    soname: str
    needed_by: str
    result: NotFound


@dataclass(frozen=True, slots=True)
class MissingVersion:
    """A version that a library lacks; ld.so would refuse the object ("version `…' not found").

    Attributes:
        library: the soname.
        version: such as ``GLIBCXX_3.4.32``.
        needed_by: path of the object that needs it.
        provider: path of the library that lacks it.
    """

    library: str
    version: str
    needed_by: str
    provider: str


@dataclass(frozen=True, slots=True)
class MissingSymbol:
    """A symbol that nothing in scope defines.

    Attributes:
        name: mangled.
        version: asked for, else None.
        library: the soname that version was linked against, else None.
        needed_by: path of the object that needs it.
    """

    name: str
    version: str | None
    library: str | None
    needed_by: str


@dataclass(frozen=True, slots=True)
class Linked:
    """What opening one object would come to.

    Attributes:
        path: the object.
        closure: it and what it needs, in the order of lookup; libraries that were there before included.
        missing_libraries: nearest first.
        missing_versions: of the object and of what it newly brings along.
        missing_symbols: likewise; those that may stay open (weak) are left out.
        outside_libraries: absent, but brought by who is not part of the tree (the host's driver); not missing.
        outside_symbols: names that those define.
        bindings: names that the object itself takes, by the path of the object that defines them.
        damaged: objects that could not be read, with the reason.
        dlopens: it can open further libraries by itself, which reading does not show.
    """

    path: str
    closure: tuple[Library, ...]
    missing_libraries: tuple[MissingLibrary, ...]
    missing_versions: tuple[MissingVersion, ...]
    missing_symbols: tuple[MissingSymbol, ...]
    outside_libraries: tuple[str, ...]
    outside_symbols: tuple[str, ...]
    bindings: Mapping[str, tuple[str, ...]]
    damaged: Mapping[str, str]
    dlopens: bool

    @property
    def opens(self) -> bool:
        """Whether ld.so would map it; a symbol may still be missing."""
        return not (self.missing_libraries or self.missing_versions)

    @property
    def clean(self) -> bool:
        """Whether ld.so would load it and find every symbol."""
        return self.opens and not self.missing_symbols


def how(libraries: Iterable[Library], soname: str) -> Found | None:
    """The file that a closure takes for a soname, or None."""
    return next((library.found for library in libraries if library.name == soname), None)
