"""Many source files reduced in parallel."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from stack_builder.errors import MachineError
from stack_builder.sglang.source import SourceTree

_SMALL = 2 << 20  # bytes of source below which starting processes costs more than it saves
_CHUNK = 512 << 10  # bytes of source given to a process at a time

_T = TypeVar("_T")
Scan = Callable[[str, bytes], _T]


def scan_files(tree: SourceTree, paths: Iterable[str], scan: Scan[_T]) -> list[_T]:
    """Apply ``scan`` to files of a tree, on all processors.

    Args:
        tree: where the files are.
        paths: which.
        scan: a module-level function of path and content; it must not depend on anything else.

    Returns:
        its results in the order of ``paths``.

    Raises:
        MachineError: a process was killed, most often for want of memory.
    """
    files = [(path, tree.read(path)) for path in paths]
    processors = len(os.sched_getaffinity(0))
    if processors == 1 or sum(len(content) for _, content in files) < _SMALL:
        return _scan_all(scan, files)
    chunks: list[list[tuple[str, bytes]]] = [[]]
    for file in files:
        if sum(len(content) for _, content in chunks[-1]) > _CHUNK:
            chunks.append([])
        chunks[-1].append(file)
    try:
        with ProcessPoolExecutor(min(processors, len(chunks)), mp_context=get_context("spawn")) as pool:
            scanned = pool.map(_scan_all, [scan] * len(chunks), chunks)
            return [result for chunk in scanned for result in chunk]
    except BrokenProcessPool as error:
        raise MachineError(
            "a process that read sources was killed", where=tree.where, fix="free some memory"
        ) from error


def _scan_all(scan: Scan[_T], files: list[tuple[str, bytes]]) -> list[_T]:
    """Syntax trees are large and have no cycles to collect until they are dropped: the collector only costs time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return [scan(path, content) for path, content in files]
    finally:
        if was_enabled:
            gc.enable()
