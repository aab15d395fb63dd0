"""Is there room on disk for what a start writes: kernels that are compiled at run time, the log, shared memory.

How much each needs, and who measured it, stands in ``checks/server/room.toml``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from stack_builder import resources
from stack_builder.diagnose import catalogue
from stack_builder.files import free_bytes, standing
from stack_builder.report import Finding

_MIB = 1 << 20


class Need(BaseModel):
    """An entry of the table: what is written, how many bytes of it, and where that figure comes from."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    what: str
    bytes: Annotated[int, Field(gt=0)]
    source: str
    relieve: str


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that will be written to.

    Attributes:
        folder: it, or where it will be made.
        need: what goes there.
        device: file system (``st_dev``); places on one share its room.
        free: bytes that an ordinary user may still write.
        present: bytes of the same kind that lie there already and need no room again.
    """

    folder: Path
    need: Need
    device: int
    free: int
    present: int = 0

    @property
    def missing(self) -> int:
        """Bytes still to be written there."""
        return max(self.need.bytes - self.present, 0)


@cache
def needs() -> dict[str, Need]:
    """The table: ``jit``, ``log`` and ``shm``."""
    return catalogue.read_toml(resources.checks() / "server" / "room.toml", TypeAdapter(dict[str, Need]))


def look(folder: Path, need: Need) -> Place:
    """Collect the facts of a folder, which need not exist yet.

    Raises:
        OSError: no folder on the way can be read.
    """
    present = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    return Place(folder, need, standing(folder).stat().st_dev, free_bytes(folder), present)


def judge_room(places: Iterable[Place]) -> tuple[Finding, ...]:
    """A finding for each file system with less room than what will be written to it."""
    together: dict[int, list[Place]] = {}
    for place in places:
        together.setdefault(place.device, []).append(place)
    return tuple(_finding(group) for group in together.values() if group[0].free < sum(p.missing for p in group))


def _finding(places: list[Place]) -> Finding:
    needed = sum(place.missing for place in places)
    parts = ", ".join(f"{place.need.what} in {place.folder} ({_mib(place.missing)})" for place in places)
    return catalogue.finding(
        "RUN013",
        object=str(places[0].folder),
        detail=f"{_mib(places[0].free)} are free there, {_mib(needed)} are needed: {parts}.",
        evidence={"free": places[0].free, "needed": needed, "figures": [place.need.source for place in places]},
        fix=tuple(dict.fromkeys(place.need.relieve for place in places)),
    )


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"
