"""Open a TARGET for doctor: its files, its interpreter's layout, the environment of its processes."""

from __future__ import annotations

import dataclasses
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stack_builder.diagnose.environment import python as pythons
from stack_builder.diagnose.environment.collect import Scene
from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import MachineError, UsageError
from stack_builder.stack import lock as locks
from stack_builder.stack import spec as specs
from stack_builder.stack.lock import Artifact
from stack_builder.trees.directory import DirectoryTree
from stack_builder.trees.wheels import WheelsTree
from stack_builder.wheels.store import Store

WHEELS_PREFIX = "/opt/venv"
"""Where wheels that are not installed are looked at, as they will stand in an image."""

DEFAULT_PYTHON = "3.11"
_CPYTHON = re.compile(r"-cp3(\d{1,2})-cp3\1t?-")


@contextmanager
def open_scene(target: TargetSpec, environ: Mapping[str, str], wheels: Path | None = None) -> Iterator[Scene]:
    """Open a target for the time of the context.

    Args:
        target: as parsed.
        environ: the environment of this process; targets on this machine get it.
        wheels: a folder to take a stack's wheels from before the store.

    Raises:
        UsageError: the target holds no Python environment.
        MachineError: a wheel of the stack is not at hand.
    """
    match target.kind:
        case "venv":
            yield _local(str(target.path.absolute()), environ, target)
        case "python":
            yield _local(str(prefix_of(target.path)), environ, target)
        case "stack":
            with _stack(target, wheels) as scene:
                yield scene
        case "wheels":
            paths = sorted(target.path.glob("*.whl"))
            with _wheels(paths, _python_of(paths), target) as scene:
                yield scene
        case _:
            raise UsageError(f"{target.kind}: cannot be checked", where=target.value)


def _local(prefix: str, environ: Mapping[str, str], target: TargetSpec) -> Scene:
    tree = DirectoryTree()
    python = pythons.find_python(tree, prefix, environ, target.value)
    return Scene(tree, python, platform.machine(), environ, base=True, where=target.value)


def prefix_of(program: Path) -> Path:
    """``sys.prefix`` of an interpreter by its path alone: PEP 405's ``pyvenv.cfg`` beside or above it, else its own."""
    folder = program.absolute().parent
    for prefix in (folder.parent, folder):
        if (prefix / "pyvenv.cfg").is_file():
            return prefix
    return program.resolve().parent.parent


@contextmanager
def _stack(target: TargetSpec, wheels: Path | None) -> Iterator[Scene]:
    folder = specs.find(target.value)
    spec = specs.load(folder)
    paths = [_wheel(artifact, wheels, folder.name) for artifact in locks.load(folder).artifacts]
    machine = spec.stack.platform.removeprefix("linux_")
    with _wheels(paths, spec.stack.python, target, machine) as scene:
        yield dataclasses.replace(scene, cuda=spec.stack.cuda, gpu=spec.stack.gpu[0])


def _wheel(artifact: Artifact, wheels: Path | None, stack: str) -> Path:
    """The file of a locked wheel: in a folder if one was named, else in the store."""
    if wheels is not None and (wheels / artifact.filename).is_file():
        return wheels / artifact.filename
    found = Store().find(artifact.sha256, artifact.filename, artifact.size) if artifact.sha256 else None
    if found is None:
        raise MachineError("this wheel is not in the store", where=artifact.filename, fix=f"run stackb fetch {stack}")
    return found


@contextmanager
def _wheels(paths: list[Path], python: str, target: TargetSpec, machine: str = platform.machine()) -> Iterator[Scene]:
    with WheelsTree(paths, prefix=WHEELS_PREFIX, python=python) as tree:
        found = pythons.find_python(tree, WHEELS_PREFIX, {}, target.value)
        yield Scene(tree, found, machine, {}, base=False, where=target.value)


def _python_of(paths: list[Path]) -> str:
    """The Python that most of the wheels with compiled modules are for."""
    minors = Counter(match[1] for path in paths for match in [_CPYTHON.search(path.name)] if match)
    return f"3.{minors.most_common(1)[0][0]}" if minors else DEFAULT_PYTHON
