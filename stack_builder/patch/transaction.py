"""Several files replaced as one step, whatever ends the process.

New bytes are written to a folder beside the packages, then a journal is renamed into place: that is the moment of
commit. Before it nothing has changed and a later run discards what is there; after it a later run finishes the work
(:func:`recover`). No file is written in place: a file may be a hard link into a package cache.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from stack_builder.diagnose.patches.site import JOURNAL, JOURNAL_FILE, Site
from stack_builder.errors import IntegrityError, MachineError
from stack_builder.files import atomic_write, fsync_directory, named
from stack_builder.stack.spec import Sha256

_Path = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][^/\x00]*(/[A-Za-z0-9_][^/\x00]*)*$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Replace(_Model):
    path: _Path
    staged: Annotated[str, StringConstraints(pattern=r"^[0-9]+$")]
    before: Sha256 | None
    after: Sha256


class _Journal(_Model):
    schema_version: Literal[1] = 1
    replace: tuple[_Replace, ...]
    remove: tuple[_Path, ...]


@contextmanager
def exclusive(site: Site) -> Iterator[None]:
    """Keep other runs of this tool off the folder for the time of the context.

    Raises:
        MachineError: one is at work there.
    """
    handle = os.open(site.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what = "another stackb patch is at work there"
            raise MachineError(what, where=site.root, fix="wait for it to end") from error
        yield
    finally:
        os.close(handle)


def recover(site: Site) -> bool:
    """Finish a run that was interrupted after its commit, discard one that was interrupted before.

    Returns:
        whether there was one to finish.

    Raises:
        IntegrityError: a file has been changed by hand since, or the journal is damaged; nothing is touched then.
    """
    if site.interrupted:
        _finish(site)
        return True
    if _folder(site).is_dir():
        shutil.rmtree(_folder(site))
    return False


def commit(site: Site, writes: Mapping[str, bytes], removes: tuple[str, ...]) -> None:
    """Give every path of ``writes`` its bytes and remove ``removes``: all of it, or nothing.

    Mode and owner of replaced files are kept. Call :func:`recover` first.

    Raises:
        OSError: the new files could not be written; nothing has changed.
        MachineError: the machine failed after the commit; the next run finishes.
    """
    folder = _folder(site)
    try:
        folder.mkdir()
        steps = [_stage(site, folder, number, path, data) for number, (path, data) in enumerate(writes.items())]
        fsync_directory(folder)
        atomic_write(folder / JOURNAL_FILE, _Journal(replace=tuple(steps), remove=removes).model_dump_json())
    except BaseException:
        if not site.interrupted:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        _finish(site)
    except OSError as error:
        what = f"interrupted by an error: {error.strerror}"
        raise MachineError(what, where=error.filename, fix="remove its cause and run the same command again") from error


def _folder(site: Site) -> Path:
    return site.root / JOURNAL


def _stage(site: Site, folder: Path, number: int, path: str, data: bytes) -> _Replace:
    staged, target = folder / str(number), site.locate(path)
    before = None
    with named(staged), staged.open("xb") as file:
        file.write(data)
        file.flush()
        if target.exists():
            before = hashlib.sha256(target.read_bytes()).hexdigest()
            status = target.stat()
            os.fchmod(file.fileno(), status.st_mode & 0o7777)
            _keep_owner(file.fileno(), status)
        else:
            os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
    return _Replace(path=path, staged=staged.name, before=before, after=hashlib.sha256(data).hexdigest())


def _keep_owner(handle: int, status: os.stat_result) -> None:
    try:
        os.fchown(handle, status.st_uid, status.st_gid)
    except PermissionError as error:  # only root may give files away; the file's user stays able to read it
        if error.errno != errno.EPERM:
            raise


def _finish(site: Site) -> None:
    """Do what the journal says and has not been done yet. Every step may have been done before."""
    folder = _folder(site)
    try:
        journal = _Journal.model_validate_json((folder / JOURNAL_FILE).read_bytes())
    except ValidationError as error:
        raise IntegrityError(
            "the journal of an interrupted run is damaged", where=folder, fix=_reinstall(site)
        ) from error
    _check(site, folder, journal)
    touched = {site.root}
    for path in journal.remove:
        file = site.locate(path)
        file.unlink(missing_ok=True)
        touched.add(file.parent)
    for step in journal.replace:
        staged, file = folder / step.staged, site.locate(step.path)
        if staged.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(file)
        touched.add(file.parent)
    for directory in sorted(touched, reverse=True):  # children before their parents
        if directory != site.root and directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
    for directory in touched:
        if directory.is_dir():
            fsync_directory(directory)
    (folder / JOURNAL_FILE).unlink()
    folder.rmdir()
    fsync_directory(folder.parent)


def _check(site: Site, folder: Path, journal: _Journal) -> None:
    """Stop before the first step where a file is neither the old nor the new one."""
    for step in journal.replace:
        file = site.locate(step.path)
        found = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
        wanted = (step.before, step.after) if (folder / step.staged).is_file() else (step.after,)
        if found not in wanted:
            what = "was changed after a run was interrupted"
            raise IntegrityError(what, where=file, fix=_reinstall(site))


def _reinstall(site: Site) -> str:
    return f"remove {_folder(site)} and reinstall the patched packages"
