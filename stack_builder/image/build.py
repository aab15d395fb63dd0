"""From a lock and its wheels to an image: what is missing is made, everything else is taken from the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stack_builder import __version__
from stack_builder.errors import UsageError
from stack_builder.image import environment, linker, oci, plan
from stack_builder.image import layout as layouts
from stack_builder.image import patches as patching
from stack_builder.image.base.model import Base, BaseRequest
from stack_builder.image.base.providers import choose
from stack_builder.image.bytecode import PROGRAM_SHA256
from stack_builder.image.config import config_of
from stack_builder.image.contents import Place
from stack_builder.image.layout import Layout
from stack_builder.image.oci import Image
from stack_builder.image.patches import Patching
from stack_builder.image.plan import LayerPlan
from stack_builder.image.rootfs import can_enter
from stack_builder.image.settings import LAYOUT_VERSION, ImageSettings, load
from stack_builder.image.store import layer_record, locked
from stack_builder.image.stream import Written
from stack_builder.image.subject import Subject
from stack_builder.image.workspace import (
    WheelJob,
    Workspace,
    compile_wheel,
    finished,
    key,
    load_contents,
    read_contents,
    workers,
    write_layer,
)
from stack_builder.progress import Progress
from stack_builder.stack.receipt import DebianPackage, LayerRecord, PatchRecord, Receipt, WheelRecord, save
from stack_builder.wheels.store import Store

_OTHER_LAYERS = 3  # environment, patches, linker


@dataclass(frozen=True, slots=True)
class Options:
    """How to build.

    Attributes:
        base: ``KIND:NAME``.
        bytecode: compile the modules.
        locked: refuse whatever the locks do not name exactly.
        offline: use no network.
        update_base: pin the recipe's packages anew.
        base_packages: the exact packages of an earlier build.
        jobs: worker processes; None for one per core.
    """

    base: str
    bytecode: bool = True
    locked: bool = False
    offline: bool = False
    update_base: bool = False
    base_packages: tuple[DebianPackage, ...] = ()
    jobs: int | None = None


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


def build(
    subject: Subject, wheels: Mapping[str, Path], options: Options, space: Workspace, progress: Progress
) -> Built:
    """Build an image into the store of ``space``. Neither resolves nor downloads wheels.

    Args:
        subject: what it is made of.
        wheels: a file for each wheel's file name.
        options: how.
        space: the cache.
        progress: where to report to.

    Raises:
        UsageError: the base has no such Python, or there are too many layers.
        IntegrityError: a wheel is not what the lock or its own RECORD says; wheels collide and no winner is named.
        MachineError: a tool, permission or space is missing.
    """
    if options.bytecode and (reason := can_enter()):
        raise UsageError(f"bytecode cannot be compiled here: {reason}", fix="run as root or give --no-bytecode")
    space.blobs.sweep()
    base = _base(subject, options, space, progress)
    return _Build(subject, wheels, options, space, progress, base).run()


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
    titles = tuple(p.title for p in plan.arrange(subject.wheels, load().layers, 1 + _OTHER_LAYERS))
    reuse = 0
    if foreseen.base is not None:
        reuse, titles = _Build(subject, {}, options, space, progress, foreseen.base).foresee()
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

    def __init__(
        self,
        subject: Subject,
        wheels: Mapping[str, Path],
        options: Options,
        space: Workspace,
        progress: Progress,
        base: Base,
    ) -> None:
        self._subject, self._wheels, self._options = subject, wheels, options
        self._space, self._progress, self._base = space, progress, base
        self._settings: ImageSettings = load()
        self._place = Place(self._settings.python.prefix.strip("/"), subject.python)
        self._chain = key([layer.diff_id for layer in base.layers])
        self._written: list[str] = []

    def run(self) -> Built:
        layout = self._layout()
        plans = plan.arrange(self._subject.wheels, self._settings.layers, len(self._base.layers) + _OTHER_LAYERS)
        layers = (
            *self._base.layers,
            self._skeleton(),
            *self._wheel_layers(plans, layout.dropped),
            *self._patches(layout.dropped),
            self._finish(layout),
        )
        return self._assemble(layers, layout)

    def foresee(self) -> tuple[int, tuple[str, ...]]:
        """How many layers of wheels are there, and the titles of the others."""
        plans = plan.arrange(self._subject.wheels, self._settings.layers, len(self._base.layers) + _OTHER_LAYERS)
        kept = {a.name: self._space.contents(a.sha256, self._place) for a in self._subject.wheels}
        known = {name: load_contents(path) for name, path in kept.items() if path.is_file()}
        dropped = layouts.derive(known, self._subject, self._place, self._settings).dropped
        missing = [
            each.title
            for each in plans
            if any(a.name not in known for a in each.wheels)
            or self._space.memory.get(self._layer_key(each, dropped)) is None
        ]
        return len(plans) - len(missing), tuple(missing)

    # --- wheels --------------------------------------------------------------------------------------------------

    @property
    def _layout_path(self) -> Path:
        subject = self._subject
        rules = [[sorted(rule.packages), rule.winner, rule.reason] for rule in subject.rules]
        wheels = [[wheel.name, wheel.sha256] for wheel in subject.wheels]
        settings = self._settings.model_dump()
        name = key("layout", wheels, rules, subject.cuda, self._place.prefix, self._place.python, settings)
        return self._space.root / "layouts" / f"{name}.json"

    def _layout(self) -> Layout:
        """How the wheels lie together; wheels not seen before are hashed and read."""
        kept = {a.name: self._space.contents(a.sha256, self._place) for a in self._subject.wheels}
        missing = [a for a in self._subject.wheels if not kept[a.name].is_file()]
        layout = layouts.load(self._layout_path)
        if missing:
            self._read(missing)
        if layout is None:
            contents = {name: load_contents(path) for name, path in kept.items()}
            layout = layouts.derive(contents, self._subject, self._place, self._settings)
            layouts.save(self._layout_path, layout)
        return layout

    def _read(self, missing: Sequence[WheelRecord]) -> None:
        total = sum(a.size for a in missing)
        with self._progress.task("reading wheels", total) as task, workers(self._options.jobs, len(missing)) as pool:
            jobs = {
                pool.submit(
                    read_contents,
                    self._wheels[a.filename],
                    a.filename,
                    a.sha256,
                    self._place,
                    self._space.contents(a.sha256, self._place),
                ): a
                for a in _largest_first(missing)
            }
            for done in finished(jobs):
                task.advance(jobs[done].size)

    def _wheel_layers(
        self, plans: tuple[LayerPlan, ...], dropped: Mapping[str, tuple[str, ...]]
    ) -> Iterator[LayerRecord]:
        keys = [self._layer_key(each, dropped) for each in plans]
        layers = {number: layer for number, each in enumerate(keys) if (layer := self._space.memory.get(each))}
        missing = {number: each for number, each in enumerate(plans) if number not in layers}
        if missing:
            uncompiled = self._uncompiled([wheel for each in missing.values() for wheel in each.wheels])
            with workers(self._options.jobs, max(len(missing), len(uncompiled))) as pool:
                self._compile(pool, uncompiled)
                for number, written in self._write(pool, missing, dropped):
                    layers[number] = written
                    self._space.memory.put(keys[number], written)
                    self._written.append(plans[number].title)
        return (layer_record(each.title, layers[number], each.wheels) for number, each in enumerate(plans))

    def _layer_key(self, each: LayerPlan, dropped: Mapping[str, tuple[str, ...]]) -> str:
        rows = [self._wheel_key(wheel, dropped) for wheel in each.wheels]
        return key("wheels", self._place.prefix, self._place.python, rows)

    def _wheel_key(self, wheel: WheelRecord, dropped: Mapping[str, tuple[str, ...]]) -> list[object]:
        pack = self._pack_key(wheel) if self._bytecode else None
        return [wheel.filename, wheel.sha256, dropped.get(wheel.name, ()), pack]

    def _uncompiled(self, wheels: Iterable[WheelRecord]) -> list[WheelRecord]:
        return [a for a in wheels if self._bytecode and not self._space.pack(self._pack_key(a)).is_file()]

    def _compile(self, pool: Executor, todo: Sequence[WheelRecord]) -> None:
        if not todo or self._base.rootfs is None:
            return
        root = self._base.rootfs.path
        sizes = {a.filename: self._source_bytes(a) for a in todo}
        with self._progress.task("compiling bytecode", sum(sizes.values())) as task:
            jobs = {
                pool.submit(
                    compile_wheel,
                    self._wheels[a.filename],
                    self._space.contents(a.sha256, self._place),
                    self._place.python,
                    root,
                    self._space.pack(self._pack_key(a)),
                ): sizes[a.filename]
                for a in sorted(todo, key=lambda a: sizes[a.filename], reverse=True)
            }
            for done in finished(jobs):
                task.advance(jobs[done])

    def _source_bytes(self, artifact: WheelRecord) -> int:
        contents = load_contents(self._space.contents(artifact.sha256, self._place))
        return sum(file.size for file in contents.files if file.path.endswith(".py"))

    def _write(
        self, pool: Executor, plans: Mapping[int, LayerPlan], dropped: Mapping[str, tuple[str, ...]]
    ) -> Iterable[tuple[int, Written]]:
        def weight(number: int) -> int:
            return sum(a.size for a in plans[number].wheels)

        with self._progress.task("writing layers", sum(map(weight, plans))) as task:
            jobs = {
                pool.submit(
                    write_layer,
                    self._space.blobs.root,
                    tuple(self._job(a, frozenset(dropped.get(a.name, ()))) for a in plans[number].wheels),
                ): number
                for number in sorted(plans, key=weight, reverse=True)
            }
            for done in finished(jobs):
                task.advance(weight(jobs[done]))
                yield jobs[done], done.result()

    def _job(self, artifact: WheelRecord, dropped: frozenset[str]) -> WheelJob:
        return WheelJob(
            wheel=self._wheels[artifact.filename],
            filename=artifact.filename,
            kept=self._space.contents(artifact.sha256, self._place),
            dropped=dropped,
            pack=self._space.pack(self._pack_key(artifact)) if self._bytecode else None,
        )

    @property
    def _bytecode(self) -> bool:
        return self._options.bytecode and self._base.rootfs is not None

    def _pack_key(self, artifact: WheelRecord) -> str:
        return key("bytecode", self._chain, PROGRAM_SHA256, self._place.prefix, self._place.python, artifact.sha256)

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
                job = self._job(wheels[name], frozenset(dropped.get(name, ())))
                sources[name] = job.source()
            rootfs = self._base.rootfs if self._bytecode else None
            return patching.write_patches(sink, Patching(patches, sources, self._place.python, rootfs))

        inputs = [self._wheel_key(wheels[name], dropped) for name in names]
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

        layer_key = key("finish", self._chain, rootfs is not None, layout.folders, layout.libraries, layout.links)
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
            config_of(self._subject, self._base, self._place, self._settings, layout.folders, self._bytecode),
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
            bytecode=self._bytecode,
            layers=layers,
            config_digest=image.config_digest,
            manifest_digest=image.manifest_digest,
            reference=reference(subject.stack, subject.gpu),
        )
        save(self._space.receipts / f"{image.manifest_digest.removeprefix('sha256:')}.json", receipt)
        return Built(image, receipt, tuple(self._written), layout.files)


def _largest_first(wheels: Iterable[WheelRecord]) -> list[WheelRecord]:
    """The last to end should not be the one that takes longest."""
    return sorted(wheels, key=lambda a: (-(a.size), a.name))
