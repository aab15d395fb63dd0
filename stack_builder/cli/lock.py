"""``stackb lock``: resolve a stack, pin every wheel, judge the result; or check the lock that is there."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from packaging.utils import canonicalize_name

from stack_builder import progress
from stack_builder.cli.arguments import Stack
from stack_builder.cli.output import Format, emit, write
from stack_builder.errors import ExitCode, UsageError
from stack_builder.progress import Progress
from stack_builder.report import Report, Severity
from stack_builder.resolve import RESOLVERS
from stack_builder.resolve.indexes import Indexes, indexes_when_asked
from stack_builder.resolve.model import Resolver, request_for
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.stack.spec import StackSpec


class ResolverName(StrEnum):
    """Choices of ``--resolver``."""

    AUTO = "auto"
    UV = "uv"
    PIP_TOOLS = "pip-tools"


def command(
    stack: Stack = None,
    check: Annotated[bool, typer.Option("--check", help="Resolve nothing: judge the lock that is there.")] = False,
    upgrade: Annotated[
        list[str] | None,
        typer.Option(metavar="PKG", help="Let this package move (repeatable); :all: for every package."),
    ] = None,
    resolver: Annotated[
        ResolverName, typer.Option(help="Who resolves. auto is uv; pip-tools takes minutes.")
    ] = ResolverName.AUTO,
    cross_check: Annotated[
        bool, typer.Option("--cross-check", help="Resolve with both; fail on any difference.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change; write nothing.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Use caches only; ask no index.")] = False,
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.TEXT,  # noqa: A002 - the option's name
) -> None:
    """Resolve a stack and pin every wheel by hash; nothing is written while a rule finds an error.

    Versions of the lock that is there are kept where stack.toml allows it. With --check the lock is judged as it is:
    always its files, and what the indexes serve today unless --offline.
    """
    place = stack_file.find(stack)
    spec, said, today = stack_file.load(place), progress.for_terminal(), datetime.now(UTC).date()
    _refuse_what_no_build_takes(place, spec, today)
    if check:
        if upgrade or cross_check or dry_run or resolver is not ResolverName.AUTO:
            raise UsageError(
                "--check resolves nothing", fix="leave out --upgrade, --cross-check, --dry-run, --resolver"
            )
        raise typer.Exit(_check(place, spec, offline, said, today, format))
    before = lock_file.previous(place, said)
    request = request_for(spec, before, [canonicalize_name(name) for name in upgrade or ()])
    with indexes_when_asked(spec) as indexes, ThreadPoolExecutor() as pool:
        resolvers = _resolvers(resolver, cross_check, offline, indexes, said)
        resolving = [(one, pool.submit(one.resolve, request)) for one in resolvers]
        import stack_builder.report.text  # noqa: F401 - loaded while the resolvers wait for the network, like these:
        from stack_builder.diagnose.lock import make_lock
        from stack_builder.resolve.locking import differences

        made = make_lock(request, resolving, before, indexes, said, today)
    changes = [
        f"{change.name}: {change.before or 'new'} -> {change.after or 'removed'}"
        for change in differences(before, made.draft.lock)
    ]
    refused = any(finding.severity is Severity.ERROR for finding in made.report.findings)
    if not refused and not dry_run:  # before anything is shown: a reader such as head may close the pipe
        lock_file.save(place, made.draft.lock, made.draft.requirements)
    code = _show(made.report, changes, format)
    if refused:
        said.note(f"not written: {place} stays as it is")
    elif not dry_run:
        said.note(f"written: {place}")
    raise typer.Exit(code)


def _refuse_what_no_build_takes(place: Path, spec: StackSpec, today: date) -> None:
    """Find out before anything is resolved that there is no such base, or that a later run may see other uploads."""
    from stack_builder.image.base import recipe  # not needed where an option is wrong

    if spec.base.recipe is not None:
        recipe.find(spec.base.recipe)
    last = spec.stack.exclude_newer
    if last is not None and last > today:
        raise UsageError(
            f"stack.exclude_newer is {last}, which is to come: what is uploaded until then would change the lock",
            where=place / "stack.toml",
            fix="give a day that is over",
        )


def _check(
    place: Path,
    spec: StackSpec,
    offline: bool,
    said: Progress,
    today: date,
    format: Format,  # noqa: A002
) -> ExitCode:
    from stack_builder.diagnose.lock import check_lock

    with indexes_when_asked(spec) as indexes:
        return emit(check_lock(place, spec, None if offline else indexes, said, today), format)


def _resolvers(
    name: ResolverName, cross_check: bool, offline: bool, indexes: Indexes, said: Progress
) -> Sequence[Resolver]:
    first = next(iter(RESOLVERS)) if name is ResolverName.AUTO else name.value
    names = [first, *(other for other in RESOLVERS if cross_check and other != first)]
    return [RESOLVERS[chosen](indexes, said, offline) for chosen in names]


def _show(report: Report, changes: list[str], format: Format) -> ExitCode:  # noqa: A002
    """Print the difference to the lock that was there, and the report: a program finds both in the report."""
    if format is Format.TEXT:
        write("".join(f"{line}\n" for line in changes))
    else:
        report = replace(report, facts={**report.facts, "changes": changes})
    return emit(report, format)
