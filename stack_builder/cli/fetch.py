"""``stackb fetch``: the wheels of a lock into the content-addressed store."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from stack_builder import progress
from stack_builder.cache.lock import in_use
from stack_builder.cache.stacks import remember
from stack_builder.cli.arguments import Offline, Stack, WheelFolder
from stack_builder.cli.output import redacted, write
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.wheels.fetch import DEFAULT_JOBS, Fetched, Source, fetch, on_demand
from stack_builder.wheels.store import Store

_SAID = {
    Source.STORE: "already there, of the size, time, inode and mode they had when their hash was checked",
    Source.FOLDER: "from the folder, hashes right",
    Source.INDEX: "downloaded, hashes right",
}


@in_use()
def command(
    stack: Stack = None,
    offline: Offline = False,
    folder: WheelFolder = None,
    jobs: Annotated[int, typer.Option(min=1, max=32, help="Downloads at a time.")] = DEFAULT_JOBS,
    print_paths: Annotated[
        bool, typer.Option("--print-paths", help="Print the path of every wheel, in the order of the lock.")
    ] = False,
) -> None:
    """Download the wheels of a lock into the content-addressed store.

    Every wheel is checked against the lock's sha256 while it arrives. A fetch that was interrupted goes on where it
    ended, and two at once share the work. STACKB_CACHE_DIR names another place for the store.
    """
    place = stack_file.find(stack)
    spec, lock = stack_file.load(place), lock_file.load(place)
    store, said = Store(), progress.for_terminal()
    remember(place)
    with on_demand(spec) as network:
        done = fetch(
            lock,
            store,
            network=None if offline else network,
            folder=folder,
            jobs=jobs,
            progress=said,
        )
    said.note(_summary(lock.stack, done, store))
    if print_paths:
        write("".join(f"{wheel.path}\n" for wheel in done))


def _summary(stack: str, done: tuple[Fetched, ...], store: Store) -> str:
    sizes = sum(wheel.path.stat().st_size for wheel in done)
    counts = Counter(wheel.source for wheel in done)
    parts = ", ".join(f"{counts[source]} {text}" for source, text in _SAID.items() if counts[source])
    total = progress.amount_text(sizes, "bytes")
    place = redacted(str(store.root))
    return f"{stack}: {progress.amount_text(len(done), 'wheels')}, {total}: {parts or 'none'}. Store: {place}"
