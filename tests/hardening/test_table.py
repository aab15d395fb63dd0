"""The committed table is the one that the tests give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hardening import table
from tests.hardening.table import Row

ROW = Row("fetch", "a | b", 3, 3, 7, 3, "stackb: no", "1 s", "hardening/test_table.py::test_a_row_reads_back")


@pytest.mark.parametrize("row", [ROW, Row("build", "x", 1, 1, None, None, "", "", "t.py::t")])
def test_a_row_reads_back(row: Row) -> None:
    assert table.parse(table.render([row])) == [row]


@pytest.mark.parametrize("bound", ["", "10 s, 5 MiB"])
def test_a_test_with_many_rows_is_named_once(bound: str) -> None:
    rows = [replace(ROW, fault=str(number), bound=bound) for number in range(8)]
    text = table.render([ROW, *rows])
    assert text.count("test_a_row_reads_back") == 2
    assert table.parse(text) == [*rows, ROW]
    assert "| [fetch](#fetch) | 9 | 27 | 27 |\n| in all | 9 | 27 | 27 |\n" in text


def test_rows_of_one_fault_add_up_and_must_agree() -> None:
    assert [(row.tried, row.cases) for row in table.merged([ROW, ROW])] == [(6, 14)]
    other = table.parse(table.render([ROW]).replace("stackb: no", "stackb: yes"))
    with pytest.raises(ValueError, match="two meanings"):
        table.merged([ROW, *other])


def test_the_document_is_what_would_be_written() -> None:
    """Whether its rows are those of the tests, each file's fixtures look at (tests/hardening/plugin.py)."""
    document = table.DOCUMENT.read_text(encoding="utf-8")
    committed = table.parse(document)
    assert document == table.render(committed)
    assert [row.test for row in committed if not table.exists(row)] == []


def test_a_run_of_some_tests_keeps_the_rows_of_the_others() -> None:
    here = Row("cache", "x", 1, 1, None, None, "", "", "hardening/test_table.py::test_a_row_reads_back")
    again, other = replace(here, tried=2, survived=2), replace(ROW, test="test_cli.py::nobody")
    stays = replace(ROW, test="hardening/test_table.py::test_rows_of_one_fault_add_up_and_must_agree")
    assert table.renewed([here, stays, other], {here.test: [again]}) == [stays, again]
