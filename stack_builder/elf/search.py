"""Where ld.so looks for a library, in its order, with each step that decided kept as evidence.

glibc ``elf/dl-load.c``, ``_dl_map_object``: already loaded under that name → ``DT_RPATH`` of the object that asks and
of those that loaded it, unless it has a runpath → ``LD_LIBRARY_PATH`` → its ``DT_RUNPATH`` → the cache → the
directories built into ld.so. A file of another class or machine is passed over; one that is no ELF file ends it.

Left out: the ``tls``, ``haswell`` and ``xeon_phi`` folders of glibc before 2.37, and empty or relative path elements,
which mean the directory that the process happens to be in.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from stack_builder.elf.files import Files, ObjectCache
from stack_builder.elf.layout import ElfError
from stack_builder.elf.ldcache import LoaderCache, parse_cache

CACHE = "/etc/ld.so.cache"
LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
"""The program interpreter of each machine's ABI."""

_BUILT_IN = re.compile(rb"(?:/(?:usr/)?lib[\w./-]{0,60}/\0){2,8}")
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")
_MAX_ELEMENTS = 128  # of a path list; each costs a look into the tree per library


class Step(StrEnum):
    """How a library was found."""

    LOADED = "already loaded"
    PATH = "path"
    RPATH = "rpath"
    LIBRARY_PATH = "LD_LIBRARY_PATH"
    RUNPATH = "runpath"
    CACHE = "ld.so.cache"
    DEFAULT = "default directories"


@dataclass(frozen=True, slots=True)
class Found:
    """A library that was found.

    Attributes:
        path: as the loader names it, unresolved: ``$ORIGIN`` of what it needs in turn is its directory.
        real: the file behind it.
        step: what found it.
        via: the rpath or runpath element as written, else the directory or None.
        owner: path of the object whose rpath or runpath it was, else None.
        rejected: files of that name that were passed over on the way, with the reason.
    """

    path: str
    real: str
    step: Step
    via: str | None = None
    owner: str | None = None
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class NotFound:
    """A library that was not found.

    Attributes:
        searched: the directories that were looked into, with the step, in order.
        rejected: files of that name that were passed over, with the reason.
        fatal: the file that made ld.so give up (no ELF file, cut off), else None.
    """

    searched: tuple[tuple[Step, str], ...]
    rejected: tuple[tuple[str, str], ...] = ()
    fatal: str | None = None


