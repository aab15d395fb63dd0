"""Wheels that are not installed, as a target of doctor: those of a lock, or of a folder."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stack_builder.diagnose.environment import python as pythons
from stack_builder.diagnose.environment.collect import Scene
from stack_builder.diagnose.subjects.model import Subject
from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import MachineError
from stack_builder.stack import lock as locks
from stack_builder.stack import spec as specs
from stack_builder.stack.lock import Artifact
from stack_builder.trees.wheels import WheelsTree, identity_of
from stack_builder.wheels.store import Store

PREFIX = "/opt/venv"
"""Where wheels that are not installed are looked at, as they will stand in an image."""

DEFAULT_PYTHON = "3.11"
_MACHINE = re.compile(r"_(x86_64|aarch64)\.whl$")
_CPYTHON = re.compile(r"-cp3(\d{1,2})-cp3\1t?-")


def find_subject(target: TargetSpec, wheels: Path | None) -> Subject:
    """Look up ``stack:`` and ``wheels:``; see :func:`stack_builder.diagnose.subjects.find.find_subject`."""
    if target.kind == "stack":
        return _stack(target, wheels)
    paths = sorted(target.path.glob("*.whl"))
    return _wheels(paths, {}, _python_of(paths), target, _machine_of(paths))


def _stack(target: TargetSpec, wheels: Path | None) -> Subject:
    folder = specs.find(target.value)
    spec = specs.load(folder)
    paths: list[Path] = []
    sha256: dict[Path, str] = {}
    for artifact in locks.load(folder).artifacts:
        given = wheels / artifact.filename if wheels is not None else None
        if given is not None and given.is_file():
            paths.append(given)
        else:
            paths.append(_stored(artifact, folder.name))
            sha256[paths[-1]] = artifact.sha256 or ""
    found = _wheels(paths, sha256, spec.stack.python, target, spec.stack.platform.removeprefix("linux_"))
    return dataclasses.replace(found, cuda=spec.stack.cuda, gpu=spec.stack.gpu[0])


def _stored(artifact: Artifact, stack: str) -> Path:
    """The file of a locked wheel in the store, whose bytes were verified when they came."""
    found = Store().find(artifact.sha256, artifact.filename, artifact.size) if artifact.sha256 else None
    if found is None:
        raise MachineError("this wheel is not in the store", where=artifact.filename, fix=f"run stackb fetch {stack}")
    return found


def _wheels(paths: list[Path], sha256: Mapping[Path, str], python: str, target: TargetSpec, machine: str) -> Subject:
    """Wheels, with the sha256 of those that were verified."""
    content = [(path.name, identity_of(path, sha256.get(path))) for path in paths]
    identity = json.dumps(["wheels", python, machine, content])

    @contextmanager
    def opened() -> Iterator[Scene]:
        with WheelsTree(paths, prefix=PREFIX, python=python, sha256=sha256) as tree:
            found = pythons.find_python(tree, PREFIX, {}, target.value)
            yield Scene(tree, found, machine, {}, base=False, where=target.value)

    return Subject(opened, identity)


def _python_of(paths: list[Path]) -> str:
    """The Python that most of the wheels with compiled modules are for."""
    minors = Counter(match[1] for path in paths for match in [_CPYTHON.search(path.name)] if match)
    return f"3.{minors.most_common(1)[0][0]}" if minors else DEFAULT_PYTHON


def _machine_of(paths: list[Path]) -> str:
    """The machine that most of the wheels with compiled modules are for."""
    machines = Counter(match[1] for path in paths for match in [_MACHINE.search(path.name)] if match)
    return machines.most_common(1)[0][0] if machines else platform.machine()
