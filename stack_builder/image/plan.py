"""Which wheel goes into which layer, and who writes a path that several wheels ship."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from posixpath import dirname

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.image.contents import Contents, InstalledFile
from stack_builder.image.settings import MAX_LAYERS, LayerSettings
from stack_builder.image.subject import Subject
from stack_builder.stack.receipt import SAME_BYTES, DecisionRecord, WheelRecord


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer of wheels; ``title`` says what it holds."""

    title: str
    wheels: tuple[WheelRecord, ...]


def decide(
    wheels: Mapping[str, Contents], subject: Subject
) -> tuple[dict[str, frozenset[str]], tuple[DecisionRecord, ...]]:
    """Choose one wheel for every path that several ship.

    Args:
        wheels: contents by distribution name.
        subject: names the winners.

    Returns:
        for each distribution the paths it must not write, and the decisions taken.

    Raises:
        IntegrityError: different bytes at one path and no winner named; a file where another wheel needs a directory.
    """
    owners: defaultdict[str, list[tuple[str, InstalledFile]]] = defaultdict(list)
    for name in sorted(wheels):
        for file in wheels[name].files:
            owners[file.path].append((name, file))
    _refuse_file_as_directory(owners)
    dropped: defaultdict[str, set[str]] = defaultdict(set)
    counts: defaultdict[tuple[tuple[str, ...], str, str], int] = defaultdict(int)
    undecided: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for path, rivals in owners.items():
        if len(rivals) == 1:
            continue
        names = tuple(name for name, _ in rivals)
        if len({(file.hash, file.size) for _, file in rivals}) == 1:
            winner, reason = max(rivals, key=lambda rival: rival[1].mode)[0], SAME_BYTES
        elif rule := subject.rule_for(frozenset(names)):
            winner, reason = rule.winner, rule.reason
        else:
            undecided[names].append(path)
            continue
        counts[names, winner, reason] += 1
        for name in names:
            if name != winner:
                dropped[name].add(path)
    if undecided:
        _refuse_undecided(undecided, subject.gpu)
    decisions = tuple(DecisionRecord(names, winner, n, reason) for (names, winner, reason), n in sorted(counts.items()))
    return {name: frozenset(paths) for name, paths in dropped.items()}, decisions


def arrange(wheels: Sequence[WheelRecord], settings: LayerSettings, others: int) -> tuple[LayerPlan, ...]:
    """Distribute wheels over layers, lowest first.

    Args:
        wheels: all of them, in any order.
        settings: sizes and heights.
        others: layers that the image has besides these.

    Raises:
        UsageError: more layers than engines take.
    """
    heavy: list[WheelRecord] = []
    high: list[WheelRecord] = []
    middling: list[WheelRecord] = []
    small: list[WheelRecord] = []
    for wheel in sorted(wheels, key=lambda w: w.name):
        if _height(wheel.name, settings.high) < len(settings.high):
            high.append(wheel)
        elif wheel.size >= settings.own:
            heavy.append(wheel)
        else:
            (small if wheel.size < settings.small else middling).append(wheel)
    # Sorting is stable: what one pattern matches, and what none does, stays in the order of names.
    heavy.sort(key=lambda w: _height(w.name, settings.low))
    high.sort(key=lambda w: _height(w.name, settings.high))
    layers = [
        *map(_single, heavy),
        *_together("shared", middling, settings.shared),
        *map(_single, high),
        *_together("small", small, settings.small_shared),
    ]
    if len(layers) + others > MAX_LAYERS:
        raise UsageError(
            f"{len(layers) + others} layers, more than the {MAX_LAYERS} that engines take",
            where="docker/image.toml",
            fix="raise layers.own or lower layers.shared",
        )
    return tuple(layers)


def _height(name: str, patterns: Sequence[str]) -> int:
    """Position of the first pattern that matches, or the number of patterns."""
    return next((n for n, pattern in enumerate(patterns) if fnmatchcase(name, pattern)), len(patterns))


def _single(wheel: WheelRecord) -> LayerPlan:
    return LayerPlan(f"{wheel.name} {wheel.version}", (wheel,))


def _together(title: str, wheels: Sequence[WheelRecord], count: int) -> Iterator[LayerPlan]:
    """Spread wheels over at most ``count`` layers by the hash of their names, which no other wheel can move."""
    groups: defaultdict[int, list[WheelRecord]] = defaultdict(list)
    for wheel in wheels:
        digest = hashlib.sha256(wheel.name.encode()).digest()
        groups[int.from_bytes(digest[:4], "big") % count].append(wheel)
    for number, group in sorted(groups.items()):
        yield LayerPlan(f"{title} {number + 1}: {len(group)} wheel{'s' * (len(group) > 1)}", tuple(group))


def _refuse_file_as_directory(owners: Mapping[str, Sequence[tuple[str, InstalledFile]]]) -> None:
    folders: dict[str, str] = {}
    for path, rivals in owners.items():
        folder = dirname(path)
        while folder and folder not in folders:
            folders[folder] = rivals[0][0]
            folder = dirname(folder)
    for path in folders.keys() & owners.keys():
        raise IntegrityError(
            f"a file in {owners[path][0][0]} and a directory in {folders[path]}",
            where=f"/{path}",
            fix="pin another version of one of them",
        )


def _refuse_undecided(undecided: Mapping[tuple[str, ...], Sequence[str]], gpu: str) -> None:
    names, paths = next(iter(sorted(undecided.items())))
    more = f" and {len(paths) - 1} other paths" if len(paths) > 1 else ""
    others = f"; {len(undecided) - 1} other sets of wheels collide too" if len(undecided) > 1 else ""
    raise IntegrityError(
        f"{' and '.join(names)} ship different bytes at /{min(paths)}{more}{others}",
        where=gpu,
        fix="name the winner in stack.toml with [[winner]], its packages and the reason",
    )
