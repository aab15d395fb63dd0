"""Runs a target on damaged inputs, each within bounds of time and memory, until its time is up or something is found.

A finding is any exception that is not the package's own, more than :data:`MAX_SECONDS` of processor time for one
input, or more than :data:`MAX_MEMORY` bytes. Time is the process's own, so that a busy machine finds nothing that is not there.
"""

from __future__ import annotations

import math
import random
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from stack_builder.errors import StackbError

MAX_SECONDS = 2.0  # of processor time, for one input
MAX_MEMORY = 500 << 20  # bytes beyond what the process has before its first input
_HANG = 20.0  # seconds of processor time after which an input is stopped
KEPT = Path(__file__).parent / "kept"


@dataclass(frozen=True, slots=True)
class Target:
    """One parser, or a few that read the same thing.

    Attributes:
        make: gives a damaged input.
        examine: reads it; what it raises beside :class:`StackbError` is a finding.
    """

    make: Callable[[random.Random], bytes]
    examine: Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run showed: ``finding`` is None for nothing."""

    inputs: int
    seconds: float
    finding: str | None = None


class SlowInputError(Exception):
    """An input took longer than it may."""


def kept(name: str) -> list[Path]:
    """Inputs that once were findings."""
    return sorted((KEPT / name).glob("*"))


def examine(target: Target, data: bytes) -> None:
    """Let a target loose on one input.

    Raises:
        Exception: a finding.
    """
    started = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, _HANG)
    with suppress(StackbError):
        target.examine(data)
    took = time.process_time() - started
    if took > MAX_SECONDS:
        raise SlowInputError(f"{len(data)} bytes took {took:.1f} s")


def run(name: str, target: Target, seconds: float, *, seed: int | None = None, most: float = math.inf) -> Outcome:
    """Examine damaged inputs for ``seconds``, at most so many; an input that is a finding is written down."""
    start = random.SystemRandom().randrange(1 << 40) if seed is None else seed
    began = time.monotonic()
    inputs = 0
    with bounded():
        while time.monotonic() - began < seconds and inputs < most:
            data = target.make(random.Random(start + inputs))
            inputs += 1
            try:
                examine(target, data)
            except Exception as error:
                path = Path(tempfile.gettempdir(), f"fuzz-{name}-{start + inputs - 1}.bin")
                path.write_bytes(data)
                what = f"{path}: {type(error).__name__}: {error}"[:500]
                return Outcome(inputs, time.monotonic() - began, what)
    return Outcome(inputs, time.monotonic() - began)


@contextmanager
def bounded() -> Iterator[None]:
    """Memory and time of this process are limited while this lasts."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise SlowInputError(f"more than {_HANG:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
