"""A base made of Debian packages that are pinned by hash."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from stack_builder.errors import IntegrityError, MachineError
from stack_builder.files import claimed_folder
from stack_builder.image.base import packages as debs
from stack_builder.image.base.bootstrap import VERSION, bootstrap, normalise
from stack_builder.image.base.model import NEW, Base, BaseRequest, Foreseen, architecture
from stack_builder.image.base.recipe import BaseLock, Recipe, find, load_lock, lock_path, save_lock
from stack_builder.image.rootfs import Rootfs
from stack_builder.image.store import LayerMemory, layer_record, locked
from stack_builder.image.stream import Written
from stack_builder.progress import amount_text
from stack_builder.stack.receipt import BaseRecord, DebianPackage

_COMPRESS = (Path(__file__).parents[1] / "in_base" / "compress.py").read_text(encoding="utf-8")


class DebianProvider:
    """``recipe:NAME``: a file of ``docker/base``, or a path."""

    def provide(self, request: BaseRequest) -> Base:
        """See :class:`~stack_builder.image.base.model.BaseProvider`."""
        path, recipe = find(request.name)
        pinned = self._pinned(path, recipe, request)
        folder = _folder(request, pinned.lock)
        with locked(folder.with_suffix(".lock")):
            made = self._made(request, pinned)
            if made is None:
                layer = self._make(path.stem, recipe, pinned.lock, folder, request)
                LayerMemory(folder, request.blobs).put("layer", layer)
                made = _base(request, pinned, layer)
        return made

    def foresee(self, request: BaseRequest) -> Foreseen:
        """See :class:`~stack_builder.image.base.model.BaseProvider`."""
        path, recipe = find(request.name)
        lock = load_lock(lock_path(path, architecture(request.platform)))
        if request.update or lock is None or lock.recipe_sha256 != recipe.sha256:
            return Foreseen(f"pin the packages of {path.stem} anew and install them")
        if made := self._made(request, _Pinned(lock)):
            return Foreseen(f"reuse {path.stem}", made)
        missing = [p for p in lock.packages if not debs.location(request.cache / "debs", p).is_file()]
        size = amount_text(sum(package.size for package in missing), "bytes")
        return Foreseen(f"fetch {len(missing)} packages ({size}), install {len(lock.packages)} of {path.stem}")

    def _made(self, request: BaseRequest, pinned: _Pinned) -> Base | None:
        """The base as an earlier build left it in the cache."""
        folder = _folder(request, pinned.lock)
        layer = LayerMemory(folder, request.blobs).get("layer")
        return _base(request, pinned, layer) if layer and (folder / "root").is_dir() else None

    def _pinned(self, path: Path, recipe: Recipe, request: BaseRequest) -> _Pinned:
        """Find the packages and see to it that their files are here."""
        arch = architecture(request.platform)
        if request.packages:  # of a receipt: these or none
            lock = BaseLock(recipe.sha256, arch, request.packages)
            self._fetch(lock, request, required=True)
            return _Pinned(lock)
        if request.update:
            lock = self._resolve(recipe, arch, request)
            save_lock(lock_path(path, arch), lock)
            return _Pinned(lock)
        shipped = load_lock(lock_path(path, arch))
        if shipped is None:
            reason = f"recipe {path.stem} has no lock for {arch}"
        elif shipped.recipe_sha256 != recipe.sha256:
            reason = f"recipe {path.stem} changed since it was locked"
        elif gone := self._fetch(shipped, request, required=False):
            reason = _gone(gone, shipped)
        else:
            return _Pinned(shipped)
        return self._relock(recipe, arch, request, reason)

    def _relock(self, recipe: Recipe, arch: str, request: BaseRequest, reason: str) -> _Pinned:
        if request.locked:
            raise IntegrityError(reason, where="base", fix="build without --locked, or run stackb build --update-base")
        lock = self._resolve(recipe, arch, request)
        request.progress.note(f"base: {reason}; its packages were pinned anew, so the digest will be another one")
        return _Pinned(lock, relocked=reason)

    def _resolve(self, recipe: Recipe, arch: str, request: BaseRequest) -> BaseLock:
        if request.offline:
            raise MachineError("pinning the base's packages needs the network", where="base", fix="omit --offline")
        with tempfile.TemporaryDirectory(prefix="stackb-apt-") as scratch:
            lock = debs.resolve(recipe, arch, Path(scratch))
        self._fetch(lock, request, required=True)
        return lock

    def _fetch(self, lock: BaseLock, request: BaseRequest, *, required: bool) -> list[DebianPackage]:
        store = request.cache / "debs"
        missing = [p for p in lock.packages if not debs.location(store, p).is_file()]
        if missing and request.offline:
            raise MachineError(
                f"{len(missing)} packages of the base are not in the cache", where=missing[0].name, fix="omit --offline"
            )
        gone = debs.fetch(lock.packages, store, request.progress)
        if gone and required:
            raise IntegrityError(
                _gone(gone, lock),
                where="base",
                fix="set STACKB_DEBIAN_MIRROR to an archive of that day, or build anew",
            )
        return gone

    def _make(self, name: str, recipe: Recipe, lock: BaseLock, folder: Path, request: BaseRequest) -> Written:
        """Install, normalise, unpack, compress. ``folder/root`` appears in one step, at the end."""
        debs.verify(lock.packages, request.cache / "debs")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / "root", ignore_errors=True)
        with (
            request.progress.task(f"base {name} from {len(lock.packages)} packages"),
            claimed_folder(request.cache / "base", prefix=NEW) as work,
        ):
            work.chmod(0o755)  # apt's download user reads the repository
            raw = bootstrap(recipe, lock.packages, request.cache / "debs", work)
            tar, tree = work / "base.tar", work / "root"
            diff_id = normalise(raw, tar, tree)
            with tar.open("rb") as source:
                written = request.blobs.write(
                    lambda sink: replace(_compress(Rootfs(tree), recipe.python, source, sink), diff_id=diff_id)
                )
            tree.replace(folder / "root")
        return written


@dataclass(frozen=True, slots=True)
class _Pinned:
    """Packages whose files are in the cache, and why they are not the recipe's own."""

    lock: BaseLock
    relocked: str | None = None


