"""One ELF object, as the dynamic loader sees it: names it needs, paths it brings, symbols it asks for and offers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from stack_builder.elf.layout import Buffer, ElfError, Identity, Layout, StringTable, read_layout, text
from stack_builder.elf.symbols import SymbolTable
from stack_builder.elf.versions import NeededVersion, defined_versions, needed_versions

_DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_FLAGS_1 = 5, 10, 14, 15, 29, 0x6FFFFFFB
_DF_1_NODEFLIB = 0x800
_MAX_NEEDED = 512


@dataclass(frozen=True)
class ElfObject:
    """What the loader reads of an object before it runs any of it.

    The object refers to the buffer it was parsed from; symbols are read from it when asked for.

    Attributes:
        where: how messages name it.
        identity: class, byte order, machine, type.
        soname: ``DT_SONAME``, else None.
        needed: ``DT_NEEDED``, in order.
        rpath: ``DT_RPATH`` as written, else None; ld.so ignores it where there is a runpath.
        runpath: ``DT_RUNPATH`` as written, else None.
        no_default_directories: ``DF_1_NODEFLIB``.
        interpreter: ``PT_INTERP`` of a program, else None.
        version_needs: ``DT_VERNEED``.
        version_offers: ``DT_VERDEF`` by index.
        layout: header, segments and dynamic section.
    """

    where: str
    identity: Identity
    soname: str | None
    needed: tuple[str, ...]
    rpath: str | None
    runpath: str | None
    no_default_directories: bool
    interpreter: str | None
    version_needs: tuple[NeededVersion, ...]
    version_offers: dict[int, str]
    layout: Layout
    _strings: StringTable

    @cached_property
    def version_names(self) -> frozenset[str]:
        """The versions it offers, by name."""
        return frozenset(self.version_offers.values())

    @cached_property
    def symbols(self) -> SymbolTable:
        """The dynamic symbol table.

        Raises:
            ElfError: its tables lie outside the file.
        """
        return SymbolTable(self.layout, self._strings, self.version_needs, self.version_offers)


def parse(data: Buffer, where: str) -> ElfObject:
    """Read one object.

    Args:
        data: the whole file, best mapped; only the pages that are needed get touched.
        where: how messages name the object.

    Raises:
        ElfError: not an object of a class and machine that is read here, or damaged.
    """
    return from_layout(read_layout(data, where))


def from_layout(layout: Layout) -> ElfObject:
    """Read the dynamic section of a layout.

    Raises:
        ElfError: a name or version record lies outside the file.
    """
    strings = string_table(layout)
    if len(layout.needed) > _MAX_NEEDED:
        raise ElfError(f"needs {len(layout.needed)} libraries, more than {_MAX_NEEDED}", where=layout.where)

    def name(tag: int) -> str | None:
        offset = layout.tags.get(tag)
        return None if offset is None else text(strings.at(offset))

    return ElfObject(
        where=layout.where,
        identity=layout.identity,
        soname=name(_DT_SONAME),
        needed=tuple(text(strings.at(offset)) for offset in layout.needed),
        rpath=name(_DT_RPATH),
        runpath=name(_DT_RUNPATH),
        no_default_directories=bool(layout.tags.get(_DT_FLAGS_1, 0) & _DF_1_NODEFLIB),
        interpreter=layout.interpreter,
        version_needs=needed_versions(layout, strings),
        version_offers=defined_versions(layout, strings),
        layout=layout,
        _strings=strings,
    )


def string_table(layout: Layout) -> StringTable:
    """``DT_STRTAB``; empty for an object without one (a static program).

    Raises:
        ElfError: it lies outside the file.
    """
    address = layout.tags.get(_DT_STRTAB)
    if address is None:
        return StringTable(memoryview(b""), layout.where)
    return StringTable(layout.at_address(address, layout.tags.get(_DT_STRSZ, 0), "DT_STRTAB"), layout.where)


def string_extents(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield (address, size) of ``DT_STRTAB``, if there is one."""
    if _DT_STRTAB in layout.tags:
        yield layout.tags[_DT_STRTAB], layout.tags.get(_DT_STRSZ, 0)


def exports(data: Buffer, where: str) -> Iterator[tuple[str, str | None]]:
    """Yield (name, version) of every symbol that other objects can bind to.

    Raises:
        ElfError: see :func:`parse`.
    """
    yield from parse(data, where).symbols.defined()
