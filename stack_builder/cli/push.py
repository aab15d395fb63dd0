"""``stackb push``: an image to a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stack_builder import progress
from stack_builder.cli.output import write
from stack_builder.registry.reference import parse
from stack_builder.registry.verbs import JOBS, push


def command(
    image: Annotated[Path, typer.Argument(help="OCI layout, as a folder or a tar: what stackb build wrote.")],
    reference: Annotated[str, typer.Argument(metavar="HOST/NAME[:TAG]", help="Where it goes.")],
    mount_from: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another repository there: blobs that it has need not travel."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=32, help="Blobs at a time.")] = JOBS,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Speak plain HTTP with a registry that is not on this machine.")
    ] = False,
) -> None:
    """Bring an image to a registry; only the blobs that it lacks travel, and the digest stays the same.

    A push that was interrupted goes on where it ended. Credentials are those that docker login has left. Prints the
    image's name by digest.
    """
    said = progress.for_terminal()
    moved = push(image, parse(reference), said, insecure=insecure, mount_from=mount_from, jobs=jobs)
    size = progress.amount_text(moved.bytes, "bytes")
    mounted = f", {moved.mounted} taken from {mount_from}" if mount_from else ""
    said.note(f"{len(moved.travelled)} of {moved.blobs} blobs sent, {size}{mounted}")
    write(f"{moved.name}\n")
