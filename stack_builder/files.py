"""Writing files so that no later run can trust half of one, and so that what a killed run leaves is found again.

Whatever is not whole yet lies beside its place under a lock that ends with the process, however that ends. A process
number would not do: numbers are used again, and mean nothing to a container that shares the folder.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from stack_builder.errors import IntegrityError


@contextmanager
def atomic_writer(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Open a file beside ``path``; on a clean exit flush, fsync and rename it over ``path``.

    On any exception, ``KeyboardInterrupt`` included, the file beside is removed and ``path`` keeps what it had. What a
    killed writer of the same ``path`` left is removed, too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    sweep(path.parent, f"{glob.escape(prefix)}*.part")
    with claimed_file(path.parent, prefix=prefix, suffix=".part") as (beside, file):
        yield file
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
        beside.replace(path)
        fsync_directory(path.parent)


def atomic_write(path: Path, data: bytes | str, *, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data`` (text as UTF-8) in one step."""
    with atomic_writer(path, mode=mode) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def claimed_file(folder: Path, *, prefix: str = "", suffix: str = "") -> Iterator[tuple[Path, BinaryIO]]:
    """Make a file of a new name that no :func:`sweep` touches while the context lasts.

    It is removed at the end, unless it was renamed.
    """
    while True:
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=folder)
        path = Path(name)
        try:
            with named(path), os.fdopen(handle, "wb") as file:
                if _claim(handle, path):
                    yield path, cast(BinaryIO, file)
                    return
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def claimed_folder(parent: Path, *, prefix: str) -> Iterator[Path]:
    """Make a folder that no :func:`sweep` touches while the context lasts; it is removed at the end.

    What killed processes left under the same prefix is removed first.
    """
    parent.mkdir(parents=True, exist_ok=True)
    sweep(parent, f"{glob.escape(prefix)}*")
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            with suppress(FileNotFoundError):  # swept before it was claimed
                handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    if _claim(handle, path):
                        yield path
                        return
                finally:
                    os.close(handle)
        finally:
            shutil.rmtree(path, ignore_errors=True)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read it; a FIFO, which would wait for a writer, a device or a folder is refused.

    Raises:
        IntegrityError: it is something else.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise IntegrityError("not a regular file", where=path)


def read_regular(path: Path, most: int) -> bytes:
    """Read a regular file of at most ``most`` bytes.

    Raises:
        IntegrityError: it is larger, or no regular file.
    """
    with open_regular(path) as file, named(path):
        data = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
    if len(data) > most:
        raise IntegrityError(f"larger than {most} bytes", where=path)
    return data


def sweep(folder: Path, pattern: str) -> None:
    """Remove the files and folders of a pattern that nobody has claimed: killed processes have left them."""
    for path in folder.glob(pattern):
        with suppress(OSError), unclaimed(path):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that can be removed of it.

    A folder loses its name first: whoever looks for it finds all of it or nothing, also when this is killed half-way.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    doomed = path.with_name(f".gone-{os.urandom(8).hex()}.part")
    path.rename(doomed)  # which takes no room: a disk is full where things have to be removed
    shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def unclaimed(path: Path) -> Iterator[None]:
    """Keep others from claiming a file or folder for the time of the context.

    Raises:
        OSError: it is gone, or somebody has claimed it.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def claimed(path: Path) -> bool:
    """Whether a living process has claimed a file or folder; not where it is gone."""
    try:
        with unclaimed(path):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def free_bytes(folder: Path) -> int:
    """How many bytes this user may still write on the disk of a folder that need not exist yet."""
    return shutil.disk_usage(standing(folder)).free


def standing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next((path for path in (folder, *folder.parents) if path.exists()), folder)


def fsync_directory(directory: Path) -> None:
    """Make a rename in ``directory`` survive a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with named(directory):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name a file to the errors of what is done to it: a failed read, write or sync does not know where it was."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def is_at(handle: int, path: Path) -> bool:
    """Whether an open file still has its name: whoever was to be waited for may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _claim(handle: int, path: Path) -> bool:
    """Lock what was just made; False where a sweep came between and removed it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:  # a file system without locks: nothing is swept there either
        return True
    return is_at(handle, path)
