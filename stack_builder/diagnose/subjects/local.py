"""An environment of this machine as a target of doctor."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from stack_builder.diagnose.environment import python as pythons
from stack_builder.diagnose.environment.collect import Scene
from stack_builder.diagnose.environment.facts import Python
from stack_builder.diagnose.subjects.model import Subject
from stack_builder.diagnose.target import TargetSpec
from stack_builder.elf.layout import identify
from stack_builder.trees.directory import DirectoryTree

_ELF_HEADER = 64  # bytes


def find_subject(target: TargetSpec, environ: Mapping[str, str]) -> Subject:
    """Look up ``venv:`` and ``python:``; see :func:`stack_builder.diagnose.subjects.find.find_subject`."""
    prefix = target.path.absolute() if target.kind == "venv" else prefix_of(target.path)
    return Subject(partial(_opened, str(prefix), environ, target))


@contextmanager
def _opened(prefix: str, environ: Mapping[str, str], target: TargetSpec) -> Iterator[Scene]:
    tree = DirectoryTree()
    python = pythons.find_python(tree, prefix, environ, target.value)
    yield Scene(tree, python, _machine(tree, python), environ, base=True, where=target.value)


def _machine(tree: DirectoryTree, python: Python) -> str:
    """What the environment's interpreter is made for: a copied folder need not be for this machine."""
    program = pythons.interpreter(tree, python)
    identity = identify(tree.prefix(program, _ELF_HEADER)) if program is not None else None
    return identity.machine if identity is not None and identity.readable else platform.machine()


def prefix_of(program: Path) -> Path:
    """``sys.prefix`` of an interpreter by its path alone: PEP 405's ``pyvenv.cfg`` beside or above it, else its own."""
    folder = program.absolute().parent
    for prefix in (folder.parent, folder):
        if (prefix / "pyvenv.cfg").is_file():
            return prefix
    return program.resolve().parent.parent
