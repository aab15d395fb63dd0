"""Where an upload stands: kept in the cache, so that the next run of the tool goes on with it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from stack_builder import resources
from stack_builder.files import is_at, named, unclaimed

_MAX = 64 << 10  # bytes; a registry's addresses have some hundred
_LOOK = 0.1  # seconds between two looks at whether another process has ended


class Standing:
    """One upload's file, which nobody else uses at the time.

    Its first line counts. It is written in place: half of it is no JSON, or leads to an address that the registry does
    not know, and the blob is sent from the beginning then.

    Attributes:
        waited: another process has had it before; the blob may be there now.
    """

    def __init__(self, path: Path, handle: int, *, waited: bool) -> None:
        self._path, self._handle, self.waited = path, handle, waited

    def recall(self, root: httpx.URL) -> httpx.URL | None:
        """The address to go on at, if one was kept that belongs to the registry at ``root``."""
        with named(self._path):
            line = os.pread(self._handle, _MAX, 0).partition(b"\n")[0]
        try:
            kept = httpx.URL(json.loads(line)["location"])
        except (ValueError, KeyError, TypeError, httpx.InvalidURL):
            return None
        return kept if (kept.scheme, kept.netloc) == (root.scheme, root.netloc) else None

    def remember(self, location: httpx.URL) -> None:
        """Keep the address to go on at."""
        data = json.dumps({"location": str(location)}).encode() + b"\n"
        with named(self._path):
            os.pwrite(self._handle, data, 0)
            os.ftruncate(self._handle, len(data))

    def forget(self) -> None:
        """The upload has ended, or the registry does not know it any more."""
        with named(self._path):
            os.ftruncate(self._handle, 0)


@contextmanager
def claimed(key: str, waiting: Callable[[], None]) -> Iterator[Standing]:
    """Have the file of an upload to oneself: two that send to one address would spoil each other's.

    It is gone after the context, unless that ends with an error: then the next run goes on with it.

    Args:
        key: what is uploaded where.
        waiting: called every now and then while another process has it; may raise.
    """
    path = _path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    waited = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _locks(handle):
                waited = True
                waiting()
                time.sleep(_LOOK)
            if is_at(handle, path):
                yield Standing(path, handle, waited=waited)
                path.unlink(missing_ok=True)
                return
        finally:
            os.close(handle)


def settle(key: str) -> None:
    """Remove what an upload left that was killed when all had arrived."""
    with suppress(OSError), unclaimed(_path(key)):
        _path(key).unlink()


def _path(key: str) -> Path:
    return resources.cache() / "uploads" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _locks(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
