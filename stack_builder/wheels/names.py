"""What a wheel's file name says: distribution, version, tags, and the glibc that its platform tag asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.utils import parse_wheel_filename

from stack_builder.errors import UsageError
from stack_builder.wheels.paths import MAX_PART, unsafe

_PERENNIAL = re.compile(r"^manylinux_([0-9]+)_([0-9]+)_")
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}  # PEP 600, "legacy tags"


@dataclass(frozen=True, slots=True)
class WheelName:
    """The parts of a wheel's file name.

    Attributes:
        filename: as given.
        distribution: normalised.
        version: normalised, local part included.
        build: the build tag such as ``1`` or ``2_cuda``, empty for none.
        tags: expanded and sorted, such as ``cp310-abi3-manylinux_2_28_x86_64``.
    """

    filename: str
    distribution: str
    version: str
    build: str
    tags: tuple[str, ...]

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The least glibc that the name asks for; None where it asks for none (``any``, plain ``linux``)."""
        return least_glibc(self.tags)


def parse(filename: str) -> WheelName:
    """Take a wheel's file name apart.

    Raises:
        UsageError: not the name of a wheel (binary distribution format, "File name convention").
    """
    if "/" in filename or len(filename) > MAX_PART or unsafe(filename):
        raise UsageError("not a plain file name", where=filename[:MAX_PART])
    try:
        name, version, build, tags = parse_wheel_filename(filename)
    except ValueError as error:  # InvalidWheelFilename, and int() on a version of thousands of digits
        reason = str(error).partition(":")[0].lower()
        raise UsageError(f"not the name of a wheel ({reason})", where=filename) from error
    number = f"{build[0]}{build[1]}" if build else ""
    return WheelName(filename, name, str(version), number, tuple(sorted(str(tag) for tag in tags)))


def least_glibc(tags: Iterable[str]) -> tuple[int, int] | None:
    """Give the least glibc under which one of ``tags`` is satisfied (PEP 600), None where no tag asks for glibc."""
    needs = []
    for tag in tags:
        platform = tag.rpartition("-")[2]
        if found := _PERENNIAL.match(platform):
            needs.append((int(found[1]), int(found[2])))
        elif legacy := _LEGACY.get(platform.partition("_")[0]):
            needs.append(legacy)
    return min(needs, default=None)
