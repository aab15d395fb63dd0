"""From a lock and its wheels to an image: what is missing is made, everything else is taken from the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stack_builder import __version__
from stack_builder.errors import UsageError
from stack_builder.image import environment, linker, oci, plan
from stack_builder.image import patches as patching
from stack_builder.image.base.model import Base, BaseRequest
from stack_builder.image.base.providers import choose
from stack_builder.image.config import config_of
from stack_builder.image.layout import Layout
from stack_builder.image.oci import Image
from stack_builder.image.patches import Patching
from stack_builder.image.rootfs import can_enter
from stack_builder.image.settings import LAYOUT_VERSION, load
from stack_builder.image.store import layer_record, locked
from stack_builder.image.stream import Written
from stack_builder.image.subject import Subject
from stack_builder.image.wheel_layers import OTHER_LAYERS, Options, WheelLayers, Work
from stack_builder.image.workspace import (
    Workspace,
    key,
)
from stack_builder.progress import Progress
from stack_builder.stack.receipt import LayerRecord, PatchRecord, Receipt, save
from stack_builder.wheels.store import Store


@dataclass(frozen=True, slots=True)
class Built:
    """An image in the store.

    Attributes:
        image: digests and layers.
        receipt: what it was made of.
        written: titles of the layers that this build wrote; the others were there.
        files: how many files the wheels install.
    """

    image: Image
    receipt: Receipt
    written: tuple[str, ...]
    files: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a build would do.

    Attributes:
        fetch: how many wheels it would fetch first.
        fetch_bytes: their size.
        base: what it would do for the base.
        write: titles of the layers of wheels that it would write.
        reuse: how many it would not.
        exact: False where the base must be had before more can be said.
    """

    fetch: int
    fetch_bytes: int
    base: str
    write: tuple[str, ...]
    reuse: int
    exact: bool


def reference(stack: str, gpu: str) -> str:
    """The name that an image gets unless the user chooses one."""
    return f"stackb/{stack}:{gpu}"


Arrived = Callable[[tuple[LayerRecord, ...]], None]
"""Told of the layers that are in the store, lowest first, each time that they have become more."""


def build(
    subject: Subject,
    wheels: Mapping[str, Path],
    options: Options,
    space: Workspace,
    progress: Progress,
    arrived: Arrived | None = None,
) -> Built:
    """Build an image into the store of ``space``. Neither resolves nor downloads wheels.

    Args:
        subject: what it is made of.
        wheels: a file for each wheel's file name.
        options: how.
        space: the cache.
        progress: where to report to.
        arrived: told of layers before the image is whole.

    Raises:
        UsageError: the base has no such Python, or there are too many layers.
        IntegrityError: a wheel is not what the lock or its own RECORD says; wheels collide and no winner is named.
        MachineError: a tool, permission or space is missing.
    """
    if options.bytecode and (reason := can_enter()):
        raise UsageError(f"bytecode cannot be compiled here: {reason}", fix="run as root or give --no-bytecode")
    space.blobs.sweep()
    base = _base(subject, options, space, progress)
    return _Build(Work.of(subject, wheels, options, space, progress, base)).run(arrived)


def forecast(subject: Subject, store: Store, options: Options, space: Workspace, progress: Progress) -> Forecast:
    """Say what :func:`build` would do now, and do nothing.

    Args:
        subject: what the image is made of.
        store: where wheels would be looked for.
        options: how to build.
        space: the cache.
        progress: where to report to.
    """
    provider, name = choose(options.base)
    request = _request(name, subject, options, space, progress)
    foreseen = provider.foresee(request)
    missing = [a for a in subject.wheels if store.find(a.sha256, a.filename, a.size) is None]
    titles = tuple(p.title for p in plan.arrange(subject.wheels, load().layers, 1 + OTHER_LAYERS))
    reuse = 0
    if foreseen.base is not None:
        work = Work.of(subject, {}, options, space, progress, foreseen.base)
        reuse, titles = WheelLayers(work, []).foresee()
    return Forecast(len(missing), sum(a.size for a in missing), foreseen.step, titles, reuse, foreseen.base is not None)


def _base(subject: Subject, options: Options, space: Workspace, progress: Progress) -> Base:
    provider, name = choose(options.base)
    base = provider.provide(_request(name, subject, options, space, progress))
    interpreter = f"usr/bin/python{subject.python}"
    if base.rootfs and not (base.rootfs.path / interpreter).is_file():
        raise UsageError(f"has no /{interpreter}", where=base.record.source, fix="choose another base with --base")
    return base


