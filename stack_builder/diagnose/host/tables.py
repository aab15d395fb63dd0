"""What toolkits ask of a host: ``checks/toolkits.toml``."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, TypeAdapter

from stack_builder import resources
from stack_builder.diagnose import catalogue


class _Needs(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    shm_bytes: int


class Tables(BaseModel):
    """The file as it stands; its comments give the sources."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    driver_for_major: dict[str, str]
    cuda_of_driver_branch: dict[str, str]
    nvcc_for_gpu: dict[str, str]
    gcc_for_nvcc: dict[str, int]
    needs: _Needs

    def driver_for(self, cuda: str) -> str | None:
        """Lowest driver for a CUDA version such as ``13.0``; None where the table does not know its major."""
        return self.driver_for_major.get(cuda.split(".")[0])

    def cuda_of_driver(self, driver: str) -> str | None:
        """CUDA version that a driver such as ``580.95.05`` supports: that of the newest branch not above it."""
        branch = version(driver)
        if branch is None:
            return None
        known = [number for number in self.cuda_of_driver_branch if int(number) <= branch.major]
        return self.cuda_of_driver_branch[max(known, key=int)] if known else None


@cache
def tables() -> Tables:
    """Read and validate the tables."""
    return catalogue.read_toml(resources.checks() / "toolkits.toml", TypeAdapter(Tables))


def version(text: str | None) -> Version | None:
    """Read a version for comparison; None for what is none."""
    if text is None:
        return None
    try:
        return Version(text)
    except InvalidVersion:
        return None


def older(left: str | None, right: str | None) -> bool:
    """Whether ``left`` is older than ``right``; False where either is unknown."""
    one, other = version(left), version(right)
    return one is not None and other is not None and one < other
