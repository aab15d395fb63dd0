"""The lock: ``requirements.txt`` (every wheel, hashed) with ``artifacts.json`` (facts per wheel) beside it.

``requirements.txt`` is what pip and uv can install from; ``artifacts.json`` says which one file per package the
stack's platform takes and what was read from its bytes. Both are sorted and hold no clock, host name or path.
They are written one after the other, so the second holds the hash of the first: half a write is noticed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError

from stack_builder import jsontext
from stack_builder.errors import IntegrityError, StackbError, UsageError, first_line, refused
from stack_builder.files import atomic_write
from stack_builder.progress import Progress
from stack_builder.stack.spec import argument

SCHEMA_VERSION = 1
MAX_LOCK_FILE = 64 << 20  # bytes

_STRICT = ConfigDict(extra="forbid")

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
IndexName = Annotated[str, StringConstraints(min_length=1)]
PartOfSha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}$")]
WheelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl$", max_length=255)]


@dataclass(frozen=True, slots=True)
class Upload:
    """One of several files that an index has listed for one version of a package.

    Attributes:
        filename: the name it was listed under; an index that is written by hand can list one name several times.
        sha256: of the file, or the leading hex digits of it where a source recorded no more.
        uploaded: ISO time.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    filename: WheelName
    sha256: PartOfSha256
    uploaded: str | None = None


@dataclass(frozen=True, slots=True)
class Twin:
    """A file of the same name on another index, with other bytes.

    Attributes:
        index: name of that index.
        sha256: of its file.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    index: str
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class CudaNeed:
    """One versioned CUDA library that a wheel's ELF files need (DT_NEEDED).

    Attributes:
        major: the CUDA major that the library belongs to; not always that of its soname (``libcufft.so.12`` is 13).
        library: its soname, such as ``libcudart.so.12``.
        object: the first file of the wheel that needs it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    major: int
    library: str
    object: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One wheel's file at a path that several wheels ship.

    Attributes:
        name: normalised distribution name.
        sha256: of the file, as its RECORD promises it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: str
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class Collision:
    """A path that several wheels of the lock ship with different bytes.

    Attributes:
        path: below the prefix of a virtual environment, such as ``lib/python3.11/site-packages/build_backend.py``.
        claims: one for each wheel, sorted by name.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    path: str
    claims: tuple[Claim, ...]

    @property
    def owners(self) -> frozenset[str]:
        """Names of the wheels, as :meth:`~stack_builder.stack.spec.StackSpec.winner_for` takes them."""
        return frozenset(claim.name for claim in self.claims)


@dataclass(frozen=True, slots=True)
class Artifact:
    """One wheel of the lock and what its bytes say.

    Attributes:
        name: normalised distribution name.
        version: version in the file name, local part included.
        filename: the wheel's file name.
        sha256: of the file; None where no source gives it (a finding).
        size: in bytes; None where unknown.
        index: name of the ``[[index]]`` it comes from, or ``default``.
        tags: expanded compatibility tags.
        metadata_sha256: of the METADATA file; None where the wheel could not be read.
        metadata_version: version that METADATA gives.
        requires_python: as in METADATA.
        requires_dist: as in METADATA, in its order.
        needs_cuda: the versioned CUDA libraries its ELF files need, sorted; empty for none.
        glibc: highest GLIBC_x.y version that its ELF files were seen to need, else None; a lower bound, since the
            tables of some large objects lie beyond what is read of them.
        uploaded: ISO time that the index gives, else None.
        yanked: the index's reason, else None.
        uploads: where the index has listed one file name with several hashes, all the files of this version and
            platform, oldest first.
        twins: files of the same name and other bytes on other indexes.
        via: names of the packages that require it.
        unread: its bytes could not be read: what is given here was recorded from elsewhere, and what is not given
            is unknown.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: str
    version: str
    filename: WheelName
    sha256: Sha256 | None = None
    size: int | None = None
    index: IndexName = "default"
    tags: tuple[str, ...] = ()
    metadata_sha256: str | None = None
    metadata_version: str | None = None
    requires_python: str | None = None
    requires_dist: tuple[str, ...] = ()
    needs_cuda: tuple[CudaNeed, ...] = ()
    glibc: str | None = None
    uploaded: str | None = None
    yanked: str | None = None
    uploads: tuple[Upload, ...] = ()
    twins: tuple[Twin, ...] = ()
    via: tuple[str, ...] = ()
    unread: bool = False

    @property
    def cuda_majors(self) -> tuple[int, ...]:
        """CUDA majors of the libraries it needs, sorted."""
        return tuple(sorted({need.major for need in self.needs_cuda}))


