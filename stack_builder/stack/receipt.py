"""The receipt of an image: what it was made of, in full, so that it can be made again and compared.

It lies beside the image and not in it: it holds the image's digests, and it may say things (that the base was pinned
anew, say) that must not change a digest.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError

from stack_builder import jsontext
from stack_builder.errors import UsageError, first_line, refused
from stack_builder.files import atomic_write

SCHEMA_VERSION = 1
MAX_RECEIPT = 16 << 20  # bytes

SAME_BYTES = "same bytes"

_STRICT = ConfigDict(extra="forbid")
_Word = Annotated[str, StringConstraints(pattern=r"^[^\s/]+$")]  # a package URL of slashes alone names nothing


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """One package of a base, pinned.

    Attributes:
        path: below the root of whatever mirror has it, such as ``pool/main/g/glibc/libc6_….deb``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: _Word
    version: _Word
    architecture: str
    sha256: str
    size: int
    path: str


@dataclass(frozen=True, slots=True)
class BaseRecord:
    """The base.

    Attributes:
        source: as ``--base`` takes it, such as ``recipe:debian-bookworm``.
        identity: sha256 of the pinned packages, or the image digest.
        packages: of a base made from packages.
        relocked: why the packages are not the ones that the recipe's lock names, else None.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    source: str
    identity: str
    packages: tuple[DebianPackage, ...] = ()
    relocked: str | None = None


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """One layer.

    Attributes:
        title: what it is, such as ``base debian-bookworm`` or ``torch 2.14.1``.
        digest: of the blob, ``sha256:…``.
        diff_id: of the tar, ``sha256:…``.
        size: of the blob, in bytes.
        media_type: of the blob.
        holds: ``name version`` of the wheels in it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    title: str
    digest: str
    diff_id: str
    size: int
    media_type: str
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WheelRecord:
    """One wheel that went in."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: _Word
    version: _Word
    filename: str
    sha256: str
    size: int
    index: str


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """Whose bytes stand at paths that several wheels ship.

    Attributes:
        packages: the wheels, sorted.
        winner: one of them.
        paths: how many paths this decided.
        reason: from the stack file, or :data:`SAME_BYTES` (then an executable file wins).
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    packages: tuple[str, ...]
    winner: str
    paths: int
    reason: str


@dataclass(frozen=True, slots=True)
class PatchRecord:
    """A patch that was applied, in full."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    id: str
    sha256: str
    text: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an image was made of.

    Attributes:
        tool: version of stackb.
        layout: version of the image layout; another one gives other bytes.
        stack: name of the stack.
        description: of the stack, one line.
        python: ``3.11``.
        platform: ``linux_x86_64``.
        cuda: ``13.0``.
        gpu: what it was built for, such as ``sm_120``.
        lock_sha256: identity of the lock.
        base: the base.
        wheels: sorted by name.
        decisions: for paths that several wheels ship.
        patches: in the order of their series.
        bytecode: whether the image holds bytecode.
        layers: lowest first, the base's included.
        config_digest: ``sha256:…``; what Docker's classic store calls the image ID.
        manifest_digest: ``sha256:…``; what registries and the containerd store call the image.
        reference: the name given to the image.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    tool: str
    layout: int
    stack: str
    description: str
    python: str
    platform: str
    cuda: str
    gpu: str
    lock_sha256: str
    base: BaseRecord
    wheels: tuple[WheelRecord, ...]
    decisions: tuple[DecisionRecord, ...]
    patches: tuple[PatchRecord, ...]
    bytecode: bool
    layers: tuple[LayerRecord, ...]
    config_digest: str
    manifest_digest: str
    reference: str

    def to_json(self) -> str:
        """Stable bytes."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, indent=1, sort_keys=True) + "\n"


def parse(text: str, where: object) -> Receipt:
    """Read a receipt.

    Raises:
        UsageError: not JSON, another schema version, unknown or missing fields.
    """
    try:
        body: Any = jsontext.loads(text)
        if not isinstance(body, dict):
            raise ValueError("no JSON object")
        if body.pop("schema_version", None) != SCHEMA_VERSION:
            raise UsageError("written by another version of stackb", where=where, fix="build the image again")
        return TypeAdapter(Receipt).validate_python(body)
    except ValidationError as error:
        raise UsageError(f"not a receipt: {refused(error)}", where=where) from error
    except ValueError as error:
        raise UsageError(f"not a receipt: {first_line(error)}", where=where) from error


def load(path: Path) -> Receipt:
    """Read a receipt file.

    Raises:
        UsageError: there is none, or it is malformed.
    """
    if not path.is_file():
        raise UsageError("there is no receipt", where=path, fix="give the receipt's path with --receipt")
    if path.stat().st_size > MAX_RECEIPT:
        raise UsageError(f"larger than {MAX_RECEIPT} bytes", where=path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8: {error}", where=path) from error
    return parse(text, path)


def save(path: Path, receipt: Receipt) -> None:
    """Write a receipt file in one step."""
    atomic_write(path, receipt.to_json())
