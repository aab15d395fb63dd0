"""A patch: a TOML file of ``checks/patches`` or of a stack's own ``patches`` folder. Unknown keys are errors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from stack_builder import resources, tomltext
from stack_builder.errors import IntegrityError, UsageError, refused
from stack_builder.files import read_regular
from stack_builder.patchset.operations import Dotted, FilePath, Identifier, Operation, Text
from stack_builder.patchset.source import AnchorError, Source, defined_names, dict_value, find_class, find_dict
from stack_builder.stack.spec import GpuName, Name, Reason, Sha256, Specifier

MAX_PATCH_FILE = 1 << 20  # bytes

PatchId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=80)]
Read = Callable[[str], bytes]  # a path relative to site-packages -> its bytes; FileNotFoundError where nothing is


class Topology(StrEnum):
    """How the GPUs of one host reach each other."""

    PCIE = "pcie"
    NVLINK = "nvlink"
    NVSWITCH = "nvswitch"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the patched program is to run on, as far as it is known."""

    gpu: str | None = None
    topology: Topology | None = None


class Upstream(_Model):
    """``[[upstream]]``: a sign in the source that upstream has solved it. One of several is enough.

    A sign is a text, a set of methods of a class, or a key of a dictionary display.
    """

    file: FilePath
    text: Text | None = None
    cls: Identifier | None = Field(default=None, alias="class")
    methods: tuple[Identifier, ...] = ()
    display: Dotted | None = Field(default=None, alias="dict")
    key: int | str | None = None

    @model_validator(mode="after")
    def _one_sign(self) -> Self:
        signs = (self.text is not None, self.cls is not None, self.display is not None)
        if sum(signs) != 1 or bool(self.methods) != signs[1] or (self.key is not None) != signs[2]:
            raise ValueError("give text, or class with methods, or dict with key")
        return self

    def holds(self, read: Read) -> bool:
        """Is the sign there? A file that is missing or does not parse shows none."""
        try:
            source = Source.read(read(self.file))
            if self.text is not None:
                return source.with_line_ends(self.text) in source.text
            if self.cls is not None:
                return set(self.methods) <= defined_names(find_class(source.tree, self.cls).body)
            assert self.display is not None
            assert self.key is not None
            return dict_value(find_dict(source.tree, self.display), self.key) is not None
        except (FileNotFoundError, AnchorError):
            return False


class NoEffect(_Model):
    """``[[no_effect]]``: hardware on which the patched program does what it did before.

    ``gpu`` lists the GPUs concerned, or ``gpu_other_than`` those that are not; a topology that is not known counts as
    one of ``topology``, for an effect has to be shown.
    """

    gpu: tuple[GpuName, ...] = ()
    gpu_other_than: tuple[GpuName, ...] = ()
    topology: tuple[Topology, ...] = ()
    reason: Reason

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if bool(self.gpu) == bool(self.gpu_other_than):
            raise ValueError("give either gpu or gpu_other_than")
        return self

    def on(self, hardware: Hardware) -> bool:
        """Does it hold there? False where the GPU is not known."""
        if hardware.gpu is None:
            return False
        listed = hardware.gpu in self.gpu or (bool(self.gpu_other_than) and hardware.gpu not in self.gpu_other_than)
        return listed and (not self.topology or hardware.topology is None or hardware.topology in self.topology)


class Known(_Model):
    """``[[known]]``: sha256 of a file in released versions, before and after this patch alone."""

    versions: Annotated[tuple[str, ...], Field(min_length=1)]
    file: FilePath
    before: Sha256
    after: Sha256


class PatchSpec(_Model):
    """One patch file."""

    id: PatchId
    title: Annotated[str, StringConstraints(min_length=10, max_length=120)]
    reason: Reason
    scope: Reason  # what changes, and for whom nothing does
    reference: Annotated[str, StringConstraints(min_length=3, max_length=300)]  # where upstream discusses or solves it
    removal: Reason  # when this patch can go
    distribution: Name
    versions: Specifier
    operation: Annotated[tuple[Operation, ...], Field(min_length=1)]
    upstream: tuple[Upstream, ...] = ()
    no_effect: tuple[NoEffect, ...] = ()
    known: tuple[Known, ...] = ()

    @model_validator(mode="after")
    def _known_files_are_patched(self) -> Self:
        unknown = {known.file for known in self.known} - set(self.files)
        if unknown:
            raise ValueError(f"known lists {sorted(unknown)}, which no operation touches")
        return self

    @property
    def files(self) -> tuple[str, ...]:
        """Paths that the operations touch, in their order."""
        return tuple(dict.fromkeys(operation.file for operation in self.operation))

    def covers(self, version: str) -> bool:
        """Was it written for this version?"""
        try:
            return SpecifierSet(self.versions).contains(Version(version), prereleases=True)
        except InvalidVersion:
            return False

    def hashes(self, version: str, file: str) -> Known | None:
        """The recorded hashes of a file, where that version is known."""
        return next((known for known in self.known if known.file == file and version in known.versions), None)


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch and the text it was read from; the text's sha256 is its identity in locks, receipts and labels."""

    spec: PatchSpec
    text: str

    @property
    def id(self) -> str:
        """Its name in a series."""
        return self.spec.id

    @property
    def sha256(self) -> str:
        """What ``sha256sum`` prints for the file."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def parse(text: str, where: object) -> Patch:
    """Read a patch.

    Raises:
        UsageError: not TOML, an unknown key, a value of the wrong form; names the key.
    """
    try:
        return Patch(PatchSpec.model_validate(tomltext.loads(text)), text)
    except ValidationError as error:
        raise UsageError(refused(error, count=True), where=where, fix="compare with checks/patches") from error
    except ValueError as error:
        raise UsageError(f"not TOML: {error}", where=where) from error


def load(path: Path) -> Patch:
    """Read a patch file.

    Raises:
        UsageError: malformed, or its id is not its file's name.
    """
    try:
        patch = parse(read_regular(path, MAX_PATCH_FILE).decode(), path)
    except IntegrityError as error:
        raise UsageError(error.what, where=path) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8: {error}", where=path) from error
    if patch.id != path.stem:
        raise UsageError(f"its id is '{patch.id}'", where=path, fix=f"name the file {patch.id}.toml")
    return patch


def available(stack: Path | None = None) -> dict[str, Patch]:
    """All patches by id: those that ship with the tool, and over them those of a stack's ``patches`` folder."""
    folders = [resources.checks() / "patches", *([stack / "patches"] if stack else [])]
    return {path.stem: load(path) for folder in folders for path in sorted(folder.glob("*.toml"))}


def series(ids: Iterable[str], stack: Path | None = None, files: Iterable[Path] = ()) -> tuple[Patch, ...]:
    """The patches of a series, in its order.

    Args:
        ids: their names.
        stack: the stack's folder, for patches of its own.
        files: patch files to choose from as well.

    Raises:
        UsageError: an id that is not known, or listed twice.
    """
    known = available(stack) | {path.stem: load(path) for path in files}
    wanted = list(ids)
    for patch_id in wanted:
        if patch_id not in known:
            raise UsageError(f"no patch '{patch_id}'", fix=f"choose from {', '.join(known) or 'none'}, or add a file")
        if wanted.count(patch_id) > 1:
            raise UsageError(f"patch '{patch_id}' is listed twice in the series")
    return tuple(known[patch_id] for patch_id in wanted)
