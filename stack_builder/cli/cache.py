"""``stackb cache info|verify|prune``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from stack_builder import jsontext, progress, resources
from stack_builder.cache import verbs
from stack_builder.cache.verbs import DAYS, Pruned, Share
from stack_builder.cli.output import Format, emit, redacted, table, write
from stack_builder.errors import UsageError
from stack_builder.progress import amount_text

app = typer.Typer(no_args_is_help=True, help="Show, check and clear what stackb keeps for later runs.")

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_NAMES = 4  # of those who need something; the others are counted


@app.command()
def info(as_json: _Json = False) -> None:
    """Say what is in the cache: kinds, counts, bytes on the disk, and who needs them."""
    shares = verbs.info()
    if as_json:
        kinds = {s.kind.name: {"items": s.items, "bytes": s.size, "needed_bytes": s.needed, "by": s.by} for s in shares}
        write(jsontext.dumps({"cache": _place(), "kinds": kinds}))
        return
    rows = [(s.kind.name, str(s.items), _bytes(s.size), _bytes(s.needed), _names(s)) for s in shares]
    total = sum(share.size for share in shares)
    write(f"{_place()}: {_bytes(total)}\n")
    table(("kind", "items", "size", "needed", "by"), rows)


@app.command()
def verify(
    repair: Annotated[bool, typer.Option("--repair", help="Remove what is damaged.")] = False,
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.TEXT,  # noqa: A002 - the option's name
) -> None:
    """Hash every wheel, blob and package again, and name what is not what its name says, and what has no such name."""
    raise typer.Exit(emit(verbs.verify(progress.for_terminal(), repair=repair), format))


@app.command()
def prune(
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", min=0, help="Keep what was used since then.")
    ] = DAYS,
    everything: Annotated[bool, typer.Option("--all", help="Remove what is needed, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed; do nothing.")] = False,
    as_json: _Json = False,
) -> None:
    """Remove what no lock and no recent image needs and what was not used lately; and what killed commands left.

    A lock needs its wheels as long as its stack's folder is there. An image needs its layers, wheels and packages as
    long as its lock is one, and for DAYS after it was built.
    """
    if everything and older_than != DAYS:
        raise UsageError("--all and --older-than contradict each other", fix="give one of them")
    pruned = verbs.prune(days=older_than, everything=everything, dry_run=dry_run)
    if as_json:
        kinds = {each.kind.name: {"items": each.items, "bytes": each.size} for each in pruned}
        write(jsontext.dumps({"cache": _place(), "dry_run": dry_run, "removed": kinds}))
        return
    rows = [(each.kind.name, str(each.items), _bytes(each.size)) for each in pruned]
    if rows:
        table(("kind", "items", "size"), rows)
    write(_sum(pruned, dry_run))


def _place() -> str:
    return redacted(str(resources.cache()))


def _sum(pruned: Iterable[Pruned], dry_run: bool) -> str:
    total = sum(each.size for each in pruned)
    return f"{_bytes(total)} {'would be ' if dry_run else ''}freed\n"


def _names(share: Share) -> str:
    more = f" and {len(share.by) - _NAMES} more" if len(share.by) > _NAMES else ""
    return ", ".join(share.by[:_NAMES]) + more


def _bytes(amount: int) -> str:
    return amount_text(amount, "bytes")
