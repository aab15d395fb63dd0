"""Look a TARGET up for doctor, and open it: its files, its interpreter's layout, the environment of its processes."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stack_builder.diagnose.environment import python as pythons
from stack_builder.diagnose.environment.collect import Scene
from stack_builder.diagnose.target import TargetSpec
from stack_builder.trees.directory import DirectoryTree


@dataclass(frozen=True, slots=True)
class Subject:
    """A target that has been looked up and can be opened.

    Attributes:
        open: opens it for the time of the context.
        identity: tells its content from every other; None where it can change unnoticed.
        cuda: CUDA release that it is for, where it says.
        gpu: architecture that it is for, where it says.
    """

    open: Callable[[], AbstractContextManager[Scene]]
    identity: str | None = None
    cuda: str | None = None
    gpu: str | None = None


def find_subject(target: TargetSpec, environ: Mapping[str, str], wheels: Path | None = None) -> Subject:
    """Look a target up.

    Args:
        target: as parsed.
        environ: the environment of this process; targets on this machine get it.
        wheels: a folder to take a stack's wheels from before the store.

    Raises:
        UsageError: no such image in a layout.
        MachineError: a wheel of the stack is not at hand, or no Docker engine has the image.
    """
    match target.kind:
        case "venv":
            return Subject(partial(_local, str(target.path.absolute()), environ, target))
        case "python":
            return Subject(partial(_local, str(prefix_of(target.path)), environ, target))
        case "stack" | "wheels":
            from stack_builder.diagnose import doctor_wheels  # what one kind needs is not loaded for another

            return doctor_wheels.find_subject(target, wheels)
        case "oci" | "image":
            from stack_builder.diagnose import doctor_images

            return doctor_images.find_subject(target)
        case _:
            raise AssertionError(target.kind)


def open_scene(
    target: TargetSpec, environ: Mapping[str, str], wheels: Path | None = None
) -> AbstractContextManager[Scene]:
    """Open a target for the time of the context.

    Raises:
        UsageError: the target holds no Python environment.
        MachineError: as :func:`find_subject`.
    """
    return find_subject(target, environ, wheels).open()


@contextmanager
def _local(prefix: str, environ: Mapping[str, str], target: TargetSpec) -> Iterator[Scene]:
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
