"""Unpacking layers into a folder: for running the base's programs, not for keeping. Owners and devices are left out."""

from __future__ import annotations

import os
import shutil
import tarfile
from errno import EEXIST, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR
from pathlib import Path
from posixpath import basename, dirname

from stack_builder.errors import IntegrityError
from stack_builder.image.rootfs import readable_folder
from stack_builder.image.stream import LAYER_ERRORS, open_layer
from stack_builder.trees.tars import MAX_FILES

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"  # OCI image-spec, "Whiteouts"
# a file where a folder is needed, a hard link to nothing, links in a circle, names that no file system takes
_CONTRADICTIONS = frozenset({EEXIST, ENOTDIR, EISDIR, ENOENT, ELOOP, ENAMETOOLONG})
_ERRORS: tuple[type[Exception], ...] = (tarfile.TarError, *LAYER_ERRORS)


def apply_layer(blob: Path, tree: Path) -> None:
    """Apply one gzip layer on top of what ``tree`` holds.

    Raises:
        IntegrityError: not a tar, or a member that leads out of ``tree``.
    """
    try:
        with open_layer(blob) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
            for number, member in enumerate(archive):
                archive.members.clear()  # type: ignore[attr-defined]  # of a stream none is needed twice
                if number > MAX_FILES:
                    raise IntegrityError(f"more than {MAX_FILES} files in one layer", where=blob.name)
                path = member.name.removeprefix("./").strip("/")
                if path in ("", ".") or member.isdev():
                    continue
                if ".." in path.split("/") or "\0" in path + member.linkname:
                    raise IntegrityError("leads out of the image", where=path, fix="do not use this base")
                if basename(path).startswith(_WHITEOUT):
                    _remove(path, tree)
                    continue
                placed = tarfile.TarInfo(path)
                placed.type, placed.mode, placed.linkname = member.type, member.mode, member.linkname
                if member.islnk():
                    placed.linkname = member.linkname.removeprefix("./").strip("/")
                unpack(archive, member, placed, tree)
    except _ERRORS as error:
        raise IntegrityError(f"is no layer ({error})", where=blob.name, fix="fetch the base again") from error
    except OSError as error:
        if error.errno not in _CONTRADICTIONS:
            raise
        what = f"contradicts itself or the layers below it ({error.strerror})"
        raise IntegrityError(what, where=blob.name, fix="do not use this base") from error


def unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, placed: tarfile.TarInfo, tree: Path) -> None:
    """Write one member below ``tree``, never through a link that leads out of it.

    Args:
        archive: holds the content.
        member: as ``archive`` knows it.
        placed: the same with its final name, relative and normalised.
        tree: an existing folder.

    Raises:
        IntegrityError: its parent, or the file that a hard link names, lies outside ``tree``.
    """
    target = tree / placed.name
    _inside(target.parent, tree, placed.name)
    readable_folder(target.parent)
    if placed.isdir():
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            target.unlink()
        target.mkdir(exist_ok=True)
        target.chmod(0o755)
        return
    if target.is_symlink() or target.exists():
        shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()
    if placed.issym():
        target.symlink_to(placed.linkname)
    elif placed.islnk():
        origin = tree / placed.linkname
        _inside(origin, tree, placed.name)
        if origin.is_dir() and not origin.is_symlink():
            raise IntegrityError("is a hard link to a folder", where=placed.name, fix="do not use this base")
        os.link(origin, target, follow_symlinks=False)
    elif content := archive.extractfile(member):
        with target.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        target.chmod(0o755 if placed.mode & 0o111 else 0o644)


def _remove(path: str, tree: Path) -> None:
    """Carry out a whiteout: remove one path of the layers below, or everything in a folder."""
    folder = tree / dirname(path)
    _inside(folder, tree, path)
    if basename(path) == _OPAQUE:
        victims = list(folder.iterdir()) if folder.is_dir() else []
    else:
        name = basename(path).removeprefix(_WHITEOUT)
        if name in ("", ".", ".."):  # ".wh..." would remove what the tree lies in
            raise IntegrityError("is a whiteout of no file", where=path, fix="do not use this base")
        victims = [folder / name]
    for victim in victims:
        if victim.is_dir() and not victim.is_symlink():
            shutil.rmtree(victim)
        else:
            victim.unlink(missing_ok=True)


def _inside(path: Path, tree: Path, name: str) -> None:
    try:
        inside = path.resolve().is_relative_to(tree.resolve())
    except RuntimeError:  # links in a circle, before Python 3.13
        inside = False
    if not inside:
        raise IntegrityError("leads out of the image", where=name, fix="do not use this base")
