"""When options came and went: ``checks/gates/options.toml``, recorded from the releases at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import Version

from stack_builder import resources
from stack_builder.sglang.options import OptionTable


@dataclass(frozen=True, slots=True)
class Life:
    """An option that not every recorded release has.

    Attributes:
        since: first recorded release that has it.
        until: last recorded release that has it; None where the newest has it.
        replacement: what to write instead, where known.
    """

    since: str
    until: str | None = None
    replacement: str | None = None


def path() -> Path:
    """Where the record stands."""
    return resources.checks() / "gates" / "options.toml"


@cache
def load() -> dict[str, Life]:
    """All options that came or went, by spelling."""
    return {name: Life(**entry) for name, entry in resources.table("gates", "options.toml").items()}


def derive(tables: Sequence[OptionTable]) -> dict[str, Life]:
    """Compare releases.

    Args:
        tables: at least two, in any order.

    Returns:
        options that are not in all of them, sorted by name.
    """
    ordered = sorted(tables, key=lambda table: Version(table.version))
    by_hand = resources.table("gates", "replaced.toml")  # replacements that no release names itself
    found: dict[str, Life] = {}
    for name in sorted({name for table in ordered for name in table.names}):
        having = [table for table in ordered if table.get(name) is not None]
        if len(having) == len(ordered):
            continue
        gone = having[-1] is not ordered[-1]
        found[name] = Life(
            having[0].version,
            having[-1].version if gone else None,
            _replacement(name, having) or by_hand.get(name) if gone else None,
        )
    return found


def _replacement(name: str, having: Sequence[OptionTable]) -> str | None:
    """What the last releases that deprecated the option said to use."""
    for table in reversed(having):
        option = table.get(name)
        if option is not None and option.replacement:
            return option.replacement
    return None
