"""What follows from all wheels of an image together; kept, since reading 75,000 paths takes longer than all else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from stack_builder.files import atomic_write
from stack_builder.image import environment, linker, plan
from stack_builder.image.contents import Contents, Place
from stack_builder.image.settings import ImageSettings
from stack_builder.image.subject import Subject
from stack_builder.stack.receipt import DecisionRecord


@dataclass(frozen=True, slots=True)
class Layout:
    """How the wheels of an image lie together.

    Attributes:
        dropped: by distribution, the paths that another wheel writes, sorted.
        decisions: who writes what several ship.
        folders: directories that the linker searches, in order.
        libraries: the files in them that it finds.
        links: what completes the CUDA toolkit, as path and target.
        files: how many files the wheels install.
    """

    dropped: dict[str, tuple[str, ...]]
    decisions: tuple[DecisionRecord, ...]
    folders: tuple[str, ...]
    libraries: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    files: int


def derive(contents: Mapping[str, Contents], subject: Subject, place: Place, settings: ImageSettings) -> Layout:
    """Work out the layout.

    Raises:
        IntegrityError: wheels that do not go together; see :func:`stack_builder.image.plan.decide`.
    """
    dropped, decisions = plan.decide(contents, subject)
    paths = sorted({file.path for each in contents.values() for file in each.files})
    folders = linker.directories(paths, place.site, settings.linker.directories)
    return Layout(
        dropped={name: tuple(sorted(gone)) for name, gone in sorted(dropped.items())},
        decisions=decisions,
        folders=tuple(folders),
        libraries=tuple(linker.libraries(paths, folders)),
        links=environment.toolkit_links(paths, toolkit(subject, place, settings), settings.toolkit.links),
        files=sum(len(each.files) for each in contents.values()),
    )


def toolkit(subject: Subject, place: Place, settings: ImageSettings) -> str:
    """Where the CUDA toolkit of the wheels is."""
    return f"{place.site}/{settings.toolkit.home.format(major=subject.cuda.partition('.')[0])}"


def load(path: Path) -> Layout | None:
    """Read a kept layout; None where there is none, or none that can be read."""
    try:
        return TypeAdapter(Layout).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def save(path: Path, layout: Layout) -> None:
    """Keep a layout."""
    atomic_write(path, json.dumps(asdict(layout)))
