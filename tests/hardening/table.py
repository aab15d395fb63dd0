"""The table of ``docs/hardening.md``: rows that tests record, as Markdown and back.

The document is the table's only form: what it says is read from it again, so that a run of some tests can renew their
rows and keep the others, and so that a test can hold the committed rows against those of the run. It has a section for
each area of the product, and in it a table of its own for each test with many rows, which share its name and bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "hardening.md"

GROUPS = {
    "fetch": "every wheel in the store has its hash, the next fetch ends with the right bytes, no part is left.",
    "lock": "either file is the old one or the new one, two that do not belong together are refused, the next lock is whole.",
    "build": "every blob has the digest that it is named by, the next build gives the same image, nothing is left.",
    "patch": "the packages are as before or as after, to the byte, and the next run completes.",
    "history": "every bench that was logged before is still read, and the next one is logged.",
    "serve": "readiness is told once, rightly, and nothing is left running.",
    "cache": "only what nothing needs is removed, and what is damaged is named.",
    "wheels": "the wheel is refused, and no image is written.",
    "images": "the image is refused, and nothing outside the cache was written or removed.",
    "indexes": "nothing that the page says is believed, and no wheel is stored whose hash is not the lock's.",
    "registries": "no byte is kept that has not the digest asked for, and credentials go to the registry alone.",
    "documents": "the document is refused.",
    "models": "the model is refused, or judged by what can be read.",
    "logs": "the log is explained, and no control character reaches the terminal.",
    "servers": "the server's answer is refused or counted as an error.",
    "secrets": "no planted secret stands in anything that was printed or written.",
    "docker": "the image's ID in the engine is the digest of its configuration.",
}
"""Areas of the product, in order, and what *survived* means in each."""

_HEAD = """\
# Hardening

Faults and hostile input that the tests try, and what comes of them. The tests write this file, and compare it with
what they have seen:

    make hardening

