"""What a base is, wherever it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stack_builder.image.rootfs import Rootfs
from stack_builder.image.store import BlobStore
from stack_builder.progress import Progress
from stack_builder.stack.receipt import BaseRecord, DebianPackage, LayerRecord

NEW = "new-"
"""How folders of the cache's ``base`` begin in which one is being made."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base whose layers are in the store.

    Attributes:
        record: for the receipt.
        layers: lowest first.
        environment: variables that it sets.
        rootfs: its unpacked files, or None where its programs cannot be run.
    """

    record: BaseRecord
    layers: tuple[LayerRecord, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    rootfs: Rootfs | None = None


@dataclass(frozen=True, slots=True)
class BaseRequest:
    """What a provider is asked for.

    Attributes:
        name: what follows the provider's name and a colon.
        platform: ``linux_x86_64``.
        python: ``3.11``.
        blobs: where its layers go.
        cache: folder for whatever it keeps.
        progress: where it reports to.
        offline: use no network.
        locked: refuse instead of pinning anew.
        update: pin anew, and write the recipe's lock.
        packages: the exact packages of an earlier build, instead of the recipe's lock.
        programs: whether programs of the base will be run, so that it must be unpacked.
    """

    name: str
    platform: str
    python: str
    blobs: BlobStore
    cache: Path
    progress: Progress
    offline: bool = False
    locked: bool = False
    update: bool = False
    packages: tuple[DebianPackage, ...] = ()
    programs: bool = True


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a provider would do.

    Attributes:
        step: in words.
        base: the base, where nothing is left to do.
    """

    step: str
    base: Base | None = None


class BaseProvider(Protocol):
    """A place that bases come from."""

    def provide(self, request: BaseRequest) -> Base:
        """Bring the base's layers into the store and, where its programs are needed, unpack it.

        Raises:
            UsageError: there is no such base, or it is for another platform.
            IntegrityError: bytes are not what a digest promises; with ``locked``, the pinned packages are gone.
            MachineError: a tool, the network or permission is missing.
        """

    def foresee(self, request: BaseRequest) -> Foreseen:
        """Say what :meth:`provide` would do, without network and without changing anything."""


def architecture(platform: str) -> str:
    """The name that Debian and OCI have for a platform: ``linux_x86_64`` is ``amd64``."""
    return {"linux_x86_64": "amd64", "linux_aarch64": "arm64"}[platform]
