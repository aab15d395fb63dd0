"""Apply a series and take it back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from stack_builder.diagnose.patches.site import Site
from stack_builder.errors import UsageError
from stack_builder.patch import transaction
from stack_builder.patchset.distribution import Distribution
from stack_builder.patchset.model import Hardware, Patch
from stack_builder.patchset.plan import Plan, plan
from stack_builder.patchset.record import bytecode_prefix
from stack_builder.patchset.states import State, assess


def apply(
    site: Site, patches: Iterable[Patch], *, only_for: Hardware | None = None, dry_run: bool = False
) -> tuple[Plan, ...]:
    """Apply patches after those already applied: all of them or none.

    Args:
        site: where.
        patches: in the order of their series.
        only_for: take only the patches whose state is "applies" on this hardware, instead of stopping at the others.
        dry_run: plan only.

    Returns:
        what changes, one plan for each distribution; none where every patch was applied before.

    Raises:
        IntegrityError: a file has drifted; nothing was touched.
        UsageError: a patch is not needed, does not fit, or is applied in another revision; nothing was touched.
        MachineError: another run is at work, or the machine failed.
    """
    wanted: dict[str, list[Patch]] = defaultdict(list)
    for patch in patches:
        wanted[patch.spec.distribution].append(patch)

    def series(distributions: Mapping[str, Distribution]) -> Iterator[tuple[Distribution, tuple[Patch, ...]]]:
        for name, new in wanted.items():
            if only_for is not None:
                states = assess(new, distributions[name], only_for) if name in distributions else ()
                new = [one.patch for one in states if one.state is State.APPLIES]
                if not new:
                    continue
            if name not in distributions:
                what = f"patch '{new[0].id}' is unused: {name} is not installed"
                raise UsageError(what, where=site.root, fix="take it out of the series")
            yield distributions[name], _extended(distributions[name], new)

    return _change(site, series, dry_run)


def revert(site: Site, ids: Iterable[str] | None = None, *, dry_run: bool = False) -> tuple[Plan, ...]:
    """Take patches back, all for None; files end as if those had never been applied, to the byte.

    Returns:
        what changes, one plan for each distribution; none where nothing is applied.

    Raises:
        IntegrityError: a file has drifted; nothing was touched.
        UsageError: a patch is not applied, or one that stays builds on one that goes.
        MachineError: another run is at work, or the machine failed.
    """
    gone = None if ids is None else set(ids)

    def series(distributions: Mapping[str, Distribution]) -> Iterator[tuple[Distribution, tuple[Patch, ...]]]:
        patched = [distribution for distribution in distributions.values() if distribution.manifest]
        applied = [patch.id for distribution in patched for patch in distribution.applied]
        if unknown := sorted((gone or set()) - set(applied)):
            what = f"patch '{unknown[0]}' is not applied"
            raise UsageError(what, where=site.root, fix=f"applied: {', '.join(applied) or 'none'}")
        for distribution in patched:
            stays = () if gone is None else tuple(patch for patch in distribution.applied if patch.id not in gone)
            if stays != distribution.applied:
                yield distribution, stays

    return _change(site, series, dry_run)


_Series = Callable[[Mapping[str, Distribution]], Iterator[tuple[Distribution, tuple[Patch, ...]]]]


def _extended(distribution: Distribution, new: Iterable[Patch]) -> tuple[Patch, ...]:
    applied = {patch.id: patch for patch in distribution.applied}
    for patch in new:
        if patch.id in applied and applied[patch.id].sha256 != patch.sha256:
            what = f"another revision of patch '{patch.id}' is applied ({applied[patch.id].sha256[:12]}…)"
            raise UsageError(what, where=distribution.manifest_path, fix="revert it first")
    return (*distribution.applied, *(patch for patch in new if patch.id not in applied))


def _change(site: Site, series: _Series, dry_run: bool) -> tuple[Plan, ...]:
    with transaction.exclusive(site):
        if not dry_run:
            transaction.recover(site)
        elif site.interrupted:
            what = "a run was interrupted there, and what it left has to be finished first"
            raise UsageError(what, where=site.root, fix="run the same command without --dry-run")
        plans = [plan(distribution, patches) for distribution, patches in series(site.distributions())]
        plans = [
            replace(change, removes=(*_bytecode(site, change), *change.removes))
            for change in plans
            if change.writes or change.removes
        ]
        if plans and not dry_run:
            writes = {path: data for change in plans for path, data in change.writes.items()}
            removes = tuple(path for change in plans for path in change.removes)
            transaction.commit(site, writes, removes)
        return tuple(plans)


def _bytecode(site: Site, change: Plan) -> Iterator[str]:
    """Compiled forms of the modules that change: an interpreter may trust them without a look at the source."""
    for module in change.modules:
        folder, _, stem = bytecode_prefix(module).rpartition("/")
        for file in sorted(site.locate(module).parent.joinpath("__pycache__").glob("*.pyc")):
            if file.name.startswith(stem):
                yield f"{folder}/{file.name}"
