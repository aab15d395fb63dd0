"""The Python sources of one SGLang release: from a wheel, an environment, or any tree of files. Nothing is imported."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol

from stack_builder.errors import IntegrityError, UsageError, first_line
from stack_builder.files import read_regular
from stack_builder.trees import FileTree
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.store import hash_file

PACKAGE = "sglang"
SERVER_ARGS = "sglang/srt/server_args.py"
MAX_FILES = 50_000  # sglang 0.5.23 has 4,719 Python files
MAX_SOURCE = 4 << 20  # bytes of one file; the largest of 0.5.9 to 0.5.23 has 0.4 MiB
MAX_WHEEL = 1 << 30  # bytes; 0.5.23 has 39 MB
MAX_LINE = 200_000  # characters; deeply nested expressions live on one line
_WHEEL_NAME = re.compile(r"^sglang-(?P<version>[0-9][^-]*)-[^/]+\.whl$")
_DIST_INFO = re.compile(r"^sglang-(?P<version>[^/]+)\.dist-info$")


class SourceError(IntegrityError):
    """A source file cannot be read as Python."""


class _Files(Protocol):
    """Where bytes come from: relative POSIX paths below site-packages."""

    def names(self) -> Iterator[tuple[str, int]]:
        """Path and size of every file below ``sglang/`` and of the names of ``sglang-*.dist-info``."""

    def read(self, name: str) -> bytes:
        """The bytes of one file."""


class SourceTree:
    """Python sources of one release, parsed on demand and at most once.

    Attributes:
        identity: sha256 that changes whenever a source changes; the key of the cache. None where none is cheap.
        where: the wheel or folder, for messages.
    """

    def __init__(
        self, opened: Callable[[], _Files], *, where: object, identity: str | None, version: str | None = None
    ) -> None:
        self._opened = opened
        self.where = str(where)
        self.identity = identity
        self._version = version
        self._modules: dict[str, ast.Module] = {}

    @cached_property
    def version(self) -> str:
        """As the wheel's name or the ``dist-info`` folder says, else as ``sglang/version.py`` says."""
        return self._version or self._index[1] or self._version_in_source()

    @cached_property
    def _files(self) -> _Files:
        return self._opened()

    @cached_property
    def _index(self) -> tuple[dict[str, int], str | None]:
        """Sizes of the Python files, and the version of ``dist-info``; read when first needed."""
        sizes: dict[str, int] = {}
        dist_info = None
        for name, size in self._files.names():
            top = name.split("/", 1)[0]
            match = _DIST_INFO.match(top)
            dist_info = match["version"] if match else dist_info
            if top == PACKAGE and name.endswith(".py"):
                sizes[name] = size
            if len(sizes) > MAX_FILES:
                raise IntegrityError(f"more than {MAX_FILES} Python files", where=self.where)
        if SERVER_ARGS not in sizes:
            raise UsageError(f"holds no SGLang: {SERVER_ARGS} is missing", where=self.where)
        return sizes, dist_info

    @property
    def _sizes(self) -> dict[str, int]:
        return self._index[0]

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        return path in self._sizes

    def paths(self, under: str) -> tuple[str, ...]:
        """Python files below a folder such as ``sglang/srt/models``, sorted."""
        prefix = under.rstrip("/") + "/"
        return tuple(sorted(name for name in self._sizes if name.startswith(prefix)))

    def read(self, path: str) -> bytes:
        """The bytes of one Python file.

        Raises:
            SourceError: larger than :data:`MAX_SOURCE`, or the wheel is damaged.
        """
        size = self._sizes[path]
        if size > MAX_SOURCE:
            raise SourceError(f"{path} has {size} bytes, more than a source file may have", where=self.where)
        return self._files.read(path)

    def module(self, path: str) -> ast.Module:
        """The syntax tree of one file.

        Raises:
            SourceError: it is not Python.
        """
        if path not in self._modules:
            self._modules[path] = parse(self.read(path), f"{self.where}: {path}")
        return self._modules[path]

    def find_module(self, dotted: str) -> str | None:
        """The file of a module such as ``sglang.srt.utils``; None where the package has none."""
        base = dotted.replace(".", "/")
        return next((p for p in (f"{base}.py", f"{base}/__init__.py") if p in self._sizes), None)

    def _version_in_source(self) -> str:
        for name in ("sglang/_version.py", "sglang/version.py"):
            if name in self._sizes:
                match = re.search(rb"""^(?:__)?version(?:__)?\s*=.*?['"]([0-9][^'"]*)['"]""", self.read(name), re.M)
                if match:
                    return match[1].decode("ascii", "replace")
        raise UsageError("does not say which version of SGLang it is", where=self.where)


