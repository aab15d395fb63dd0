"""Look a TARGET up, and open it: its files, its interpreter's layout, the environment of its processes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from stack_builder.diagnose.environment.collect import Scene
from stack_builder.diagnose.subjects.model import Subject
from stack_builder.diagnose.target import TargetSpec


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
    match target.kind:  # what one kind needs is not loaded for another
        case "venv" | "python":
            from stack_builder.diagnose.subjects import local

            return local.find_subject(target, environ)
        case "stack" | "wheels":
            from stack_builder.diagnose.subjects import wheels as of_wheels

            return of_wheels.find_subject(target, wheels)
        case "oci" | "image":
            from stack_builder.diagnose.subjects import images

            return images.find_subject(target)
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
