"""The papers of an image: written beside it, outside its digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stack_builder.files import atomic_write
from stack_builder.stack.lock import Lock
from stack_builder.stack.receipt import Receipt
from stack_builder.stack.spec import StackSpec
from stack_builder.wheels.store import Store

SBOM = "stackb-sbom.cdx.json"
PROVENANCE = "stackb-provenance.intoto.json"


@dataclass(frozen=True, slots=True)
class Papers:
    """What was written.

    Attributes:
        sbom: CycloneDX 1.6.
        provenance: in-toto statement, SLSA provenance 1.
        unread: how many wheels were not in the store, so that the SBOM lacks their licences and own SBOMs.
    """

    sbom: Path
    provenance: Path
    unread: int


def write_beside(
    receipt: Receipt, lock: Lock, spec: StackSpec, folder: Path, *, prefix: str = "", store: Store | None = None
) -> Papers:
    """Write SBOM and provenance of an image that was just built; each file is replaced in one step.

    Args:
        receipt: of the image.
        lock: that it was built from.
        spec: the stack file.
        folder: the image's OCI layout, or the folder that its archive lies in.
        prefix: of the file names, such as ``image.tar.`` beside an archive.
        store: where the wheels are; the user's by default.

    Raises:
        IntegrityError: a stored wheel is damaged.
    """
    from stack_builder.supply import provenance, sbom, statements  # the CycloneDX library takes half a second to load

    found = statements.collect(lock.artifacts, store or Store())
    papers = Papers(folder / f"{prefix}{SBOM}", folder / f"{prefix}{PROVENANCE}", len(lock.artifacts) - len(found))
    atomic_write(papers.sbom, sbom.render(sbom.Bill(spec, lock, receipt.base, found)))
    atomic_write(papers.provenance, provenance.render(receipt))
    return papers
