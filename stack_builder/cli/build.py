"""``stackb build``: from a lock to a container image."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stack_builder import progress, resources
from stack_builder.cache.lock import in_use
from stack_builder.cache.stacks import remember
from stack_builder.cli.arguments import Offline, Stack, WheelFolder, Workers
from stack_builder.cli.output import write
from stack_builder.diagnose.lock.verbs import check_lock
from stack_builder.errors import IntegrityError, UsageError
from stack_builder.image import output as image_output
from stack_builder.image.base.providers import by_engine
from stack_builder.image.base.providers import source as base_source
from stack_builder.image.build import Built, build, forecast
from stack_builder.image.subject import Subject
from stack_builder.image.summary import built_text, forecast_text
from stack_builder.image.wheel_layers import Options
from stack_builder.image.workspace import Workspace
from stack_builder.patchset.model import series
from stack_builder.progress import Progress
from stack_builder.report import Severity
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.stack.lock import Lock
from stack_builder.stack.spec import StackSpec
from stack_builder.supply import beside, signing
from stack_builder.wheels.fetch import fetch, on_demand
from stack_builder.wheels.store import Store


class Engine(StrEnum):
    """Choices of ``--engine``."""

    OCI = "oci"
    DOCKER = "docker"


@in_use()
def command(
    stack: Stack = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="DIR|TAR|docker:TAG", help="Where the image goes; out/STACK if left out."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="SM", help="What it is for, as sm_120; the stack's first GPU if left out.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="KIND:NAME", help="Another base: recipe:, oci:, registry: or docker:.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="docker: run docker/Dockerfile on an image first; not bit for bit.")
    ] = Engine.OCI,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse instead of pinning the base's packages anew.")
    ] = False,
    update_base: Annotated[
        bool, typer.Option("--update-base", help="Pin the base's packages to what the mirror has now.")
    ] = False,
    offline: Offline = False,
    folder: WheelFolder = None,
    no_bytecode: Annotated[
        bool, typer.Option("--no-bytecode", help="Run nothing of the base: no .pyc files, no linker cache.")
    ] = False,
    jobs: Workers = None,
    sign_with: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="Sign the digest: a command from stdin to stdout (docs/signing.md)."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")] = False,
) -> None:
    """Build a container image from a lock: the same lock gives the same digest, on any machine.

    Layers are written straight from the verified wheels and the pinned packages of the base; what is in the cache is
    not made again. Neither a resolver nor the network takes part once all files are here.
    """
    place = stack_file.find(stack)
    spec, lock = stack_file.load(place), lock_file.load(place)
    said = progress.for_terminal()
    goal = image_output.parse(f"out/{spec.stack.name}" if output is None else output)
    if sign_with is not None and goal.receipt is None:
        raise UsageError("a signature needs a place beside the image", where="--sign-with", fix="write to DIR or TAR")
    signer = None if sign_with is None else signing.words(sign_with)
    source = base or base_source(spec.base)
    options = Options(
        base=by_engine(source) if engine is Engine.DOCKER else source,
        bytecode=not no_bytecode,
        locked=locked,
        offline=offline,
        update_base=update_base,
        jobs=jobs,
    )
    _refuse_bad_lock(place, spec, said)
    store, space, target = Store(), Workspace(resources.cache()), _gpu(gpu, spec)
    patches = series(spec.patches.series, place)
    if dry_run:
        subject = Subject.of_stack(spec, lock, target, patches)
        write(forecast_text(forecast(subject, store, options, space, said), goal))
        return
    remember(place)
    wheels = _fetch(lock, spec, store, offline, folder, said)
    subject = Subject.of_stack(spec, lock, target, patches, wheels)
    before = goal.receipt.read_bytes() if goal.receipt is not None and goal.receipt.is_file() else None
    with image_output.sending_ahead(goal, space.blobs, subject.platform) as ahead:
        built = build(subject, wheels, options, space, said, ahead.arrived if ahead else None)
        line = image_output.write(built, goal, space.blobs, said, ahead)
    if goal.receipt is not None:
        _papers(built, lock, spec, goal.receipt, before, signer)
    write(built_text(built, line))


def _papers(
    built: Built, lock: Lock, spec: StackSpec, receipt: Path, before: bytes | None, signer: Sequence[str] | None
) -> None:
    """SBOM, provenance and signature beside the image; made again only where the receipt is another."""
    prefix = receipt.name.removesuffix(image_output.RECEIPT)
    papers = [receipt.with_name(f"{prefix}{name}") for name in (beside.SBOM, beside.PROVENANCE)]
    signature = receipt.with_name(f"{prefix}{signing.SIGNATURE}")
    if receipt.read_bytes() != before or not all(paper.is_file() for paper in papers):
        signature.unlink(missing_ok=True)  # of the image that was here before
        beside.write_beside(built.receipt, lock, spec, receipt.parent, prefix=prefix)
    if signer is not None:
        signing.sign(built.image.manifest_digest, signer, signature)


def _gpu(given: str | None, spec: StackSpec) -> str:
    if given is None:
        return spec.stack.gpu[0]
    if given not in spec.stack.gpu:
        raise UsageError(f"{spec.stack.name} is not for {given}", fix=f"choose one of {', '.join(spec.stack.gpu)}")
    return given


def _refuse_bad_lock(place: Path, spec: StackSpec, said: Progress) -> None:
    report = check_lock(place, spec, None, said, datetime.now(UTC).date())
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    if errors:
        first = errors[0]
        raise IntegrityError(
            f"{len(errors)} errors; {first.rule} {first.title}",
            where=place,
            fix=f"run stackb lock {stack_file.argument(place)} --check",
        )


def _fetch(
    lock: Lock, spec: StackSpec, store: Store, offline: bool, folder: Path | None, said: Progress
) -> dict[str, Path]:
    with on_demand(spec) as network:
        done = fetch(lock, store, network=None if offline else network, folder=folder, progress=said)
    return {wheel.artifact.filename: wheel.path for wheel in done}
