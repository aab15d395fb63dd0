"""What the indexes serve today for the wheels of a lock: gone, yanked, uploaded again, or another file elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from stack_builder.errors import StackbError
from stack_builder.progress import Progress
from stack_builder.resolve.model import DEFAULT_INDEX
from stack_builder.resolve.target import Target
from stack_builder.stack.lock import Twin, Upload

if TYPE_CHECKING:  # see resolve/indexes.py
    from stack_builder.wheels.index import Index, IndexFile

_THREADS = 16  # they wait for the network, not for the processor


@dataclass(frozen=True, slots=True)
class Wanted:
    """One wheel to look up: its name, version, file name and index, as in the lock."""

    name: str
    version: str
    filename: str
    index: str


@dataclass(frozen=True, slots=True)
class Served:
    """What is served today for one wheel of the lock.

    Attributes:
        sha256: hashes listed under the wheel's file name, in the page's order; None for a row without a hash.
        yanked: the index's reason, else None.
        uploads: where one file name is listed with several hashes, all files of the version that fit the target.
        twins: files of the same name and other bytes on the default index.
    """

    sha256: tuple[str | None, ...]
    yanked: str | None
    uploads: tuple[Upload, ...]
    twins: tuple[Twin, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """What was learnt, and from which index nothing was.

    Attributes:
        by_name: by normalised distribution name.
        unreachable: why an index gave no answer, by index name.
    """

    by_name: Mapping[str, Served]
    unreachable: Mapping[str, str]


def look_up(wheels: Iterable[Wanted], indexes: Mapping[str, Index], target: Target, progress: Progress) -> Answers:
    """Ask the indexes. An index that fails once is not asked again."""
    wheels = list(wheels)
    by_name: dict[str, Served] = {}
    unreachable: dict[str, str] = {}

    def ask(wheel: Wanted) -> None:
        if wheel.index in unreachable:
            return
        try:
            by_name[wheel.name] = _served(wheel, indexes, target)
        except StackbError as error:
            unreachable.setdefault(wheel.index, str(error))

    if wheels:
        with (
            progress.task("asking the indexes", total=len(wheels), unit="wheels") as task,
            ThreadPoolExecutor(min(_THREADS, len(wheels))) as pool,
        ):
            for _ in pool.map(ask, wheels):
                task.advance(1)
    return Answers(by_name, unreachable)


def _served(wheel: Wanted, indexes: Mapping[str, Index], target: Target) -> Served:
    files = indexes[wheel.index].files(wheel.name)
    same = [file for file in files if file.filename == wheel.filename]
    several = len({file.sha256 for file in same}) > 1
    fitting = [file for file in files if _is_version(file, wheel.version) and target.best([file.filename])]
    yanked = next((file.yanked for file in same if file.yanked is not None), None)
    twins: tuple[Twin, ...] = ()
    if wheel.index != DEFAULT_INDEX:
        hashes = {file.sha256 for file in same}
        elsewhere = indexes[DEFAULT_INDEX].find(wheel.name, wheel.filename)
        twins = tuple(Twin(DEFAULT_INDEX, f.sha256) for f in elsewhere if f.sha256 and f.sha256 not in hashes)
    return Served(
        sha256=tuple(file.sha256 for file in same),
        yanked=yanked,
        uploads=tuple(Upload(f.filename, f.sha256, f.uploaded) for f in fitting if f.sha256) if several else (),
        twins=twins,
    )


def _is_version(file: IndexFile, version: str) -> bool:
    try:
        return parse_wheel_filename(file.filename)[1] == Version(version)
    except InvalidWheelFilename:
        return False