*Tried* says how many cases a test ran: "all 214" stands for each of the 214 there are, a fault at every system call
that writes, for example; "20 of 214" for a sample. By default the tests try samples. A case counts as survived only
if no byte was lost or wrongly trusted. In what the user sees, DIR is a folder of the test, HOST a server, HASH a digest.
"""
_COLUMNS = ("fault or input", "tried", "survived", "exit", "the user sees", "bound that is asserted", "test")
_SUMMARY = ("area", "faults and inputs", "cases tried", "cases survived")
_SEPARATOR = re.compile(r"(?<!\\) \| ")
_MANY = 6  # rows of one test and bound: they get a table without these two columns
_SHARED = re.compile(r"(?P<bound>.*?)(?:, )?(?P<test>\[.*\]\(.*\)):")  # the line above such a table
_LINK = re.compile(r"\[(?P<function>\w+)\]\(\.\./tests/(?P<file>[\w/.]+)\)")


@dataclass(frozen=True, slots=True)
class Row:
    """One fault or input.

    Attributes:
        group: a key of :data:`GROUPS`.
        fault: what is done to the tool, or given to it.
        tried: how many cases were run.
        survived: how many of them ended as the group demands.
        cases: how many there are; None where ``tried`` does not depend on the option ``--exhaustive``.
        code: exit code of the command, None where none ran.
        shown: the line that the user sees; empty where nothing is said.
        bound: on time or memory, as the test asserts it.
        test: ``file::function`` below ``tests/``.
    """

    group: str
    fault: str
    tried: int
    survived: int
    cases: int | None
    code: int | None
    shown: str
    bound: str
    test: str

    @property
    def key(self) -> tuple[str, str]:
        """What tells rows apart."""
        return self.group, self.fault

    @property
    def lasting(self) -> Row:
        """The row without what differs between a sampled run and an exhaustive one."""
        return self if self.cases is None else replace(self, tried=0, survived=0, cases=0)


def merged(rows: Iterable[Row]) -> list[Row]:
    """Add up the rows of one key (a test with parameters records one each), in the order of the document.

    Raises:
        ValueError: two of them say different things.
    """
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        before = found.get(row.key)
        if before is None:
            found[row.key] = row
            continue
        total = replace(
            row,
            tried=before.tried + row.tried,
            survived=before.survived + row.survived,
            cases=None if row.cases is None else row.cases + (before.cases or 0),
        )
        if replace(before, tried=total.tried, survived=total.survived, cases=total.cases) != total:
            raise ValueError(f"one row, two meanings:\n{before}\n{row}")
        found[row.key] = total
    order = list(GROUPS)
    return sorted(found.values(), key=lambda row: (order.index(row.group), row.fault))


def renewed(old: Iterable[Row], fresh: Mapping[str, Iterable[Row]]) -> list[Row]:
    """Put the rows of the tests that ran in place of theirs; drop those of tests that are no more.

    Args:
        old: rows of the document.
        fresh: rows by test.
    """
    kept = [row for row in old if row.test not in fresh and exists(row)]
    return merged([*kept, *(row for rows in fresh.values() for row in rows)])


def render(rows: Iterable[Row]) -> str:
    """Give the document."""
    rows = merged(rows)
    groups = {group: [row for row in rows if row.group == group] for group in GROUPS}
    groups = {group: found for group, found in groups.items() if found}
    return "".join([_HEAD, "\n", *_summary(groups), *(part for group in groups.items() for part in _section(*group))])


def parse(document: str) -> list[Row]:
    """Read the rows of a document that :func:`render` gave."""
    rows, group, shared = [], "", None
    for line in document.splitlines():
        if line.startswith("## "):
            group, shared = line.removeprefix("## "), None
        elif match := _SHARED.fullmatch(line):
            shared = match["bound"], match["test"]
        elif group and line.startswith("| "):
            cells = [cell.replace("\\|", "|") for cell in _SEPARATOR.split(line.removeprefix("| ").removesuffix(" |"))]
            if cells[0] not in (_COLUMNS[0], "---"):
                rows.append(_row(group, [*cells, *(shared or ())]))
    return merged(rows)


def exists(row: Row) -> bool:
    """Whether the test of a row is still there."""
    name, _, function = row.test.partition("::")
    path = ROOT / "tests" / name
    return path.is_file() and f"def {function}(" in path.read_text(encoding="utf-8")


def _summary(groups: Mapping[str, list[Row]]) -> list[str]:
    def line(name: str, rows: list[Row]) -> str:
        return _joined((name, str(len(rows)), str(sum(r.tried for r in rows)), str(sum(r.survived for r in rows))))

    lines = [line(f"[{group}](#{group})", rows) for group, rows in groups.items()]
    return [*_header(_SUMMARY), *lines, line("in all", [row for rows in groups.values() for row in rows])]


def _section(group: str, rows: list[Row]) -> list[str]:
    """The rows of an area: those of tests that have few first, then a table for each of the others."""

    def key(row: Row) -> tuple[str, str]:
        return row.test, row.bound

    by_test = [list(found) for _, found in groupby(sorted(rows, key=key), key=key)]
    many = [found for found in by_test if len(found) >= _MANY]
    few = [row for row in rows if not any(row in found for found in many)]
    parts = [f"\n## {group}\n\nSurvived: {GROUPS[group]}\n"]
    if few:
        parts += ["\n", *_header(_COLUMNS), *(_joined(_cells(row)) for row in few)]
    for found in many:
        bound = f"{found[0].bound}, " if found[0].bound else ""
        parts += [f"\n{bound}{_link(found[0].test)}:\n\n", *_header(_COLUMNS[:-2])]
        parts += [_joined(_cells(row)[:-2]) for row in found]
    return parts


def _cells(row: Row) -> tuple[str, ...]:
    every = "all " if row.tried == row.cases else ""
    tried = f"{every}{row.tried}" if row.cases is None or every else f"{row.tried} of {row.cases}"
    code = "" if row.code is None else str(row.code)
    shown = f"`{row.shown}`" if row.shown else ""
    return row.fault, tried, str(row.survived), code, shown, row.bound, _link(row.test)


def _link(test: str) -> str:
    file, _, function = test.partition("::")
    return f"[{function}](../tests/{file})"


def _header(columns: Sequence[str]) -> list[str]:
    return [_joined(columns), _joined("---" for _ in columns)]


def _joined(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _row(group: str, cells: list[str]) -> Row:
    fault, tried, survived, code, shown, bound, test = cells
    count, _, cases = tried.removeprefix("all ").partition(" of ")
    link = _LINK.fullmatch(test)
    if link is None:
        raise ValueError(f"no test: {test}")
    return Row(
        group=group,
        fault=fault,
        tried=int(count),
        survived=int(survived),
        cases=int(cases or count) if cases or tried.startswith("all ") else None,
        code=int(code) if code else None,
        shown=shown.strip("`"),
        bound=bound,
        test=f"{link['file']}::{link['function']}",
    )
