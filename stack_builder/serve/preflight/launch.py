"""What is about to start, and how a check answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stack_builder.diagnose.host import HostFacts, collect_host
from stack_builder.report import Finding, Skipped
from stack_builder.report.model import Json
from stack_builder.serve.place import Image, Place
from stack_builder.serve.plan import LaunchPlan
from stack_builder.serve.preflight.images import labels
from stack_builder.sglang.argv import value_of
from stack_builder.stack.spec import StackSpec, argument

_TENSOR = ("--tp-size", "--tp", "--tensor-parallel-size")
_PIPELINE = ("--pp-size", "--pp", "--pipeline-parallel-size")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch as its checks see it.

    Attributes:
        plan: what would be started.
        spec: its stack file.
        folder: of its stack; holds the lock.
        place: the environment or image that it would run in.
        architecture: such as ``sm_120``.
        host: facts of this machine.
        labels: of the image; None where it cannot be had, and for an environment.
        absent: why the image cannot be had, so that no start can work; else empty.
    """

    plan: LaunchPlan
    spec: StackSpec
    folder: Path
    place: Place
    architecture: str
    host: HostFacts
    labels: Mapping[str, str] | None = None
    absent: str = ""

    @classmethod
    def here(cls, plan: LaunchPlan, spec: StackSpec, folder: Path, place: Place, *, gpu: str | None = None) -> Launch:
        """Look at this machine and ask its engine for the image.

        ``gpu`` such as ``sm_120`` stands in for the machine's first one; without either the stack's is taken.
        """
        host = collect_host()
        architecture = gpu or (host.devices[0].architecture if host.devices else spec.stack.gpu[0])
        found, why_not = labels(place.reference, argument(folder)) if isinstance(place, Image) else (None, "")
        return cls(plan, spec, folder, place, architecture, host, found, why_not)

    @property
    def stack(self) -> str:
        """The stack as a user writes it: the name of one that ships with the tool, else its folder."""
        return argument(self.folder)

    @property
    def model_folders(self) -> tuple[Path, ...]:
        """Folders of target and draft, where they are folders and not names of a hub."""
        given = (self.plan.request.model, self.plan.request.draft)
        return tuple(Path(name) for name in given if name and Path(name).is_dir())

    @property
    def ranks(self) -> int:
        """Ranks of this node, each of which takes a GPU: tensor times pipeline parallelism over the nodes."""
        words = self.plan.server_arguments
        tensor, pipeline = value_of(words, *_TENSOR), value_of(words, *_PIPELINE)
        return max(_whole(tensor) * _whole(pipeline) // _whole(value_of(words, "--nnodes")), 1)


def _whole(text: str | None) -> int:
    """A positive number; 1 where it is not given, or not one (the check of the launch line says so)."""
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else 1


CANNOT_START = "cannot_start"
"""Fact of a report: why a start must fail, whatever the checks found or not. Absent where nothing is known of that."""


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: what was found, what could not be told and why, and facts for the report."""

    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)

    def __add__(self, other: Said) -> Said:
        return Said((*self.findings, *other.findings), (*self.skipped, *other.skipped), {**self.facts, **other.facts})


Check = Callable[[Launch], Said]
