"""Is this image what its receipt says? It is built again from the inputs, apart from the cache, and compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stack_builder import resources
from stack_builder.diagnose import catalogue
from stack_builder.errors import MachineError, UsageError, engine_says
from stack_builder.files import claimed_folder
from stack_builder.image.base.archives import SavedSource
from stack_builder.image.base.images import Parts, Source, open_layout, read_parts
from stack_builder.image.build import Built, build
from stack_builder.image.compare import differences, file_at, first_difference
from stack_builder.image.output import RECEIPT
from stack_builder.image.settings import LAYOUT_VERSION
from stack_builder.image.store import BlobStore
from stack_builder.image.stream import LayerStream
from stack_builder.image.subject import Subject
from stack_builder.image.wheel_layers import Options
from stack_builder.image.workspace import Workspace
from stack_builder.progress import Progress
from stack_builder.report import Finding, Report, Skipped, Target
from stack_builder.stack.receipt import LayerRecord, Receipt, load

_MAX_FINDINGS = 50


@dataclass(frozen=True, slots=True)
class Opened:
    """An image that can be read.

    Attributes:
        target: what it is.
        source: its blobs.
        parts: its configuration and layers; the manifest is a stand-in where ``saved``.
        saved: whether an engine's classic store gave it out: that keeps neither compressed layers nor the manifest.
        receipt: where its receipt would lie.
    """

    target: Target
    source: Source
    parts: Parts
    saved: bool
    receipt: Path


@contextmanager
def open_image(target: Target) -> Iterator[Opened]:
    """Open ``oci:PATH`` or ``image:REF``.

    Raises:
        UsageError: it is no image, or the engine has none of this name.
        IntegrityError: its documents do not have the digests by which they are named, or are malformed.
        MachineError: no engine answers.
    """
    with ExitStack() as stack:
        path = Path(target.name)
        if target.kind == "image":
            path = stack.enter_context(_scratch()) / "saved.tar"
            _save(target.name, path)
        source, digest = stack.enter_context(open_layout(path))
        parts = read_parts(source, digest)
        beside = path / RECEIPT if path.is_dir() else Path(f"{path}.{RECEIPT}")
        # engines from 25 on save a layout; of a classic store one of plain layers, under a manifest made up for them
        saved = isinstance(source, SavedSource) or parts.unpacked
        yield Opened(target, source, parts, saved, beside)


def find_receipt(opened: Opened, given: Path | None, space: Workspace) -> Receipt:
    """Find the receipt: as given, beside the image, or among those that builds left in the cache.

    Raises:
        UsageError: there is none.
    """
    if given is not None:
        return load(given)
    if opened.receipt.is_file():
        return load(opened.receipt)
    by_manifest = space.receipts / f"{opened.parts.identity.removeprefix('sha256:')}.json"
    if by_manifest.is_file():
        return load(by_manifest)
    for path in sorted(space.receipts.glob("*.json")):
        receipt = load(path)
        if receipt.config_digest == opened.parts.config_digest:
            return receipt
    raise UsageError("has no receipt", where=opened.target.name, fix="give the one of its build with --receipt")


def rebuild(
    receipt: Receipt,
    wheels: Mapping[str, Path],
    space: Workspace,
    scratch: Workspace,
    jobs: int | None,
    progress: Progress,
    *,
    keep: bool,
) -> Built:
    """Build again from a receipt's inputs, in a cache of its own; only downloads are shared.

    Args:
        receipt: names the inputs.
        wheels: a file for each wheel.
        space: the user's cache, for the packages of the base.
        scratch: an empty cache.
        jobs: worker processes.
        progress: where to report to.
        keep: keep the layers too, to say in what they differ; otherwise their digests alone, which costs no disk.
    """
    (space.root / "debs").mkdir(parents=True, exist_ok=True)
    if not (scratch.root / "debs").exists():
        (scratch.root / "debs").symlink_to((space.root / "debs").resolve())
    options = Options(
        base=receipt.base.source,
        bytecode=receipt.bytecode,
        base_packages=receipt.base.packages,
        jobs=jobs,
        keep=keep,
    )
    return build(Subject.of_receipt(receipt), wheels, options, scratch, progress)


def compare(opened: Opened, receipt: Receipt, rebuilt: Built | None, blobs: BlobStore | None) -> Report:
    """Compare an image with its receipt and, where there is one, with the rebuilt image.

    Args:
        opened: the image.
        receipt: what it should be.
        rebuilt: what its inputs give; None to compare with the receipt's digests alone.
        blobs: has the rebuilt layers, if they were kept.
    """
    parts = opened.parts
    findings = list(_identity(opened, receipt))
    expected = rebuilt.receipt.layers if rebuilt else receipt.layers
    for number, digest in enumerate(parts.layers):
        ours = expected[number] if number < len(expected) else None
        findings += _Layer(opened, digest, ours, blobs if rebuilt else None).findings()
    findings += [
        catalogue.finding("IMG002", object=layer.title, detail="The image does not have this layer.")
        for layer in expected[len(parts.layers) :]
    ]
    if rebuilt and blobs:
        findings += _documents(opened, rebuilt, blobs)
    skipped = () if rebuilt else tuple(Skipped(rule, "not rebuilt (--quick)") for rule in ("IMG002", "IMG003"))
    facts = {
        "manifest": receipt.manifest_digest,
        "config": receipt.config_digest,
        "layers": len(parts.layers),
        "rebuilt": rebuilt.image.manifest_digest if rebuilt else "no",
        "built by": f"stackb {receipt.tool}, layout {receipt.layout}",
    }
    return Report(opened.target, tuple(findings[:_MAX_FINDINGS]), skipped, facts)


def needs_layers(report: Report) -> bool:
    """Whether a comparison found layers that differ, so that having them would tell more."""
    return any(finding.rule in ("IMG001", "IMG002") for finding in report.findings)


def check_layout_version(receipt: Receipt) -> None:
    """Refuse to rebuild what this version lays out differently.

    Raises:
        UsageError: the receipt is of another layout version.
    """
    if receipt.layout != LAYOUT_VERSION:
        raise UsageError(
            f"built with image layout {receipt.layout}, this is layout {LAYOUT_VERSION}",
            where=f"stackb {receipt.tool}",
            fix="verify it with the version that built it, or compare digests alone with --quick",
        )


class _Layer:
    """One layer of an image against the layer that it should be."""

    def __init__(self, opened: Opened, digest: str, ours: LayerRecord | None, blobs: BlobStore | None) -> None:
        self._opened, self._digest, self._ours = opened, digest, ours
        rebuilt = blobs.path(ours.digest) if blobs and ours else None
        self._rebuilt = rebuilt if rebuilt and rebuilt.is_file() else None

    def findings(self) -> Iterator[Finding]:
        actual = hashlib.sha256()
        for data in self._opened.source.blob(self._digest):
            actual.update(data)
        title = self._ours.title if self._ours else self._digest
        wanted = self._ours and (self._ours.diff_id if self._opened.saved else self._ours.digest)
        if f"sha256:{actual.hexdigest()}" != self._digest:
            where = self._damaged_file()
            yield catalogue.finding(
                "IMG001",
                object=where or title,
                distribution=title,
                detail=f"Layer {title}: damaged{f' at {where}' if where else ''}.",
                evidence={"digest": self._digest, "actual": f"sha256:{actual.hexdigest()}"},
            )
        elif self._ours is None:
            yield catalogue.finding("IMG002", object=self._digest, detail="The rebuilt image has no such layer.")
        elif wanted != self._digest:
            yield from self._differing_files(title)

    def _damaged_file(self) -> str | None:
        if self._rebuilt is None or self._opened.saved:
            return None
        with self._copy() as found:
            offset = first_difference(found, self._rebuilt)
            return None if offset is None else file_at(self._rebuilt, offset)

    def _differing_files(self, title: str) -> Iterator[Finding]:
        evidence = {"found": self._digest, "expected": self._ours.digest if self._ours else None}
        if self._rebuilt is None:
            yield catalogue.finding("IMG002", object=title, detail="Not the receipt's digest.", evidence=evidence)
            return
        with self._copy() as found:
            listed = differences(found, self._rebuilt)
        for each in listed:
            detail = f"Layer {title}: {each.field} is {each.found}, rebuilt it is {each.expected}."
            yield catalogue.finding("IMG002", object=each.path, distribution=title, detail=detail, evidence=evidence)
        if not listed:
            detail = f"Layer {title}: same files, in another order or compressed otherwise."
            yield catalogue.finding("IMG002", object=title, detail=detail, evidence=evidence)

    @contextmanager
    def _copy(self) -> Iterator[Path]:
        """The layer as a gzip file on disk."""
        with _scratch() as scratch:
            path = scratch / "layer"
            with path.open("wb") as file:
                if self._opened.saved:  # plain tars
                    frame = LayerStream(file)
                    for data in self._opened.source.blob(self._digest):
                        frame.plain(data)
                    frame.finish()
                else:
                    for data in self._opened.source.blob(self._digest):
                        file.write(data)
            yield path


def _identity(opened: Opened, receipt: Receipt) -> Iterator[Finding]:
    parts = opened.parts
    found, expected = (
        (parts.config_digest, receipt.config_digest) if opened.saved else (parts.identity, receipt.manifest_digest)
    )
    if found != expected:
        yield catalogue.finding("IMG004", detail=f"The image is {found}, the receipt's is {expected}.")


def _documents(opened: Opened, rebuilt: Built, blobs: BlobStore) -> Iterator[Finding]:
    """Compare configuration and manifest field by field."""
    parts = opened.parts
    pairs = [("config", parts.config, rebuilt.image.config_digest)]
    if not opened.saved:
        pairs.append(("manifest", parts.manifest, rebuilt.image.manifest_digest))
    for name, found, digest in pairs:
        expected = json.loads(blobs.path(digest).read_bytes())
        for field, theirs, ours in _fields(name, found, expected):
            yield catalogue.finding("IMG003", object=field, detail=f"{field} is {theirs}, rebuilt it is {ours}.")


def _fields(path: str, found: object, expected: object) -> Iterator[tuple[str, str, str]]:
    """The leaves in which two JSON values differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys()):
            yield from _fields(f"{path}.{key}", found.get(key), expected.get(key))
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from _fields(f"{path}[{number}]", one, other)
    elif found != expected:
        yield path, json.dumps(found)[:200], json.dumps(expected)[:200]


def _scratch() -> AbstractContextManager[Path]:
    """A folder for what may have ten gigabytes: in the cache, not in a small /tmp."""
    return claimed_folder(Workspace(resources.cache()).scratch, prefix="verify-")


def _save(reference: str, path: Path) -> None:
    import docker

    from stack_builder.image.daemon import connect

    try:
        with path.open("wb") as file:
            for data in connect().images.get(reference).save(named=False):
                file.write(data)
    except docker.errors.ImageNotFound as error:
        raise UsageError("the Docker engine has no such image", where=reference) from error
    except docker.errors.DockerException as error:
        raise MachineError(f"the Docker engine does not give it out: {engine_says(error)}", where=reference) from error
