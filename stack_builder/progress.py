"""Progress of long work: bars (rich) on a terminal, plain lines elsewhere. Always on stderr.

Stages take a :class:`Progress` and know nothing of terminals; tests pass :class:`Silent`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from stack_builder.terminal import printable

if TYPE_CHECKING:  # rich is not needed by --help
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


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
        print(_lines(text), file=sys.stderr, flush=True)  # noqa: T201 - the one place that writes plain lines


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
    """Bars on a terminal, one below the other where several tasks run at once; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bars: RichProgress | None = None
        self._open = 0

    @contextmanager
    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Iterator[Task]:
        """See :class:`Progress`."""
        bars = self._enter()
        handle = bars.add_task(label, total=total, amount="")
        try:
            yield _BarTask(bars, handle, total, unit)
        finally:
            bars.remove_task(handle)
            self._leave()

    def note(self, text: str) -> None:
        """See :class:`Progress`."""
        print(_lines(text), file=sys.stderr, flush=True)  # noqa: T201 - see Lines.note

    def _enter(self) -> RichProgress:
        """Give the one live display, started with the first task: a terminal holds no second one."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        with self._lock:
            if self._bars is None:
                columns = (
                    TextColumn("{task.description}", markup=False),
                    BarColumn(),
                    TextColumn("{task.fields[amount]}"),
                )
                self._bars = RichProgress(*columns, console=Console(stderr=True), transient=True)
                self._bars.start()
            self._open += 1
            return self._bars

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0 and self._bars is not None:
                self._bars.stop()
                self._bars = None


class _BarTask:
    def __init__(self, bars: RichProgress, handle: TaskID, total: int | None, unit: str) -> None:
        self._bars, self._handle, self._total, self._unit = bars, handle, total, unit
        self._done, self._started = 0, time.monotonic()

    def advance(self, amount: int) -> None:
        self._done += amount
        text = amount_text(self._done, self._unit)
        if self._total:
            text += f" of {amount_text(self._total, self._unit)}"
        if self._unit == "bytes":
            seconds = max(time.monotonic() - self._started, 0.1)
            text += f", {amount_text(int(max(self._done, 0) / seconds), 'bytes')}/s"
        self._bars.update(self._handle, completed=self._done, amount=text)


def _lines(text: str) -> str:
    """Without what a terminal would obey: notes quote what servers answer."""
    return "\n".join(map(printable, text.split("\n")))


def for_terminal() -> Progress:
    """Bars when stderr is a terminal, plain lines otherwise."""
    return Bars() if sys.stderr.isatty() else Lines()


def amount_text(amount: int, unit: str) -> str:
    """Write an amount for people: ``1.2 GB`` (powers of 1000, as disks and networks count), ``1 file``, ``2 files``."""
    if unit != "bytes":
        return f"{amount} {unit.removesuffix('s') if amount == 1 else unit}"
    value = float(amount)
    for suffix in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or suffix == "GB":
            return f"{amount} bytes" if suffix == "bytes" else f"{value:.1f} {suffix}"
        value /= 1000
    raise AssertionError("unreachable")
