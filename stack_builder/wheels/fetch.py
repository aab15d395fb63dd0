"""Every wheel of a lock into the store: in parallel, resumable, verified, from an index or from a folder."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from stack_builder.errors import IntegrityError, MachineError, UsageError
from stack_builder.files import free_bytes
from stack_builder.progress import Progress, amount_text
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.stack.spec import StackSpec
from stack_builder.wheels.store import Part, Store

if TYPE_CHECKING:  # an HTTP client takes 0.3 s to load, which a run with every wheel at hand need not spend
    from stack_builder.wheels.http import Http
    from stack_builder.wheels.index import Index, IndexFile

DEFAULT_JOBS = 8
OWN_TASK = 64 << 20  # bytes from which a wheel gets a progress line of its own
SPARE = 256 << 20  # bytes that stay free on the disk
MAX_FOLDER = 1_000_000  # files looked at below --from
_LEAVE = 0.5  # seconds that running downloads get to end after the first failure

_RELOCK = "run stackb lock STACK --check to see what the index offers now"


class Source(StrEnum):
    """Where a wheel came from in this run."""

    STORE = "store"
    FOLDER = "folder"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Fetched:
    """One wheel of the lock, in the store."""

    artifact: Artifact
    path: Path
    source: Source


@dataclass(frozen=True, slots=True)
class Network:
    """What downloads need: connections, and the indexes by name."""

    http: Http
    indexes: Mapping[str, Index]


@contextmanager
def on_demand(spec: StackSpec | None) -> Iterator[Callable[[], Network]]:
    """Yield what connects to the indexes of a stack when it is called; the connections end with the context."""
    with ExitStack() as stack:

        def connect() -> Network:
            from stack_builder.wheels.http import Http
            from stack_builder.wheels.index import indexes_of

            http = stack.enter_context(Http())
            return Network(http, indexes_of(spec, http))

        yield connect


def fetch(
    lock: Lock,
    store: Store,
    *,
    network: Callable[[], Network] | None,
    folder: Path | None = None,
    jobs: int = DEFAULT_JOBS,
    progress: Progress,
) -> tuple[Fetched, ...]:
    """Bring every wheel of ``lock`` into ``store``.

    Interrupted at any moment it leaves whole wheels and resumable parts, nothing else.

    Args:
        lock: names each wheel by file name, sha256 and index.
        store: where they go.
        network: opened at most once, and only if a wheel is missing; None to stay offline.
        folder: a mirror or a plain folder of wheels to look in first.
        jobs: downloads at a time.
        progress: told of bytes, and of large wheels by name.

    Returns:
        one result per wheel, in the order of the lock.

    Raises:
        UsageError: a wheel of the lock has no sha256, or comes from an index that the stack does not list.
        IntegrityError: other bytes than the lock says, or the index no longer has them.
        MachineError: the disk is too small, the network does not answer, or a wheel is missing offline.
    """
    present = {a.filename: path for a in lock.artifacts if (path := store.find(_sha256(a), a.filename, a.size))}
    missing = [a for a in lock.artifacts if a.filename not in present]
    for artifact in lock.artifacts:
        if artifact.filename in present:
            store.tidy(_sha256(artifact), artifact.filename)
    results = {
        a.filename: Fetched(a, present[a.filename], Source.STORE) for a in lock.artifacts if a.filename in present
    }
    if missing:
        local = _wheels_below(folder) if folder else {}
        _check_space(missing, store)
        if network is None:
            _check_offline(missing, local, folder)
        results |= _Run(store, network, local, progress).all(missing, jobs)
    return tuple(results[a.filename] for a in lock.artifacts)


class _Run:
    """One run of :func:`fetch`: a queue of wheels, threads that empty it, and a flag to stop them.

    The threads are daemons: after Ctrl-C nobody waits for a server that has stalled.
    """

    def __init__(
        self,
        store: Store,
        network: Callable[[], Network] | None,
        local: Mapping[str, list[Path]],
        progress: Progress,
    ) -> None:
        self._store, self._open, self._local, self._progress = store, network, local, progress
        self._network: Network | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._results: SimpleQueue[Fetched | BaseException] = SimpleQueue()

    def all(self, missing: list[Artifact], jobs: int) -> dict[str, Fetched]:
        # The largest first: the last to end should not be the one that takes longest.
        todo = deque(sorted(missing, key=lambda a: (-(a.size or 0), a.filename)))
        threads = [
            threading.Thread(target=self._work, args=(todo,), name=f"fetch-{number}", daemon=True)
            for number in range(min(jobs, len(missing)))
        ]
        known = sum(a.size or 0 for a in missing)
        with self._progress.task(f"{len(missing)} wheels", known or None) as self._total:
            for thread in threads:
                thread.start()
            try:
                return self._collect(len(missing))
            except BaseException:
                self._stop.set()
                for thread in threads:
                    thread.join(_LEAVE / len(threads))
                raise

    def _collect(self, count: int) -> dict[str, Fetched]:
        done: dict[str, Fetched] = {}
        while len(done) < count:
            try:
                result = self._results.get(timeout=1.0)  # short, so that Ctrl-C is seen
            except Empty:
                continue
            if isinstance(result, BaseException):
                raise result
            done[result.artifact.filename] = result
        return done

    def _work(self, todo: deque[Artifact]) -> None:
        while not self._stop.is_set():
            try:
                artifact = todo.popleft()
            except IndexError:
                return
            try:
                self._results.put(self._one(artifact))
            except BaseException as error:  # handed to the thread that waits
                self._results.put(error)
                return

    def _one(self, artifact: Artifact) -> Fetched:
        if path := self._from_folder(artifact):
            return Fetched(artifact, path, Source.FOLDER)
        if self._open is None:
            raise _not_here(artifact, 1)
        network = self._connected(self._open)
        file = _listed(artifact, network.indexes)
        if file.yanked is not None:
            self._progress.note(f"{artifact.filename} was yanked from its index: {file.yanked}")
        sha256 = _sha256(artifact)
        if urlsplit(file.url).scheme == "file":
            source = Path(unquote(urlsplit(file.url).path))
            path = self._store.add_file(source, sha256, artifact.filename, self._stop)
            self._count(artifact.size or 0)
            return Fetched(artifact, path, Source.INDEX)
        size = artifact.size if artifact.size is not None else file.size
        with self._store.part(sha256, artifact.filename, size, self._stop) as part:
            if part is None:  # another process was faster
                self._count(artifact.size or 0)
                return Fetched(artifact, self._store.path(sha256, artifact.filename), Source.STORE)
            with self._watched(artifact.filename, size) as arrived:
                return Fetched(artifact, self._download(network.http, file.url, part, size, arrived), Source.INDEX)

    def _download(self, http: Http, url: str, part: Part, size: int | None, arrived: Callable[[int], None]) -> Path:
        from stack_builder.wheels.download import download

        left = part.size
        arrived(left)
        download(http, url, part, size=size, arrived=arrived, stop=self._stop)
        try:
            return part.commit()
        except IntegrityError:
            if not left:
                raise
        # What an earlier run left may be of another upload, or decayed: once more, from the beginning.
        arrived(-(size or 0))
        download(http, url, part, size=size, arrived=arrived, stop=self._stop)
        return part.commit()

    @contextmanager
    def _watched(self, label: str, size: int | None) -> Iterator[Callable[[int], None]]:
        """Yield what counts arriving bytes: in the total and, for a large wheel, in a task of its own."""
        if (size or 0) < OWN_TASK:
            yield self._count
            return
        with self._progress.task(label, size) as own:

            def count(amount: int) -> None:
                own.advance(amount)
                self._count(amount)

            yield count

    def _from_folder(self, artifact: Artifact) -> Path | None:
        """Try the files of that name below ``--from``; one with other bytes does not count, unless nothing else can."""
        for path in self._local.get(artifact.filename, []):
            try:
                stored = self._store.add_file(path, _sha256(artifact), artifact.filename, self._stop)
            except IntegrityError as error:
                if self._open is None and path == self._local[artifact.filename][-1]:
                    raise
                self._progress.note(f"passed over: {error.where}: {error.what}")
            else:
                self._count(artifact.size or 0)
                return stored
        return None

    def _connected(self, connect: Callable[[], Network]) -> Network:
        with self._lock:
            if self._network is None:
                self._network = connect()
            return self._network

    def _count(self, amount: int) -> None:
        with self._lock:
            self._total.advance(amount)


def _sha256(artifact: Artifact) -> str:
    if artifact.sha256 is None:
        raise UsageError(
            "the lock gives no sha256, so no download can be trusted", where=artifact.filename, fix=_RELOCK
        )
    return artifact.sha256


def _listed(artifact: Artifact, indexes: Mapping[str, Index]) -> IndexFile:
    """Look a wheel up on its index: locks hold no addresses."""
    index = indexes.get(artifact.index)
    if index is None:
        raise UsageError(f"stack.toml lists no index '{artifact.index}'", where=artifact.filename)
    files = index.find(artifact.name, artifact.filename)
    if not files:
        what = f"is no longer on index '{index.name}'"
        raise IntegrityError(what, where=artifact.filename, fix=f"give the file with --from DIR, or {_RELOCK}")
    match = next((file for file in files if file.sha256 in (artifact.sha256, None)), None)
    if match is None:
        now = ", ".join(f"{f.sha256}" + (f" of {f.uploaded}" if f.uploaded else "") for f in files[:8])
        what = f"uploaded again on index '{index.name}': the lock says sha256 {artifact.sha256}, the index has {now}"
        raise IntegrityError(what, where=artifact.filename, fix=_RELOCK)
    return match


def _wheels_below(folder: Path) -> dict[str, list[Path]]:
    """Find the wheels in a folder and below, by name: no pipes or devices; links to folders are not followed."""
    if not folder.is_dir():
        raise UsageError("no such folder", where=folder, fix="give --from a folder with wheels")
    found: dict[str, list[Path]] = {}
    seen = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        seen += len(names)
        if seen > MAX_FOLDER:
            raise UsageError(f"holds more than {MAX_FOLDER} files", where=folder, fix="give --from a smaller folder")
        for name in sorted(names):
            if name.endswith(".whl") and not name.startswith(".") and Path(place, name).is_file():
                found.setdefault(name, []).append(Path(place, name))
    return found


def _check_space(missing: list[Artifact], store: Store) -> None:
    needed = sum(max(0, (a.size or 0) - store.part_size(_sha256(a), a.filename)) for a in missing)
    free = free_bytes(store.root)
    if needed + SPARE > free:
        what = f"{len(missing)} wheels need {amount_text(needed, 'bytes')}, {amount_text(free, 'bytes')} are free"
        fix = "free some space or point STACKB_CACHE_DIR at a larger disk"
        raise MachineError(what, where=store.root, fix=fix)


def _check_offline(missing: list[Artifact], local: Mapping[str, list[Path]], folder: Path | None) -> None:
    absent = [a for a in missing if a.filename not in local]
    if absent:
        raise _not_here(absent[0], len(absent), folder)


def _not_here(first: Artifact, count: int, folder: Path | None = None) -> MachineError:
    more = f" and {count - 1} more" if count > 1 else ""
    what = f"neither in the store nor below {folder}{more}" if folder else f"not in the store{more}"
    return MachineError(what, where=first.filename, fix="run stackb fetch without --offline, or give --from DIR")
