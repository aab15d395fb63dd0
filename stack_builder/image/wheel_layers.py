"""The layers of the wheels: read, decide, compile, write, and none of it twice."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
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
    Compiler,
    WheelJob,
    Workspace,
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
                # the last to end should not be the one that takes longest
                for a in sorted(missing, key=lambda a: (-a.size, a.name))
            }
            for done in finished(jobs):
                task.advance(jobs[done].size)

    def records(self, plans: tuple[LayerPlan, ...], dropped: Mapping[str, tuple[str, ...]]) -> Iterator[LayerRecord]:
        """Give the layers, lowest first and each as soon as it is there, writing those that no earlier build wrote.

        Args:
            plans: which wheels go where.
            dropped: by distribution, the paths that another wheel writes.

        Raises:
            IntegrityError: a file is not what RECORD says.
            MachineError: the base's Python fails, or a worker was killed.
        """
        keys = [self._layer_key(each, dropped) for each in plans]
        layers = {number: layer for number, each in enumerate(keys) if (layer := self._space.memory.get(each))}
        writing = self._write({n: each for n, each in enumerate(plans) if n not in layers}, dropped)
        for number, each in enumerate(plans):
            while number not in layers:
                done, layers[done] = next(writing)
                if self._work.options.keep:
                    self._space.memory.put(keys[done], layers[done])
                self._written.append(plans[done].title)
            yield layer_record(each.title, layers[number], each.wheels)
        next(writing, None)  # lets it come to its end

    def _layer_key(self, each: LayerPlan, dropped: Mapping[str, tuple[str, ...]]) -> str:
        rows = [self.key_of(wheel, dropped) for wheel in each.wheels]
        return key("wheels", self._place.prefix, self._place.python, rows)

    def key_of(self, wheel: WheelRecord, dropped: Mapping[str, tuple[str, ...]]) -> list[object]:
        """Give what decides the bytes of a wheel in a layer."""
        pack = self._pack_key(wheel) if self._work.bytecode else None
        return [wheel.filename, wheel.sha256, dropped.get(wheel.name, ()), pack]

    def _write(
        self, plans: Mapping[int, LayerPlan], dropped: Mapping[str, tuple[str, ...]]
    ) -> Generator[tuple[int, Written]]:
        """Compile and write layers; gives each as it ends.

        They are begun from the lowest up, since an engine can unpack one only on top of those below
        (:mod:`stack_builder.image.ahead`).
        """
        if not plans:
            return
        sizes = {number: sum(a.size for a in each.wheels) for number, each in plans.items()}
        with (
            self._work.progress.task("writing layers", sum(sizes.values())) as task,
            workers(self._work.options.jobs, len(plans)) as pool,
        ):
            jobs = {
                pool.submit(
                    write_layer,
                    self._space.blobs.root if self._work.options.keep else None,
                    tuple(self.job(a, frozenset(dropped.get(a.name, ()))) for a in each.wheels),
                ): number
                for number, each in sorted(plans.items())
            }
            for done in finished(jobs):
                task.advance(sizes[jobs[done]])
                yield jobs[done], done.result()

    def job(self, artifact: WheelRecord, dropped: frozenset[str]) -> WheelJob:
        """Describe a wheel to a worker."""
        rootfs = self._work.base.rootfs
        return WheelJob(
            wheel=self._work.wheels[artifact.filename],
            filename=artifact.filename,
            kept=self._space.contents(artifact.sha256, self._place),
            dropped=dropped,
            pack=self._space.pack(self._pack_key(artifact)) if self._work.bytecode else None,
            compiler=Compiler(self._place.python, rootfs.path) if rootfs is not None else None,
        )

    def _pack_key(self, artifact: WheelRecord) -> str:
        return key(
            "bytecode", self._work.chain, PROGRAM_SHA256, self._place.prefix, self._place.python, artifact.sha256
        )
