"""The layers of the wheels: read, decide, compile, write, and none of it twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from stack_builder.image import layout as layouts
from stack_builder.image import plan
from stack_builder.image.base.model import Base
from stack_builder.image.bytecode import PROGRAM_SHA256
from stack_builder.image.contents import Place
from stack_builder.image.layout import Layout
from stack_builder.image.plan import LayerPlan
from stack_builder.image.settings import ImageSettings, load
from stack_builder.image.store import layer_record
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
from stack_builder.stack.receipt import DebianPackage, LayerRecord, WheelRecord

OTHER_LAYERS = 3  # besides base and wheels: environment, patches, linker


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
        keep: whether the layers of wheels are kept; without, only their digests are known afterwards.
    """

    base: str
    bytecode: bool = True
    locked: bool = False
    offline: bool = False
    update_base: bool = False
    base_packages: tuple[DebianPackage, ...] = ()
    jobs: int | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that one build knows from its start.

    Attributes:
        subject: what the image is made of.
        wheels: a file for each wheel's file name.
        options: how to build.
        space: the cache.
        progress: where to report to.
        base: the base.
        settings: ``docker/image.toml``.
        place: of the environment.
        chain: identity of the base's files.
    """

    subject: Subject
    wheels: Mapping[str, Path]
    options: Options
    space: Workspace
    progress: Progress
    base: Base
    settings: ImageSettings
    place: Place
    chain: str

    @classmethod
    def of(
        cls,
        subject: Subject,
        wheels: Mapping[str, Path],
        options: Options,
        space: Workspace,
        progress: Progress,
        base: Base,
    ) -> Work:
        """Add what follows from the rest."""
        settings = load()
        place = Place(settings.python.prefix.strip("/"), subject.python)
        chain = key([layer.diff_id for layer in base.layers])
        return cls(subject, wheels, options, space, progress, base, settings, place, chain)

    @property
    def bytecode(self) -> bool:
        """Whether modules are compiled."""
        return self.options.bytecode and self.base.rootfs is not None


class WheelLayers:
    """The wheels of one build.

    Args:
        work: the build.
        written: titles of layers that had to be written are added here.
    """

    def __init__(self, work: Work, written: list[str]) -> None:
        self._work, self._subject, self._space, self._place = work, work.subject, work.space, work.place
        self._written = written

    def plans(self) -> tuple[LayerPlan, ...]:
        """Which wheel goes into which layer."""
        others = len(self._work.base.layers) + OTHER_LAYERS
        return plan.arrange(self._subject.wheels, self._work.settings.layers, others)

    def foresee(self) -> tuple[int, tuple[str, ...]]:
        """How many layers of wheels are there, and the titles of the others."""
        plans = self.plans()
        kept = {a.name: self._space.contents(a.sha256, self._place) for a in self._subject.wheels}
        known = {name: load_contents(path) for name, path in kept.items() if path.is_file()}
        dropped = layouts.derive(known, self._subject, self._place, self._work.settings).dropped
        missing = [
            each.title
            for each in plans
            if any(a.name not in known for a in each.wheels)
            or self._space.memory.get(self._layer_key(each, dropped)) is None
        ]
        return len(plans) - len(missing), tuple(missing)

    @property
    def _layout_path(self) -> Path:
        subject = self._subject
        rules = [[sorted(rule.packages), rule.winner, rule.reason] for rule in subject.rules]
        wheels = [[wheel.name, wheel.sha256] for wheel in subject.wheels]
        settings = self._work.settings.model_dump()
        name = key("layout", wheels, rules, subject.cuda, self._place.prefix, self._place.python, settings)
        return self._space.root / "layouts" / f"{name}.json"

    def layout(self) -> Layout:
        """How the wheels lie together; wheels not seen before are hashed and read."""
        kept = {a.name: self._space.contents(a.sha256, self._place) for a in self._subject.wheels}
        missing = [a for a in self._subject.wheels if not kept[a.name].is_file()]
        layout = layouts.load(self._layout_path)
        if missing:
            self._read(missing)
        if layout is None:
            contents = {name: load_contents(path) for name, path in kept.items()}
            layout = layouts.derive(contents, self._subject, self._place, self._work.settings)
            layouts.save(self._layout_path, layout)
        return layout

    def _read(self, missing: Sequence[WheelRecord]) -> None:
        total = sum(a.size for a in missing)
        with (
            self._work.progress.task("reading wheels", total) as task,
            workers(self._work.options.jobs, len(missing)) as pool,
        ):
            jobs = {
                pool.submit(
                    read_contents,
                    self._work.wheels[a.filename],
                    a.filename,
                    a.sha256,
                    self._place,
                    self._space.contents(a.sha256, self._place),
                ): a
                for a in _largest_first(missing)
            }
            for done in finished(jobs):
                task.advance(jobs[done].size)

    def records(self, plans: tuple[LayerPlan, ...], dropped: Mapping[str, tuple[str, ...]]) -> Iterator[LayerRecord]:
        """Give the layers, lowest first, writing those that no earlier build wrote.

        Args:
            plans: which wheels go where.
            dropped: by distribution, the paths that another wheel writes.

        Raises:
            IntegrityError: a file is not what RECORD says.
            MachineError: the base's Python fails, or a worker was killed.
        """
        keys = [self._layer_key(each, dropped) for each in plans]
        layers = {number: layer for number, each in enumerate(keys) if (layer := self._space.memory.get(each))}
        missing = {number: each for number, each in enumerate(plans) if number not in layers}
        if missing:
            uncompiled = self._uncompiled([wheel for each in missing.values() for wheel in each.wheels])
            with workers(self._work.options.jobs, max(len(missing), len(uncompiled))) as pool:
                self._compile(pool, uncompiled)
                for number, written in self._write(pool, missing, dropped):
                    layers[number] = written
                    if self._work.options.keep:
                        self._space.memory.put(keys[number], written)
                    self._written.append(plans[number].title)
        return (layer_record(each.title, layers[number], each.wheels) for number, each in enumerate(plans))

    def _layer_key(self, each: LayerPlan, dropped: Mapping[str, tuple[str, ...]]) -> str:
        rows = [self.key_of(wheel, dropped) for wheel in each.wheels]
        return key("wheels", self._place.prefix, self._place.python, rows)

    def key_of(self, wheel: WheelRecord, dropped: Mapping[str, tuple[str, ...]]) -> list[object]:
        """Give what decides the bytes of a wheel in a layer."""
        pack = self._pack_key(wheel) if self._work.bytecode else None
        return [wheel.filename, wheel.sha256, dropped.get(wheel.name, ()), pack]

    def _uncompiled(self, wheels: Iterable[WheelRecord]) -> list[WheelRecord]:
        return [a for a in wheels if self._work.bytecode and not self._space.pack(self._pack_key(a)).is_file()]

    def _compile(self, pool: Executor, todo: Sequence[WheelRecord]) -> None:
        if not todo or self._work.base.rootfs is None:
            return
        root = self._work.base.rootfs.path
        sizes = {a.filename: self._source_bytes(a) for a in todo}
        with self._work.progress.task("compiling bytecode", sum(sizes.values())) as task:
            jobs = {
                pool.submit(
                    compile_wheel,
                    self._work.wheels[a.filename],
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

        with self._work.progress.task("writing layers", sum(map(weight, plans))) as task:
            jobs = {
                pool.submit(
                    write_layer,
                    self._space.blobs.root if self._work.options.keep else None,
                    tuple(self.job(a, frozenset(dropped.get(a.name, ()))) for a in plans[number].wheels),
                ): number
                for number in sorted(plans, key=weight, reverse=True)
            }
            for done in finished(jobs):
                task.advance(weight(jobs[done]))
                yield jobs[done], done.result()

    def job(self, artifact: WheelRecord, dropped: frozenset[str]) -> WheelJob:
        """Describe a wheel to a worker."""
        return WheelJob(
            wheel=self._work.wheels[artifact.filename],
            filename=artifact.filename,
            kept=self._space.contents(artifact.sha256, self._place),
            dropped=dropped,
            pack=self._space.pack(self._pack_key(artifact)) if self._work.bytecode else None,
        )

    def _pack_key(self, artifact: WheelRecord) -> str:
        return key(
            "bytecode", self._work.chain, PROGRAM_SHA256, self._place.prefix, self._place.python, artifact.sha256
        )


def _largest_first(wheels: Iterable[WheelRecord]) -> list[WheelRecord]:
    """The last to end should not be the one that takes longest."""
    return sorted(wheels, key=lambda a: (-(a.size), a.name))
