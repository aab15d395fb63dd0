"""A target that has been looked up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from stack_builder.diagnose.environment.collect import Scene


@dataclass(frozen=True, slots=True)
class Subject:
    """A target that has been looked up and can be opened.

    Attributes:
        open: opens it for the time of the context.
        identity: tells its content from every other; None where it can change unnoticed.
        cuda: CUDA release that it is for, where it says.
        gpu: architecture that it is for, where it says.
    """

    open: Callable[[], AbstractContextManager[Scene]]
    identity: str | None = None
    cuda: str | None = None
    gpu: str | None = None
