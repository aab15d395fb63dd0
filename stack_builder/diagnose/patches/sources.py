"""What a TARGET holds, for commands that only look: an environment, an image, a folder of wheels, a lock's wheels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.utils import canonicalize_name

from stack_builder.diagnose.environment.collect import Scene
from stack_builder.diagnose.patches import site as sites
from stack_builder.diagnose.patches.site import Site
from stack_builder.diagnose.subjects.find import open_scene
from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import IntegrityError, MachineError, UsageError
from stack_builder.patchset.distribution import Distribution
from stack_builder.patchset.wheel import from_wheel
from stack_builder.stack import lock, spec
from stack_builder.trees import FileTree
from stack_builder.wheels import names
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.store import Store


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found.

    Attributes:
        distributions: by normalised name.
        installed: they are installed, so that a series has to be applied; else they are wheels.
        site: where they are installed on this machine; None in an image.
    """

    distributions: Mapping[str, Distribution]
    installed: bool
    site: Site | None = None


@contextmanager
def opened(target: TargetSpec, wanted: Set[str]) -> Iterator[Contents]:
    """Open the distributions ``wanted`` of a target for the time of the context.

    Raises:
        UsageError: the target holds none of them, or one in two versions.
        MachineError: a wheel of the stack has not been fetched, or no Docker engine has the image.
    """
    if target.kind in ("venv", "python"):
        site = sites.find(target, wanted)
        yield Contents(site.distributions(), installed=True, site=site)
        return
    if target.kind in ("oci", "image"):
        with open_scene(target, {}) as scene:
            yield Contents(_in_image(scene, wanted), installed=True)
        return
    wheels = _in_folder(target.path, wanted) if target.kind == "wheels" else _in_store(target.value, wanted)
    with ExitStack() as stack:
        distributions = {
            name: from_wheel(WheelArchive(stack.enter_context(path.open("rb")), path.name))
            for name, path in wheels.items()
        }
        yield Contents(distributions, installed=False)


def _in_image(scene: Scene, wanted: Set[str]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    for site in scene.python.site:
        names = (entry.path.removeprefix(f"{site}/").split("/", 1)[0] for entry in scene.tree.entries(site))
        for folder in sorted({name for name in names if name.endswith(".dist-info")}):
            stem, _, version = folder.removesuffix(".dist-info").partition("-")
            name = canonicalize_name(stem)
            if name in found and name in wanted:
                what = f"{name} is installed twice: {found[name].version} and {version}"
                raise UsageError(what, where=scene.where, fix="name another image")
            found.setdefault(name, Distribution(name, version, folder, partial(_read, scene.tree, site)))
    if wanted.isdisjoint(found):
        raise UsageError(f"{' or '.join(sorted(wanted))} is not installed", where=scene.where, fix="name another image")
    return found


def _read(tree: FileTree, site: str, path: str) -> bytes:
    with tree.open(f"{site}/{path}") as view:
        if len(view) > sites.MAX_FILE:
            raise IntegrityError(f"larger than {sites.MAX_FILE} bytes", where=f"{site}/{path}")
        return bytes(view)


def _in_folder(folder: Path, wanted: Set[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.whl")):
        name = names.parse(path.name).distribution
        if name in wanted and name in found:
            raise UsageError(f"holds {name} twice", where=folder, fix="remove all but one of its wheels")
        if name in wanted:
            found[name] = path
    if not found:
        raise UsageError(f"holds no wheel of {' or '.join(sorted(wanted))}", where=folder, fix="name another folder")
    return found


def _in_store(stack: str, wanted: Set[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for artifact in lock.load(spec.find(stack)).artifacts:
        if artifact.name not in wanted:
            continue
        path = Store().find(artifact.sha256, artifact.filename, artifact.size) if artifact.sha256 else None
        if path is None:
            raise MachineError("has not been fetched", where=artifact.filename, fix=f"run stackb fetch {stack}")
        found[artifact.name] = path
    return found
