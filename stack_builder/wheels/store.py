"""The content-addressed store of wheels: ``<cache>/wheels/ab/abcdef…/<file name>``.

A file is there only once it is whole: it grows as ``.part`` beside its place, is hashed as it grows, synced, and then
renamed. Whoever adds to a part holds a lock on it, so two processes share the work in place of spoiling it, and what
a killed one left is taken up where it ended. A part that was left is hashed again before it is trusted.

What a file was when its hash was checked (size, time, inode, mode) is noted beside it, as ``.checked``: as long as it
is that, 4 GB need not be hashed to be used; once it is not, they are.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from stack_builder import resources
from stack_builder.errors import IntegrityError, StackbError, UsageError
from stack_builder.files import atomic_write, fsync_directory, named, open_regular, unclaimed
from stack_builder.wheels.names import parse as parse_name

CHUNK = 1 << 20
_POLL = 0.1  # seconds between two tries for a lock that another process holds
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OF_NOTHING = hashlib.sha256().hexdigest()


class StoppedError(StackbError):
    """The work was called off before it was done; what there is of it is kept."""


class Store:
    """Wheels by their sha256.

    Args:
        root: where they are; the user's cache by default. Created when something is added.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or resources.cache() / "wheels"

    def path(self, sha256: str, filename: str) -> Path:
        """Give where a wheel is, or will be.

        Raises:
            UsageError: no sha256, the sha256 of nothing, or not the name of a wheel.
        """
        if not _SHA256.fullmatch(sha256):
            raise UsageError(f"'{sha256[:80]}' is no sha256", where=filename, fix="run stackb lock STACK again")
        if sha256 == _OF_NOTHING:
            fix = "run stackb lock STACK again: the index answered with an error page when this hash was taken"
            raise UsageError("the sha256 is that of an empty file", where=filename, fix=fix)
        return self.root / sha256[:2] / sha256 / parse_name(filename).filename

    def find(self, sha256: str, filename: str, size: int | None = None) -> Path | None:
        """Give a stored wheel, or None.

        Its name alone is not believed: its size must be ``size``, where that is known, and it is hashed unless it is
        the file, by size, time, inode and mode, whose hash was checked before.
        """
        path = self.path(sha256, filename)
        try:
            actual = path.stat().st_size
        except FileNotFoundError:
            return None
        if size is not None and actual != size:
            return None
        if size is not None and _is_noted(path):
            return path
        return path if _checked(path, sha256) else None

    def tidy(self, sha256: str, filename: str) -> None:
        """Remove the part beside a wheel that is there: its process was killed between the two."""
        part = _part_path(self.path(sha256, filename))
        with suppress(OSError), unclaimed(part):
            part.unlink()

    def verify(self, sha256: str, filename: str) -> bool:
        """Hash a stored wheel again; one that has decayed is removed, so that it will be fetched anew.

        Returns:
            whether it is there and whole.
        """
        path = self.path(sha256, filename)
        with suppress(FileNotFoundError):
            if _checked(path, sha256):
                return True
            path.unlink(missing_ok=True)
            _note_path(path).unlink(missing_ok=True)
        return False

    def part_size(self, sha256: str, filename: str) -> int:
        """How many bytes of a wheel an earlier run has left."""
        try:
            return _part_path(self.path(sha256, filename)).stat().st_size
        except FileNotFoundError:
            return 0

    @contextmanager
    def part(self, sha256: str, filename: str, size: int | None, stop: threading.Event) -> Iterator[Part | None]:
        """Take up the work on one wheel, waiting while another process or thread is at it.

        Yields:
            the part, with the bytes that earlier runs left already hashed; None where the wheel is there by now.

        Raises:
            StoppedError: ``stop`` was set while waiting.
        """
        path = self.path(sha256, filename)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _lock(_part_path(path), stop)
        try:
            _link_path(path).unlink(missing_ok=True)  # left by a killed process
            if self.find(sha256, filename, size) is not None:
                _part_path(path).unlink(missing_ok=True)
                yield None
                return
            path.unlink(missing_ok=True)  # of another size: not what was stored
            yield Part(file, path, sha256)
        finally:
            file.close()

    def add_file(self, source: Path, sha256: str, filename: str, stop: threading.Event | None = None) -> Path:
        """Take a wheel from a file: as a hard link where the file system allows it, else as a copy.

        Raises:
            IntegrityError: the file has another hash.
        """
        size = source.stat().st_size
        with self.part(sha256, filename, size, stop or threading.Event()) as part:
            if part is None:
                return self.path(sha256, filename)
            return part.take(source)


