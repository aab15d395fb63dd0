"""What ld.so would do with an object: which libraries it maps, what each symbol binds to, and what would be missing.

A :class:`Process` starts with a program, whose closure is the global scope, and then opens objects one after another,
as ``import`` and ``ctypes.CDLL`` do. Nothing is loaded; all is read. Follows glibc: ``elf/dl-load.c`` (names and
search), ``elf/dl-deps.c`` (breadth first), ``elf/dl-open.c`` (scopes), ``elf/dl-version.c`` (versions).

What is opened with ``RTLD_LOCAL``, Python's way, looks names up in the global scope first and then in its own
closure, breadth first; not in what other extensions brought along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from stack_builder.elf.files import ObjectCache
from stack_builder.elf.layout import ElfError, text
from stack_builder.elf.linked import Library, Linked, MissingLibrary, MissingSymbol, MissingVersion, how
from stack_builder.elf.object import ElfObject
from stack_builder.elf.providers import Provider, driver_symbol, provider_of_library, python_symbol
from stack_builder.elf.relocations import mentioned
from stack_builder.elf.scope import Scope
from stack_builder.elf.search import LOADERS, Found, NotFound, Requester, Search, Settings, Step, loaded_again
from stack_builder.elf.symbols import Reference

__all__ = ["Library", "Linked", "MissingLibrary", "MissingSymbol", "MissingVersion", "Process", "how"]

MAX_CLOSURE = 4096
"""Objects in one closure; torch's has about 60."""

_OPENERS = frozenset({b"dlopen", b"dlmopen"})


@dataclass(frozen=True, slots=True, eq=False)
class _Mapped:
    found: Found
    elf: ElfObject
    requester: Requester


class Keep(Enum):
    """Whether what was opened stays in the process."""

    NEVER = auto()
    IF_IT_OPENS = auto()
    ALWAYS = auto()


class _Names:
    """Objects by the names that ld.so knows them under: requested names, paths, sonames."""

    def __init__(self, below: _Names | None = None) -> None:
        self._below = below
        self._names: dict[str, _Mapped] = {}
        self._reals: dict[str, _Mapped] = {}

    def get(self, name: str) -> _Mapped | None:
        return self._names.get(name) or (self._below.get(name) if self._below else None)

    def at(self, real: str) -> _Mapped | None:
        return self._reals.get(real) or (self._below.at(real) if self._below else None)

    def add(self, mapped: _Mapped) -> None:
        self._reals[mapped.found.real] = mapped
        self.call(mapped, mapped.found.path)
        if mapped.elf.soname:
            self.call(mapped, mapped.elf.soname)

    def call(self, mapped: _Mapped, name: str) -> None:
        if self.get(name) is None:
            self._names[name] = mapped

    def new(self, real: str) -> bool:
        return real in self._reals

    def merge(self) -> None:
        if self._below is not None:
            self._below._names.update(self._names)
            self._below._reals.update(self._reals)


