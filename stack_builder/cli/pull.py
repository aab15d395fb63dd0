"""``stackb pull``: an image from a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stack_builder import progress
from stack_builder.cli.output import write
from stack_builder.registry.reference import parse
from stack_builder.registry.verbs import JOBS, pull


def command(
    reference: Annotated[str, typer.Argument(metavar="HOST/NAME[:TAG][@DIGEST]", help="The image.")],
    folder: Annotated[Path, typer.Argument(help="Where its OCI layout goes; what is there already is used.")],
    architecture: Annotated[str, typer.Option(help="What to choose where a name stands for several images.")] = "amd64",
    jobs: Annotated[int, typer.Option(min=1, max=32, help="Blobs at a time.")] = JOBS,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Speak plain HTTP with a registry that is not on this machine.")
    ] = False,
) -> None:
    """Bring an image from a registry into an OCI layout; every blob is checked against its digest.

    A pull that was interrupted goes on where it ended. Prints the image's name by digest.
    """
    said = progress.for_terminal()
    moved = pull(parse(reference), folder, said, insecure=insecure, architecture=architecture, jobs=jobs)
    size = progress.amount_text(moved.bytes, "bytes")
    said.note(f"{len(moved.travelled)} of {moved.blobs} blobs fetched, {size}; all digests right. Layout: {folder}")
    write(f"{moved.name}\n")
