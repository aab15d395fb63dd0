"""``stackb verify``: is an image what its receipt says."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from stack_builder import progress, resources
from stack_builder.cache.lock import in_use
from stack_builder.cli.arguments import Offline, WheelFolder, Workers
from stack_builder.cli.output import Format, emit
from stack_builder.diagnose import target as targets
from stack_builder.errors import StackbError
from stack_builder.files import claimed_folder
from stack_builder.image.verify import check_layout_version, compare, find_receipt, needs_layers, open_image, rebuild
from stack_builder.image.workspace import Workspace
from stack_builder.progress import Progress
from stack_builder.stack import spec as stack_file
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.stack.receipt import Receipt
from stack_builder.wheels.fetch import fetch, on_demand
from stack_builder.wheels.store import Store


@in_use()
def command(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="oci:DIR|TAR or image:REF, as stackb build wrote it.")],
    receipt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its receipt; beside the image or in the cache if left out.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Compare with the receipt's digests; build nothing.")] = False,
    offline: Offline = False,
    folder: WheelFolder = None,
    jobs: Workers = None,
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.TEXT,  # noqa: A002 - the option's name
) -> None:
    """Build an image again from its receipt, apart from the cache, and compare.

    A difference is named by layer, file and field. Takes as long as the first build; --quick only reads the image.
    """
    target = targets.parse(image, kinds=("oci", "image"))
    space, said = Workspace(resources.cache()), progress.for_terminal()
    with open_image(target.as_report_target()) as opened, ExitStack() as stack:
        paper = find_receipt(opened, receipt, space)
        if quick:
            raise typer.Exit(emit(compare(opened, paper, None, None), format))
        check_layout_version(paper)
        wheels = _fetch(paper, offline, folder, said)
        scratch = Workspace(stack.enter_context(claimed_folder(space.scratch, prefix="verify-")).resolve())
        for keep in (False, True):
            built = rebuild(paper, wheels, space, scratch, jobs, said, keep=keep)
            report = compare(opened, paper, built, scratch.blobs)
            if not needs_layers(report):
                break
        raise typer.Exit(emit(report, format))


def _fetch(receipt: Receipt, offline: bool, folder: Path | None, said: Progress) -> dict[str, Path]:
    """The wheels of the receipt; from the stack's own indexes where the stack is known here."""
    artifacts = tuple(
        Artifact(wheel.name, wheel.version, wheel.filename, wheel.sha256, wheel.size, wheel.index)
        for wheel in receipt.wheels
    )
    lock = Lock(receipt.stack, receipt.python, receipt.platform, "receipt", artifacts=artifacts)
    try:
        spec = stack_file.load(stack_file.find(receipt.stack))
    except StackbError:
        spec = None
    with on_demand(spec) as network:
        done = fetch(lock, Store(), network=None if offline else network, folder=folder, progress=said)
    return {wheel.artifact.filename: wheel.path for wheel in done}
