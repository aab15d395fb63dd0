"""An environment of this machine as a target of doctor."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from stack_builder.diagnose.environment import python as pythons
from stack_builder.diagnose.environment.collect import Scene
from stack_builder.diagnose.subjects.model import Subject
from stack_builder.diagnose.target import TargetSpec
from stack_builder.trees.directory import DirectoryTree


def find_subject(target: TargetSpec, environ: Mapping[str, str]) -> Subject:
    """Look up ``venv:`` and ``python:``; see :func:`stack_builder.diagnose.subjects.find.find_subject`."""
    prefix = target.path.absolute() if target.kind == "venv" else prefix_of(target.path)
    return Subject(partial(_opened, str(prefix), environ, target))


@contextmanager
def _opened(prefix: str, environ: Mapping[str, str], target: TargetSpec) -> Iterator[Scene]:
    tree = DirectoryTree()
    python = pythons.find_python(tree, prefix, environ, target.value)
    yield Scene(tree, python, platform.machine(), environ, base=True, where=target.value)


def prefix_of(program: Path) -> Path:
    """``sys.prefix`` of an interpreter by its path alone: PEP 405's ``pyvenv.cfg`` beside or above it, else its own."""
    folder = program.absolute().parent
    for prefix in (folder.parent, folder):
        if (prefix / "pyvenv.cfg").is_file():
            return prefix
    return program.resolve().parent.parent
