"""``stackb sbom``: the bill of materials of a stack, from its locks."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from stack_builder.cli.arguments import Stack
from stack_builder.cli.output import write
from stack_builder.image.base.model import architecture
from stack_builder.image.base.recipe import find, load_lock, lock_path
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.stack.receipt import BaseRecord
from stack_builder.stack.spec import StackSpec
from stack_builder.supply import sbom, statements
from stack_builder.wheels.store import Store


class SbomFormat(StrEnum):
    """Choices of ``--format``."""

    CYCLONEDX = "cyclonedx"
    LICENCES = "licences"


def command(
    stack: Stack = None,
    format: Annotated[  # noqa: A002
        SbomFormat, typer.Option(help="CycloneDX 1.6 JSON, or a table of the wheels' licences.")
    ] = SbomFormat.CYCLONEDX,
) -> None:
    """Print the bill of materials of a stack: its wheels and the packages of its base, each by hash.

    It is made from the locks, so the image need not exist. Licences and the wheels' own SBOMs are read from the wheels
    that `stackb fetch` has brought; wheels that are not here are listed all the same and marked.
    """
    place = stack_file.find(stack)
    spec, lock = stack_file.load(place), lock_file.load(place)
    found = statements.collect(lock.artifacts, Store())
    bill = sbom.Bill(spec, lock, _base(spec), found)
    if missing := len(lock.artifacts) - len(found):
        sys.stderr.write(
            f"{missing} of {len(lock.artifacts)} wheels are not in the store, so their licences and own SBOMs are "
            f"missing; run stackb fetch {stack_file.argument(place)} first to have them\n"
        )
    if format is SbomFormat.CYCLONEDX:
        write(sbom.render(bill))
    else:
        write("".join(f"{name}\t{version}\t{licence}\n" for name, version, licence in sbom.licences(bill)))


def _base(spec: StackSpec) -> BaseRecord:
    """The base as its recipe's lock pins it."""
    if spec.base.recipe is None:
        image = spec.base.image or ""
        return BaseRecord(f"registry:{image}", image.rpartition("@")[2])
    path, _ = find(spec.base.recipe)
    pinned = load_lock(lock_path(path, architecture(spec.stack.platform)))
    source = f"recipe:{spec.base.recipe}"
    return BaseRecord(source, pinned.sha256 if pinned else "", pinned.packages if pinned else ())
