"""Runs of ``stackb`` with a fault at a chosen system call."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path


class Mode(IntEnum):
    """What happens at the n-th call that changes a file, or at reads; the order is that of ``faults.c``."""

    NONE = 0
    COUNT = 1
    KILL = 2
    """SIGKILL before it."""
    TEAR = 3
    """SIGKILL after half of its bytes, if it is a write; else before it."""
    FAIL = 4
    """It fails, once."""
    FULL = 5
    """It fails, and so does every later one that needs space."""
    READ_FAIL = 6
    """The n-th read fails."""
    READ_SHORT = 7
    """Every read gives half of what was asked for."""
    CLOCK = 8
    """Every second look at the wall clock is a day ahead."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a run ended.

    Attributes:
        code: the exit code, or minus the signal.
        seen: calls that could have been hit; -1 if it was killed.
        peak: bytes of memory beyond what it began with.
        out: its stdout.
        err: its stderr.
    """

    code: int
    seen: int
    peak: int
    out: str
    err: str

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL

    @property
    def line(self) -> str:
        """The line in which it says what is wrong; the only one that begins with the tool's name."""
        lines = [line for line in self.err.splitlines() if line.startswith("stackb: ")]
        assert len(lines) <= 1, self.err
        assert "Traceback" not in self.err, self.err
        assert "internal error" not in self.err, self.err
        return lines[0] if lines else ""


class Host:
    """The process that forks one run after another.

    Args:
        library: ``tests/fixtures/faults.c``, compiled.
    """

    def __init__(self, library: Path) -> None:
        self.library = library
        here = Path(__file__)
        self._process = subprocess.Popen(
            [sys.executable, here.with_name("host.py"), library],
            env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(here.parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, requests: Sequence[Mapping[str, object]]) -> list[dict[str, int]]:
        """Run what ``host.py`` documents, all at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(requests) + "\n")
        self._process.stdin.flush()
        return list(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@dataclass(slots=True)
class Faulty:
    """Runs ``stackb`` with faults.

    Attributes:
        host: forks the runs.
        folder: where they start; only calls that concern files below it can be hit.
        env: added to their environment.
    """

    host: Host
    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __call__(
        self, *argv: object, mode: Mode = Mode.NONE, at: int = 0, error: int = errno.EIO, under: Path | None = None
    ) -> Done:
        """Run ``stackb`` with these arguments to its end; ``under``: only what concerns files there can be hit."""
        return self.together([argv], mode, at, error, under)[0]

    def together(
        self,
        calls: Sequence[Sequence[object]],
        mode: Mode = Mode.NONE,
        at: int = 0,
        error: int = errno.EIO,
        under: Path | None = None,
    ) -> list[Done]:
        """Run ``stackb`` several times at once."""
        said = [(self.folder.with_name(f"stdout{n}"), self.folder.with_name(f"stderr{n}")) for n in range(len(calls))]
        common = {"cwd": str(self.folder), "env": self.env, "under": f"{under or self.folder}/"}
        common |= {"mode": mode, "at": at, "error": error}
        requests = [
            {**common, "argv": [str(word) for word in argv], "stdout": str(out), "stderr": str(err)}
            for argv, (out, err) in zip(calls, said, strict=True)
        ]
        return [
            Done(answer["status"], answer["seen"], answer["peak"], out.read_text(), err.read_text())
            for answer, (out, err) in zip(self.host.ask(requests), said, strict=True)
        ]

    def preloaded(self, mode: Mode, at: int = 0, error: int = errno.EIO) -> dict[str, str]:
        """Environment for a process of its own, children included, with this fault in each."""
        faults = f"{self.folder}/:{mode}:{at}:{error}"
        return {**os.environ, **self.env, "LD_PRELOAD": str(self.host.library), "FAULTS": faults}
