"""What the loader would make of every shared object of an environment, once ``import torch`` has run.

The program is the environment's interpreter; torch's libraries and what torch preloads are mapped first, as in any
process that serves a model. Then every object is opened by itself and forgotten again. A library that other objects
bring along is judged as they bring it: with their search path, not its own.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stack_builder.diagnose.environment import cuda_wheels, facts
from stack_builder.elf.demangle import demangle
from stack_builder.elf.files import ObjectCache
from stack_builder.elf.layout import ElfError, Identity
from stack_builder.elf.linker import Linked, MissingLibrary, MissingSymbol, Process
from stack_builder.elf.needed import cuda_majors
from stack_builder.elf.torch_names import is_torch_name

TORCH_LIBRARY = re.compile(r"lib(torch|c10|caffe2)\w*\.so")

BLANK = "it is empty, or holds zeros where its header should be"

_EXPORTERS = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so")
_FOLLOWED = ("libnccl.so.2", "libcudnn.so.9", "libcusparse.so.12", "libcurand.so.10")
"""Libraries whose name does not tell the CUDA major; which file is taken matters as much."""

_VERSIONED = re.compile(r"(lib[\w+-]+?)\.so\.[\d.]+$")


@dataclass(frozen=True, slots=True)
class Places:
    """Where files lie that a library's name could stand for.

    Attributes:
        named: file name to paths, for the files of the environment and of the toolkits on the machine.
        owners: path to ``name version``.
    """

    named: Mapping[str, tuple[str, ...]]
    owners: Mapping[str, str]

    def on_disk(self, soname: str) -> tuple[str, ...]:
        """Files of exactly this name."""
        return self.named.get(soname, ())

    def other_majors(self, soname: str) -> tuple[str, ...]:
        """Files of the same CUDA library for another major."""
        match = _VERSIONED.match(soname)
        if match is None or not cuda_majors([soname]):
            return ()
        names = (name for name in self.named if name.startswith(f"{match[1]}.so.") and name != soname)
        return tuple(path for name in sorted(names) if cuda_majors([name]) for path in self.named[name])


def places(paths: Iterable[str], owners: Mapping[str, str]) -> Places:
    """Index shared objects by file name."""
    named: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        named[posixpath.basename(path)].append(path)
    return Places({name: tuple(sorted(found)) for name, found in named.items()}, owners)


@dataclass(slots=True)
class _Context:
    """What is known of one object from those that bring it along."""

    symbols: dict[str, MissingSymbol] = field(default_factory=dict)
    brought: bool = False


class Reader:
    """Opens objects one by one and describes what came of it.

    Args:
        process: with the interpreter and torch in it.
        cache: the objects of the tree.
        where: see :class:`Places`.
        torch_folder: the package, or None.
        machine: ``x86_64`` or ``aarch64``.
        base: whether the system's libraries are there; if not, what only they could give is not missed.
    """

    def __init__(
        self, process: Process, cache: ObjectCache, where: Places, torch_folder: str | None, machine: str, *, base: bool
    ) -> None:
        self._process = process
        self._cache = cache
        self._where = where
        self._torch = torch_folder
        self._machine = machine
        self._base = base
        self._exporters: dict[str, str | None] = {}

    def read(self, opened: Iterable[Linked], paths: Iterable[str]) -> tuple[facts.Object, ...]:
        """Open every object of ``paths`` (real paths).

        Args:
            opened: what starting the interpreter and importing torch came to.
            paths: shared objects.

        Returns:
            what each came to; of those for another machine only that.
        """
        linked: dict[str, Linked] = {}
        described: list[facts.Object] = []
        for path in paths:
            try:
                identity = self._cache.identity(path)
                if identity is None:
                    if self._cache.is_blank(path):
                        described.append(facts.Object(path, self._where.owners.get(path), unread=BLANK))
                    continue  # else a linker script
                if identity.machine != self._machine or identity.bits != 64:
                    owner = self._where.owners.get(path)
                    described.append(facts.Object(path, owner, foreign=_made_for(identity)))
                    continue
                linked[path] = self._process.check(path)
            except ElfError as error:
                described.append(facts.Object(path, self._where.owners.get(path), unread=error.what))
        contexts = _contexts([*opened, *linked.values()])
        described += [self._describe(path, found, contexts.get(path)) for path, found in linked.items()]
        return tuple(sorted(described, key=lambda found: found.path))

    def _describe(self, path: str, found: Linked, context: _Context | None) -> facts.Object:
        brought = context is not None and context.brought
        own = [symbol for symbol in found.missing_symbols if symbol.needed_by == found.path]
        symbols = list(context.symbols.values()) if context is not None and brought else own
        symbols = [symbol for symbol in symbols if self._counts(symbol.name)]
        libraries = [m for m in found.missing_libraries if not brought and self._is_missed(m.soname)]
        imports = {*self._torch_imports(found), *(s.name for s in symbols if is_torch_name(s.name))}
        return facts.Object(
            path=path,
            owner=self._where.owners.get(path),
            needed=self._cache.object(path).needed,
            missing_libraries=tuple(self._missing_library(library) for library in libraries),
            missing_symbols=tuple(
                facts.MissingSymbol(s.name, demangle(s.name), s.version, s.library, self._exporter(s.name))
                for s in symbols
            ),
            missing_versions=tuple(f"{v.library}: {v.version}" for v in found.missing_versions),
            torch_imports=tuple(sorted(imports)),
            cuda_libraries=tuple(
                facts.Loaded(library.name, library.found.real, library.found.step.value)
                for library in found.closure
                if cuda_majors([library.name]) or library.name in _FOLLOWED
            ),
            brought=brought,
            dlopens=found.dlopens,
        )

    def _missing_library(self, missing: MissingLibrary) -> facts.MissingLibrary:
        soname, where = missing.soname, self._where
        return facts.MissingLibrary(
            soname, missing.needed_by, where.on_disk(soname), where.other_majors(soname), missing.result.fatal
        )

    def _is_missed(self, soname: str) -> bool:
        """Whether the target should have brought a library: without a base, what a base may bring is not missed."""
        if self._base:
            return True
        of_wheels = soname in self._where.named or cuda_wheels.wheel_of(soname) or cuda_majors([soname])
        return bool(of_wheels) or TORCH_LIBRARY.fullmatch(soname) is not None

    def _counts(self, symbol: str) -> bool:
        """Whether somebody in the target should have exported a symbol."""
        return self._base or is_torch_name(symbol)

    def _torch_imports(self, found: Linked) -> Iterable[str]:
        """What an object takes from torch; torch's own objects are not asked."""
        if self._torch is None or found.path.startswith(f"{self._torch}/"):
            return
        for provider, names in found.bindings.items():
            if provider.startswith(f"{self._torch}/lib/"):
                yield from filter(is_torch_name, names)

    def _exporter(self, symbol: str) -> str | None:
        """Which of torch's libraries exports a name, whether or not it is in scope."""
        if symbol not in self._exporters:
            self._exporters[symbol] = self._find_exporter(symbol) if is_torch_name(symbol) else None
        return self._exporters[symbol]

    def _find_exporter(self, symbol: str) -> str | None:
        for name in _EXPORTERS:
            path = f"{self._torch}/lib/{name}"
            try:
                if self._cache.files.resolve(path) and self._cache.object(path).symbols.offered(symbol.encode()):
                    return path
            except ElfError:
                continue
        return None


def _made_for(identity: Identity) -> str:
    return identity.machine if identity.bits == 64 else f"{identity.machine} ({identity.bits}-bit)"


def _contexts(links: Iterable[Linked]) -> dict[str, _Context]:
    """Gather, per object, what other objects' closures say of it."""
    contexts: dict[str, _Context] = defaultdict(_Context)
    for found in links:
        real = {library.found.path: library.found.real for library in found.closure}
        for library in found.closure[1:]:
            contexts[library.found.real].brought = True
        for symbol in found.missing_symbols:
            if symbol.needed_by != found.path:
                contexts[real[symbol.needed_by]].symbols[symbol.name] = symbol
    return contexts
