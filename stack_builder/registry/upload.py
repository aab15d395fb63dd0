"""One blob to a registry: in chunks, so that what arrived before a break need not travel again.

Distribution-spec 1.1, "Pushing a blob in chunks". The next run of the tool goes on where an upload stands, too (see
:mod:`~stack_builder.registry.standing`). A registry that has lost it, or is in doubt, gets the blob from the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx

from stack_builder.errors import IntegrityError, MachineError
from stack_builder.progress import Task
from stack_builder.registry.layout import Place
from stack_builder.registry.manifest import Descriptor
from stack_builder.registry.session import Session
from stack_builder.registry.standing import Standing, claimed, settle

CHUNK_BYTES = 32 << 20  # of one PATCH; it is read and sent a mebibyte at a time
_MAX_CHUNK = 1 << 30  # bytes, whatever a registry says is its least
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,15})")
_ACCEPTED, _CREATED, _NO_CONTENT, _NOT_FOUND = 202, 201, 204, 404
_LOST = (400, 404, 416)
_TRIES = 2  # from the beginning


class _LostError(Exception):
    """The registry does not know this upload any more, or not as we do."""


class Uploader:
    """Uploads blobs into one repository.

    Args:
        session: to its registry.
        name: of the repository.
        mount_from: another repository of the registry that may have the blobs.
        chunk: bytes of one request.
    """

    def __init__(self, session: Session, name: str, *, mount_from: str | None = None, chunk: int = CHUNK_BYTES) -> None:
        self._session, self._name, self._mount_from, self._chunk = session, name, mount_from, chunk
        self._opened: dict[str, httpx.URL] = {}

    def present(self, blob: Descriptor) -> bool:
        """Ask whether the repository has a blob.

        Raises:
            IntegrityError: it has it with another size.
        """
        url = self._session.url(f"{self._name}/blobs/{blob.digest}")
        answer = self._session.retry(lambda: self._session.ask("HEAD", url, (200, _NOT_FOUND)))
        if answer.status_code == _NOT_FOUND:
            return False
        length = answer.headers.get("content-length")
        if length is not None and length != str(blob.size):
            raise IntegrityError(
                f"the registry has {length} bytes as {blob.digest}, not {blob.size}", where=self._session.where
            )
        settle(self._key(blob))
        return True

    def mount(self, blob: Descriptor) -> bool:
        """Have the registry take a blob from the other repository (distribution-spec 1.1, "Mounting a blob")."""
        if self._mount_from is None:
            return False
        query = {"mount": blob.digest, "from": self._mount_from}
        url = self._uploads().copy_merge_params(query)
        answer = self._session.retry(lambda: self._session.ask("POST", url, (_CREATED, _ACCEPTED)))
        if answer.status_code == _ACCEPTED:  # it has it not, and has opened an upload in its place
            self._opened[blob.digest] = self._session.location(answer)
        return answer.status_code == _CREATED

    def upload(self, blob: Descriptor, place: Place, task: Task) -> None:
        """Send a blob whose bytes have been checked. Of two processes that want to, one waits and sends nothing then.

        Raises:
            MachineError: the registry refuses it, or does not answer.
        """
        with claimed(self._key(blob), lambda: task.advance(0)) as standing:
            if standing.waited and self.present(blob):
                task.advance(blob.size)
            else:
                self._send(blob, place, task, standing)

    def _send(self, blob: Descriptor, place: Place, task: Task, standing: Standing) -> None:
        counted = 0

        def count(sent: int) -> None:
            nonlocal counted
            task.advance(sent - counted)
            counted = sent

        def once() -> None:
            reason = ""
            for _ in range(_TRIES):
                try:
                    self._upload(blob, place, count, task, standing)
                except _LostError as error:
                    standing.forget()
                    reason = str(error)
                else:
                    return
            raise MachineError(f"the registry does not take blob {blob.digest} ({reason})", where=self._session.where)

        self._session.retry(once, lambda: counted)

    def _upload(
        self, blob: Descriptor, place: Place, count: Callable[[int], None], task: Task, standing: Standing
    ) -> None:
        location, done, chunk = self._open(blob, standing)
        count(done)
        while done < blob.size:
            stop = min(done + chunk, blob.size)
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(stop - done),
                "Content-Range": f"{done}-{stop - 1}",
            }
            answer = self._session.ask(
                "PATCH", location, (_ACCEPTED, *_LOST), headers=headers, body=_watched(place.read(done, stop), task)
            )
            location, done = self._next(answer), stop
            if _last(answer) != done - 1:
                raise _LostError("it says that other bytes have arrived than were sent")
            standing.remember(location)
            count(done)
        self._close(blob, location)

    def _open(self, blob: Descriptor, standing: Standing) -> tuple[httpx.URL, int, int]:
        """Take up an upload or begin one; gives its address, the bytes that have arrived, and the size of chunks."""
        if (kept := standing.recall(self._session.root)) is not None:
            answer = self._session.ask("GET", kept, (_NO_CONTENT, *_LOST))
            location, last = self._next(answer), _last(answer)
            return location, last + 1 if last else 0, self._chunk
        chunk = self._chunk
        if blob.digest in self._opened:
            location = self._opened.pop(blob.digest)
        else:
            answer = self._session.ask("POST", self._uploads(), (_ACCEPTED,), headers={"Content-Length": "0"})
            least = answer.headers.get("oci-chunk-min-length", "")
            chunk = max(chunk, min(int(least), _MAX_CHUNK)) if least.isdecimal() else chunk
            location = self._session.location(answer)
        standing.remember(location)  # or a kill from here on would leave the registry with half an upload
        return location, 0, chunk

    def _close(self, blob: Descriptor, location: httpx.URL) -> None:
        url = location.copy_merge_params({"digest": blob.digest})
        answer = self._session.ask("PUT", url, (_CREATED, *_LOST), headers={"Content-Length": "0"})
        self._next(answer)

    def _next(self, answer: httpx.Response) -> httpx.URL:
        if answer.status_code in _LOST:
            raise _LostError(f"HTTP status {answer.status_code}")
        return self._session.location(answer) if "location" in answer.headers else answer.url

    def _key(self, blob: Descriptor) -> str:
        return f"{self._session.root} {self._name} {blob.digest}"

    def _uploads(self) -> httpx.URL:
        return self._session.url(f"{self._name}/blobs/uploads/")


def _watched(chunks: Iterator[bytes], task: Task) -> Iterator[bytes]:
    """Pass bytes on, and let whoever calls the work off do so without waiting for the end of a request."""
    for data in chunks:
        task.advance(0)
        yield data


def _last(answer: httpx.Response) -> int | None:
    """The last byte that has arrived, by the Range header ``0-N``; ``0-0`` stands for one byte, and for none."""
    match = _RANGE.fullmatch(answer.headers.get("range", ""))
    return int(match[1]) if match else None
