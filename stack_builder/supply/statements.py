"""What wheels say of themselves beyond what a lock keeps: their licence, and their own SBOMs (PEP 770).

Both stand in ``.dist-info`` and both are claims of whoever made the wheel. They are read and passed on, never judged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packageurl import PackageURL
from packaging.metadata import parse_email
from pydantic import BaseModel

from stack_builder import jsontext
from stack_builder.stack.lock import Artifact
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.facts import MAX_METADATA
from stack_builder.wheels.layout import read_layout
from stack_builder.wheels.memo import Memo
from stack_builder.wheels.store import Store

STATEMENTS_VERSION = 1  # raise it when the fields or what is read into them change

MAX_SBOM = 16 << 20  # bytes; the largest of the default stack has 495 kB
MAX_DOCUMENTS = 64  # SBOMs in one wheel
MAX_PARTS = 20_000  # components in one SBOM
MAX_LICENCE = 120  # characters; a longer `License:` is the text of a licence and not its name
MAX_TEXT = 300  # characters of a name, version or purl

_CLASSIFIER = "License :: "


@dataclass(frozen=True, slots=True)
class Part:
    """One component that a wheel's own SBOM lists: a crate, or a library that was copied in.

    Attributes:
        name: with its group, such as ``openssl``.
        version: as given, empty where none is.
        purl: without what only the building machine knows, else None.
        licence: SPDX expression, identifier or name, else None.
        sha256: of its archive, else None.
    """

    name: str
    version: str
    purl: str | None = None
    licence: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """One SBOM inside a wheel.

    Attributes:
        path: in the wheel.
        sha256: of the file.
        form: such as ``CycloneDX 1.5``; None for one that could not be read.
        parts: what it lists, the wheel itself left out; sorted.
    """

    path: str
    sha256: str
    form: str | None
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """What one wheel says of itself.

    Attributes:
        expression: ``License-Expression`` of its METADATA (PEP 639).
        licence: the older ``License``, where it is short enough to be a name.
        classifiers: its ``License ::`` classifiers, without that prefix.
        documents: its own SBOMs.
    """

    expression: str | None = None
    licence: str | None = None
    classifiers: tuple[str, ...] = ()
    documents: tuple[Document, ...] = ()


def collect(artifacts: Iterable[Artifact], store: Store) -> dict[str, Statement]:
    """Read the statements of those wheels of a lock that are in the store, by distribution name.

    Raises:
        IntegrityError: a stored wheel is damaged.
    """
    memo = Memo("statement", STATEMENTS_VERSION, Statement)
    found: dict[str, Statement] = {}
    for artifact in artifacts:
        path = store.find(artifact.sha256, artifact.filename, artifact.size) if artifact.sha256 else None
        if path is None or artifact.sha256 is None:
            continue
        known = memo.get(artifact.sha256)
        if known is None:
            with path.open("rb") as file:
                known = read(WheelArchive(file, artifact.filename))
            memo.put(artifact.sha256, known)
        found[artifact.name] = known
    return found


def read(archive: WheelArchive) -> Statement:
    """Read the statement of an open wheel.

    Raises:
        IntegrityError: the wheel is damaged, or its METADATA is larger than :data:`MAX_METADATA`.
    """
    folder = read_layout(archive).dist_info
    entry = archive.find(f"{folder}/METADATA")
    raw, unparsed = parse_email(archive.read(entry, MAX_METADATA) if entry else b"")
    own = (_normal(raw.get("name", "")), raw.get("version", ""))
    entries = [each for each in archive.files() if each.name.startswith(f"{folder}/sboms/")]
    documents = [
        read_document(each.name, archive.read(each, MAX_SBOM), own)
        for each in sorted(entries, key=lambda each: each.name)[:MAX_DOCUMENTS]
        if each.size <= MAX_SBOM
    ]
    licence = raw.get("license", "").strip().removeprefix("UNKNOWN")  # what old tools write for none
    classifiers = (each.removeprefix(_CLASSIFIER) for each in raw.get("classifiers", ()) if _CLASSIFIER in each)
    return Statement(
        expression=_short(raw.get("license_expression") or _first(unparsed.get("license-expression"))),
        licence=licence if licence.isprintable() and 0 < len(licence) <= MAX_LICENCE else None,
        classifiers=tuple(sorted(text for each in classifiers if (text := _short(each)))),
        documents=tuple(documents),
    )


class _License(BaseModel):
    id: str | None = None
    name: str | None = None


class _Choice(BaseModel):
    expression: str | None = None
    license: _License | None = None


class _Hash(BaseModel):
    alg: str
    content: str


class _Component(BaseModel):
    """The few fields of a CycloneDX component that are passed on."""

    name: str
    group: str | None = None
    version: str | None = None
    purl: str | None = None
    licenses: tuple[_Choice, ...] = ()
    hashes: tuple[_Hash, ...] = ()
    components: tuple[_Component, ...] = ()


class _Metadata(BaseModel):
    component: _Component | None = None


class _Bom(BaseModel):
    bomFormat: str  # noqa: N815 - CycloneDX names it so
    specVersion: str  # noqa: N815
    metadata: _Metadata = _Metadata()
    components: tuple[_Component, ...] = ()


def read_document(path: str, data: bytes, own: tuple[str, str]) -> Document:
    """Read one SBOM; one of another form, or a malformed one, is kept by its hash alone.

    Args:
        path: in the wheel.
        data: its bytes.
        own: normalised name and version of the wheel, which is no part of itself.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        bom = _Bom.model_validate(jsontext.loads(data))
        parts = sorted(set(_parts(bom, own)), key=lambda part: (part.name, part.version, part.purl or ""))
    except ValueError:
        return Document(path, sha256, None)
    form = _short(f"{bom.bomFormat} {bom.specVersion}")
    if bom.bomFormat != "CycloneDX" or len(parts) > MAX_PARTS:
        return Document(path, sha256, None)
    return Document(path, sha256, form, tuple(parts))


