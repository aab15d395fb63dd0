"""How tests record rows of ``docs/hardening.md``: the fixtures ``hardened`` and ``sample``, and two options."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.hardening import table
from tests.hardening.table import Row

Recorder = Callable[..., None]
Sample = Callable[[int, int], list[int]]

_PARTIAL = re.compile(r"\.[a-z0-9_]{8}\.part\b")
_SHA256 = re.compile(r"\b[0-9a-f]{64}\b")
_SHORT_HASH = re.compile(r"\b[0-9a-f]{8,12}…")
_PACKED = re.compile(r"\bfrom \d{4,} bytes\b")  # what zlib made of it
_LOOPBACK = re.compile(r"(?:127\.0\.0\.1|localhost):\d+")
_ROWS = pytest.StashKey[dict[str, list[Row]]]()  # by test function, of those that ran to their end
_SENT = "rows of the hardening table"
_SHORT = pytest.StashKey[set[str]]()  # test functions of which some case was skipped, failed or not chosen


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hardening")
    group.addoption("--exhaustive", action="store_true", help="try every fault, not a sample")
    group.addoption("--hardening-table", type=Path, metavar="PATH", help="renew the rows of the tests that run there")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS], config.stash[_SHORT] = {}, set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """When the table is written, keep to the tests that have rows in it: nobody needs to know their files."""
    if config.getoption("--hardening-table"):
        others = [item for item in items if "hardened" not in getattr(item, "fixturenames", ())]
        items[:] = [item for item in items if "hardened" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash[_SHORT].add(_name(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if not report.passed:
        item.config.stash[_SHORT].add(_name(item))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist, of whose rows another writes the table
        rows = {test: [asdict(row) for row in found] for test, found in session.config.stash[_ROWS].items()}
        session.config.workeroutput[_SENT] = json.dumps(rows)
        return
    path = session.config.getoption("--hardening-table")
    if path is None:
        return
    old = table.parse(path.read_text(encoding="utf-8")) if path.is_file() else []
    path.write_text(table.render(table.renewed(old, session.config.stash[_ROWS])), encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the rows of a process of pytest-xdist."""
    rows = node.config.stash[_ROWS]
    for test, found in json.loads(getattr(node, "workeroutput", {}).get(_SENT, "{}")).items():
        rows.setdefault(test, []).extend(Row(**row) for row in found)


@pytest.fixture(scope="module")
def held_to_the_document(request: pytest.FixtureRequest) -> Iterator[None]:
    """When the tests of a file have run: the same rows as in the document, to the word.

    Counts of samples may differ, others may not. Of a test of which not every case ran, nothing can be said.
    """
    yield
    config, file = request.config, _file(request.path)
    if config.getoption("--hardening-table") or any("[" in word for word in config.args):
        return
    committed = table.parse(table.DOCUMENT.read_text(encoding="utf-8"))
    renew = "run make hardening, or pytest --exhaustive --hardening-table docs/hardening.md with this file"
    for test, rows in config.stash[_ROWS].items():
        if test.partition("::")[0] == file and test not in config.stash[_SHORT]:
            seen = [row.lasting for row in table.merged(rows)]
            assert [row.lasting for row in committed if row.test == test] == seen, renew


@pytest.fixture
def hardened(request: pytest.FixtureRequest, tmp_path: Path, held_to_the_document: None) -> Recorder:
    """Record a row: ``hardened(group, fault, tried=, survived=, cases=, code=, shown=, bound=)``.

    See :class:`~tests.hardening.table.Row`. Rows of one test and fault add up. What was not survived fails the test.
    """
    rows, test = request.config.stash[_ROWS], _name(request.node)

    def record(
        group: str,
        fault: str,
        *,
        tried: int = 1,
        survived: int = 1,
        cases: int | None = None,
        code: int | None = None,
        shown: str = "",
        bound: str = "",
    ) -> None:
        assert group in table.GROUPS
        row = Row(group, fault, tried, survived, cases, code, _timeless(shown, tmp_path), bound, test)
        rows.setdefault(test, []).append(row)
        assert 0 < survived == tried

    return record


@pytest.fixture
def sample(request: pytest.FixtureRequest) -> Sample:
    """``sample(cases, count)``: numbers below ``cases``, the same each time; all of them with ``--exhaustive``."""

    def choose(cases: int, count: int) -> list[int]:
        if request.config.getoption("--exhaustive") or count >= cases:
            return list(range(cases))
        name = f"{request.path.relative_to(table.ROOT)}::{request.node.name}"  # pytest-xdist changes the node's ID
        return sorted(random.Random(name).sample(range(cases), count))

    return choose


def _name(item: pytest.Item) -> str:
    return f"{_file(item.path)}::{getattr(item, 'originalname', item.name)}"


def _file(path: Path) -> str:
    return str(path.relative_to(table.ROOT / "tests"))


def _timeless(line: str, folder: Path) -> str:
    """A line without what another run or machine would change, and without what would break the table."""
    line = line.strip().replace(str(folder), "DIR").replace("`", "'")
    line = _LOOPBACK.sub("HOST", _PARTIAL.sub(".part", _SHA256.sub("HASH", line)))
    line = _PACKED.sub("from N bytes", _SHORT_HASH.sub("HASH", line))
    assert line.isprintable(), "more than one line, or control characters"
    return line