def _request(name: str, subject: Subject, options: Options, space: Workspace, progress: Progress) -> BaseRequest:
    return BaseRequest(
        name=name,
        platform=subject.platform,
        python=subject.python,
        blobs=space.blobs,
        cache=space.root,
        progress=progress,
        offline=options.offline,
        locked=options.locked,
        update=options.update_base,
        packages=options.base_packages,
        programs=options.bytecode,
    )


class _Build:
    """One run of :func:`build`."""

    def __init__(self, work: Work) -> None:
        self._work, self._subject, self._space = work, work.subject, work.space
        self._base, self._place = work.base, work.place
        self._written: list[str] = []
        self._wheels = WheelLayers(work, self._written)

    def run(self, arrived: Arrived | None) -> Built:
        layout = self._wheels.layout()
        layers: tuple[LayerRecord, ...] = ()
        for layer in self._layers(layout):
            layers = (*layers, layer)
            if arrived is not None:
                arrived(layers)
        return self._assemble(layers, layout)

    def _layers(self, layout: Layout) -> Iterator[LayerRecord]:
        yield from self._base.layers
        yield self._skeleton()
        yield from self._wheels.records(self._wheels.plans(), layout.dropped)
        yield from self._patches(layout.dropped)
        yield self._finish(layout)

    # --- the layers that are no wheels' ----------------------------------------------------------------------------

    def _skeleton(self) -> LayerRecord:
        place = self._place
        layer_key = key("skeleton", place.prefix, place.python)
        return self._remember("virtual environment", layer_key, lambda sink: environment.write_skeleton(sink, place))

    def _patches(self, dropped: Mapping[str, tuple[str, ...]]) -> Iterator[LayerRecord]:
        """The layer of the stack's patches, if it has any."""
        wheels = {wheel.name: wheel for wheel in self._subject.wheels}
        patches = self._subject.patches
        names = patching.distributions(patches, wheels)
        if not names:
            return

        def produce(sink: BinaryIO) -> Written:
            sources = {}
            for name in names:
                job = self._wheels.job(wheels[name], frozenset(dropped.get(name, ())))
                sources[name] = job.source()
            rootfs = self._base.rootfs if self._work.bytecode else None
            return patching.write_patches(sink, Patching(patches, sources, self._place.python, rootfs))

        inputs = [self._wheels.key_of(wheels[name], dropped) for name in names]
        layer_key = key("patches", self._place.prefix, [[p.id, p.sha256] for p in patches], inputs, __version__)
        yield self._remember("patches", layer_key, produce)

    def _finish(self, layout: Layout) -> LayerRecord:
        """The topmost layer: what makes libraries and the CUDA toolkit found."""
        rootfs, platform = self._base.rootfs, self._subject.platform

        def produce(sink: BinaryIO) -> Written:
            files = [(linker.CONF, linker.conf(layout.folders))]
            if rootfs is not None:
                with locked(rootfs.path.with_suffix(".lock")):
                    cache = linker.make_cache(rootfs, layout.folders, layout.libraries, layout.links, platform)
                files.append((linker.CACHE, cache))
            return environment.write_finish(sink, layout.links, files)

        layer_key = key("finish", self._work.chain, rootfs is not None, layout.folders, layout.libraries, layout.links)
        return self._remember("linker and toolkit", layer_key, produce)

    def _remember(self, title: str, layer_key: str, produce: Callable[[BinaryIO], Written]) -> LayerRecord:
        layer = self._space.memory.get(layer_key)
        if layer is None:
            layer = self._space.blobs.write(produce)
            self._space.memory.put(layer_key, layer)
            self._written.append(title)
        return layer_record(title, layer)

    # --- the whole ---------------------------------------------------------------------------------------------------

    def _assemble(self, layers: tuple[LayerRecord, ...], layout: Layout) -> Built:
        image = oci.assemble(
            self._space.blobs,
            config_of(self._subject, self._base, self._place, self._work.settings, layout.folders, self._work.bytecode),
            layers,
        )
        subject = self._subject
        receipt = Receipt(
            tool=__version__,
            layout=LAYOUT_VERSION,
            stack=subject.stack,
            description=subject.description,
            python=subject.python,
            platform=subject.platform,
            cuda=subject.cuda,
            gpu=subject.gpu,
            lock_sha256=subject.lock_sha256,
            base=self._base.record,
            wheels=subject.wheels,
            decisions=layout.decisions,
            patches=tuple(PatchRecord(patch.id, patch.sha256, patch.text) for patch in subject.patches),
            bytecode=self._work.bytecode,
            layers=layers,
            config_digest=image.config_digest,
            manifest_digest=image.manifest_digest,
            reference=reference(subject.stack, subject.gpu),
        )
        save(self._space.receipts / f"{image.manifest_digest.removeprefix('sha256:')}.json", receipt)
        return Built(image, receipt, tuple(self._written), layout.files)