def _parts(bom: _Bom, own: tuple[str, str]) -> Iterator[Part]:
    todo = [*bom.components, *([bom.metadata.component] if bom.metadata.component else [])]
    seen = 0
    while todo and seen <= MAX_PARTS:
        component = todo.pop()
        seen += 1
        todo.extend(component.components)
        name = _short(f"{component.group}/{component.name}" if component.group else component.name)
        if name is None:
            continue
        purl = _portable(component.purl)
        python = purl is None or purl.startswith("pkg:pypi/")
        if python and (_normal(component.name), component.version) == own:
            continue
        sha256 = next((each.content.lower() for each in component.hashes if each.alg == "SHA-256"), None)
        yield Part(
            name=name,
            version=_short(component.version) or "",
            purl=purl,
            licence=_licence(component.licenses),
            sha256=sha256 if sha256 and len(sha256) == 64 and sha256.isalnum() else None,
        )


def _portable(purl: str | None) -> str | None:
    """A package URL without the paths of the machine that built the wheel; None for a malformed one."""
    if purl is None or len(purl) > 4 * MAX_TEXT or not purl.isprintable():
        return None
    try:
        parsed = PackageURL.from_string(purl)
        qualifiers: Mapping[str, str] = parsed.qualifiers if isinstance(parsed.qualifiers, dict) else {}
        kept = {key: value for key, value in qualifiers.items() if not value.startswith(("file:", "/"))}
        text = str(PackageURL(parsed.type, parsed.namespace, parsed.name, parsed.version, kept or None))
        return _short(str(PackageURL.from_string(text)))  # others will read it, so it must read as itself
    except ValueError:
        return None


def _licence(choices: Iterable[_Choice]) -> str | None:
    texts = [choice.expression or (choice.license and (choice.license.id or choice.license.name)) for choice in choices]
    return _short(" AND ".join(text for text in texts if text))


def _short(text: str | None) -> str | None:
    return text if text and len(text) <= MAX_TEXT and text.isprintable() else None


def _first(values: list[str] | None) -> str | None:
    return values[0] if values else None


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