class Part:
    """A wheel on its way into the store. Made by :meth:`Store.part`, which holds its lock."""

    def __init__(self, file: FileIO, path: Path, sha256: str) -> None:
        self._file, self._path, self._sha256 = file, path, sha256
        self._digest = hashlib.sha256()
        self.size = 0
        file.seek(0)
        with named(path):
            while data := file.read(CHUNK):
                self._digest.update(data)
                self.size += len(data)

    def append(self, data: bytes) -> None:
        """Add bytes: to the file at once, so that a kill loses none that were added."""
        with named(self._path):
            self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    def restart(self) -> None:
        """Drop all bytes."""
        self._file.seek(0)
        with named(self._path):
            self._file.truncate()
        self._digest = hashlib.sha256()
        self.size = 0

    def commit(self) -> Path:
        """Put the whole wheel in its place.

        Raises:
            IntegrityError: the bytes have another hash; they are dropped.
        """
        got = self._digest.hexdigest()
        if got != self._sha256:
            size = self.size
            self.restart()
            raise _mismatch(self._path.name, self._sha256, got, size)
        with named(self._path):
            os.fchmod(self._file.fileno(), 0o444)
            os.fsync(self._file.fileno())
        _part_path(self._path).rename(self._path)
        _note(self._path, self._path.stat())
        fsync_directory(self._path.parent)
        return self._path

    def take(self, source: Path) -> Path:
        """Put a file of this machine in place, after hashing what was linked or copied.

        Raises:
            IntegrityError: it has another hash.
        """
        beside = _link_path(self._path)
        try:
            os.link(source.resolve(), beside)
        except OSError:  # another file system, or one without hard links
            self.restart()
            with named(source), source.open("rb") as file:
                while data := file.read(CHUNK):
                    self.append(data)
            return self.commit()
        try:
            if (got := hash_file(beside)) != self._sha256:
                raise _mismatch(str(source), self._sha256, got, beside.stat().st_size)
            beside.rename(self._path)
            _note(self._path, self._path.stat())
        finally:
            beside.unlink(missing_ok=True)
        _part_path(self._path).unlink(missing_ok=True)
        fsync_directory(self._path.parent)
        return self._path


def hash_file(path: Path) -> str:
    """Give the sha256 of a file.

    Raises:
        IntegrityError: not a regular file.
    """
    with named(path), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(path: Path, sha256: str) -> bool:
    """Hash a file, and note what it was if the hash is right."""
    before = path.stat()  # whatever changes it while it is read makes the note untrue
    if hash_file(path) != sha256:
        return False
    _note(path, before)
    return True


def _note(path: Path, status: os.stat_result) -> None:
    with suppress(OSError):  # a store that only others may write to, or a full disk: it is hashed again next time
        atomic_write(_note_path(path), _identity(status))


def _is_noted(path: Path) -> bool:
    try:
        return _note_path(path).read_text(errors="replace") == _identity(path.stat())
    except OSError:
        return False


def _identity(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino} {status.st_mode:o}\n"


def _note_path(path: Path) -> Path:
    return path.with_name(".checked")


def _part_path(path: Path) -> Path:
    return path.with_name(".part")


def _link_path(path: Path) -> Path:
    return path.with_name(".link")


def _lock(path: Path, stop: threading.Event) -> FileIO:
    """Open a part under an exclusive lock that ends with the process.

    Whoever held it before may have renamed the file away, so the lock counts only if the path still leads to it.
    """
    while True:
        file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+")
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if stop.wait(_POLL):
                    raise StoppedError("stopped")
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


def _mismatch(where: str, expected: str, got: str, size: int) -> IntegrityError:
    return IntegrityError(
        f"sha256 is {got} ({size} bytes), the lock says {expected}: damaged, or another file uploaded under this name",
        where=where,
        fix="run stackb lock STACK --check to see what the index offers now",
    )