class Process:
    """A process image in the making.

    Args:
        objects: reads the tree.
        settings: of the loader.
        outside: who is not part of the tree, but will be there; wheels alone have no base and no interpreter either.
    """

    def __init__(
        self, objects: ObjectCache, settings: Settings, outside: frozenset[Provider] = frozenset({Provider.DRIVER})
    ) -> None:
        self._outside = outside
        self._objects = objects
        self._search = Search(objects, settings)
        self._machine = settings.machine
        self._names = _Names()
        self._program: Requester | None = None
        self._global: list[_Mapped] = []
        self._scopes: dict[tuple[str, ...], Scope] = {}
        self._asked: dict[str, list[Reference]] = {}
        self._sufficient: dict[str, frozenset[str]] = {}
        self._damaged: dict[str, str] = {}

    def start(self, path: str) -> Linked:
        """Start a program, or any object as ``ldd`` does: its closure becomes the global scope.

        A program knows itself by its real path (``/proc/self/exe``), whatever link it was started through.

        Raises:
            ElfError: it is damaged.
        """
        real = self._objects.files.resolve(path)
        interpreter = self._objects.object(real).interpreter if real is not None else None
        if real is not None and interpreter is not None:
            path = real
        self._map_loader(interpreter or LOADERS[self._machine])
        linked = self._open(path, parent=None, keep=Keep.ALWAYS, everywhere=True)
        self._search.program = path
        return linked

    def _map_loader(self, path: str) -> None:
        """The loader itself is part of every process (``elf/rtld.c``): nobody has to find it."""
        real = self._objects.files.resolve(path)
        if real is None:
            return
        try:
            elf = self._objects.object(real)
        except ElfError as error:
            self._damaged[real] = error.what
            return
        found = Found(path, real, Step.LOADED)
        self._names.add(_Mapped(found, elf, Requester(path, None, None, no_default_directories=False)))

    def open(
        self,
        name: str,
        *,
        caller: str | None = None,
        everywhere: bool = False,
        anyway: bool = False,
        symbols: bool = True,
    ) -> Linked:
        """Open an object; it stays, with what it brought along, if ld.so would map it.

        Args:
            name: a path, or a soname to search for.
            caller: path of the loaded object that calls dlopen; its rpath or runpath counts when ``name`` is a soname.
            everywhere: ``RTLD_GLOBAL``.
            anyway: let it stay in any case, to judge what would come after.
            symbols: look its symbols up, too; without, the result tells none as missing and binds none.

        Raises:
            ElfError: not found, or damaged.
        """
        keep = Keep.ALWAYS if anyway else Keep.IF_IT_OPENS
        return self._open(name, parent=self._requester(name, caller), keep=keep, everywhere=everywhere, bind=symbols)

    def check(self, name: str, *, caller: str | None = None) -> Linked:
        """As :meth:`open`, but what comes of it is forgotten again.

        Raises:
            ElfError: not found, or damaged.
        """
        return self._open(name, parent=self._requester(name, caller), keep=Keep.NEVER, everywhere=False)

    def loaded(self, name: str) -> Found | None:
        """The file that a name stands for in the process, or None where it is not loaded."""
        mapped = self._names.get(name)
        return None if mapped is None else mapped.found

    def _requester(self, name: str, caller: str | None) -> Requester | None:
        """Who asks: opening a path takes no account of the caller, and leaves its dependencies the program's rpath."""
        mapped = self._names.get(caller) if caller is not None and "/" not in name else None
        return mapped.requester if mapped is not None else self._program

    def _open(self, name: str, *, parent: Requester | None, keep: Keep, everywhere: bool, bind: bool = True) -> Linked:
        names = _Names(self._names)
        asking = parent or Requester(name, None, None, no_default_directories=False)
        root = self._obtain(name, asking, parent, names)
        if isinstance(root, NotFound):
            passed_over = f"passed over: {root.rejected[0][1]}" if root.rejected else "the loader does not find it"
            raise ElfError(root.fatal or passed_over, where=name)
        everything, libraries, missing = self._map(name, root, names)
        outside = {lost.soname for lost in missing if provider_of_library(lost.soname) in self._outside}
        missing = [lost for lost in missing if lost.soname not in outside]
        brought = [mapped for mapped in everything if names.new(mapped.found.real)]
        versions = tuple(found for mapped in brought for found in _missing_versions(mapped, names))
        stays = keep is Keep.ALWAYS or (keep is Keep.IF_IT_OPENS and not missing and not versions)
        if parent is None and stays:
            self._program = root.requester
        before = list(self._global)
        if everywhere:
            self._global += [mapped for mapped in everything if mapped not in self._global]
        symbols, bindings = self._bind(root, everything, brought if bind else [])
        if stays:
            names.merge()
        else:
            self._global = before
        return Linked(
            path=root.found.path,
            closure=tuple(libraries),
            missing_libraries=tuple(missing),
            missing_versions=versions,
            missing_symbols=tuple(lost for lost in symbols if not self._from_outside(lost, outside)),
            outside_libraries=tuple(sorted(outside)),
            outside_symbols=tuple(lost.name for lost in symbols if self._from_outside(lost, outside)),
            bindings=bindings,
            damaged={
                mapped.found.real: self._damaged[mapped.found.real]
                for mapped in everything
                if mapped.found.real in self._damaged
            },
            dlopens=any(reference.name in _OPENERS for reference in self._references(root)),
        )

    def _map(
        self, name: str, root: _Mapped, names: _Names
    ) -> tuple[list[_Mapped], list[Library], list[MissingLibrary]]:
        """Map what an object needs: the objects, how each was found, and what was not."""
        everything = [root]
        libraries = [Library(name, root.found)]
        missing: list[MissingLibrary] = []
        for mapped, asked, result in self._closure(root, names):
            if isinstance(result, NotFound):
                missing.append(MissingLibrary(asked, mapped.found.path, result))
            else:
                everything.append(result)
                new = names.new(result.found.real)
                libraries.append(Library(asked, result.found if new else loaded_again(result.found)))
        return everything, libraries, missing

    def _from_outside(self, lost: MissingSymbol, outside: set[str]) -> bool:
        """Whether a symbol is one of a library that is not part of the tree."""
        if lost.library is not None:
            return lost.library in outside
        if Provider.INTERPRETER in self._outside and python_symbol(lost.name):
            return True
        return driver_symbol(lost.name, outside)

    def _obtain(self, name: str, requester: Requester, parent: Requester | None, names: _Names) -> _Mapped | NotFound:
        """Give the object of a name, mapping it if need be."""
        known = names.get(name)
        if known is not None:
            return known
        result = self._search.find(name, requester)
        if isinstance(result, NotFound):
            return result
        known = names.at(result.real)
        if known is None:
            try:
                elf = self._objects.object(result.real)
            except ElfError as error:
                return NotFound((), result.rejected, f"{result.path}: {error.what}")
            rpath = None if elf.runpath is not None else elf.rpath
            asking = Requester(result.path, rpath, elf.runpath, elf.no_default_directories, parent)
            known = _Mapped(result, elf, asking)
            names.add(known)
        names.call(known, name)
        return known

    def _closure(self, root: _Mapped, names: _Names) -> Iterator[tuple[_Mapped, str, _Mapped | NotFound]]:
        """Yield (who needs, name, object or not) breadth first; each object and each absent name once."""
        queue = [root]
        seen = {root.found.real}
        absent: set[str] = set()
        for mapped in queue:
            for name in mapped.elf.needed:
                result = self._obtain(name, mapped.requester, mapped.requester, names)
                if isinstance(result, NotFound):
                    if name not in absent:
                        absent.add(name)
                        yield mapped, name, result
                elif result.found.real not in seen:
                    if len(queue) >= MAX_CLOSURE:
                        raise ElfError(f"needs more than {MAX_CLOSURE} libraries in all", where=root.found.path)
                    seen.add(result.found.real)
                    queue.append(result)
                    yield mapped, name, result

    def _bind(
        self, root: _Mapped, everything: list[_Mapped], brought: list[_Mapped]
    ) -> tuple[list[MissingSymbol], dict[str, tuple[str, ...]]]:
        """Look up what the newly mapped objects ask for: global scope, the opened object, its closure."""
        first = self._scope(self._global)
        rest = self._scope([mapped for mapped in everything if mapped not in self._global and mapped is not root])
        own = Scope([root.elf], self._damaged)
        there = {mapped.found.real for mapped in (*self._global, *everything)}
        missing: list[MissingSymbol] = []
        bindings: dict[str, list[str]] = {}
        for mapped in brought:
            itself = mapped is root  # what it lacks it has not got: no need to ask it before the others
            if not itself and self._suffices(mapped, there):
                continue
            users: dict[str, list[str]] = {}
            unresolved: list[Reference] = []
            for reference in self._references(mapped):
                question = reference[:3]
                answer = first[question] or (not itself and own[question]) or rest[question]
                if answer:
                    users.setdefault(answer.where, []).append(text(reference.name))
                elif not reference.weak:
                    unresolved.append(reference)
            if not unresolved:
                self._sufficient[mapped.found.real] = frozenset(users)
            if itself:
                bindings = users
            missing += _needed_for_good(mapped, unresolved, self._damaged)
        return missing, {path: tuple(names) for path, names in bindings.items()}

    def _suffices(self, mapped: _Mapped, there: set[str]) -> bool:
        """Whether all that an object was found to need at another time is in scope again."""
        providers = self._sufficient.get(mapped.found.real)
        return providers is not None and providers <= there

    def _references(self, mapped: _Mapped) -> list[Reference]:
        real = mapped.found.real
        if real not in self._asked:
            try:
                self._asked[real] = mapped.elf.symbols.undefined()
            except ElfError as error:
                self._damaged[real] = error.what
                self._asked[real] = []
        return self._asked[real]

    def _scope(self, members: list[_Mapped]) -> Scope:
        """Objects with one closure share one scope, and what was looked up in it."""
        key = tuple(mapped.found.real for mapped in members)
        if key not in self._scopes:
            self._scopes[key] = Scope((mapped.elf for mapped in members), self._damaged)
        return self._scopes[key]


def _needed_for_good(mapped: _Mapped, unresolved: list[Reference], damaged: dict[str, str]) -> Iterator[MissingSymbol]:
    """Leave out symbols that no relocation mentions: the loader never looks those up."""
    if not unresolved:
        return
    try:
        symbols = mentioned(mapped.elf.layout, {reference.symbol for reference in unresolved})
    except ElfError as error:
        damaged[mapped.elf.where] = error.what
        return
    for reference in unresolved:
        if reference.symbol in symbols:
            yield MissingSymbol(text(reference.name), reference.version, reference.library, mapped.found.path)


def _missing_versions(mapped: _Mapped, names: _Names) -> Iterator[MissingVersion]:
    for need in mapped.elf.version_needs:
        provider = names.get(need.library)
        if provider is None or need.weak or not provider.elf.version_offers:
            continue  # absent altogether, may be absent, or a library without versions, which ld.so only warns of
        if need.version not in provider.elf.version_names:
            yield MissingVersion(need.library, need.version, mapped.found.path, provider.found.path)
