"""An image as a target of doctor: in a layout, in an archive, or in a Docker engine."""

from __future__ import annotations

import json
import platform
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from stack_builder.diagnose.environment import python as pythons
from stack_builder.diagnose.environment.collect import Scene
from stack_builder.diagnose.subjects.model import Subject
from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import MachineError, UsageError, no_engine
from stack_builder.trees import FileTree
from stack_builder.trees.blobs import find_image, open_blobs
from stack_builder.trees.members import MemberCache
from stack_builder.trees.oci import OciTree
from stack_builder.trees.saved import SavedImage

if TYPE_CHECKING:
    from docker import DockerClient

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_TORCH = re.compile(r"(.*?)/lib(?:64)?/python3[\d.]*/(?:site|dist)-packages/torch/version\.py")


def find_subject(target: TargetSpec) -> Subject:
    """Look up ``oci:`` and ``image:``; see :func:`stack_builder.diagnose.subjects.find.find_subject`."""
    return Subject(partial(_opened, target), image_identity(target))


@contextmanager
def _opened(target: TargetSpec) -> Iterator[Scene]:
    """An image; of this machine's architecture if it is there for several."""
    tree, machine = _in_engine(target.value) if target.kind == "image" else _in_layout(target)
    with tree:
        prefix = _prefix_in_image(tree, tree.environ)
        if prefix is None:
            raise UsageError("no Python with installed packages in this image", where=target.value)
        python = pythons.find_python(tree, prefix, tree.environ, target.value)
        yield Scene(tree, python, machine, tree.environ, base=True, where=target.value)


def _in_layout(target: TargetSpec) -> tuple[OciTree, str]:
    first, other = platform.machine(), _other_machine()
    try:
        return OciTree(target.path, machine=first), first
    except UsageError:
        return OciTree(target.path, machine=other), other


def _in_engine(reference: str) -> tuple[OciTree, str]:
    """An image of Docker, read as the engine writes it."""
    cache = MemberCache()
    with _docker(reference) as client:
        machine = _MACHINES.get(str(client.images.get(reference).attrs.get("Architecture")), platform.machine())

    @contextmanager
    def save() -> Iterator[Iterator[bytes]]:
        with _docker(reference) as client:
            yield client.images.get(reference).save(named=True)

    return OciTree(SavedImage(save, machine, f"image:{reference}", cache), cache=cache), machine


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
        raise no_engine(error, fix="start one, or name an archive with oci:TAR") from error
