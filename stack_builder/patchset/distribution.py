"""One distribution as it lies somewhere, and what has been patched in it so far.

The manifest and the original bytes stand in ``<dist-info>/stackb/`` and are listed in RECORD: an uninstall or a
reinstall by pip or uv takes them along, so that nothing outlives the files it speaks of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from stack_builder import __version__
from stack_builder.errors import IntegrityError, UsageError
from stack_builder.patchset import model
from stack_builder.patchset.model import Patch, PatchId, Read
from stack_builder.patchset.operations import FilePath
from stack_builder.patchset.record import Record
from stack_builder.stack.spec import Sha256


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PatchedFile(_Model):
    """One file and its sha256 before and after the whole series."""

    path: FilePath
    before: Sha256
    after: Sha256


class AppliedPatch(_Model):
    """A patch as it was when applied: its definition travels along, so a revert needs nothing else."""

    id: PatchId
    sha256: Sha256
    text: Annotated[str, StringConstraints(max_length=model.MAX_PATCH_FILE)]


class Manifest(_Model):
    """``<dist-info>/stackb/patches.json``."""

    schema_version: Literal[1] = 1
    tool: str
    distribution: str
    version: str
    record_before: Sha256
    patches: tuple[AppliedPatch, ...]
    files: tuple[PatchedFile, ...]

    def to_json(self) -> bytes:
        """Stable bytes: no clock, no host, no path outside the distribution."""
        return (json.dumps(self.model_dump(), indent=1, sort_keys=True) + "\n").encode()

    @property
    def originals(self) -> tuple[str, ...]:
        """sha256 of every file kept, RECORD included."""
        return tuple(sorted({self.record_before, *(file.before for file in self.files)}))


@dataclass(frozen=True)
class Distribution:
    """An installed distribution, or a wheel's content.

    Attributes:
        name: normalised.
        version: as in its metadata.
        dist_info: name of its ``.dist-info`` folder; all paths are relative to the folder that holds it.
        read: gives the bytes of a path; FileNotFoundError where nothing is.
    """

    name: str
    version: str
    dist_info: str
    read: Read

    @property
    def record_path(self) -> str:
        """Path of RECORD."""
        return f"{self.dist_info}/RECORD"

    @property
    def manifest_path(self) -> str:
        """Path of the manifest."""
        return f"{self.dist_info}/stackb/patches.json"

    def original_path(self, sha256: str) -> str:
        """Path of a kept original."""
        return f"{self.dist_info}/stackb/originals/{sha256}"

    def current(self, path: str) -> bytes | None:
        """The bytes there now; None where nothing is."""
        try:
            return self.read(path)
        except FileNotFoundError:
            return None

    @cached_property
    def record(self) -> Record:
        """RECORD as it is now.

        Raises:
            UsageError: there is none, so nothing says which bytes belong to the distribution.
        """
        data = self.current(self.record_path)
        if data is None:
            raise UsageError(
                f"{self.name} {self.version} has no RECORD", where=self.record_path, fix="install it from a wheel"
            )
        return Record(data)

    @cached_property
    def manifest(self) -> Manifest | None:
        """What has been applied; None for a distribution without patches.

        Raises:
            IntegrityError: the manifest cannot be read, or a patch in it is not what its hash says.
        """
        data = self.current(self.manifest_path)
        if data is None:
            return None
        try:
            return Manifest.model_validate_json(data)
        except ValidationError as error:
            raise self._damaged(f"the patch manifest is damaged: {error.errors()[0]['msg']}") from error

    @cached_property
    def applied(self) -> tuple[Patch, ...]:
        """The series applied, from the manifest's own definitions.

        Raises:
            IntegrityError: a definition is not what its hash says.
        """
        patches = []
        for applied in self.manifest.patches if self.manifest else ():
            patch = model.parse(applied.text, self.manifest_path)
            if (patch.id, patch.sha256) != (applied.id, applied.sha256):
                raise self._damaged(f"the patch manifest is damaged: patch {applied.id} is not what its hash says")
            patches.append(patch)
        return tuple(patches)

    def original(self, path: str) -> bytes:
        """A file as it was before any patch.

        Raises:
            FileNotFoundError: the distribution has no such file.
            IntegrityError: a kept original is gone or damaged.
        """
        for file in self.manifest.files if self.manifest else ():
            if file.path == path:
                return self._kept(file.before)
        return self.read(path)

    def original_record(self) -> Record:
        """RECORD as it was before any patch."""
        return Record(self._kept(self.manifest.record_before)) if self.manifest else self.record

    def pristine(self) -> Distribution:
        """The distribution as if nothing had been patched."""

        def read(path: str) -> bytes:
            if path == self.manifest_path:
                raise FileNotFoundError(path)
            return self.original_record().data if path == self.record_path else self.original(path)

        return Distribution(self.name, self.version, self.dist_info, read)

    def drift(self, path: str) -> str | None:
        """Why a file is not what was installed, or what the applied series left; None where it is."""
        data = self.current(path)
        if data is None:
            return f"{path} is missing"
        for file in self.manifest.files if self.manifest else ():
            if file.path == path:
                changed = hashlib.sha256(data).hexdigest() != file.after
                return f"{path} was changed after it was patched" if changed else None
        if not self.record.lists(path):
            return f"{path} is not listed in RECORD; is {self.name} an editable install?"
        return None if self.record.matches(path, data) else f"{path} is not the file that RECORD lists"

    def record_drift(self) -> str | None:
        """Why RECORD is not what the applied series left; None where it is, or where nothing is applied."""
        if self.manifest is None:
            return None
        files = {file.path: self.read(file.path) for file in self.manifest.files}
        kept = {self.original_path(sha256): self._kept(sha256) for sha256 in self.manifest.originals}
        kept[self.manifest_path] = self.read(self.manifest_path)
        expected = self.original_record().edited(files, kept)
        return None if expected == self.record.data else f"{self.record_path} was changed after patching"

    @property
    def kept_paths(self) -> tuple[str, ...]:
        """Paths of the manifest and the originals; empty where nothing is applied."""
        if self.manifest is None:
            return ()
        return (self.manifest_path, *(self.original_path(sha256) for sha256 in self.manifest.originals))

    def _kept(self, sha256: str) -> bytes:
        data = self.current(self.original_path(sha256))
        if data is None or hashlib.sha256(data).hexdigest() != sha256:
            raise self._damaged(f"a kept original is gone or damaged: {sha256}")
        return data

    def _damaged(self, what: str) -> IntegrityError:
        return IntegrityError(what, where=self.manifest_path, fix=f"reinstall {self.name}=={self.version}")


def make_manifest(pristine: Distribution, patches: Iterable[Patch], files: Mapping[str, bytes]) -> Manifest:
    """The manifest of a series that turns the files of ``pristine`` into ``files``."""

    def sha256(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    return Manifest(
        tool=f"stackb {__version__}",
        distribution=pristine.name,
        version=pristine.version,
        record_before=sha256(pristine.record.data),
        patches=tuple(AppliedPatch(id=patch.id, sha256=patch.sha256, text=patch.text) for patch in patches),
        files=tuple(
            PatchedFile(path=path, before=sha256(pristine.read(path)), after=sha256(data))
            for path, data in files.items()
        ),
    )
