"""Find the SGLang of a TARGET, to read its source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import IntegrityError, MachineError, UsageError
from stack_builder.sglang import source
from stack_builder.sglang.gates import table
from stack_builder.sglang.gates.readings import GPUS
from stack_builder.sglang.gates.table import GateTable
from stack_builder.sglang.source import SourceTree
from stack_builder.stack import lock, spec
from stack_builder.trees import FileTree
from stack_builder.wheels.store import Store


def source_of(target: TargetSpec, *, wheels: Path | None = None) -> SourceTree:
    """Open the SGLang that a target holds.

    Args:
        target: as parsed.
        wheels: for a stack, a folder to take its wheel from before the store.

    Raises:
        UsageError: it holds none, or several.
        MachineError: the wheel of a stack has not been fetched, or no Docker engine has the image.
    """
    match target.kind:
        case "stack":
            return of_stack(target.value, wheels=wheels)
        case "wheels":
            return _of_folder(target.path)
        case "venv":
            return _of_prefix(target.path)
        case "python":
            program = target.path.absolute()
            return _of_prefix(program.parent.parent)
        case "oci" | "image":
            from stack_builder.diagnose.subjects.images import image_identity  # not needed by other targets

            return source.from_tree(
                lambda: _in_image(target), where=f"{target.kind}:{target.value}", identity=image_identity(target)
            )
        case _:
            raise AssertionError(target.kind)


def of_stack(stack: str, *, wheels: Path | None = None) -> SourceTree:
    """Open the locked SGLang of a stack; its hash was verified when it was fetched, else is now.

    Raises:
        UsageError: the stack locks none.
        MachineError: it has not been fetched.
        IntegrityError: the file in ``wheels`` is another one.
    """
    artifact = lock.load(spec.find(stack)).artifact("sglang")
    if artifact is None or artifact.sha256 is None:
        raise UsageError("locks no SGLang", where=stack)
    given = None if wheels is None else wheels / artifact.filename
    if given is not None and given.is_file():
        tree = source.from_wheel(given)
        if tree.identity != artifact.sha256:
            raise IntegrityError("is not the file of the lock", where=given, fix=f"run stackb fetch {stack}")
        return tree
    path = Store().find(artifact.sha256, artifact.filename, artifact.size)
    if path is None:
        raise MachineError("has not been fetched", where=artifact.filename, fix=f"run stackb fetch {stack}")
    return source.from_wheel(path, sha256=artifact.sha256)


def gates_of(target: TargetSpec, gpus: tuple[str, ...] = GPUS) -> GateTable:
    """The gates of a target's SGLang: from its source, or as recorded for a stack that has not been fetched.

    Raises:
        UsageError: as :func:`source_of`, or a GPU is not written as ``sm_120``.
        MachineError: not fetched, and its release or GPU was not recorded.
    """
    try:
        return table.read(source_of(target), gpus)
    except MachineError:
        artifact = lock.load(spec.find(target.value)).artifact("sglang")
        known = None if artifact is None else table.recorded(artifact.version)
        if known is None or not set(gpus) <= set(GPUS):
            raise
        return known


def _of_folder(folder: Path) -> SourceTree:
    wheels = sorted(folder.glob("sglang-[0-9]*.whl"))
    if len(wheels) != 1:
        what = "holds no wheel of SGLang" if not wheels else f"holds {len(wheels)} wheels of SGLang"
        raise UsageError(what, where=folder, fix="name a folder with one sglang-VERSION-….whl")
    return source.from_wheel(wheels[0])


@contextmanager
def _in_image(target: TargetSpec) -> Iterator[tuple[FileTree, str]]:
    """The file system of an image, and the first folder of its Python's path that holds SGLang."""
    from stack_builder.diagnose.subjects.find import open_scene

    with open_scene(target, {}) as scene:
        for site in scene.python.site:
            if scene.tree.resolve(f"{site}/{source.SERVER_ARGS}") is not None:
                yield scene.tree, site
                return
        raise UsageError("SGLang is not installed in this image", where=target.value, fix="name another target")


def _of_prefix(prefix: Path) -> SourceTree:
    """``lib/pythonX.Y/site-packages`` or Debian's ``dist-packages`` below an interpreter's prefix."""
    folders = [prefix, *sorted(prefix.glob("lib/python3.*/*-packages"))]
    for folder in folders:
        if (folder / source.SERVER_ARGS).is_file():
            return source.from_directory(folder)
    raise UsageError("SGLang is not installed", where=prefix, fix="install it or name another target")
