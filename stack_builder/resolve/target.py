"""What a lock is made for: an interpreter, a platform and the C library of the base, as tags and marker values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from stack_builder.stack.spec import StackSpec

_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}  # PEP 600
_OLDEST_MINOR = {"x86_64": 5, "aarch64": 17}  # the first glibc that PEP 513 and PEP 599 speak of


@dataclass(frozen=True)
class Target:
    """An interpreter on a platform.

    Attributes:
        python: ``3.11``.
        machine: ``x86_64`` or ``aarch64``.
        glibc: ``2.36``, the base's.
    """

    python: str
    machine: str
    glibc: str

    @classmethod
    def of(cls, spec: StackSpec) -> Target:
        """The target that a stack file names."""
        return cls(spec.stack.python, spec.stack.platform.removeprefix("linux_"), spec.base.glibc)

    @cached_property
    def tags(self) -> dict[Tag, int]:
        """Every tag that the target can install, with its rank: 0 is the best, as pip orders them."""
        version = tuple(int(part) for part in self.python.split("."))
        platforms = list(self._platforms())
        abi = f"cp{version[0]}{version[1]}"
        ordered = [
            *cpython_tags(version, abis=[abi], platforms=platforms),
            *compatible_tags(version, interpreter=abi, platforms=platforms),
        ]
        return {tag: rank for rank, tag in reversed(list(enumerate(ordered)))}

    @cached_property
    def environment(self) -> dict[str, str]:
        """Values for environment markers (PEP 508) on the target."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    def best(self, filenames: Iterable[str]) -> str | None:
        """Give the wheel that pip would take among files of one version, or None if none fits.

        The better tag wins, then the higher build number (PEP 427). Names that are not wheels are passed over.
        """
        ranked = [(rank, name) for name in filenames if (rank := self._rank(name)) is not None]
        return min(ranked)[1] if ranked else None

    def _rank(self, filename: str) -> tuple[int, tuple[int, str]] | None:
        try:
            _, _, build, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            return None
        fitting = [self.tags[tag] for tag in tags if tag in self.tags]
        if not fitting:
            return None
        return min(fitting), (-build[0], build[1]) if build else (1, "")

    def _platforms(self) -> Iterable[str]:
        major, newest = (int(part) for part in self.glibc.split("."))
        for minor in range(newest, _OLDEST_MINOR[self.machine] - 1, -1):
            yield f"manylinux_{major}_{minor}_{self.machine}"
            if (major, minor) in _LEGACY:
                yield f"{_LEGACY[major, minor]}_{self.machine}"
        yield f"linux_{self.machine}"
