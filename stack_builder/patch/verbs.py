"""Apply a series and take it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stack_builder.errors import UsageError
from stack_builder.patch import transaction
from stack_builder.patch.site import Installed
from stack_builder.patchset.distribution import Distribution
from stack_builder.patchset.model import Patch
from stack_builder.patchset.plan import Plan, plan
from stack_builder.patchset.record import bytecode_prefix


def apply(installed: Installed, patches: Iterable[Patch], *, dry_run: bool = False) -> Plan:
    """Apply patches after those already applied: all of them or none.

    Returns:
        what changes; empty where every patch was applied before.

    Raises:
        IntegrityError: a file has drifted; nothing was touched.
        UsageError: a patch is not needed, does not fit, or is applied in another revision; nothing was touched.
        MachineError: another run is at work.
    """
    wanted = tuple(patches)

    def series(distribution: Distribution) -> tuple[Patch, ...]:
        applied = {patch.id: patch for patch in distribution.applied}
        for patch in wanted:
            if patch.id in applied and applied[patch.id].sha256 != patch.sha256:
                raise UsageError(
                    f"another revision of patch '{patch.id}' is applied ({applied[patch.id].sha256[:12]}…)",
                    where=installed.root,
                    fix="revert it first",
                )
        return (*distribution.applied, *(patch for patch in wanted if patch.id not in applied))

    return _change(installed, series, dry_run)


def revert(installed: Installed, ids: Iterable[str] | None = None, *, dry_run: bool = False) -> Plan:
    """Take patches back, all for None; files end as if those had never been applied, to the byte.

    Returns:
        what changes; empty where nothing is applied.

    Raises:
        IntegrityError: a file has drifted; nothing was touched.
        UsageError: a patch is not applied, or one that stays builds on one that goes.
        MachineError: another run is at work.
    """
    gone = None if ids is None else set(ids)

    def series(distribution: Distribution) -> tuple[Patch, ...]:
        applied = [patch.id for patch in distribution.applied]
        if gone is None:
            return ()
        if unknown := sorted(gone - set(applied)):
            what = f"patch '{unknown[0]}' is not applied"
            raise UsageError(what, where=installed.root, fix=f"applied are {', '.join(applied) or 'none'}")
        return tuple(patch for patch in distribution.applied if patch.id not in gone)

    return _change(installed, series, dry_run)


def _change(installed: Installed, series: Callable[[Distribution], tuple[Patch, ...]], dry_run: bool) -> Plan:
    with transaction.exclusive(installed):
        if dry_run and transaction.pending(installed):
            raise UsageError(
                "a run was interrupted there; what it left has to be finished first",
                where=installed.root,
                fix="run stackb patch apply without --dry-run",
            )
        if not dry_run:
            transaction.recover(installed)
        distribution = installed.distribution()
        change = plan(distribution, series(distribution))
        if not dry_run and (change.writes or change.removes):
            transaction.commit(installed, change.writes, (*_bytecode(installed, change), *change.removes))
        return change


def _bytecode(installed: Installed, change: Plan) -> tuple[str, ...]:
    """Compiled forms of the modules that change: an interpreter may trust them without a look at the source."""
    found = []
    for module in change.modules:
        folder, _, stem = bytecode_prefix(module).rpartition("/")
        for file in sorted(installed.locate(module).parent.joinpath("__pycache__").glob("*.pyc")):
            if file.name.startswith(stem):
                found.append(f"{folder}/{file.name}")
    return tuple(found)
