"""What a TARGET holds, for commands that only look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import UsageError
from stack_builder.patch import site as sites
from stack_builder.patch.site import Site
from stack_builder.patchset.distribution import Distribution
from stack_builder.patchset.wheel import from_wheel
from stack_builder.wheels import names
from stack_builder.wheels.archive import WheelArchive


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found.

    Attributes:
        distributions: by normalised name.
        site: where they are installed; None for wheels.
    """

    distributions: Mapping[str, Distribution]
    site: Site | None = None


@contextmanager
def opened(target: TargetSpec, wanted: Set[str]) -> Iterator[Contents]:
    """Open the distributions ``wanted`` of ``venv:``, ``python:`` or ``wheels:`` for the time of the context.

    Raises:
        UsageError: another kind of target, or it holds none of them, or a wheel of one in two versions.
    """
    if target.kind in ("venv", "python"):
        site = sites.find(target, wanted)
        yield Contents(site.distributions(), site)
    elif target.kind == "wheels":
        with ExitStack() as stack:
            yield Contents(_wheels(target.path, wanted, stack))
    else:
        raise UsageError(
            f"patches are looked for in venv:DIR, python:EXE and wheels:DIR, not in {target.kind}:",
            fix="name a folder of wheels or an environment",
        )


def _wheels(folder: Path, wanted: Set[str], stack: ExitStack) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    for path in sorted(folder.glob("*.whl")):
        name = names.parse(path.name).distribution
        if name not in wanted:
            continue
        if name in found:
            raise UsageError(f"holds {name} twice", where=folder, fix="remove all but one of its wheels")
        found[name] = from_wheel(WheelArchive(stack.enter_context(path.open("rb")), path.name))
    if not found:
        raise UsageError(f"holds no wheel of {' or '.join(sorted(wanted))}", where=folder, fix="name another folder")
    return found
