"""A process that runs ``stackb`` in forks of itself, each with one fault: a fork costs a tenth of a fresh Python.

It has the library of ``tests/fixtures/faults.c`` loaded. :class:`~tests.hardening.faulty.Host` starts it and writes a
JSON list a line, of runs to start together.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

MODULES = ("fetch", "lock", "build", "patch", "history", "verify", "cache", "pull", "push")


def main() -> None:
    """Answer every line of stdin by one of stdout: ``[{"status": …, "seen": …, "peak": …}, …]``."""
    import importlib

    from stack_builder.wheels.http import Http

    for name in ("stack_builder.wheels.index", "stack_builder.wheels.download"):
        importlib.import_module(name)
    for name in MODULES:
        importlib.import_module(f"stack_builder.cli.{name}")
    Http().close()  # loads what an HTTP client loads late
    library = ctypes.CDLL(sys.argv[1])
    for line in sys.stdin:
        started = [_start(library, request) for request in json.loads(line)]
        sys.stdout.write(json.dumps([_wait(*each) for each in started]) + "\n")
        sys.stdout.flush()


def _start(library: ctypes.CDLL, request: dict[str, Any]) -> tuple[int, int, int]:
    counted, counts = os.pipe()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    child = os.fork()
    if child == 0:
        try:
            _run(library, request, counts)
        finally:
            os._exit(99)
    os.close(counts)
    return child, counted, resident


def _wait(child: int, counted: int, resident: int) -> dict[str, int]:
    _, status, usage = os.wait4(child, 0)
    seen = os.read(counted, 20)
    os.close(counted)
    peak = usage.ru_maxrss * 1024 - resident  # a fork begins with what this process has
    return {"status": os.waitstatus_to_exitcode(status), "seen": int(seen or b"-1"), "peak": peak}


def _run(library: ctypes.CDLL, request: dict[str, Any], counts: int) -> None:
    from stack_builder.cli.app import run

    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for number, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), number)
    library.faults_arm(*[os.fsencode(request["under"]), request["mode"], request["at"], request["error"]])
    code = run(request["argv"])
    seen = library.faults_seen()
    library.faults_arm(b"/", 0, 0, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(counts, b"%d" % seen)
    os._exit(code)


if __name__ == "__main__":
    main()
