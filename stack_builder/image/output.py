"""Where an image goes: a folder with an OCI layout, one tar, or a Docker engine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from stack_builder.errors import MachineError, UsageError
from stack_builder.files import atomic_writer
from stack_builder.image import daemon, oci
from stack_builder.image.ahead import Ahead
from stack_builder.image.base.model import architecture
from stack_builder.image.build import Built
from stack_builder.image.store import BlobStore
from stack_builder.progress import Progress, amount_text
from stack_builder.stack import receipt

RECEIPT = "stackb-receipt.json"

_TAG = re.compile(r"[a-z0-9]+([._/-][a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")


class Kind(StrEnum):
    """Forms of an output."""

    LAYOUT = "layout"
    ARCHIVE = "archive"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True)
class Output:
    """One place for an image.

    Attributes:
        kind: its form.
        name: path of the folder or file, or the tag.
    """

    kind: Kind
    name: str

    @property
    def receipt(self) -> Path | None:
        """Where the receipt lies beside the image."""
        match self.kind:
            case Kind.LAYOUT:
                return Path(self.name) / RECEIPT
            case Kind.ARCHIVE:
                return Path(f"{self.name}.{RECEIPT}")
            case Kind.DOCKER:
                return None


def parse(text: str) -> Output:
    """Read ``--output``.

    Raises:
        UsageError: no text, a malformed tag, or a folder that holds something else.
    """
    if not text:
        raise UsageError("is empty", where="--output", fix="give a folder, a name ending in .tar, or docker:TAG")
    if text.startswith("docker:"):
        tag = text.removeprefix("docker:")
        if not _TAG.fullmatch(tag):
            raise UsageError(f"'{tag}' is not an image name", fix="write --output docker:NAME or docker:NAME:TAG")
        return Output(Kind.DOCKER, tag if ":" in tag else f"{tag}:latest")
    path = Path(text)
    if path.suffix == ".tar":
        return Output(Kind.ARCHIVE, str(path))
    if path.is_file():
        raise UsageError("is a file", where=path, fix="give a folder, a name ending in .tar, or docker:TAG")
    if path.is_dir() and any(path.iterdir()) and not (path / "blobs").is_dir() and not (path / "index.json").exists():
        raise UsageError("is a folder with other things in it", where=path, fix="give an empty or new one")
    return Output(Kind.LAYOUT, str(path))


@contextmanager
def sending_ahead(output: Output, store: BlobStore, platform: str) -> Iterator[Ahead | None]:
    """Give what sends layers to an engine while the context lasts; None for another kind of output.

    Raises:
        MachineError: no engine answers, which is better known before a build than after.
    """
    if output.kind is not Kind.DOCKER:
        yield None
        return
    with Ahead(daemon.connect(), store, architecture(platform)) as ahead:
        yield ahead


def write(built: Built, output: Output, store: BlobStore, progress: Progress, ahead: Ahead | None = None) -> str:
    """Bring an image to its place, with its receipt where the place can hold one.

    Args:
        built: the image.
        output: the place.
        store: has the blobs.
        progress: where to report to.
        ahead: what has sent layers before.

    Returns:
        one line that says where it is.

    Raises:
        MachineError: no space, no permission, no engine.
    """
    image = built.image
    match output.kind:
        case Kind.LAYOUT:
            folder = Path(output.name)
            oci.begin_layout(folder)
            receipt.save(folder / RECEIPT, built.receipt)
            oci.write_layout(folder, store, image, built.receipt.reference)
            return f"OCI layout: {folder}"
        case Kind.ARCHIVE:
            path = Path(output.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            _check_space(path, image)
            with (
                progress.task(f"writing {path.name}", sum(layer.size for layer in image.layers)) as task,
                atomic_writer(path) as file,
            ):
                for data in oci.archive_members(store, image, built.receipt.reference):
                    file.write(data)
                    task.advance(len(data))
            receipt.save(Path(f"{path}.{RECEIPT}"), built.receipt)
            return f"archive: {path} (any engine: docker load -i {path})"
        case Kind.DOCKER:
            before = ahead.settle() if ahead is not None else frozenset()
            identity = daemon.send(daemon.connect(), store, image, output.name, progress, before)
            return f"Docker: {output.name} ({identity})"


def _check_space(path: Path, image: oci.Image) -> None:
    needed = sum(layer.size for layer in image.layers)
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise MachineError(
            f"{amount_text(needed, 'bytes')} needed, {amount_text(free, 'bytes')} free",
            where=path.parent,
            fix="free some space or choose another --output",
        )