@dataclass(frozen=True, slots=True)
class Requester:
    """The object that asks, and those that had it loaded.

    Attributes:
        path: as the loader names it.
        rpath: ``DT_RPATH``; None where there is a runpath.
        runpath: ``DT_RUNPATH``.
        no_default_directories: ``DF_1_NODEFLIB``.
        parent: who had it loaded; None at the top.
    """

    path: str
    rpath: str | None
    runpath: str | None
    no_default_directories: bool
    parent: Requester | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What ld.so knows before it sees the first object.

    Attributes:
        machine: ``x86_64`` or ``aarch64``.
        library_path: elements of ``LD_LIBRARY_PATH``.
        cache: ``/etc/ld.so.cache``; None where there is none.
        directories: built into ld.so, each with its final slash.
        levels: ``glibc-hwcaps`` folders that the processor qualifies for, best first.
    """

    machine: str
    library_path: tuple[str, ...] = ()
    cache: LoaderCache | None = None
    directories: tuple[str, ...] = ("/lib64/", "/usr/lib64/")
    levels: tuple[str, ...] = ()

    @property
    def lib(self) -> str:
        """What ``$LIB`` stands for: ``lib64``, or ``lib/x86_64-linux-gnu`` on Debian."""
        usr = next((d for d in self.directories if d.startswith("/usr/")), "/usr/lib64/")
        return usr.removeprefix("/usr/").rstrip("/")


def read_settings(
    files: Files, machine: str, *, library_path: str = "", levels: tuple[str, ...] = (), loader: str | None = None
) -> Settings:
    """Read cache and built-in directories of a tree; where it has no ld.so, take glibc's own defaults.

    Args:
        files: the tree.
        machine: ``x86_64`` or ``aarch64``.
        library_path: ``LD_LIBRARY_PATH`` as the process would have it.
        levels: see :class:`Settings`.
        loader: path of ld.so, where a program names another than its ABI does.

    Raises:
        ElfError: the cache is damaged.
    """
    cache = None
    if files.resolve(CACHE) is not None:
        with files.open(CACHE) as view:
            cache = parse_cache(view, machine, CACHE)
    directories: tuple[str, ...] = ("/lib64/", "/usr/lib64/")
    loader = loader or LOADERS[machine]
    if files.resolve(loader) is not None:
        with files.open(loader) as view:
            directories = built_in_directories(view.tobytes() if len(view) < 1 << 24 else b"") or directories
    elements = tuple(element for element in re.split("[:;]", library_path)[:_MAX_ELEMENTS] if element)
    return Settings(machine, elements, cache, directories, levels)


def built_in_directories(loader: bytes) -> tuple[str, ...]:
    """The system directories compiled into an ld.so (``SYSTEM_DIRS`` of its build): NUL-separated, each ending in /."""
    runs = [match[0] for match in _BUILT_IN.finditer(loader)]
    best = max(runs, key=len, default=b"")
    return tuple(part.decode() for part in best.split(b"\0") if part)


class Search:
    """Finds libraries in a tree.

    Args:
        objects: opens candidates to look at their class and machine.
        settings: see :class:`Settings`.

    Attributes:
        program: path of the main program, whose directory ``$ORIGIN`` means in ``LD_LIBRARY_PATH``.
    """

    def __init__(self, objects: ObjectCache, settings: Settings) -> None:
        self.program: str | None = None
        self._objects = objects
        self._settings = settings
        self._verdicts: dict[str, str | None] = {}
        self._expanded: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {}

    def find(self, name: str, requester: Requester) -> Found | NotFound:
        """Look for a library that is not loaded yet.

        Args:
            name: from ``DT_NEEDED`` or dlopen; with a slash it is a path.
            requester: who asks.
        """
        if "/" in name:
            return self._at_path(name, requester)
        attempt = _Attempt(name)
        for step, via, owner, directory in self._places(requester):
            found = self._in_directory(attempt, step, via, owner, directory)
            if found is not None:
                return found
            if attempt.fatal is not None:
                return attempt.failed()
        found = self._in_cache(attempt, requester)
        if found is None and attempt.fatal is None and not requester.no_default_directories:
            for directory in self._settings.directories:
                found = self._in_directory(attempt, Step.DEFAULT, directory, None, directory.rstrip("/"))
                if found is not None or attempt.fatal is not None:
                    break
        return found or attempt.failed()

    def _at_path(self, name: str, requester: Requester) -> Found | NotFound:
        attempt = _Attempt(name)
        path = self._expand_one(name, requester.path)
        if path is None or not path.startswith("/"):
            return attempt.failed()
        return self._take(attempt, path, Step.PATH, None, None) or attempt.failed()

    def _places(self, requester: Requester) -> Iterator[tuple[Step, str, str | None, str]]:
        """Yield (step, element as written, owner, directory), in order, up to the runpath."""
        if requester.runpath is None:
            asking: Requester | None = requester
            while asking is not None:
                for written, directory in self._expand(asking.rpath, asking.path):
                    yield Step.RPATH, written, asking.path, directory
                asking = asking.parent
        for written in self._settings.library_path:
            expanded = self._expand_one(written, self.program or requester.path)
            if expanded is not None and expanded.startswith("/"):
                yield Step.LIBRARY_PATH, written, None, expanded
        for written, directory in self._expand(requester.runpath, requester.path):
            yield Step.RUNPATH, written, requester.path, directory

    def _in_directory(self, attempt: _Attempt, step: Step, via: str, owner: str | None, directory: str) -> Found | None:
        attempt.searched.append((step, directory))
        for level in self._settings.levels:
            found = self._take(attempt, f"{directory}/glibc-hwcaps/{level}/{attempt.name}", step, via, owner)
            if found is not None or attempt.fatal is not None:
                return found
        return self._take(attempt, f"{directory}/{attempt.name}", step, via, owner)

    def _in_cache(self, attempt: _Attempt, requester: Requester) -> Found | None:
        cache = self._settings.cache
        if cache is None:
            return None
        attempt.searched.append((Step.CACHE, CACHE))
        row = cache.lookup(attempt.name, self._settings.levels)
        if row is None:
            return None
        if requester.no_default_directories and row.path.startswith(self._settings.directories):
            attempt.rejected.append((row.path, "DF_1_NODEFLIB forbids system directories"))
            return None
        return self._take(attempt, row.path, Step.CACHE, None, None)

    def _take(self, attempt: _Attempt, path: str, step: Step, via: str | None, owner: str | None) -> Found | None:
        real = self._objects.files.resolve(path)
        if real is None:
            return None
        reason = self._verdict(real)
        if reason is None:
            return Found(path, real, step, via, owner, tuple(attempt.rejected))
        if reason.startswith("!"):
            attempt.fatal = f"{path}: {reason[1:]}"
        else:
            attempt.rejected.append((path, reason))
        return None

    def _verdict(self, real: str) -> str | None:
        """None for a file that ld.so would take, the reason for passing it over, with ``!`` where it gives up."""
        if real not in self._verdicts:
            self._verdicts[real] = self._judge(real)
        return self._verdicts[real]

    def _judge(self, real: str) -> str | None:
        try:
            identity = self._objects.identity(real)
        except ElfError as error:
            return f"!{error.what}"
        if identity is None:
            return "!not an ELF file"
        if identity.bits != 64:
            return "wrong ELF class: ELFCLASS32"
        if not identity.little_endian:
            return "!big-endian"
        if identity.machine != self._settings.machine:
            return f"made for {identity.machine}"
        return None if identity.type in (2, 3) else "!neither a shared object nor a program"

    def _expand(self, path_list: str | None, owner: str) -> tuple[tuple[str, str], ...]:
        """(element as written, directory) of an rpath or runpath."""
        if not path_list:
            return ()
        known = self._expanded.get((path_list, owner))
        if known is None:
            pairs = ((element, self._expand_one(element, owner)) for element in path_list.split(":")[:_MAX_ELEMENTS])
            known = tuple((element, where) for element, where in pairs if where and where.startswith("/"))
            self._expanded[path_list, owner] = known
        return known

    def _expand_one(self, element: str, owner: str) -> str | None:
        values = {
            "ORIGIN": posixpath.dirname(owner),
            "LIB": self._settings.lib,
            "PLATFORM": self._settings.machine,
        }
        expanded = _TOKEN.sub(lambda match: values[match[1] or match[2]], element)
        return expanded.rstrip("/") or "/" if expanded else None


class _Attempt:
    """The course of one search."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.searched: list[tuple[Step, str]] = []
        self.rejected: list[tuple[str, str]] = []
        self.fatal: str | None = None

    def failed(self) -> NotFound:
        return NotFound(tuple(self.searched), tuple(self.rejected), self.fatal)


def loaded_again(found: Found) -> Found:
    """The same library for a later request: it is simply there."""
    return replace(found, step=Step.LOADED, via=None, owner=None, rejected=())
