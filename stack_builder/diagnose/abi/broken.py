"""Files that are at fault themselves, whatever else is there: made for another machine, damaged, or gone.

What other objects lack because of them is said once, of the file.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.environment.distributions import SHARED_OBJECT
from stack_builder.diagnose.environment.facts import Distribution, Environment, Object
from stack_builder.report import Finding, Severity

MAX_LISTED = 20  # files that evidence lists

_MODULE = re.compile(r"\.(abi3|cpython-\w+(-[\w-]+)?)\.so$")
_MACHINE = re.compile(
    r"(?<![a-z0-9])(aarch64|arm64|arm|armv\d\w*|sbsa|i[3-6]86|x86(_64)?|x64|amd64|ppc64(le)?|s390x|riscv64|bpf)(?![a-z0-9])",
    re.IGNORECASE,
)


def broken(environment: Environment) -> frozenset[str]:
    """File names of libraries of which every file is at fault, or gone although somebody installed it."""
    sound = {posixpath.basename(found.path) for found in environment.objects if not found.at_fault}
    faulty = {posixpath.basename(found.path) for found in environment.objects if found.at_fault}
    gone = (path for distribution in environment.distributions for path in distribution.absent)
    faulty.update(posixpath.basename(path) for path in gone if SHARED_OBJECT.search(path))
    return frozenset(faulty - sound)


def judge_files(environment: Environment) -> Iterator[Finding]:
    """Objects and files that are not what their distribution installed: damaged (ABI011) or gone (ABI010)."""
    contested = {owner for shared in environment.shared_files for owner in shared.owners}
    unread: dict[str | None, list[Object]] = defaultdict(list)
    for found in environment.objects:
        if found.unread is not None:
            unread[found.owner].append(found)
    for distribution in environment.distributions:
        yield from _damaged(environment, distribution, unread.pop(str(distribution), []))
        if distribution.absent_count and str(distribution) not in contested:
            yield _absent(environment, distribution)
    for objects in unread.values():
        for found in objects:
            yield catalogue.finding(
                "ABI011", detail=catalogue.sentence(found.unread or ""), object=found.path, distribution=found.owner
            )


def _damaged(environment: Environment, distribution: Distribution, unread: list[Object]) -> Iterator[Finding]:
    """One finding for all damaged files of a distribution; objects that were only changed (``strip``) get a note."""
    why = {found.path: found.unread or "" for found in unread}
    sizes = {r.path: f"it has {r.size:,} bytes; RECORD says {r.recorded:,}" for r in distribution.resized}
    empty = {resized.path for resized in distribution.resized if not resized.size}
    damaged = sorted(why.keys() | empty)
    changed = sorted(path for path in sizes.keys() - set(damaged) if environment.object_at(path) is not None)
    if damaged:
        said = {path: sizes.get(path) or why[path] for path in damaged}
        objects = [path for path in damaged if SHARED_OBJECT.search(path)]
        first = (objects or damaged)[0]
        more = f" {len(damaged) - 1} more of its files are damaged." if len(damaged) > 1 else ""
        yield catalogue.finding(
            "ABI011",
            title=None if objects else "Files are empty that should not be",
            severity=Severity.ERROR if _is_missed(environment, distribution, damaged) else None,
            detail=f"{catalogue.sentence(said[first])}{more}",
            object=first,
            distribution=str(distribution),
            evidence={"files": [f"{environment.short(path)}: {said[path]}" for path in damaged[:MAX_LISTED]]},
            fix=(reinstall(str(distribution)),),
        )
    if changed:
        yield catalogue.finding(
            "ABI011",
            title="A shared object was changed after its installation",
            severity=Severity.NOTE,
            detail=f"{catalogue.sentence(sizes[changed[0]])} It was read as it is.",
            object=changed[0],
            distribution=str(distribution),
            evidence={"files": [f"{environment.short(path)}: {sizes[path]}" for path in changed[:MAX_LISTED]]},
            fix=(reinstall(str(distribution)),),
        )


def _absent(environment: Environment, distribution: Distribution) -> Finding:
    example = environment.short(distribution.absent[0])
    return catalogue.finding(
        "ABI010",
        severity=Severity.ERROR if _is_missed(environment, distribution, distribution.absent) else None,
        detail=f"{distribution.absent_count} files of its RECORD are not there, such as {example}.",
        object=distribution.folder,
        distribution=str(distribution),
        evidence={
            "files": [*map(environment.short, distribution.absent[:MAX_LISTED])],
            "count": distribution.absent_count,
        },
        fix=(reinstall(str(distribution)),),
    )


def _is_missed(environment: Environment, distribution: Distribution, paths: Iterable[str]) -> bool:
    """Whether another object needs one of the files, or Python imports it as a module."""
    names = {posixpath.basename(path) for path in paths if SHARED_OBJECT.search(path)}
    if any(_MODULE.search(name) for name in names):
        return True
    return any(not names.isdisjoint(found.needed) for found in environment.objects)


def judge_foreign(environment: Environment) -> Iterator[Finding]:
    """Objects for another machine that somebody would load here, one finding for a distribution."""
    groups: dict[tuple[str, str], list[Object]] = defaultdict(list)
    for found in _foreign(environment):
        groups[found.owner or "", found.foreign or ""].append(found)
    for (owner, made_for), objects in sorted(groups.items()):
        name = owner or environment.short(objects[0].path)
        count = f"{len(objects)} objects" if len(objects) > 1 else "1 object"
        yield catalogue.finding(
            "ABI015",
            detail=f"{count} of {name}: made for {made_for}; this environment is for {environment.machine}.",
            object=objects[0].path,
            distribution=owner or None,
            evidence={
                "made_for": made_for,
                "environment": environment.machine,
                "objects": [environment.short(found.path) for found in objects[:MAX_LISTED]],
            },
            fix=(f"{reinstall(owner)}, with this environment's own pip: it takes the wheel for {environment.machine}",)
            if owner
            else None,
        )


def reinstall(owner: str) -> str:
    """The command that puts the files of ``name version`` back and leaves all else alone."""
    return f"pip install --force-reinstall --no-deps {owner.replace(' ', '==')}"


def _foreign(environment: Environment) -> Iterator[Object]:
    """Those of the objects for other machines that are there by mistake.

    Some packages ship what they copy to other machines, or plugins for several side by side. Such files say so in their
    name or folder, or have a sibling of the same name; extension modules, libraries that nothing else provides, and
    distributions without any object for this machine have no such excuse.
    """
    native = [found for found in environment.objects if not found.at_fault]
    owners = {found.owner for found in native}
    siblings = {(found.owner, _stem(found.path)) for found in native}
    provided = {posixpath.basename(found.path) for found in native}
    needed = {soname for found in native for soname in found.needed} - provided
    for found in environment.objects:
        if found.foreign is None or (found.owner, _stem(found.path)) in siblings:
            continue
        alone = found.owner not in owners
        module = _MODULE.search(found.path) is not None
        meant = _says_so(environment.short(found.path)) if not (module and alone) else False
        if posixpath.basename(found.path) in needed or (not meant and (module or (alone and found.owner is not None))):
            yield found


def _stem(path: str) -> str:
    """The file's name up to its first dot: a module's name, a library's without its version."""
    return posixpath.basename(path).partition(".")[0]


def _says_so(path: str) -> bool:
    return _MACHINE.search(path) is not None
