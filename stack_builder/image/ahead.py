"""The lower layers of an image into a Docker engine while the upper ones are still being written.

An engine unpacks a layer on top of those below it, one after the other, and takes as long for it as writing them all.
So it is let pull an image of those that are there, then one of more, each of which continues where the one before
ended. None of this has to succeed: what the engine lacks in the end is sent with the image itself.

Measured on Docker 20.10, default stack, two cores, nothing in any cache: 195 s (on a busier machine) where it took
230 s to write everything first.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Condition, Thread
from types import TracebackType
from typing import TYPE_CHECKING

from stack_builder.files import claimed, claimed_file
from stack_builder.image import daemon, oci
from stack_builder.image.store import BlobStore
from stack_builder.stack.receipt import LayerRecord

if TYPE_CHECKING:
    import docker

_PATIENCE = 3.0  # seconds of building before anything is sent ahead, and between two images: most builds are shorter

_UNFINISHED = "dev.stackb.unfinished"
"""Label of the images on the way: names a file that their build claims; without that claim they were left behind."""


class Ahead:
    """Sends layers from a thread while the context lasts; at its end the engine keeps nothing that no image uses.

    Args:
        client: the engine.
        store: has the layers.
        architecture: ``amd64``.
    """

    def __init__(self, client: docker.DockerClient, store: BlobStore, architecture: str) -> None:
        self._client, self._store = client, store
        self._architecture = architecture
        self._layers: tuple[LayerRecord, ...] = ()
        self._changed = Condition()
        self._over = self._abandoned = False
        self._images: list[tuple[str, oci.Image]] = []  # with the name in the engine
        self._sent: set[str] = set()
        self._thread = Thread(target=self._run, name="sending ahead", daemon=True)
        self._standing = ExitStack()

    def arrived(self, layers: tuple[LayerRecord, ...]) -> None:
        """Say which layers can be sent, lowest first."""
        with self._changed:
            self._layers = layers
            self._changed.notify()

    def settle(self) -> frozenset[str]:
        """Begin nothing more, and wait for what is under way: it would have to be sent in any case.

        Returns:
            digests of what was sent.
        """
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()
        return frozenset(self._sent)

    def __enter__(self) -> Ahead:
        self._store.partial.mkdir(parents=True, exist_ok=True)
        claim, _ = self._standing.enter_context(claimed_file(self._store.partial, prefix="ahead-"))
        self._config = oci.ImageConfig(self._architecture, {}, (), {_UNFINISHED: claim.name})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._standing:
            self._abandoned = kind is not None
            self.settle()
            for name, image in self._images:
                self._forget(name, image)

    def _run(self) -> None:
        with suppress(*daemon.failures(), OSError):
            for other in self._client.images.list(filters={"label": _UNFINISHED}):
                claim = Path(other.labels[_UNFINISHED]).name
                if not claimed(self._store.partial / claim):  # its build was killed
                    self._client.images.remove(other.id, force=True)
            sent = 0
            while len(layers := self._next(sent)) > sent:
                image = oci.assemble(self._store, self._config, layers)
                with daemon.Registry(self._store, image) as registry:
                    self._images.append((registry.reference, image))
                    for event in self._client.api.pull(registry.reference, stream=True, decode=True):
                        if self._abandoned or "error" in event:
                            return
                    self._sent |= registry.sent
                sent = len(layers)

    def _next(self, sent: int) -> tuple[LayerRecord, ...]:
        """Wait for layers beyond those that were sent; gives no more than these when it is over."""
        with self._changed:
            if self._changed.wait_for(lambda: self._over, timeout=_PATIENCE):
                return ()
            self._changed.wait_for(lambda: self._over or len(self._layers) > sent)
            return () if self._over else self._layers

    def _forget(self, name: str, image: oci.Image) -> None:
        """Remove an unfinished image; the layers stay that are a finished one's, too."""
        with suppress(*daemon.failures()):
            self._client.images.remove(name)
        for digest in (image.manifest_digest, image.config_digest):
            self._store.path(digest).unlink(missing_ok=True)