def parse(source: bytes, where: object) -> ast.Module:
    """Parse Python source that may be hostile.

    Raises:
        SourceError: a syntax error, a null byte, or nesting deeper than the parser bears.
    """
    if len(source) > MAX_LINE and max(map(len, source.split(b"\n"))) > MAX_LINE:
        raise SourceError(f"a line longer than {MAX_LINE} characters", where=where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the file read are no concern of ours
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"not readable as Python: {first_line(error)}", where=where) from error


def segment(source: bytes, node: ast.AST) -> str:
    """The text of a node, on one line, for evidence."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    text = ast.get_source_segment(source.decode(encoding, "replace"), node) or ""
    return " ".join(text.split())


def from_wheel(path: Path, *, sha256: str | None = None) -> SourceTree:
    """Read a wheel file; its bytes are not touched before the first source is asked for, if its hash is known.

    Args:
        path: the wheel.
        sha256: of its bytes, where already verified (a lock); computed otherwise.

    Raises:
        IntegrityError: not a zip file, damaged, or larger than :data:`MAX_WHEEL`.
        UsageError: not named as a wheel of SGLang; later, a wheel without SGLang.
    """
    match = _WHEEL_NAME.match(path.name)
    if match is None:
        raise UsageError("not named as a wheel of SGLang", where=path, fix="give a file sglang-VERSION-….whl")
    if path.stat().st_size > MAX_WHEEL:
        raise IntegrityError(f"larger than {MAX_WHEEL} bytes", where=path)
    return SourceTree(
        lambda: _Wheel(read_regular(path, MAX_WHEEL), path.name),
        where=path.name,
        identity=sha256 or hash_file(path),
        version=match["version"],
    )


def from_directory(site_packages: Path) -> SourceTree:
    """Read ``site-packages`` of an environment, or an unpacked wheel.

    Raises:
        UsageError: there is no SGLang in it; raised when the first source is asked for.
    """
    files = _Directory(site_packages)
    return SourceTree(lambda: files, where=site_packages, identity=files.identity())


def from_tree(
    opened: Callable[[], AbstractContextManager[tuple[FileTree, str]]], *, where: object, identity: str | None = None
) -> SourceTree:
    """Read a tree of files that does not stay open, such as an image: all sources at once, when the first is asked for.

    Args:
        opened: gives the tree and the path of ``site-packages`` in it.
        where: for messages.
        identity: changes whenever a source does, where known; a cached result then needs no look into the tree.
    """
    return SourceTree(lambda: _Tree(opened), where=where, identity=identity)


class _Wheel:
    def __init__(self, content: bytes, filename: str) -> None:
        self._archive = WheelArchive(io.BytesIO(content), filename)

    def names(self) -> Iterator[tuple[str, int]]:
        for entry in self._archive.files():
            yield entry.name, entry.size

    def read(self, name: str) -> bytes:
        entry = self._archive.find(name)
        assert entry is not None, name
        return self._archive.read(entry, MAX_SOURCE)


class _Directory:
    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> Iterator[tuple[str, int]]:
        for path, status in self._walk():
            yield path, status.st_size

    def read(self, name: str) -> bytes:
        return read_regular(self._root / PurePosixPath(name), MAX_SOURCE)

    def identity(self) -> str:
        """From names, sizes and change times: a file cannot be altered without its ctime moving."""
        lines = (f"{name} {status.st_size} {status.st_ctime_ns}\n" for name, status in self._walk())
        return hashlib.sha256(f"{self._root.resolve()}\n{''.join(lines)}".encode()).hexdigest()

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        for folder in sorted(self._root.glob("sglang-*.dist-info")):
            yield f"{folder.name}/METADATA", folder.stat()
        for base, folders, files in os.walk(self._root / PACKAGE):
            folders.sort()
            for file in sorted(files):
                path = Path(base, file)
                if file.endswith(".py") and not path.is_symlink():
                    yield path.relative_to(self._root).as_posix(), path.stat()


class _Tree:
    """Sources copied out of a tree: Python files below ``sglang/``, and the names of the rest."""

    def __init__(self, opened: Callable[[], AbstractContextManager[tuple[FileTree, str]]]) -> None:
        self._sizes: dict[str, int] = {}
        self._content: dict[str, bytes] = {}
        with opened() as (tree, site_packages):
            root = site_packages.rstrip("/") + "/"
            for entry in tree.entries(root.rstrip("/")):
                name = entry.path.removeprefix(root)
                if entry.link is not None or not name.startswith((f"{PACKAGE}/", f"{PACKAGE}-")):
                    continue
                self._sizes[name] = entry.size
                if name.endswith(".py") and entry.size <= MAX_SOURCE and len(self._content) < MAX_FILES:
                    with tree.open(entry.path) as view:
                        self._content[name] = bytes(view)

    def names(self) -> Iterator[tuple[str, int]]:
        yield from self._sizes.items()

    def read(self, name: str) -> bytes:
        return self._content[name]
