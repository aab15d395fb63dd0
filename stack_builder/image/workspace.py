"""What the image stage keeps in the cache, and the worker processes that fill it."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from stack_builder.errors import ExitCode, IntegrityError, MachineError
from stack_builder.files import atomic_write
from stack_builder.image import bytecode, layers
from stack_builder.image import contents as wheel_contents
from stack_builder.image.contents import Contents, Place
from stack_builder.image.layers import WheelSource
from stack_builder.image.rootfs import Rootfs
from stack_builder.image.settings import LAYOUT_VERSION
from stack_builder.image.store import BlobStore, LayerMemory
from stack_builder.image.stream import Written

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Workspace:
    """Folders of the cache, each of which may be deleted at any time.

    Attributes:
        root: the cache.
    """

    root: Path

    @property
    def blobs(self) -> BlobStore:
        """Layers, configurations and manifests."""
        return BlobStore(self.root / "oci")

    @property
    def memory(self) -> LayerMemory:
        """Which inputs gave which layer."""
        return LayerMemory(self.root / "layers", self.blobs)

    @property
    def receipts(self) -> Path:
        """A receipt for every image built, by manifest digest."""
        return self.root / "receipts"

    @property
    def scratch(self) -> Path:
        """What lasts no longer than a command: images that an engine wrote out, builds to compare with."""
        return self.root / "scratch"

    def contents(self, sha256: str, place: Place) -> Path:
        """Where the contents of a wheel are kept."""
        return self.root / "contents" / f"{key(sha256, place.prefix, place.python)}.json"

    def pack(self, pack_key: str) -> Path:
        """Where the bytecode of a wheel is kept."""
        return self.root / "bytecode" / f"{pack_key}.zip"


def key(*parts: object) -> str:
    """A name for the result of ``parts``, under this layout version."""
    return hashlib.sha256(json.dumps([LAYOUT_VERSION, *parts]).encode()).hexdigest()


class _Inline(Executor):
    """Does the work at once, in this process."""

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See :class:`concurrent.futures.Executor`."""
        done: Future[T] = Future()
        done.set_result(work(*args, **kwargs))
        return done


@contextmanager
def workers(jobs: int | None, tasks: int) -> Iterator[Executor]:
    """Worker processes, one per core, but no more than there are tasks; an error or Ctrl-C cancels what has not begun.

    A single task is done in this process: starting another takes longer than most layers.
    """
    count = min(jobs or len(os.sched_getaffinity(0)), tasks)
    if count <= 1:
        yield _Inline()
        return
    # Spawned, not forked: the parent may have threads (progress bars, downloads).
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_leave_quietly) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise MachineError("a worker process was killed", fix="free some memory, or give --jobs 1") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _leave_quietly() -> None:
    """On Ctrl-C, which reaches every process of the group, end a worker's task with its clean-up, and begin no other.

    What a worker has in its queue by then can no longer be cancelled.
    """

    def leave(*_: object) -> NoReturn:
        _interrupted.set()
        sys.exit(ExitCode.INTERRUPTED)

    signal.signal(signal.SIGINT, leave)


_interrupted = threading.Event()


def _task(work: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that workers run."""

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if _interrupted.is_set():
            sys.exit(ExitCode.INTERRUPTED)
        return work(*args, **kwargs)

    return run


def finished(futures: Iterable[Future[Any]]) -> Iterator[Future[Any]]:
    """Yield futures as they end; the first failure is raised at once."""
    for future in as_completed(futures):
        future.result()
        yield future


# --- what a worker does: functions of plain data, found by name in the new process ------------------------------------


@_task
def read_contents(wheel: Path, filename: str, sha256: str, place: Place, kept: Path) -> None:
    """Hash a wheel and keep what it installs.

    Raises:
        IntegrityError: not the bytes that the lock names, or a malformed wheel.
    """
    with wheel.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        raise IntegrityError(
            f"sha256 is {actual}, the lock says {sha256}", where=wheel, fix="delete the file and run stackb fetch"
        )
    atomic_write(kept, wheel_contents.read(wheel, filename, place).to_json())


def load_contents(kept: Path) -> Contents:
    """Read what :func:`read_contents` kept."""
    return Contents.from_json(kept.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Compiler:
    """What compiles modules: the version of the base's Python, and the folder of the unpacked base."""

    python: str
    root: Path


@dataclass(frozen=True, slots=True)
class WheelJob:
    """One wheel of a layer to be written; its contents are read by the worker.

    Attributes:
        wheel: the file.
        filename: its name as a wheel.
        kept: where its contents are kept.
        dropped: paths that another wheel writes.
        pack: where its bytecode is kept or will be; None for a layer without.
        compiler: makes the bytecode where it is missing.
    """

    wheel: Path
    filename: str
    kept: Path
    dropped: frozenset[str]
    pack: Path | None
    compiler: Compiler | None

    def source(self) -> WheelSource:
        """The wheel with its contents, compiled."""
        contents = load_contents(self.kept)
        if self.pack is not None and self.compiler is not None:
            bytecode.compile_wheel(self.wheel, contents, self.compiler.python, Rootfs(self.compiler.root), self.pack)
        return WheelSource(self.wheel, self.filename, contents, self.dropped, self.pack)


@_task
def write_layer(blobs: Path | None, jobs: tuple[WheelJob, ...]) -> Written:
    """See :func:`stack_builder.image.layers.write_layer`; without a store only the digests are kept."""
    sources = tuple(job.source() for job in jobs)
    if blobs is None:
        with Path(os.devnull).open("wb") as nowhere:
            return layers.write_layer(nowhere, sources)
    return BlobStore(blobs).write(lambda sink: layers.write_layer(sink, sources))
