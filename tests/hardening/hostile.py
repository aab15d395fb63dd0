"""Runs one command of the tool on hostile input, in a child with bounds, and says what came of it."""

from __future__ import annotations

import importlib
import os
import pkgutil
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import stack_builder
from stack_builder.cli.app import run

SECONDS = 10  # of processor time
MEMORY = 512 << 20  # bytes beyond what the tests themselves have
BOUND = f"{SECONDS} s of processor time, {MEMORY >> 20} MiB"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a command did.

    Attributes:
        code: its exit code; negative: the signal that ended it, SIGXCPU where it took too long.
        line: the one line that it ended with; empty for none.
        out: what it printed.
        said: all that it said beside.
    """

    code: int
    line: str
    out: str
    said: str


def attempt(arguments: Sequence[str], folder: Path, *, text: bytes = b"") -> Attempt:
    """Run ``stackb`` with ``arguments`` in ``folder``, bounded by :data:`BOUND`; ``text`` is its standard input.

    A fork of this process, which has read the package's modules already: a hundred cases cost seconds, not minutes.
    """
    _load()
    streams = [folder / f"std{name}" for name in ("in", "out", "err")]
    streams[0].write_bytes(text)
    child = os.fork()
    if child == 0:
        _child(arguments, folder, streams)
    _, status = os.waitpid(child, 0)
    said = streams[2].read_text(encoding="utf-8", errors="replace")
    lines = [line for line in said.splitlines() if line.startswith("stackb: ")]
    assert len(lines) <= 1, said
    assert not any(sign in said for sign in ("Traceback", "internal error")), said
    out = streams[1].read_text(encoding="utf-8", errors="replace")
    for given in (said, out):
        assert all(each.isprintable() or each in "\n\t" for each in given), f"control characters: {given!r}"[:2000]
    return Attempt(os.waitstatus_to_exitcode(status), lines[0] if lines else "", out, said)


@cache
def _load() -> None:
    """Import all of the package, so that no child has to."""
    for module in pkgutil.walk_packages(stack_builder.__path__, "stack_builder."):
        if ".in_base." not in module.name and not module.name.endswith("__main__"):  # which are run, not imported
            importlib.import_module(module.name)


def _child(arguments: Sequence[str], folder: Path, streams: Sequence[Path]) -> None:
    code = 99
    try:
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        os.chdir(folder)
        for number, path in enumerate(streams):
            os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        code = int(run(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