def folder_name(lock_sha256: str) -> str:
    """Under which name a base is kept in the cache, by the identity of its lock."""
    return hashlib.sha256(f"{lock_sha256} {VERSION} {_COMPRESS}".encode()).hexdigest()


def _folder(request: BaseRequest, lock: BaseLock) -> Path:
    return request.cache / "base" / folder_name(lock.sha256)


def _base(request: BaseRequest, pinned: _Pinned, layer: Written) -> Base:
    record = BaseRecord(
        source=f"recipe:{request.name}",
        identity=pinned.lock.sha256,
        packages=pinned.lock.packages,
        relocked=pinned.relocked,
    )
    title = f"base {Path(request.name).stem}"
    return Base(record, (layer_record(title, layer),), rootfs=Rootfs(_folder(request, pinned.lock) / "root"))


def _gone(gone: list[DebianPackage], lock: BaseLock) -> str:
    return f"{gone[0].name} {gone[0].version} is gone from the mirror ({len(gone)} of {len(lock.packages)})"


def _compress(rootfs: Rootfs, python: str, source: BinaryIO, sink: BinaryIO) -> Written:
    """Gzip by the base's own Python and zlib, which are pinned, and not by the host's, which are not."""
    rootfs.run([f"/usr/bin/python{python}", "-S", "-s", "-B", "-c", _COMPRESS], stdin=source, stdout=sink)
    with open(sink.fileno(), "rb", closefd=False) as file:
        file.seek(0)
        return Written(hashlib.file_digest(file, "sha256").hexdigest(), "", file.tell())
