"""The experiment log: JSON lines, one bench a line, appended and never rewritten. Null results stay in it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from stack_builder import resources
from stack_builder.bench.results import MAX_FILE, Results, from_json, to_json
from stack_builder.errors import UsageError
from stack_builder.files import fsync_directory, named


def log_path() -> Path:
    """Where the log is: ``history.jsonl`` in the state folder."""
    return resources.state() / "history.jsonl"


def append(results: Results, path: Path) -> None:
    """Add one bench, whole or not at all, beside other processes that do the same.

    A line that an earlier crash left half written is ended first, so that it cannot spoil this one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    created = not path.exists()
    line = to_json(results, indent=None).encode()
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with named(path):
            _add(handle, line)
    finally:
        os.close(handle)
    if created:
        fsync_directory(path.parent)


def _add(handle: int, line: bytes) -> None:
    size = os.fstat(handle).st_size
    torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
    data = b"\n" + line if torn else line
    written = 0
    try:
        while written < len(data):
            written += os.write(handle, data[written:])
    except OSError:
        with suppress(OSError):
            os.ftruncate(handle, size)
        raise
    os.fsync(handle)


def read_log(path: Path) -> tuple[list[Results], list[str]]:
    """Read the log.

    Returns:
        its benches, oldest first, and a line for each entry that could not be read: a torn or foreign line costs its
        own bench and no other.

    Raises:
        UsageError: the file is too large to be a log.
    """
    if not path.is_file():
        return [], []
    if path.stat().st_size > MAX_FILE:
        raise UsageError(f"larger than {MAX_FILE >> 20} MiB", where=path)
    found, problems = [], []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(from_json(line, f"{path}:{number}"))
        except UsageError as error:
            torn = _torn(line)
            problems.append(f"{path}:{number}: half a line, left by an interrupted write" if torn else str(error))
    return found, problems


def chosen(log: Iterable[Results], ids: Iterable[str]) -> list[Results]:
    """Give the benches with these ids or beginnings of ids; all without any.

    Raises:
        UsageError: none has such an id.
    """
    every, wanted = list(log), list(ids)
    if not wanted:
        return every
    for prefix in wanted:
        if not any(results.id.startswith(prefix) for results in every):
            raise UsageError(f"no bench '{prefix}' in the log", fix="run stackb history for the list")
    return [results for results in every if any(results.id.startswith(prefix) for prefix in wanted)]


def _torn(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False
