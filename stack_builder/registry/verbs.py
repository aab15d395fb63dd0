"""Push and pull: the digest of an image is the same on both sides, and only blobs that are missing travel."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stack_builder.errors import IntegrityError, MachineError, UsageError
from stack_builder.files import sweep
from stack_builder.progress import Progress, Task, amount_text
from stack_builder.registry import download, layout
from stack_builder.registry import manifest as manifests
from stack_builder.registry.layout import Layout
from stack_builder.registry.manifest import Descriptor, Manifest
from stack_builder.registry.reference import Reference
from stack_builder.registry.session import Session, read_limited
from stack_builder.registry.upload import CHUNK_BYTES, Uploader

JOBS = 4  # blobs at a time

_KINDS = ("index.json", "oci-layout", "blobs")


@dataclass(frozen=True, slots=True)
class Moved:
    """What a push or a pull did.

    Attributes:
        name: of the image, by digest.
        digest: of its manifest.
        blobs: how many it has.
        travelled: digests of those that were sent or fetched.
        bytes: their size in all.
        mounted: how many the registry took from another repository.
    """

    name: str
    digest: str
    blobs: int
    travelled: tuple[str, ...]
    bytes: int
    mounted: int = 0


def push(
    image: Path,
    reference: Reference,
    progress: Progress,
    *,
    insecure: bool = False,
    mount_from: str | None = None,
    chunk: int = CHUNK_BYTES,
    jobs: int = JOBS,
) -> Moved:
    """Bring an image to a registry: blobs first, the manifest last.

    Args:
        image: an OCI layout, as a folder or a tar.
        reference: where it goes.
        progress: where to report to.
        insecure: allow plain HTTP.
        mount_from: another repository of that registry whose blobs may be used.
        chunk: bytes of one request of an upload.
        jobs: blobs at a time.

    Raises:
        UsageError: not an image, or a digest that is not the image's.
        IntegrityError: a blob is damaged or missing, or the registry says that it received something else.
        MachineError: the registry does not answer, or refuses.
    """
    source = Layout.open(image)
    manifest = source.manifest()
    if reference.digest not in (None, manifest.digest):
        raise UsageError(f"the image has digest {manifest.digest}", where=reference, fix="push it by tag")
    places = {blob.digest: source.blob(blob) for blob in manifest.blobs}
    with Session(reference, insecure=insecure) as session:
        uploader = Uploader(session, reference.name, mount_from=mount_from, chunk=chunk)
        missing = [blob for blob in manifest.blobs if not uploader.present(blob)]
        lacking = [blob for blob in missing if not uploader.mount(blob)]
        if lacking:
            with progress.task(f"pushing {len(lacking)} of {len(manifest.blobs)} blobs", _total(lacking)) as task:

                def send(blob: Descriptor, task: Task) -> None:
                    layout.verify(places[blob.digest], blob.digest)
                    uploader.upload(blob, places[blob.digest], task)

                _each(send, lacking, jobs, task)
        _put_manifest(session, reference, manifest)
    travelled = tuple(blob.digest for blob in lacking)
    mounted = len(missing) - len(lacking)
    name = reference.by_digest(manifest.digest)
    return Moved(name, manifest.digest, len(manifest.blobs), travelled, _total(lacking), mounted)


def pull(
    reference: Reference,
    folder: Path,
    progress: Progress,
    *,
    insecure: bool = False,
    architecture: str = "amd64",
    jobs: int = JOBS,
) -> Moved:
    """Bring an image from a registry into an OCI layout. Every blob is hashed, those that were there before included.

    Args:
        reference: the image.
        folder: new, empty, or what an earlier pull or build left.
        progress: where to report to.
        insecure: allow plain HTTP.
        architecture: what to choose from an index of several images.
        jobs: blobs at a time.

    Raises:
        UsageError: ``folder`` holds other things, or the index has no such image.
        IntegrityError: the registry sends other bytes than the digests promise.
        MachineError: the registry does not answer or has no such image; the disk is too small.
    """
    _check_folder(folder)
    with Session(reference, insecure=insecure) as session:
        manifest = _get_image(session, reference, architecture)
        (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            return _pull(session, reference, manifest, folder, progress, jobs)


def _pull(
    session: Session, reference: Reference, manifest: Manifest, folder: Path, progress: Progress, jobs: int
) -> Moved:
    blobs = folder / "blobs" / "sha256"
    _check_space(manifest, blobs)
    fetched: list[Descriptor] = []
    with progress.task(f"pulling {len(manifest.blobs)} blobs", _total(manifest.blobs)) as task:

        def bring(blob: Descriptor, task: Task) -> None:
            if download.fetch(session, reference.name, blob, blobs, task):
                fetched.append(blob)

        _each(bring, manifest.blobs, jobs, task)
    layout.finish(folder, manifest, reference)
    sweep(blobs, ".*.part")  # blobs of another image, of a pull that was killed
    travelled = tuple(sorted(blob.digest for blob in fetched))
    name = reference.by_digest(manifest.digest)
    return Moved(name, manifest.digest, len(manifest.blobs), travelled, _total(fetched))


def _put_manifest(session: Session, reference: Reference, manifest: Manifest) -> None:
    url = session.url(f"{reference.name}/manifests/{reference.tag or manifest.digest}")
    headers = {"Content-Type": manifest.media_type}
    answer = session.retry(lambda: session.ask("PUT", url, (201,), headers=headers, body=manifest.data))
    told = answer.headers.get("docker-content-digest", manifest.digest)
    if told != manifest.digest:
        raise IntegrityError(f"the registry calls the image {told[:100]}, not {manifest.digest}", where=session.where)


def _get_image(session: Session, reference: Reference, architecture: str) -> Manifest:
    found = _get_manifest(session, reference.name, reference.manifest, reference.digest)
    if isinstance(found, Manifest):
        return found
    chosen = manifests.for_platform(found, architecture, reference)
    inner = _get_manifest(session, reference.name, chosen.digest, chosen.digest)
    if not isinstance(inner, Manifest):
        raise IntegrityError("an index inside an index is not followed", where=reference)
    return inner


def _get_manifest(session: Session, name: str, wanted: str, digest: str | None) -> Manifest | tuple[Descriptor, ...]:
    url = session.url(f"{name}/manifests/{wanted}")

    def get() -> bytes:
        with session.stream("GET", url, (200, 404), headers={"Accept": manifests.ACCEPT}) as answer:
            if answer.status_code == 404:
                raise MachineError(f"the registry has no '{wanted}'", where=session.where, fix="check name and tag")
            return read_limited(answer, manifests.MAX_MANIFEST, session.where)

    data = session.retry(get)
    return manifests.parse(manifests.check_digest(data, digest, session.where) if digest else data, session.where)


class _StoppedError(Exception):
    """The work was called off; nobody is told, since whatever called it off is."""


class _Stoppable:
    """A task that ends the work of whoever reports to it once ``stop`` is set."""

    def __init__(self, task: Task, stop: threading.Event) -> None:
        self._task, self._stop = task, stop

    def advance(self, amount: int) -> None:
        """See :class:`~stack_builder.progress.Task`."""
        if self._stop.is_set():
            raise _StoppedError
        self._task.advance(amount)


def _each(action: Callable[[Descriptor, Task], None], blobs: Iterable[Descriptor], jobs: int, task: Task) -> None:
    """Call ``action`` for each blob, the largest first; the first failure, and Ctrl-C, end all of them."""
    stop = threading.Event()
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="registry")
    try:
        todo = sorted(blobs, key=lambda blob: blob.size, reverse=True)
        for done in as_completed([pool.submit(action, blob, _Stoppable(task, stop)) for blob in todo]):
            done.result()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other pulls out of a folder; the lock ends with the process, and there is no file to be left behind."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        raise UsageError("is a file", where=folder, fix="give a folder")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / kind).exists() for kind in _KINDS):
        raise UsageError("is a folder with other things in it", where=folder, fix="give an empty or new one")


def _check_space(manifest: Manifest, folder: Path) -> None:
    missing = [blob for blob in manifest.blobs if not (folder / blob.digest.removeprefix("sha256:")).exists()]
    free = shutil.disk_usage(folder).free
    if (needed := _total(missing)) > free:
        what = f"{amount_text(needed, 'bytes')} needed, {amount_text(free, 'bytes')} free"
        raise MachineError(what, where=folder, fix="free some space or choose another folder")


def _total(blobs: Iterable[Descriptor]) -> int:
    return sum(blob.size for blob in blobs)
