"""The facts that the rules judge: plain frozen data, with a JSON form that reads back to the same facts.

A recorded facts file is a test's whole input, so nothing here refers to a tree, an open file or this machine.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from stack_builder import jsontext
from stack_builder.errors import UsageError, refused

SCHEMA_VERSION = 1
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Python:
    """The interpreter that the environment belongs to.

    Attributes:
        version: ``3.11``.
        prefix: its ``sys.prefix``, inside the tree.
        site: the ``site-packages`` folders in the order of ``sys.path``; folders named by ``.pth`` files last.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    version: str
    prefix: str
    site: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resized:
    """A file that has not the size that RECORD gives it.

    Attributes:
        path: inside the tree.
        size: in bytes.
        recorded: likewise, as RECORD has it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    path: str
    size: int
    recorded: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """One installed distribution (a ``*.dist-info`` folder).

    Attributes:
        name: normalised.
        version: as METADATA has it.
        folder: its ``.dist-info``.
        tags: ``Tag`` lines of WHEEL.
        requires: ``Requires-Dist`` lines of METADATA.
        absent: files of its RECORD that are not there, shared objects first; the first ones, where there are many.
        absent_count: how many.
        resized: shared objects of another size than its RECORD gives, and files that are empty and should not be.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: str
    version: str
    folder: str
    tags: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    absent_count: int = 0
    resized: tuple[Resized, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A path that several distributions say they installed, with different content.

    Attributes:
        path: inside the tree.
        owners: ``name version`` of each.
        matching: the owner whose RECORD hash the file has; None for none of them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    path: str
    owners: tuple[str, ...]
    matching: str | None


@dataclass(frozen=True, slots=True)
class Torch:
    """The installed torch.

    Attributes:
        folder: the package, inside the tree.
        version: ``__version__`` of ``torch/version.py``, local part included.
        cuda: ``cuda`` of ``torch/version.py``, such as ``13.0``; None for a CPU build.
        hip: likewise for ROCm.
        cuda_library: whether ``lib/libtorch_cuda.so`` is there.
        cxx11_abi: whether libc10 exports C++11 strings; None where it could not be read.
        import_error: what stops ``import torch`` in the loader, else None.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    folder: str
    version: str
    cuda: str | None
    hip: str | None = None
    cuda_library: bool = True
    cxx11_abi: bool | None = None
    import_error: str | None = None

    @property
    def release(self) -> str:
        """The version without its local part: ``2.14.1``."""
        return self.version.partition("+")[0]

    @property
    def cuda_major(self) -> int | None:
        """``13`` for a CUDA 13 build, None for a CPU build."""
        return int(self.cuda.partition(".")[0]) if self.cuda else None


@dataclass(frozen=True, slots=True)
class MissingLibrary:
    """A library that the loader would not find.

    Attributes:
        soname: such as ``libnvrtc.so.13``.
        needed_by: the object whose DT_NEEDED names it.
        on_disk: files of this very name that the loader does not look at.
        other_majors: the same CUDA library for another major, loadable or not: ``libnvrtc.so.12``'s paths.
        fatal: the file that made the loader give up, and why, else None.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    soname: str
    needed_by: str
    on_disk: tuple[str, ...] = ()
    other_majors: tuple[str, ...] = ()
    fatal: str | None = None


@dataclass(frozen=True, slots=True)
class MissingSymbol:
    """A symbol that an object imports and that no loaded library exports.

    Attributes:
        name: as in the symbol table.
        demangled: for people; the name itself where it is not mangled.
        version: the symbol version asked for, such as ``GLIBC_2.38``.
        library: the soname that the version was linked against, where there is one.
        out_of_scope: a library of torch that exports it although the object does not load it, else None.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: str
    demangled: str
    version: str | None = None
    library: str | None = None
    out_of_scope: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """One library that would be mapped into the process.

    Attributes:
        soname: the name it is known by.
        path: the file, inside the tree.
        how: the step of the search that found it: ``runpath``, ``cache``, ``already loaded`` …
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    soname: str
    path: str
    how: str


@dataclass(frozen=True, slots=True)
class Object:
    """One shared object and what the loader would make of it after ``import torch``.

    Attributes:
        path: inside the tree.
        owner: ``name version`` of its distribution.
        needed: its DT_NEEDED.
        missing_libraries: of its whole closure, nearest first.
        missing_symbols: its own.
        missing_versions: version names that a library lacks, as ``libstdc++.so.6: GLIBCXX_3.4.32``.
        torch_imports: the symbols it takes from torch's libraries, found or not; empty where it takes none.
        cuda_libraries: libraries of the CUDA toolkit that its closure maps, with the file chosen.
        brought: another object brings it along, and it was judged as that one loads it.
        unread: why it could not be examined, else None.
        foreign: the machine or class that it is made for (``aarch64``), where it is not the environment's, else None;
            nothing else of it is read then.
        dlopens: it opens libraries itself, which a static reading does not see.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    path: str
    owner: str | None = None
    needed: tuple[str, ...] = ()
    missing_libraries: tuple[MissingLibrary, ...] = ()
    missing_symbols: tuple[MissingSymbol, ...] = ()
    missing_versions: tuple[str, ...] = ()
    torch_imports: tuple[str, ...] = ()
    cuda_libraries: tuple[Loaded, ...] = ()
    brought: bool = False
    unread: str | None = None
    foreign: str | None = None
    dlopens: bool = False

    @property
    def at_fault(self) -> bool:
        """Whether nothing could be read of it: it is damaged, or made for another machine."""
        return self.unread is not None or self.foreign is not None


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """Code for GPUs inside one object.

    Attributes:
        path: inside the tree.
        owner: ``name version`` of its distribution.
        sass: targets of machine code, such as ``sm_90a``, sorted.
        ptx: targets of PTX, such as ``compute_90``, sorted.
        unread: why the fat binary could not be walked, else None.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    path: str
    owner: str | None = None
    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()
    unread: str | None = None


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """NVIDIA's run-time compiler as the process would find it.

    Attributes:
        soname: ``libnvrtc.so.13``.
        path: the file chosen; None where none is found.
        release: CUDA release of that file, such as ``13.0``, read from the builtins' name that it holds.
        builtins: files ``libnvrtc-builtins.so.*`` beside it, by their full name.
        builtins_loaded: whether the loader finds the one that the file asks for by name.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    soname: str
    path: str | None
    release: str | None = None
    builtins: tuple[str, ...] = ()
    builtins_loaded: bool | None = None


@dataclass(frozen=True, slots=True)
class JitCache:
    """One folder of kernels that a library compiled on this machine.

    Attributes:
        path: the folder of one version and architecture.
        library_version: the flashinfer version in its path.
        arch: the architecture folder, such as ``120f``.
        cuda: CUDA releases that its ``build.ninja`` files compile with (``12.8``), sorted.
        objects: how many shared objects it holds.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    path: str
    library_version: str
    arch: str
    cuda: tuple[str, ...]
    objects: int


@dataclass(frozen=True, slots=True)
class KernelLoader:
    """How ``sgl_kernel/load_utils.py`` chooses its operators' library.

    Attributes:
        folder: the package, inside the tree.
        exact: (compute capability as major * 10 + minor, sub-folder) pairs that it tests for.
        default: the sub-folder for any other GPU; None where it knows no sub-folders.
        runtimes: names under which it opens the CUDA runtime, where they are fixed.
        follows_torch: whether it builds that name from ``torch.version.cuda``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    folder: str
    exact: tuple[tuple[int, str], ...] = ()
    default: str | None = None
    runtimes: tuple[str, ...] = ()
    follows_torch: bool = False

    def chosen(self, capability: int) -> str | None:
        """The sub-folder for a compute capability such as 120."""
        return dict(self.exact).get(capability, self.default)


@dataclass(frozen=True, slots=True)
class Environment:
    """All that was read from one target.

    Attributes:
        machine: ``x86_64`` or ``aarch64``.
        python: the interpreter.
        distributions: by name and folder.
        shared_files: paths with several owners and different content.
        torch: None where torch is not installed.
        objects: shared objects, sorted by path.
        device_code: objects with code for GPUs, by path.
        nvrtc: per soname that an object needs.
        kernel_loader: of ``sgl_kernel``, where it is installed.
        jit_caches: flashinfer's, of the user who runs the check.
        base: whether the system's libraries were part of the target; if not, they are not judged.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    machine: str
    python: Python
    distributions: tuple[Distribution, ...] = ()
    shared_files: tuple[SharedFile, ...] = ()
    torch: Torch | None = None
    objects: tuple[Object, ...] = ()
    device_code: tuple[DeviceCode, ...] = ()
    nvrtc: tuple[Nvrtc, ...] = ()
    kernel_loader: KernelLoader | None = None
    jit_caches: tuple[JitCache, ...] = ()
    base: bool = True

    def distribution(self, name: str) -> Distribution | None:
        """The installed distribution of a normalised name."""
        return next((d for d in self.distributions if d.name == name), None)

    def short(self, path: str) -> str:
        """A path as people know it: below ``site-packages`` without that folder."""
        for site in self.python.site:
            if path.startswith(f"{site}/"):
                return path.removeprefix(f"{site}/")
        return path

    def object_at(self, path: str) -> Object | None:
        """The shared object at a path."""
        place = bisect_left(self.objects, path, key=lambda found: found.path)
        return self.objects[place] if place < len(self.objects) and self.objects[place].path == path else None

    def to_json(self) -> str:
        """Write the facts; :func:`parse` reads them back."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, indent=1, sort_keys=True) + "\n"


@cache
def _adapter() -> TypeAdapter[Environment]:
    return TypeAdapter(Environment)


def parse(text: str, where: object) -> Environment:
    """Read recorded facts.

    Raises:
        UsageError: not JSON, another schema version, unknown or missing fields.
    """
    try:
        body = jsontext.loads(text)
        if not isinstance(body, dict) or body.pop("schema_version", None) != SCHEMA_VERSION:
            raise UsageError("not facts of this version of stackb", where=where)
        return _adapter().validate_python(body)
    except ValidationError as error:
        raise UsageError(refused(error), where=where) from error
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where=where) from error


def load(path: Path) -> Environment:
    """Read a facts file."""
    return parse(path.read_text(encoding="utf-8"), path)
