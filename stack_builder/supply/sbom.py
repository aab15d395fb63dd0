"""The bill of materials of a stack, as CycloneDX 1.6 JSON: equal inputs give equal bytes.

It names the wheels and Debian packages that the locks pin; licences, and what was compiled into a wheel, come from the
wheels themselves where these are at hand. There is no clock in it, and its serial number is a hash of its content.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License, LicenseAcknowledgement
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from stack_builder import __version__
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.stack.receipt import BaseRecord, DebianPackage
from stack_builder.stack.spec import StackSpec
from stack_builder.supply.statements import Part, Statement

_SERIALS = uuid.UUID("6f1d6a3e-3f0e-5d0c-9a58-6f0d3c3b9a11")  # a random namespace (RFC 9562, 5.5), the tool's own
_LICENCES = LicenseFactory()
_BASE_FILES = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Bill:
    """What a bill of materials is made from.

    Attributes:
        spec: the stack file.
        lock: its lock.
        base: what the image stands on.
        statements: by distribution name; wheels without one are marked as unread.
    """

    spec: StackSpec
    lock: Lock
    base: BaseRecord
    statements: Mapping[str, Statement]


def render(bill: Bill) -> str:
    """Write a bill as CycloneDX 1.6 JSON."""
    body = json.loads(JsonV1Dot6(_bom(bill)).output_as_string())
    body.pop("serialNumber")  # a random one
    body["serialNumber"] = uuid.uuid5(_SERIALS, json.dumps(body, sort_keys=True)).urn
    return json.dumps(body, indent=1, sort_keys=True) + "\n"


def licences(bill: Bill) -> list[tuple[str, str, str]]:
    """List name, version and licence of every wheel, as the wheels declare them."""
    rows = []
    for artifact in bill.lock.artifacts:
        statement = bill.statements.get(artifact.name)
        text = "(wheel not read)" if statement is None else " / ".join(_declared(statement)) or "(none declared)"
        rows.append((artifact.name, artifact.version, text))
    return rows


def wheel_purl(name: str, version: str) -> PackageURL:
    """Package URL of a wheel (purl-spec, type ``pypi``)."""
    return PackageURL("pypi", None, name, version)


def debian_purl(package: DebianPackage, distro: str | None) -> PackageURL:
    """Package URL of a Debian package (purl-spec, type ``deb``)."""
    qualifiers = {"arch": package.architecture, **({"distro": distro} if distro else {})}
    return PackageURL("deb", "debian", package.name, package.version, qualifiers)


def distro_of(packages: Iterable[DebianPackage]) -> str | None:
    """The release that packages are of, such as ``debian-12``: the major version of its ``base-files``."""
    version = next((package.version for package in packages if package.name == "base-files"), "")
    match = _BASE_FILES.match(version)
    return f"debian-{match.group()}" if match else None


def _bom(bill: Bill) -> Bom:
    stack = bill.spec.stack
    root = Component(
        type=ComponentType.CONTAINER,
        name=stack.name,
        bom_ref=f"stack:{stack.name}",
        description=stack.description,
        properties=_properties(
            {"lock-sha256": bill.lock.sha256, "python": stack.python, "platform": stack.platform, "cuda": stack.cuda}
        ),
    )
    tool = Component(type=ComponentType.APPLICATION, name="stackb", version=__version__)
    bom = Bom(metadata=BomMetaData(component=root, tools=ToolRepository(components=[tool])))
    bom.metadata.timestamp = None  # type: ignore[assignment]  # the field is optional in CycloneDX, the default is now
    wheels = {artifact.name: _wheel(artifact, bill.statements.get(artifact.name)) for artifact in bill.lock.artifacts}
    base = _base(bill.base)
    bom.components.update([*wheels.values(), *base])
    _relate(bom, root, bill, wheels, base)
    return bom


def _relate(bom: Bom, root: Component, bill: Bill, wheels: Mapping[str, Component], base: list[Component]) -> None:
    """Say who requires whom: the lock keeps it the other way round."""
    requires: dict[str, list[Component]] = defaultdict(list)
    for artifact in bill.lock.artifacts:
        for parent in artifact.via:
            requires[parent].append(wheels[artifact.name])
    roots = [wheels[name] for name in bill.spec.requires if name in wheels]
    bom.register_dependency(root, [*roots, *base])
    for name, component in wheels.items():
        bom.register_dependency(component, requires.get(name, []))
    for component in base:
        bom.register_dependency(component)


def _wheel(artifact: Artifact, statement: Statement | None) -> Component:
    purl = wheel_purl(artifact.name, artifact.version)
    facts = {"wheel": artifact.filename, "index": artifact.index}
    if statement is None:
        facts["unread"] = "the wheel was not at hand: its licence and its own SBOMs are unknown"
    component = Component(
        type=ComponentType.LIBRARY,
        name=artifact.name,
        version=artifact.version,
        bom_ref=str(purl),
        purl=purl,
        hashes=_sha256(artifact.sha256),
        properties=_properties(facts),
    )
    if statement is None:
        return component
    component.licenses.update(_licences(_declared(statement)))
    for document in statement.documents:
        component.external_references.add(
            ExternalReference(
                type=ExternalReferenceType.BOM,
                url=XsUri(document.path),
                comment=document.form or "not read: another form, or malformed",
                hashes=_sha256(document.sha256),
            )
        )
    parts = dict.fromkeys(part for document in statement.documents for part in document.parts)
    component.components.update(_part(str(purl), part) for part in parts)
    return component


def _part(owner: str, part: Part) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=part.name,
        version=part.version or None,
        bom_ref=f"{owner}#{part.purl or f'{part.name}@{part.version}'}:{_short_hash(part)}",
        purl=PackageURL.from_string(part.purl) if part.purl else None,
        hashes=_sha256(part.sha256),
        licenses=_licences((part.licence,) if part.licence else ()),
    )


def _base(record: BaseRecord) -> list[Component]:
    if not record.packages:
        digest = record.identity.removeprefix("sha256:")
        return [
            Component(
                type=ComponentType.CONTAINER,
                name=record.source.partition("@")[0],
                version=record.identity,
                bom_ref=f"base:{digest}",
                hashes=_sha256(digest if re.fullmatch(r"[0-9a-f]{64}", digest) else None),
            )
        ]
    distro = distro_of(record.packages)
    return [
        Component(
            type=ComponentType.LIBRARY,
            name=package.name,
            version=package.version,
            bom_ref=str(debian_purl(package, distro)),
            purl=debian_purl(package, distro),
            hashes=_sha256(package.sha256),
            properties=_properties({"base": record.source}),
        )
        for package in record.packages
    ]


def _declared(statement: Statement) -> tuple[str, ...]:
    """The best that a wheel declares: an expression, else a name, else its classifiers."""
    if statement.expression or statement.licence:
        return (statement.expression or statement.licence or "",)
    return tuple(each.rpartition(" :: ")[2] for each in statement.classifiers)


def _licences(texts: Iterable[str]) -> list[License]:
    """SPDX identifiers and expressions as such, everything else as a name: nothing is guessed.

    An expression must stand alone (CycloneDX 1.6, licenseChoice); here a list has several only if all are names.
    """
    declared = LicenseAcknowledgement.DECLARED
    return [_LICENCES.make_from_string(text, license_acknowledgement=declared) for text in texts]


def _sha256(value: str | None) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=value)] if value and len(value) == 64 else []


def _properties(facts: Mapping[str, str]) -> list[Property]:
    return [Property(name=f"stackb:{name}", value=value) for name, value in facts.items()]


def _short_hash(part: Part) -> str:
    return uuid.uuid5(_SERIALS, repr(part)).hex[:8]
