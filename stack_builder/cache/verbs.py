"""``info``, ``verify`` and ``prune``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stack_builder import resources
from stack_builder.cache import content
from stack_builder.cache.content import KINDS, File, Item, Kind
from stack_builder.cache.lock import alone, in_use
from stack_builder.cache.needs import collect
from stack_builder.diagnose import catalogue
from stack_builder.errors import UsageError
from stack_builder.files import remove, unclaimed
from stack_builder.progress import Progress
from stack_builder.report import Finding, Report, Skipped, Target
from stack_builder.stack import receipt as receipts
from stack_builder.wheels.store import hash_file

DAYS = 7.0
"""How long what nobody needs is kept after its last use."""
_DAY = 86400.0
_RECEIPTS = "receipts"  # named by what they are made from, and read
SCRAP = Kind("unfinished", "what commands work on, or left when they were killed", "")


@dataclass(frozen=True, slots=True)
class Share:
    """What the cache holds of one kind.

    Attributes:
        kind: the kind.
        items: how many.
        size: in bytes on the disk.
        needed: how much of that somebody needs, in bytes.
        by: who: stacks by name, images by the beginning of their digests.
    """

    kind: Kind
    items: int
    size: int
    needed: int
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed of one kind, or would be.

    Attributes:
        kind: the kind.
        items: how many.
        size: what the disk gains, in bytes.
    """

    kind: Kind
    items: int
    size: int


def info() -> list[Share]:
    """Count what is in the cache, by kind; kinds of which there is nothing are left out."""
    cache = resources.cache()
    needs, found = collect(_since(DAYS)), list(content.items(cache))
    shares = []
    for kind in KINDS:
        own = [item for item in found if item.kind is kind]
        owners = [(item, needs.get((kind.name, item.key), set())) for item in own]
        needed = content.size(file for item, by in owners if by for file in item.files)
        size = content.size(file for item in own for file in item.files)
        shares.append(Share(kind, len(own), size, needed, tuple(sorted({name for _, by in owners for name in by}))))
    left = list(content.scraps(cache))
    shares.append(Share(SCRAP, len(left), content.size(file for path in left for file in content.files(path)), 0, ()))
    return [share for share in shares if share.items]


def verify(progress: Progress, *, repair: bool) -> Report:
    """Hash everything again that is named by its hash, and read every receipt; say what is neither.

    Args:
        progress: told of the bytes.
        repair: remove what is damaged; it is fetched or made anew when it is needed.
    """
    cache, findings = resources.cache(), []
    found = list(content.items(cache))
    hashed = [item for item in found if item.kind.hashed]
    with in_use(), progress.task("hashing", content.size(f for item in hashed for f in item.files)) as task:
        for item in found:
            for path, what in _damage(item):
                if repair:
                    path.unlink(missing_ok=True)
                findings.append(_finding(path.relative_to(cache), f"{what}{'; removed' if repair else ''}"))
            if item.kind.hashed:
                task.advance(content.size(item.files))
    total = content.size(file for item in hashed for file in item.files)
    facts = {"hashed": len(hashed), "bytes": total, "damaged": len(findings)}
    return Report(Target("cache", str(cache)), tuple(findings), _not_checked(found), facts)


def prune(*, days: float = DAYS, everything: bool = False, dry_run: bool = False) -> list[Pruned]:
    """Remove what nobody needs and nobody used lately, and what killed commands left.

    Args:
        days: how long what nobody needs is kept after its last use.
        everything: remove what is needed, too.
        dry_run: only say what would go.

    Raises:
        MachineError: another command uses the cache.
        OSError: something cannot be read that says what is needed; nothing was removed then.
    """
    cache = resources.cache()
    if not cache.is_dir():
        return []
    since = _since(days)
    with alone():
        needs = {} if everything else collect(since)
        gone = [
            i for i in content.items(cache) if everything or not (needs.get((i.kind.name, i.key)) or i.used > since)
        ]
        left = [path for path in content.scraps(cache) if everything or _abandoned(path, since)]
        pruned = [_pruned(kind, [item.files for item in gone if item.kind is kind]) for kind in KINDS]
        pruned.append(_pruned(SCRAP, [tuple(content.files(path)) for path in left]))
        if not dry_run:
            for path in (*(item.path for item in gone), *left):
                remove(path)
            _remove_empty(cache)
    return [each for each in pruned if each.items]


def _since(days: float) -> float:
    return time.time() - days * _DAY


def _pruned(kind: Kind, each: list[tuple[File, ...]]) -> Pruned:
    return Pruned(kind, len(each), content.freed(file for files in each for file in files))


def _damage(item: Item) -> Iterator[tuple[Path, str]]:
    """Name the files of an item that are not what they should be."""
    with suppress(FileNotFoundError):
        if item.kind.hashed:
            for file in item.files:
                if not file.path.name.startswith(".") and (got := hash_file(file.path)) != item.key:
                    yield file.path, f"its sha256 is {got}, its name says {item.key}"
        elif item.kind.name == _RECEIPTS:
            receipt = None
            with suppress(UsageError):
                receipt = receipts.load(item.path)
            if receipt is None:
                yield item.path, "it is no receipt"


def _not_checked(found: Iterable[Item]) -> tuple[Skipped, ...]:
    """Say what has no hash to be held against: what was made here from what has one."""
    counts = Counter(item.kind for item in found if not item.kind.hashed and item.kind.name != _RECEIPTS)
    if not counts:
        return ()
    kinds = ", ".join(f"{count} {kind.name} ({kind.meaning})" for kind, count in counts.items())
    return (Skipped("CACHE001", f"not named by their hash: {kinds}; cache prune --all removes them, too"),)


def _finding(path: Path, what: str) -> Finding:
    return catalogue.finding("CACHE001", object=str(path), detail=catalogue.sentence(what))


def _abandoned(path: Path, since: float) -> bool:
    """Whether nobody works on it; a download that was broken off recently will be gone on with."""
    try:
        if path.name == ".part" and path.stat().st_mtime > since:
            return False
        with unclaimed(path):
            return True
    except OSError:
        return False


def _remove_empty(cache: Path) -> None:
    """Remove folders that nothing is left in, deepest first."""
    folders = [
        path for kind in KINDS if kind.name != "base" for path in (cache / kind.name).rglob("*") if path.is_dir()
    ]
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            folder.rmdir()
