"""Whether the GPU held its clocks during a run: one ``nvidia-smi`` that prints a line every half second.

Only for a server on this machine; without ``nvidia-smi`` nothing is known and the guard says so.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import IO

# nvml.h, nvmlClocksEventReasons: hardware slowdown, software thermal, hardware thermal, hardware power brake
THROTTLED = {0x8: "hardware slowdown", 0x20: "thermal limit", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
POWER_CAP = 0x4  # normal for a loaded data-centre card: worth a note, no reason to reject
_MAX_LINES = 100_000


@dataclass(frozen=True, slots=True)
class Clock:
    """One look at one GPU."""

    time: float
    gpu: str
    mhz: int
    reasons: int


class ClockWatch:
    """Reads clocks while the context is open."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.seen: list[Clock] = []

    def __enter__(self) -> ClockWatch:
        tool = shutil.which("nvidia-smi")
        if tool is not None:
            query = "--query-gpu=index,clocks.sm,clocks_throttle_reasons.active"
            words = [tool, query, "--format=csv,noheader,nounits", "--loop-ms=500"]
            self._child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert self._child.stdout is not None
            self._reader = threading.Thread(target=self._read, args=(self._child.stdout,), daemon=True)
            self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._child is not None and self._reader is not None:
            self._child.terminate()
            self._child.wait()
            self._reader.join()

    def between(self, begin: float, end: float) -> tuple[Clock, ...]:
        """Looks in a span of ``perf_counter`` seconds."""
        return tuple(clock for clock in self.seen if begin <= clock.time <= end)

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                clock = _parse(line, perf_counter())
                if clock is not None and len(self.seen) < _MAX_LINES:
                    self.seen.append(clock)


def _parse(line: str, now: float) -> Clock | None:
    parts = [part.strip() for part in line.split(",")]
    try:
        return Clock(now, parts[0], int(parts[1]), int(parts[2], 16))
    except (IndexError, ValueError):
        return None


def throttles(clocks: tuple[Clock, ...]) -> tuple[str, ...]:
    """Name the reasons that make a run unfit for comparison."""
    active = 0
    for clock in clocks:
        active |= clock.reasons
    return tuple(name for bit, name in THROTTLED.items() if active & bit)
