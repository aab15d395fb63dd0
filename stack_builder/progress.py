"""Progress of long work: bars (rich) on a terminal, plain lines elsewhere. Always on stderr.

Stages take a :class:`Progress` and know nothing of terminals; tests pass :class:`Silent`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, amount: int) -> None:
        """Count ``amount`` more units (bytes, files) as done."""


class Progress(Protocol):
    """Where stages report to."""

    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> AbstractContextManager[Task]:
        """Announce a piece of work of ``total`` units; leave the context when it is over."""

    def note(self, text: str) -> None:
        """Say one line that stays on the screen."""


class _NoTask:
    def advance(self, amount: int) -> None:
        pass


class Silent:
    """Says nothing."""

    @contextmanager
    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Iterator[Task]:
        """See :class:`Progress`."""
        yield _NoTask()

    def note(self, text: str) -> None:
        """See :class:`Progress`."""


class Lines:
    """A line when a task starts, one at most every ``every`` seconds, one when it ends. For logs and pipes."""

    def __init__(self, every: float = 10.0) -> None:
        self._every = every

    @contextmanager
    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Iterator[Task]:
        """See :class:`Progress`."""
        line = _LineTask(self, label, total, unit, self._every)
        self.note(f"{label} …")
        yield line
        self.note(f"{label}: done in {time.monotonic() - line.started:.1f} s")

    def note(self, text: str) -> None:
        """See :class:`Progress`."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - the one place that writes plain lines


class _LineTask:
    def __init__(self, owner: Lines, label: str, total: int | None, unit: str, every: float) -> None:
        self._owner, self._label, self._total, self._unit, self._every = owner, label, total, unit, every
        self._done = 0
        self.started = self._last = time.monotonic()

    def advance(self, amount: int) -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            of = f" of {amount_text(self._total, self._unit)}" if self._total else ""
            self._owner.note(f"{self._label}: {amount_text(self._done, self._unit)}{of}")


class Bars:
    """Bars on a terminal."""

    @contextmanager
    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Iterator[Task]:
        """See :class:`Progress`."""
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        counts = (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else (MofNCompleteColumn(),)
        columns = (TextColumn("{task.description}"), BarColumn(), *counts)
        with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
            handle = bars.add_task(label, total=total)

            class _Bar:
                def advance(self, amount: int) -> None:
                    bars.advance(handle, amount)

            yield _Bar()

    def note(self, text: str) -> None:
        """See :class:`Progress`."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - see Lines.note


def for_terminal() -> Progress:
    """Bars when stderr is a terminal, plain lines otherwise."""
    return Bars() if sys.stderr.isatty() else Lines()


def amount_text(amount: int, unit: str) -> str:
    """Write an amount for people: ``1.2 GB`` (powers of 1000, as disks and networks count) or ``12 files``."""
    if unit != "bytes":
        return f"{amount} {unit}"
    value = float(amount)
    for suffix in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or suffix == "GB":
            return f"{amount} bytes" if suffix == "bytes" else f"{value:.1f} {suffix}"
        value /= 1000
    raise AssertionError("unreachable")