@dataclass(frozen=True, slots=True)
class Lock:
    """A resolved stack.

    Attributes:
        stack: name of the stack.
        python: ``3.11``.
        platform: ``linux_x86_64``.
        resolver: name and version of the resolver, such as ``uv 0.13.9``.
        exclude_newer: ISO date given to the resolver, else None.
        artifacts: sorted by name.
        requirements_sha256: of the ``requirements.txt`` that was written with it.
        collisions: paths with different bytes in several wheels, sorted; None where not every wheel could be read.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    stack: str
    python: str
    platform: str
    resolver: str
    exclude_newer: str | None = None
    artifacts: tuple[Artifact, ...] = field(default=())
    requirements_sha256: str | None = None
    collisions: tuple[Collision, ...] | None = None

    def artifact(self, name: str) -> Artifact | None:
        """The wheel of a normalised distribution name."""
        return next((a for a in self.artifacts if a.name == name), None)

    @property
    def sha256(self) -> str:
        """Identity of the lock: sha256 over the sorted ``filename sha256`` lines."""
        lines = "".join(f"{a.filename} {a.sha256}\n" for a in sorted(self.artifacts, key=lambda a: a.filename))
        return hashlib.sha256(lines.encode()).hexdigest()

    def to_json(self) -> str:
        """``artifacts.json``: stable bytes; empty fields are left out."""
        body = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        body["artifacts"] = [
            {k: v for k, v in a.items() if v or (v == 0 and v is not False)} for a in body["artifacts"]
        ]
        body = {key: value for key, value in body.items() if value is not None}
        return json.dumps(body, indent=1, sort_keys=True) + "\n"


def parse(text: str, where: Path) -> Lock:
    """Read ``artifacts.json``.

    Raises:
        UsageError: not JSON, another schema version, unknown or missing fields.
    """
    fix = f"run stackb lock {argument(where.parent)} to write it anew"
    try:
        body: Any = jsontext.loads(text)
        if not isinstance(body, dict):
            raise ValueError("not a JSON object")
        if body.pop("schema_version", None) != SCHEMA_VERSION:
            raise UsageError("written by another version of stackb", where=where, fix=fix)
        lock = TypeAdapter(Lock).validate_python(body)
    except ValidationError as error:
        raise UsageError(f"not a lock: {refused(error)}", where=where, fix=fix) from error
    except ValueError as error:
        raise UsageError(f"not a lock: {first_line(error)}", where=where, fix=fix) from error
    if list(lock.artifacts) != sorted(lock.artifacts, key=lambda a: a.name):
        raise UsageError("artifacts are not sorted by name", where=where, fix=fix)
    return lock


def load(folder: Path) -> Lock:
    """Read the lock of a stack's folder, to be used.

    Raises:
        UsageError: there is none, or it is malformed.
        IntegrityError: its two files were not written together.
    """
    lock, requirements = read(folder)
    stack = argument(folder)
    if lock.requirements_sha256 != sha256_text(requirements):
        raise IntegrityError(
            "requirements.txt is not the one that artifacts.json was written with",
            where=folder,
            fix=f"run stackb lock {stack} --check to see where they differ, stackb lock {stack} to write both",
        )
    return lock


def read(folder: Path) -> tuple[Lock, str]:
    """Read both files of a lock, to be checked: they may disagree.

    Raises:
        UsageError: there is none, or it is malformed.
    """
    return parse(_text(folder, "artifacts.json"), folder / "artifacts.json"), _text(folder, "requirements.txt")


def previous(folder: Path, progress: Progress) -> Lock | None:
    """Give the lock that is about to be replaced; None where there is none that can be read, which is said."""
    if not (folder / "artifacts.json").is_file():
        return None
    try:
        return read(folder)[0]
    except StackbError as error:
        progress.note(f"the lock that is there is not used: {error}")
        return None


def save(folder: Path, lock: Lock, requirements: str) -> None:
    """Write ``requirements.txt``, then ``artifacts.json`` with its hash; each replaces the old file in one step."""
    atomic_write(folder / "requirements.txt", requirements)
    lock = replace(lock, requirements_sha256=sha256_text(requirements))
    atomic_write(folder / "artifacts.json", lock.to_json())


def sha256_text(text: str) -> str:
    """Hash a text as the file it is written to."""
    return hashlib.sha256(text.encode()).hexdigest()


def _text(folder: Path, name: str) -> str:
    path = folder / name
    if not path.is_file():
        raise UsageError(f"this stack has no lock: no {name}", where=folder, fix=f"run stackb lock {argument(folder)}")
    if path.stat().st_size > MAX_LOCK_FILE:
        raise UsageError(f"larger than {MAX_LOCK_FILE} bytes", where=path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8: {error}", where=path) from error
