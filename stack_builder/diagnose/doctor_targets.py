"""Open a TARGET for doctor: its files, its interpreter's layout, the environment of its processes."""

from __future__ import annotations

import dataclasses
import json
import platform
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from stack_builder import resources
from stack_builder.diagnose.environment import python as pythons
from stack_builder.diagnose.environment.collect import Scene
from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import MachineError, UsageError
from stack_builder.files import claimed_folder
from stack_builder.stack import lock as locks
from stack_builder.stack import spec as specs
from stack_builder.stack.lock import Artifact
from stack_builder.trees import FileTree
from stack_builder.trees.blobs import find_image, open_blobs
from stack_builder.trees.directory import DirectoryTree
from stack_builder.trees.oci import OciTree
from stack_builder.trees.wheels import WheelsTree, identity_of
from stack_builder.wheels.store import Store

if TYPE_CHECKING:
    from docker import DockerClient

WHEELS_PREFIX = "/opt/venv"
"""Where wheels that are not installed are looked at, as they will stand in an image."""

DEFAULT_PYTHON = "3.11"
_TORCH = re.compile(r"(.*?)/lib(?:64)?/python3[\d.]*/(?:site|dist)-packages/torch/version\.py")
_CPYTHON = re.compile(r"-cp3(\d{1,2})-cp3\1t?-")


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
        case "stack":
            return _stack(target, wheels)
        case "wheels":
            paths = sorted(target.path.glob("*.whl"))
            return _wheels(paths, {}, _python_of(paths), target)
        case "oci":
            return Subject(partial(_layout, target), image_identity(target))
        case "image":
            return Subject(partial(_saved, target), image_identity(target))
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


def _wheels(
    paths: list[Path], sha256: Mapping[Path, str], python: str, target: TargetSpec, machine: str = platform.machine()
) -> Subject:
    """Wheels, with the sha256 of those that were verified."""
    content = [(path.name, identity_of(path, sha256.get(path))) for path in paths]
    identity = json.dumps(["wheels", python, machine, content])

    @contextmanager
    def opened() -> Iterator[Scene]:
        with WheelsTree(paths, prefix=WHEELS_PREFIX, python=python, sha256=sha256) as tree:
            found = pythons.find_python(tree, WHEELS_PREFIX, {}, target.value)
            yield Scene(tree, found, machine, {}, base=False, where=target.value)

    return Subject(opened, identity)


@contextmanager
def _layout(target: TargetSpec) -> Iterator[Scene]:
    with _image(target.path, target) as scene:
        yield scene


@contextmanager
def _saved(target: TargetSpec) -> Iterator[Scene]:
    with saved_image(target.value) as path, _image(path, target) as scene:
        yield scene


@contextmanager
def _image(path: Path, target: TargetSpec) -> Iterator[Scene]:
    """An image in a layout or archive; of this machine's architecture if it is there for several."""
    with _oci_tree(path) as (tree, machine):
        prefix = _prefix_in_image(tree, tree.environ)
        if prefix is None:
            raise UsageError("no Python with installed packages in this image", where=target.value)
        python = pythons.find_python(tree, prefix, tree.environ, target.value)
        yield Scene(tree, python, machine, tree.environ, base=True, where=target.value)


@contextmanager
def _oci_tree(path: Path) -> Iterator[tuple[OciTree, str]]:
    first, other = platform.machine(), _other_machine()
    try:
        tree, machine = OciTree(path, machine=first), first
    except UsageError:
        tree, machine = OciTree(path, machine=other), other
    with tree:
        yield tree, machine


def _other_machine() -> str:
    return next(machine for machine in ("x86_64", "aarch64") if machine != platform.machine())


def _prefix_in_image(tree: FileTree, environ: Mapping[str, str]) -> str | None:
    """``sys.prefix`` of the Python that the image's processes get: by VIRTUAL_ENV, by PATH, or where torch lies."""
    candidates = [environ["VIRTUAL_ENV"]] if environ.get("VIRTUAL_ENV") else []
    for folder in environ.get("PATH", "/usr/local/bin:/usr/bin").split(":"):
        program = tree.resolve(f"{folder}/python3") if folder.startswith("/") else None
        if program is not None:
            above = posixpath.dirname(folder)
            venv = tree.resolve(f"{above}/pyvenv.cfg") is not None
            candidates.append(above if venv else posixpath.dirname(posixpath.dirname(program)))
    usable = [prefix for prefix in candidates if pythons.has_packages(tree, prefix)]
    with_torch = next((prefix for prefix in usable if pythons.has_packages(tree, prefix, "torch/version.py")), None)
    return with_torch or _prefix_of_torch(tree) or next(iter(usable), None)


def _prefix_of_torch(tree: FileTree) -> str | None:
    for entry in tree.entries():
        match = _TORCH.fullmatch(entry.path)
        if match is not None:
            return match[1] or "/"
    return None


def image_identity(target: TargetSpec) -> str | None:
    """What tells an image from every other one, without a look into its layers; None where nothing cheap does.

    Raises:
        UsageError: no such image in a layout.
        MachineError: no Docker engine answers, or it does not have the image.
    """
    if target.kind == "image":
        with _docker(target.value) as client:
            return f"image {client.images.get(target.value).id}"
    blobs = open_blobs(target.path)
    try:
        image = find_image(blobs, platform.machine())
    except UsageError:
        image = find_image(blobs, _other_machine())
    if None in image.digests or not blobs.names().issuperset(image.layers):
        return None
    return f"oci {json.dumps([image.digests, image.config.get('config')], sort_keys=True)}"


@contextmanager
def saved_image(reference: str) -> Iterator[Path]:
    """Have Docker write an image to a file for the time of the context.

    Raises:
        MachineError: no Docker engine answers, or it does not have the image.
    """
    with claimed_folder(resources.cache() / "scratch", prefix="saved-") as folder:  # ten gigabytes: not in a small /tmp
        path = folder / "saved.tar"
        with path.open("wb") as file:
            _save(reference, file)
        yield path


def _save(reference: str, file: IO[bytes]) -> None:
    with _docker(reference) as client:
        for chunk in client.images.get(reference).save(named=True):
            file.write(chunk)


@contextmanager
def _docker(reference: str) -> Iterator[DockerClient]:
    """A Docker engine, and its failures in our words."""
    import requests
    from docker import from_env  # not needed by other targets
    from docker.errors import DockerException, ImageNotFound

    try:
        yield from_env()
    except ImageNotFound as error:
        fix = f"run docker pull {reference}, or name an archive with oci:TAR"
        raise MachineError("Docker does not have this image", where=reference, fix=fix) from error
    except (DockerException, requests.RequestException) as error:
        line = str(error).splitlines()[0]
        raise MachineError(f"no Docker engine: {line}", fix="start it, or name an archive with oci:TAR") from error


def _python_of(paths: list[Path]) -> str:
    """The Python that most of the wheels with compiled modules are for."""
    minors = Counter(match[1] for path in paths for match in [_CPYTHON.search(path.name)] if match)
    return f"3.{minors.most_common(1)[0][0]}" if minors else DEFAULT_PYTHON
