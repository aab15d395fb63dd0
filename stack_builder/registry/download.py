"""One blob from a registry into a layout: no more bytes than promised, hashed, and taken up after a break."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from stack_builder.errors import IntegrityError
from stack_builder.files import fsync_directory, named
from stack_builder.progress import Task
from stack_builder.registry.manifest import Descriptor
from stack_builder.registry.session import Session
from stack_builder.wheels.http import TransientError

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15}|\*)")
_OK, _PARTIAL, _UNSATISFIABLE = 200, 206, 416


def fetch(session: Session, name: str, blob: Descriptor, folder: Path, task: Task) -> bool:
    """Bring a blob into ``folder``, where it appears under its hash once all of it has arrived and is right.

    Args:
        session: to the registry.
        name: of the repository.
        blob: digest and size that the manifest promises.
        folder: ``blobs/sha256`` of a layout.
        task: told of bytes.

    Returns:
        whether anything had to be fetched.

    Raises:
        IntegrityError: more bytes than promised, or with another digest; nothing of them is kept.
        MachineError: the registry does not have it, or does not answer.
    """
    hexadecimal = blob.digest.removeprefix("sha256:")
    target, part = folder / hexadecimal, folder / f".{hexadecimal}.part"
    if target.is_file():
        if target.stat().st_size == blob.size and _hash(target).hexdigest() == hexadecimal:
            task.advance(blob.size)
            return False
        target.unlink()
    _Download(session, name, blob, part, task).run()
    part.chmod(0o444)
    part.replace(target)
    fsync_directory(folder)
    return True


class _Download:
    """One blob on its way."""

    def __init__(self, session: Session, name: str, blob: Descriptor, part: Path, task: Task) -> None:
        self._session, self._blob, self._part, self._task = session, blob, part, task
        self._url = session.url(f"{name}/blobs/{blob.digest}")
        self._where = f"{session.where}: {blob.digest}"

    def run(self) -> None:
        taken_up = self._part.is_file()
        try:
            self._complete()
        except IntegrityError:
            self._part.unlink(missing_ok=True)
            if not taken_up:
                raise
            self._complete()  # what an earlier run left may have decayed: once more, from the beginning

    def _complete(self) -> None:
        self._part.touch(mode=0o644)
        try:
            self._session.retry(self._once, self._size)
            self._check()
        except IntegrityError:
            self._task.advance(-self._size())
            self._part.unlink(missing_ok=True)
            raise

    def _once(self) -> None:
        start = self._size()
        if start > self._blob.size:
            raise self._too_long()
        if start == self._blob.size:
            return
        headers = {"Range": f"bytes={start}-{self._blob.size - 1}"} if start else {}
        with self._session.stream("GET", self._url, (_OK, _PARTIAL), headers=headers) as answer:
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise IntegrityError("the registry compresses a blob once more", where=self._where)
            position = (
                self._position(answer.headers.get("content-range"), start) if answer.status_code == _PARTIAL else 0
            )
            with named(self._part), self._part.open("r+b") as file:
                file.seek(position)
                file.truncate()
                self._task.advance(position - start)
                for data in answer.iter_raw():  # as it arrives: nothing is lost when it breaks off
                    position += len(data)
                    if position > self._blob.size:
                        raise self._too_long()
                    file.write(data)
                    self._task.advance(len(data))
                file.flush()
                os.fsync(file.fileno())
        if position < self._blob.size:
            raise TransientError(f"the connection broke off after {position} of {self._blob.size} bytes")

    def _position(self, value: str | None, start: int) -> int:
        match = _CONTENT_RANGE.fullmatch(value or "")
        if match is None or int(match[1]) != start or match[2] not in ("*", str(self._blob.size)):
            raise IntegrityError("the registry answers with another range than was asked for", where=self._where)
        return start

    def _check(self) -> None:
        got = f"sha256:{_hash(self._part).hexdigest()}"
        if got != self._blob.digest:
            raise IntegrityError(f"the registry's bytes have digest {got}", where=self._where)

    def _too_long(self) -> IntegrityError:
        return IntegrityError(f"the registry sends more than the promised {self._blob.size} bytes", where=self._where)

    def _size(self) -> int:
        return self._part.stat().st_size if self._part.is_file() else 0


def _hash(path: Path) -> hashlib._Hash:
    with named(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")
