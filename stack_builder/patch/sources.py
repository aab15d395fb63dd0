"""What a TARGET holds, for commands that only look: installed packages, a folder of wheels, the wheels of a lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import MachineError, UsageError
from stack_builder.patch import site as sites
from stack_builder.patch.site import Site
from stack_builder.patchset.distribution import Distribution
from stack_builder.patchset.wheel import from_wheel
from stack_builder.stack import lock, spec
from stack_builder.wheels import names
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.store import Store


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found.

    Attributes:
        distributions: by normalised name.
        site: where they are installed; None for wheels.
        wheels: their wheel files by normalised name; empty for what is installed.
    """

    distributions: Mapping[str, Distribution]
    site: Site | None
    wheels: Mapping[str, Path]


@contextmanager
def opened(target: TargetSpec, wanted: Set[str]) -> Iterator[Contents]:
    """Open the distributions ``wanted`` of a target for the time of the context.

    Raises:
        UsageError: the target holds none of them, or a wheel of one in two versions, or is of another kind than
            ``venv:``, ``python:``, ``wheels:`` and ``stack:``.
        MachineError: a wheel of the stack has not been fetched.
    """
    if target.kind in ("venv", "python"):
        site = sites.find(target, wanted)
        yield Contents(site.distributions(), site, {})
        return
    if target.kind == "wheels":
        wheels = _in_folder(target.path, wanted)
    elif target.kind == "stack":
        wheels = _in_store(target.value, wanted)
    else:
        raise UsageError(
            f"patches are looked for in installed packages and in wheels, not in {target.kind}:",
            fix="name venv:DIR, python:EXE, wheels:DIR or stack:NAME",
        )
    with ExitStack() as stack:
        distributions = {
            name: from_wheel(WheelArchive(stack.enter_context(path.open("rb")), path.name))
            for name, path in wheels.items()
        }
        yield Contents(distributions, None, wheels)


def _in_folder(folder: Path, wanted: Set[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.whl")):
        name = names.parse(path.name).distribution
        if name in wanted and name in found:
            raise UsageError(f"holds {name} twice", where=folder, fix="remove all but one of its wheels")
        if name in wanted:
            found[name] = path
    if not found:
        raise UsageError(f"holds no wheel of {' or '.join(sorted(wanted))}", where=folder, fix="name another folder")
    return found


def _in_store(stack: str, wanted: Set[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for artifact in lock.load(spec.find(stack)).artifacts:
        if artifact.name not in wanted:
            continue
        path = Store().find(artifact.sha256, artifact.filename, artifact.size) if artifact.sha256 else None
        if path is None:
            raise MachineError("has not been fetched", where=artifact.filename, fix=f"run stackb fetch {stack}")
        found[artifact.name] = path
    return found
